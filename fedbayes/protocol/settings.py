"""Every setting of a run: those of all methods in one model, and a method's own in small models beside it.

The defaults are not here but in `[tool.flwr.app.config]` of pyproject.toml, the one place Flower and a
reader look for them. Keys are kebab-case (`local-steps`), attributes snake_case (`local_steps`).

Each half of a method declares, as `Options`, the further settings that it reads. A key that several methods share is
plain (`zeta`), one that a single method has may carry its name (`pfedme.penalty`). What ships has its defaults in
pyproject.toml; a method from elsewhere has them in its own models.
"""

import difflib
import re
import time
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fedbayes.protocol.objects import is_object

INPUT = "input"  # noise that the network tells, as bayes_core/networks.py calls it; torch takes a second to import
CONFIDENCE = re.compile(r"off|weight|0?\.\d+")
NAME = re.compile(r"[A-Za-z0-9._-]+")
RESERVED_RUN_NAMES = {".", "..", "state"}  # OUT/state holds the simulated clients' stores
SIZE = re.compile(r"small|medium|large|[1-9]\d*\+[1-9]\d*")
PACKAGE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")  # a method of someone else's: package.module
METHOD = re.compile(rf"[a-z][a-z0-9_]*|{PACKAGE.pattern}")
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")  # package.module:function
DATASET_NAME = re.compile(
    r"[a-z0-9]+"
)  # of a data set that the product knows; anything else is a path or function
DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?|mps")
KINDS_FORM = re.compile(r"|[^:,]+:(number|category|boolean|date)(,[^:,]+:(number|category|boolean|date))*")
CATEGORIES_FORM = re.compile(r"|[^:;]+:[^|;]+(\|[^|;]+)*(;[^:;]+:[^|;]+(\|[^|;]+)*)*")
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
    if value not in ("learned", INPUT) and not 0 < float(value) < float("inf"):
        raise ValueError("noise")
    return value


def takes(words: str, **bounds: Any) -> Any:
    """A field whose description says, in the words of an error message, what it takes."""
    return Field(description=words, **bounds)


def kebab(name: str) -> str:
    return name.replace("_", "-")


Count = Annotated[int, takes("a whole number of at least 1", ge=1, le=2**53)]
Natural = Annotated[int, takes("a whole number of at least 0", ge=0, le=2**53)]
Positive = Annotated[float, takes("a number above 0", gt=0, allow_inf_nan=False)]
FEW, LEAST_RATE = 250, 0.25  # lr-end=auto: 1 for few examples, a quarter for 1000 and more
FALLS = "falls"  # marks the learning rates that `lr-end` is about
Rate = Annotated[float, takes("a number above 0", gt=0, allow_inf_nan=False), FALLS]
NonNegative = Annotated[float, takes("a number of at least 0", ge=0, allow_inf_nan=False)]
Zeta = Annotated[
    Literal["auto"] | Annotated[float, Field(ge=0, allow_inf_nan=False)],
    takes("auto or a number of at least 0"),
]
Steps = Annotated[
    Literal["auto"] | Annotated[int, Field(ge=1, le=2**53)], takes("auto or a whole number of at least 1")
]
Share = Annotated[float, takes("a number from 0 (off) up to, but not, 1", ge=0, lt=1)]
Switch = Annotated[bool, takes("true or false")]
HeadName = Annotated[str, takes("the beginning of a parameter's name, or nothing for the last nn.Linear")]
Bayesian = Annotated[
    str, takes("all, head, or beginnings of parameters' names with commas between", min_length=1)
]
PlainWeights = Annotated[Literal["shared", "personal"], takes("shared or personal")]
FamilyName = Annotated[Literal["gaussian", "spike-slab"], takes("gaussian or spike-slab")]
RhoInit = Annotated[float, takes("a number between -20 and 20", ge=-20, le=20)]
LambdaInit = Annotated[float, takes("a number above 0 and at most 1", gt=0, le=1)]


Model = TypeVar("Model", bound=BaseModel)


def with_rates(settings: Model, share: float) -> Model:
    """The same with this share of each of its learning rates."""
    rates = [name for name, field in type(settings).model_fields.items() if FALLS in field.metadata]
    return settings.model_copy(update={name: share * getattr(settings, name) for name in rates})


