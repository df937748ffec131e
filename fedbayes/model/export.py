"""`fedbayes export`: the posterior-mean network for those who have neither fedbayes nor a need for uncertainty.

`network.safetensors` is a plain PyTorch state dict, `network.onnx` the same network with a softmax (x → probabilities),
or for a regression x → mean and sd. Both have class names, the order of columns and the scale in their metadata. Where
the features of a table were scaled, the ONNX file does so itself, and its numbers are in the target's own units; the
state dict has a regression's noise in its metadata, too.
Of a sparse model also the pruned network, as `pruned.onnx` and packed as `pruned.safetensors`: one bit per weight, and
the values of those that are on; `read_pruned` gives the state dict back.
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from safetensors.torch import save
from torch import Tensor, nn

from bayes_core.flat import around, state_dict_of
from bayes_core.networks import INPUT, ManyLabels, WithNoise
from bayes_core.predict.forecast import of_outputs
from bayes_core.predict.metrics import Tally, summarise, tally, tally_numbers
from bayes_core.predict.predictive import outputs
from bayes_core.predict.pruning import pack, prune, unpack
from client_app.store import read
from fedbayes.errors import ModelError
from fedbayes.model.inputs import labels
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.agreement import SEQUENCES, TOKENS, Agreement
from fedbayes.protocol.files import replace_file
from server_app.rows import NONE, wilson

FORMAT = "1"
AS_THEY_ARE = Agreement()
ONNX_PACKAGES = ("onnx", "onnxscript")
THRESHOLD = 0.5  # λ above which a weight stays


@dataclass(frozen=True)
class Network:
    """One exported network: its weights, how many are not 0, its bytes on disk, its accuracy or RMSE on test data."""

    name: str
    weights: int
    bytes: int
    score: float | None


def export(
    personal: PersonalModel,
    out: Path,
    test: tuple[Tensor, Tensor] | None = None,
    threshold: float = THRESHOLD,
) -> list[Network]:
    """Write the network, and the pruned one of a sparse model; `test` are examples in their own units.

    Without the packages that ONNX takes, the state dicts alone.
    """
    out.mkdir(parents=True, exist_ok=True)
    family, v = personal.family, personal.v
    weights = {"network": family.centre(v)}
    if family.gated:
        weights["pruned"] = prune(family, v, threshold)
    written = [_write(name, personal, theta, out, test) for name, theta in weights.items()]
    for name, theta in (
        weights.items() if has_onnx() else ()
    ):  # last: there are networks that ONNX cannot hold
        network = around(personal.network, theta, personal.buffers)
        write_onnx(
            network, personal.card.inputs, out / f"{name}.onnx", personal.card.agreement, tags_of(personal)
        )
    return written


def has_onnx() -> bool:
    """Whether torch's exporter has what it needs; a package that was hidden counts as missing."""
    try:
        return all(find_spec(name) is not None for name in ONNX_PACKAGES)
    except ValueError:
        return False


def export_files(
    personal: PersonalModel, out: Path, test: str | None, threshold: float, console: Console
) -> None:
    """Export a model and show what was written."""
    tested = None
    if test:
        examples = personal.read(test)
        tested = examples.x, labels(examples)
    table = Table(box=ROUNDED)
    for title in ("network", "weights that are not 0", "bytes"):
        table.add_column(title, justify="left" if title == "network" else "right")
    spread = " (95 % interval)" if personal.classes else ""
    table.add_column(_score_name(personal) + spread, justify="right", no_wrap=bool(tested))
    for one in export(personal, out, tested, threshold):
        score = NONE if one.score is None or tested is None else _shown(personal, one.score, len(tested[1]))
        table.add_row(f"{one.name}.safetensors", f"{one.weights:,}", f"{one.bytes:,}", score)
    console.print(table)
    onnx = (
        ", each as .onnx too."
        if has_onnx()
        else f". ONNX files take `pip install {' '.join(ONNX_PACKAGES)}`."
    )
    console.print(f"Written to {out}{onnx}", highlight=False, soft_wrap=True)


