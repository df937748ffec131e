"""Every setting of a run, validated once, on both sides, by one model.

The defaults are not here but in `[tool.flwr.app.config]` of pyproject.toml, the one place Flower and a
reader look for them. Keys are kebab-case (`local-steps`), attributes snake_case (`local_steps`).
"""

import difflib
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

CONFIDENCE = re.compile(r"off|weight|0?\.\d+")
NAME = re.compile(r"[A-Za-z0-9._-]+")
RESERVED_RUN_NAMES = {".", "..", "state"}  # OUT/state holds the simulated clients' stores
SIZE = re.compile(r"small|medium|large|[1-9]\d*\+[1-9]\d*")
METHOD = re.compile(r"[a-z][a-z0-9_]*")
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # package.module:function
DATASET_NAME = re.compile(
    r"[a-z0-9]+"
)  # of a data set that the product knows; anything else is a path or function
MODEL = re.compile(rf"dnn|mlp|vgg|{FUNCTION.pattern}")


class SettingsError(ValueError):
    """A setting that cannot be used; its text is one sentence for the user."""


def _matches(pattern: re.Pattern[str]) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError("pattern")
        return value

    return AfterValidator(check)


def _run_name(value: str) -> str:
    if len(value) > 100 or (value and (not NAME.fullmatch(value) or value in RESERVED_RUN_NAMES)):
        raise ValueError("name")
    return value


def _noise(value: str | float) -> str | float:
    if value != "learned" and not 0 < float(value) < float("inf"):
        raise ValueError("noise")
    return value


def _takes(takes: str, **bounds: Any) -> Any:
    """A field whose description says, in the words of an error message, what it takes."""
    return Field(description=takes, **bounds)


