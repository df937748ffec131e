"""`fedbayes export`: the posterior-mean network for those who have neither fedbayes nor a need for uncertainty.

`network.safetensors` is a plain PyTorch state dict, `network.onnx` the same network with a softmax (x → probabilities).
Of a sparse model also the pruned network, as `pruned.onnx` and packed as `pruned.safetensors`: one bit a weight, and
the values of those that are on; `read_pruned` gives the state dict back.
"""

import copy
import json
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from safetensors.torch import save
from torch import Tensor, nn

from bayes_core.families import SpikeSlab
from bayes_core.flat import shapes_of, unflatten
from bayes_core.metrics import summarise, tally
from bayes_core.predict import outputs
from bayes_core.pruning import pack, prune, unpack
from client_app.store import read
from fedbayes.errors import CommandError, ModelError
from fedbayes.inputs import labels
from fedbayes.personal import Personal
from server_app.rows import NONE
from server_app.runs import replace_file

FORMAT = "1"
THRESHOLD = 0.5  # λ above which a weight stays


@dataclass(frozen=True)
class Network:
    """One exported network: its weights, how many are not 0, its bytes on disk, its accuracy on test examples."""

    name: str
    weights: int
    bytes: int
    accuracy: float | None


def export(
    personal: Personal, out: Path, test: tuple[Tensor, Tensor] | None = None, threshold: float = THRESHOLD
) -> list[Network]:
    """Write the network, and the pruned one of a sparse model; `test` are examples as the network takes them."""
    if find_spec("onnxscript") is None:
        raise CommandError("ONNX takes further packages; install them with `pip install fedbayes[export]`.")
    out.mkdir(parents=True, exist_ok=True)
    family, v = personal.family, personal.v
    written = [_write("network", personal, family.centre(v), out, test)]
    if isinstance(family, SpikeSlab) and family.gated:
        written.append(_write("pruned", personal, prune(family, v, threshold), out, test))
    return written


def export_files(model: Path, out: Path, test: str | None, threshold: float, console: Console) -> None:
    """Export a model and show what was written."""
    personal, tested = Personal.load(model), None
    if test:
        examples = personal.read(test)
        tested = personal.inputs(examples.x), labels(examples)
    table = Table(box=ROUNDED)
    for title in ("network", "weights that are not 0", "bytes", "accuracy"):
        table.add_column(title, justify="left" if title == "network" else "right")
    for one in export(personal, out, tested, threshold):
        accuracy = NONE if one.accuracy is None else f"{one.accuracy:.4f}"
        table.add_row(f"{one.name}.safetensors", f"{one.weights:,}", f"{one.bytes:,}", accuracy)
    console.print(table)
    console.print(f"Written to {out}, each as .onnx too.", highlight=False, soft_wrap=True)


def _write(
    name: str, personal: Personal, theta: Tensor, out: Path, test: tuple[Tensor, Tensor] | None
) -> Network:
    shapes, card = shapes_of(personal.network), personal.card
    weights = {key: tensor.clone() for key, tensor in unflatten(theta, shapes).items()}
    pruned = name == "pruned"
    tags = {"format": FORMAT, "classes": json.dumps(card.classes), "model": card.model}
    tags |= {"shapes": json.dumps(shapes)} if pruned else {}
    data = save((pack(weights) if pruned else weights) | personal.buffers, tags)
    replace_file(out / f"{name}.safetensors", data)
    write_onnx(personal.network, weights | personal.buffers, card.inputs, out / f"{name}.onnx")
    accuracy = None
    if test is not None:
        logits = outputs(personal.network, theta, test[0], personal.buffers)
        accuracy = summarise(tally(logits.softmax(-1), test[1]))["accuracy"]
    return Network(name, int((theta != 0).sum()), len(data), accuracy)


def write_onnx(network: nn.Module, state: dict[str, Tensor], inputs: tuple[int, ...], file: Path) -> None:
    """The network with these weights and a softmax; any number of examples at once."""
    network = copy.deepcopy(network).eval()
    network.load_state_dict(state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                nn.Sequential(network, nn.Softmax(-1)).eval(),
                (torch.zeros(2, *inputs),),
                input_names=["x"],
                output_names=["probabilities"],
                dynamic_shapes=({0: torch.export.Dim("examples")},),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # whatever torch's exporter raises for a user's own network
        reason = str(error).strip().split("\n")[0]
        raise ModelError(f"The network cannot be written as ONNX ({reason}).") from error
    assert program is not None
    program.save(file)


def read_pruned(file: Path) -> dict[str, Tensor]:
    """The state dict in a `pruned.safetensors`."""
    tags, tensors = read(file)
    if tags.get("format") != FORMAT or "shapes" not in tags:
        raise ModelError(f"{file} is no pruned network of fedbayes.")
    return unpack(tensors, json.loads(tags["shapes"]))