class Options(BaseModel):
    """The settings that one half of a method reads beside those of all methods. Subclasses name them."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=kebab, populate_by_name=True)

    @classmethod
    def names(cls) -> list[str]:
        return [str(field.alias) for field in cls.model_fields.values()]

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """From all settings of a run; SettingsError names the key that does not fit."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise SettingsError(_sentence(error, cls)) from None

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Those given by their Python names; the others have their defaults."""
        aliases = {name: str(field.alias) for name, field in cls.model_fields.items()}
        if unknown := sorted(set(given) - set(aliases)):
            raise SettingsError(
                f"There is no option {unknown[0]!r}; there are {', '.join(aliases) or 'none'}."
            )
        return cls.parse(defaults() | {aliases[name]: value for name, value in given.items()})

    def as_config(self) -> dict[str, Any]:
        return self.model_dump(by_alias=True)


class Settings(BaseModel):
    """One run. See docs/settings.md for what each key does."""

    model_config = ConfigDict(extra="allow", frozen=True, alias_generator=kebab)

    method: Annotated[str, takes("the name of a method, such as pfedbayes or fedavg"), _matches(METHOD)]
    rounds: Count
    clients_per_round: Natural
    train_all: Switch
    min_clients: Count

    local_steps: Count
    batch_size: Count
    augment: Annotated[Literal["none", "flip-crop"], takes("none or flip-crop")]
    optimizer: Annotated[Literal["adam", "sgd"], takes("adam or sgd")]
    lr_global: Rate
    lr_end: Annotated[
        Literal["auto"] | Annotated[float, Field(gt=0, le=1)],
        takes("auto or a number above 0 and at most 1 (rates stay)"),
    ]
    adam_beta2: Annotated[float, takes("a number above 0 and below 1", gt=0, lt=1)]

    buffers: Annotated[Literal["shared", "local"], takes("shared or local")]
    wire: Annotated[Literal["float32", "bfloat16", "float16"], takes("float32, bfloat16 or float16")]
    aggregation_confidence: Annotated[
        str,
        BeforeValidator(lambda value: str(value) if type(value) is float else value),
        takes("off, weight, or the share of clients to leave out, such as 0.3"),
        _matches(CONFIDENCE),
    ]

    secure_sum: Switch

    dp_noise: NonNegative
    dp_clip: Positive
    dp_clip_rho: Positive
    dp_rows: Annotated[Literal["all", "mu"], takes("all or mu")]
    dp_delta: Annotated[float, takes("a number above 0 and below 1", gt=0, lt=1)]
    dp_epsilon: NonNegative
    dp_example_noise: NonNegative
    dp_example_clip: Positive
    dp_example_lr: Positive
    dp_example_batch: Natural
    dp_example_sampling: Annotated[Literal["passes", "poisson"], takes("passes or poisson")]
    dp_example_epsilon: NonNegative

    eval_every: Count
    eval_samples: Count
    validation_fraction: Annotated[float, takes("a number from 0 (off) up to, but not, 1", ge=0, lt=1)]
    patience: Natural
    temperature_scaling: Switch
    conformal: Annotated[
        float, takes("a probability from 0 (off) up to, but not, 1, such as 0.9", ge=0, lt=1)
    ]

    dataset: Annotated[
        str,
        takes(
            "the name of a data set, a path or package.module:function, as docs/data.md tells", min_length=1
        ),
    ]
    data_dir: Annotated[str, takes("a folder", min_length=1)]
    layout: Annotated[
        Literal["labels", "iid", "dirichlet", "rotated", "mixed"],
        takes("labels, iid, dirichlet, rotated or mixed"),
    ]
    groups: Annotated[int, takes("2 or 4 (3 is no multiple of 90°)", ge=2, le=4)]
    dirichlet_alpha: Positive
    size: Annotated[str, takes("small, medium, large, or counts per class such as 50+950"), _matches(SIZE)]
    noisy_clients: Natural
    task: Annotated[
        Literal["auto", "classification", "regression"], takes("auto, classification or regression")
    ]
    inputs: Annotated[Literal["auto", "tokens", "sequences"], takes("auto, tokens or sequences")]
    class_weights: Annotated[Literal["none", "balanced"], takes("none or balanced")]
    noise: Annotated[
        Literal["learned", "input"] | float,
        takes("learned, input, or a number above 0"),
        AfterValidator(_noise),
    ]
    classes: Annotated[str, takes("names of classes with commas between, or nothing")]
    target: Annotated[str, takes("the name of a column, or nothing for the last one")]
    ignore: Annotated[str, takes("names of columns with commas between, or nothing")]
    kinds: Annotated[
        str,
        takes(
            "columns with number, category, boolean or date, such as stage:category,visit:date, or nothing"
        ),
        _matches(KINDS_FORM),
    ]
    categories: Annotated[
        str,
        takes("columns with their words, such as sex:f|m;stage:I|II, or nothing"),
        _matches(CATEGORIES_FORM),
    ]
    na: Annotated[str, takes("words with commas between, or nothing")]
    rare: Count
    test_fraction: Annotated[float, takes("a number above 0 and below 1", gt=0, lt=1)]
    image_size: Annotated[int, takes("a whole number from 0 to 4096", ge=0, le=4096)]
    scale: Annotated[Literal["pooled", "site", "none"], takes("pooled, site or none")]
    model: Annotated[str, takes("dnn, mlp, vgg or package.module:function"), _matches(MODEL)]

    seed: Natural
    threads: Count
    device: Annotated[str, takes("auto, cpu, cuda, cuda:N or mps"), _matches(DEVICE)]
    gpu_share: Annotated[float, takes("a number from 0 to 1", ge=0, le=1)]
    precision: Annotated[Literal["float32", "bfloat16"], takes("float32 or bfloat16")]
    round_timeout: Positive
    straggler_cutoff: NonNegative
    wait_timeout: Positive
    run_name: Annotated[
        str, takes("letters, digits, '.', '_' and '-' (not '.', '..' or 'state')"), AfterValidator(_run_name)
    ]
    out_dir: Annotated[str, takes("a folder", min_length=1)]
    resume: Switch
    data_changed: Switch
    resume_with: Annotated[str, takes("the names of settings with commas between, or *")]

    @model_validator(mode="after")
    def _fit_together(self) -> "Settings":
        if self.temperature_scaling and not self.validation_fraction:
            raise ValueError(
                "temperature-scaling=true chooses on validation data and takes a validation-fraction "
                "above 0, such as 0.2."
            )
        if self.patience and not self.validation_fraction:
            raise ValueError(
                f"patience={self.patience} ends a run by its validation data and takes a validation-fraction above 0, "
                "such as 0.2."
            )
        if self.conformal and not self.validation_fraction:
            raise ValueError(
                f"conformal={self.conformal:g} measures its sets and intervals on validation data and takes a "
                "validation-fraction above 0, such as 0.2."
            )
        if self.dp_epsilon and not self.dp_noise:
            raise ValueError(
                f"dp-epsilon={self.dp_epsilon:g} is a budget for noise and takes a dp-noise above 0."
            )
        if self.dp_example_epsilon and not self.dp_example_noise:
            raise ValueError(
                f"dp-example-epsilon={self.dp_example_epsilon:g} is a budget for noise and takes a dp-example-noise "
                "above 0."
            )
        if self.inputs == "tokens" and not FUNCTION.fullmatch(self.model):
            raise ValueError(
                f"inputs=tokens is for a network of one's own that takes whole numbers, not for model={self.model}."
            )
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "Settings":
        """All keys at once, as Flower hands them over (defaults merged with a run's own).

        A method's own are kept as they come: its halves check them, each what it reads.
        """
        try:
            settings = cls.model_validate(dict(values))
        except ValidationError as error:
            raise SettingsError(_sentence(error, cls)) from None
        unknown = [] if settings.is_foreign else sorted(set(settings.model_extra or ()) - set(defaults()))
        if unknown:
            close = difflib.get_close_matches(unknown[0], list(defaults()), 1)
            hint = f'; did you mean "{close[0]}"?' if close else "; `fedbayes settings` lists them all."
            raise SettingsError(f'There is no setting "{unknown[0]}"{hint}')
        return settings

    @property
    def is_foreign(self) -> bool:
        """Whether the method comes from a package of its own."""
        return "." in self.method

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes that the run declares."""
        return tuple(name.strip() for name in self.classes.split(",") if name.strip())

    @property
    def noise_level(self) -> float | Literal["input"] | None:
        """The noise of a regression's targets in their own units; None: it is learned; input: for each example."""
        if self.noise == INPUT:
            return "input"
        return None if self.noise == "learned" else float(self.noise)

    def rate_share(self, server_round: int, n: int) -> float:
        """Of the learning rates of a client with n examples, what is left in this round.

        They fall in a line over the last quarter of the run, with `auto` where there are more than a few hundred: the
        noise of batches is all that keeps little data from following the prior.
        """
        end = max(LEAST_RATE, min(1.0, FEW / max(n, 1))) if self.lr_end == "auto" else self.lr_end
        late = max(0.0, 4 * server_round / self.rounds - 3)
        return 1 - (1 - end) * min(1.0, late)

    @property
    def dp_scales(self) -> tuple[float, float, float]:
        """In which units the change of each row (μ, ρ, λ) is clipped; 0: that row stays where it is."""
        others = self.dp_clip_rho if self.dp_rows == "all" else 0.0
        return self.dp_clip, others, others

    def require_fit(self, classes: Sequence[str]) -> None:
        """SettingsError where the run's targets are numbers and a setting is about classes."""
        if classes:
            return
        for key, used in (
            ("temperature-scaling", self.temperature_scaling),
            ("aggregation-confidence", self.aggregation_confidence != "off"),
            ("class-weights", self.class_weights != "none"),
        ):
            if used:
                raise SettingsError(
                    f"{key} is about the probabilities of classes, but the targets are numbers; leave it out."
                )

    def require_images(self, shape: Sequence[int]) -> None:
        """SettingsError where the run's inputs, of this shape, are no images and a setting is about images."""
        if self.augment != "none" and len(shape) != 3:
            raise SettingsError(
                f"augment={self.augment} changes images, but the inputs are no images; leave it out."
            )

    @property
    def user_code(self) -> list[str]:
        """The user's own functions and packages that this run calls."""
        functions = [name for name in (self.model, self.dataset) if FUNCTION.fullmatch(name)]
        return [*functions, self.method] if self.is_foreign else functions

    @property
    def objects(self) -> list[str]:
        """What was given as Python objects, which only this process and copies of it have."""
        return [name for name in (self.dataset, self.model) if is_object(name)]

    def made_name(self) -> str:
        """METHOD-DATASET-TIME, for a run without a name."""
        dataset = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(self.dataset).stem)
        return f"{self.method}-{dataset}-{time.strftime('%Y%m%d-%H%M%S')}"

    def as_config(self) -> dict[str, Any]:
        """The settings as Flower's run config: kebab-case keys, plain values."""
        return self.model_dump(by_alias=True)


def _sentence(error: ValidationError, model: type[BaseModel]) -> str:
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["ctx"]["error"])  # settings that do not fit together say so themselves
    key = str(first["loc"][0])
    if first["type"] == "missing":
        return f'The setting "{key}" is missing; the defaults are in pyproject.toml, [tool.flwr.app.config].'
    words = {field.alias: field.description for field in model.model_fields.values()}
    return f'The setting "{key}" takes {words.get(key) or "something else"}, not "{first["input"]}".'


def app_file() -> Path:
    """The app's pyproject.toml: beside this package in a checkout, inside it in a wheel."""
    here = Path(__file__).resolve().parents[1]
    packed = here / "pyproject.toml"
    return packed if packed.exists() else here.parent / "pyproject.toml"


def defaults() -> dict[str, Any]:
    """Every setting's default, read from the app's pyproject.toml."""
    return dict(_defaults(app_file()))


@cache
def _defaults(file: Path) -> dict[str, Any]:
    config = tomllib.loads(file.read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    return flattened(config)


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tables of a method's own settings with dots, as Flower hands them over: `pfedme.penalty`."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