def _write(
    name: str, personal: PersonalModel, theta: Tensor, out: Path, test: tuple[Tensor, Tensor] | None
) -> Network:
    card, pruned = personal.card, name == "pruned"
    network = around(personal.network, theta, personal.buffers).eval()
    plain, tags = network, tags_of(personal)
    if isinstance(network, ManyLabels):
        plain = network.network
    if isinstance(network, WithNoise):
        plain = network.network
        if (
            network.by_input
        ):  # the second output r: the noise is exp(START + BOUND·tanh(r / BOUND)) times the scale
            tags |= {"noise": INPUT, "noise_start": str(network.START), "noise_bound": str(network.BOUND)}
        else:
            tags["noise"] = str(float(network.log_noise.detach().exp()) * card.agreement.target_scale[1])
    tensors = state_dict_of(plain)
    if pruned:
        named = plain.state_dict(keep_vars=True).items()
        learned = {key: tensors.pop(key) for key, value in named if getattr(value, "requires_grad", False)}
        tags |= {"shapes": json.dumps({key: tensor.shape for key, tensor in learned.items()})}
        tensors |= pack(learned)
    try:
        data = save(tensors, tags)
    except KeyError as error:  # complex numbers, in part or all, by its version
        raise ModelError(f"safetensors cannot hold the network's buffers of the type {error}.") from None
    replace_file(out / f"{name}.safetensors", data)
    score = None
    if test is not None:
        found = outputs(personal.network, theta, personal.inputs(test[0]), personal.buffers)
        score = summarise(_tally(personal, found, test[1]))[_score_name(personal).lower()]
    return Network(name, int((theta != 0).sum()), len(data), score)


def tags_of(personal: PersonalModel) -> dict[str, str]:
    """What every exported file says of itself: the network's outputs and inputs, in their order, and their scale.

    `agreement` has all of it, with how a table's columns become inputs; `classes` and `features` are there for readers.
    `temperature` and `conformal`, where the run made such, were fitted to the average over draws of the weights.
    """
    card, fitted = personal.card, {}
    if personal.temperature != 1:
        fitted["temperature"] = str(personal.temperature)
    if personal.conformal:
        fitted["conformal"] = json.dumps(personal.promised_in_units())
    return fitted | {
        "format": FORMAT,
        "model": card.model,
        "classes": json.dumps(card.classes),
        "features": json.dumps(card.agreement.features),
        "agreement": card.agreement.write(),
    }


def _shown(personal: PersonalModel, score: float, n: int) -> str:
    """An accuracy has its interval."""
    spread = " ({:.4f}–{:.4f})".format(*wilson(score, n)) if personal.classes else ""
    return f"{score:.4f}{spread}"


def _score_name(personal: PersonalModel) -> str:
    return "accuracy" if personal.classes else "RMSE"


def _tally(personal: PersonalModel, found: Tensor, y: Tensor) -> Tally:
    """Of the outputs of one network."""
    if personal.classes:
        return tally(found.softmax(-1), y.reshape(-1))
    return tally_numbers(of_outputs(found[None]).unscaled(*personal.card.agreement.target_scale), y)


class ForOthers(nn.Module):
    """A network that takes inputs as measured and gives probabilities, or mean and sd in the target's units."""

    def __init__(self, network: nn.Module, shape: tuple[int, ...], agreement: Agreement) -> None:
        super().__init__()
        self.network = network
        self.target_mean, self.target_deviation = agreement.target_scale
        ones = [1] * (len(shape) - 1)
        wide = (1, *ones, -1) if agreement.form == SEQUENCES else (1, -1, *ones)
        self.scales = bool(agreement.mean)
        self.centre = nn.Buffer(torch.tensor(agreement.mean).view(wide))
        self.width = nn.Buffer(torch.tensor(agreement.deviation).view(wide))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = (x - self.centre) / self.width if self.scales else x
        if isinstance(self.network, ManyLabels):
            there: Tensor = self.network.network(x)
            return there.sigmoid()
        found: Tensor = self.network(x)
        if not isinstance(self.network, WithNoise):
            return found.softmax(-1)
        mean, log_noise = found[:, 0], found[:, 1]
        return mean * self.target_deviation + self.target_mean, log_noise.exp() * self.target_deviation


def write_onnx(
    network: nn.Module,
    inputs: tuple[int, ...],
    file: Path,
    agreement: Agreement = AS_THEY_ARE,
    tags: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """The network for any number of examples at once, which are in their own units; `tags` become its metadata."""
    numbers = isinstance(network, WithNoise)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                ForOthers(network, inputs, agreement).eval(),
                (torch.zeros(2, *inputs, dtype=torch.int64 if agreement.form == TOKENS else torch.float32),),
                input_names=["x"],
                output_names=["mean", "sd"] if numbers else ["probabilities"],
                dynamic_shapes=({0: torch.export.Dim("examples")},),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # whatever torch's exporter raises for a user's own network
        reason = str(error).strip().split("\n")[0]
        raise ModelError(
            f"The network cannot be written as ONNX ({reason}); its state dict is beside {file.name}."
        ) from error
    assert program is not None
    program.model.metadata_props.update(tags)
    program.save(file)


def read_pruned(file: Path) -> dict[str, Tensor]:
    """The state dict in a `pruned.safetensors`."""
    tags, tensors = read(file)
    if tags.get("format") != FORMAT or "shapes" not in tags:
        raise ModelError(f"{file} is no pruned network of fedbayes.")
    return unpack(tensors, json.loads(tags["shapes"]))