Count = Annotated[int, _takes("a whole number of at least 1", ge=1, le=2**53)]
Natural = Annotated[int, _takes("a whole number of at least 0", ge=0, le=2**53)]
Positive = Annotated[float, _takes("a number above 0", gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, _takes("a number of at least 0", ge=0, allow_inf_nan=False)]
Switch = Annotated[bool, _takes("true or false")]


class Settings(BaseModel):
    """One run. See docs/settings.md for what each key does."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-")
    )

    method: Annotated[str, _takes("the name of a method, such as pfedbayes or fedavg"), _matches(METHOD)]
    family: Annotated[
        Literal["gaussian", "spike-slab"], _takes("gaussian or spike-slab (for methods that leave it open)")
    ]
    rounds: Count
    clients_per_round: Natural
    train_all: Switch
    min_clients: Count

    local_steps: Count
    personal_steps: Count
    batch_size: Count
    mc_samples: Count
    zeta: NonNegative
    optimizer: Annotated[Literal["adam", "sgd"], _takes("adam or sgd")]
    lr_personal: Positive
    lr_global: Positive
    lr_lambda: Positive
    adam_beta2: Annotated[float, _takes("a number above 0 and below 1", gt=0, lt=1)]
    compile: Annotated[Literal["auto"] | bool, _takes("auto, true or false")]
    rho_init: Annotated[float, _takes("a number between -20 and 20", ge=-20, le=20)]
    lambda_init: Annotated[float, _takes("a number above 0 and at most 1", gt=0, le=1)]
    temperature: Positive
    sparsity_target: Annotated[float, _takes("a number from 0 (off) up to, but not, 1", ge=0, lt=1)]
    personal_init: Annotated[Literal["keep", "reset"], _takes("keep or reset")]
    proximal: NonNegative

    clusters: Natural
    beta: NonNegative
    aggregation: Annotated[Literal["mean", "moments"], _takes("mean or moments")]
    weighting: Annotated[Literal["uniform", "examples"], _takes("uniform or examples")]

    wire: Annotated[Literal["float32", "bfloat16", "float16"], _takes("float32, bfloat16 or float16")]
    aggregation_confidence: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if type(value) is float else value),
        _takes("off, weight, or the share of clients to leave out, such as 0.3"),
        _matches(CONFIDENCE),
    ]

    eval_every: Count
    eval_samples: Count
    validation_fraction: Annotated[float, _takes("a number from 0 (off) up to, but not, 1", ge=0, lt=1)]
    temperature_scaling: Switch

    dataset: Annotated[
        str,
        _takes(
            "the name of a data set, a path or package.module:function, as docs/data.md tells", min_length=1
        ),
    ]
    data_dir: Annotated[str, _takes("a folder", min_length=1)]
    layout: Annotated[
        Literal["labels", "iid", "dirichlet", "rotated", "mixed"],
        _takes("labels, iid, dirichlet, rotated or mixed"),
    ]
    groups: Annotated[int, _takes("2 or 4 (3 is no multiple of 90°)", ge=2, le=4)]
    dirichlet_alpha: Positive
    size: Annotated[str, _takes("small, medium, large, or counts per class such as 50+950"), _matches(SIZE)]
    noisy_clients: Natural
    task: Annotated[
        Literal["auto", "classification", "regression"], _takes("auto, classification or regression")
    ]
    noise: Annotated[
        Literal["learned"] | float, _takes("learned, or a number above 0"), AfterValidator(_noise)
    ]
    classes: Annotated[str, _takes("names of classes with commas between, or nothing")]
    target: Annotated[str, _takes("the name of a column, or nothing for the last one")]
    test_fraction: Annotated[float, _takes("a number above 0 and below 1", gt=0, lt=1)]
    image_size: Annotated[int, _takes("a whole number from 0 to 4096", ge=0, le=4096)]
    scale: Annotated[Literal["pooled", "site", "none"], _takes("pooled, site or none")]
    model: Annotated[str, _takes("dnn, mlp, vgg or package.module:function"), _matches(MODEL)]

    seed: Natural
    threads: Count
    device: Annotated[str, _takes("auto, cpu, cuda, cuda:N or mps", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")]
    round_timeout: Positive
    wait_timeout: Positive
    run_name: Annotated[
        str, _takes("letters, digits, '.', '_' and '-' (not '.', '..' or 'state')"), AfterValidator(_run_name)
    ]
    out_dir: Annotated[str, _takes("a folder", min_length=1)]
    resume: Switch
    resume_with: Annotated[str, _takes("the names of settings with commas between, or *")]

    @model_validator(mode="after")
    def _fit_together(self) -> "Settings":
        if self.temperature_scaling and not self.validation_fraction:
            raise ValueError(
                "temperature-scaling=true chooses on validation data and takes a validation-fraction "
                "above 0, such as 0.2."
            )
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "Settings":
        """All keys at once, as Flower hands them over (defaults merged with a run's own)."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise SettingsError(_sentence(error)) from None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that the run declares."""
        return tuple(name.strip() for name in self.classes.split(",") if name.strip())

    @property
    def noise_level(self) -> float | None:
        """The noise of a regression's targets in their own units; None: it is learned."""
        return None if self.noise == "learned" else float(self.noise)

    def require_fit(self, classes: Sequence[str]) -> None:
        """SettingsError where the run's targets are numbers and a setting is about classes."""
        if classes:
            return
        for key, used in (
            ("temperature-scaling", self.temperature_scaling),
            ("aggregation-confidence", self.aggregation_confidence != "off"),
        ):
            if used:
                raise SettingsError(
                    f"{key} is about the probabilities of classes, but the targets are numbers; leave it out."
                )

    @property
    def own_functions(self) -> list[str]:
        """The user's own functions that this run calls."""
        return [name for name in (self.model, self.dataset) if FUNCTION.fullmatch(name)]

    def made_name(self) -> str:
        """METHOD-DATASET-TIME, for a run without a name."""
        dataset = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.dataset).stem)
        return f"{self.method}-{dataset}-{time.strftime('%Y%m%d-%H%M%S')}"

    def as_config(self) -> dict[str, Any]:
        """The settings as Flower's run config: kebab-case keys, plain values."""
        return self.model_dump(by_alias=True)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["ctx"]["error"])  # settings that do not fit together say so themselves
    key = str(first["loc"][0])
    fields = {field.alias: field for field in Settings.model_fields.values()}
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(key, [name for name in fields if name], 1)
        hint = f'; did you mean "{close[0]}"?' if close else "; docs/settings.md lists them all."
        return f'There is no setting "{key}"{hint}'
    if first["type"] == "missing":
        return f'The setting "{key}" is missing; the defaults are in pyproject.toml, [tool.flwr.app.config].'
    return f'The setting "{key}" takes {fields[key].description}, not "{first["input"]}".'


def app_file() -> Path:
    """The app's pyproject.toml: beside this package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    packed = here / "pyproject.toml"
    return packed if packed.exists() else here.parent / "pyproject.toml"


def defaults() -> dict[str, Any]:
    """Every setting's default, read from the app's pyproject.toml."""
    config: dict[str, Any] = tomllib.loads(app_file().read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    return config
