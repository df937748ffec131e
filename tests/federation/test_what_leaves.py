"""What leaves a site, name by name, and what a curious coordinator reads out of it (docs/security.md)."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, Message
from harness import Outcome
from inprocess import sites

from bayes_core.predict.histograms import SIGMA_BINS
from client_app.data import load
from fedbayes.protocol.settings import Settings, defaults

Federate = Callable[..., Outcome]
TALLY = {
    "n",
    "correct",
    "nll",
    "brier",
    "entropy",
    "mutual_information",
    "bin_n",
    "bin_correct",
    "bin_confidence",
}
MODELS = dict.fromkeys(("pm", "gm", "pm_point", "gm_point"), TALLY)
HELLO = {"site", "n_train", "n_test", "input_shape", "classes", "claim", "fingerprint", "group", "partitions"}
SPARSE = {"nonzero": {"pm", "gm"}, "counts": {"pm_entropy", "gm_entropy", "sigma", "lambda", "nonzero"}}
DENSE = {"counts": {"pm_entropy", "gm_entropy", "sigma"}}


@pytest.mark.parametrize(
    ("method", "upload", "report", "measures"),
    [
        ("pfedbayes", {"mu", "rho"}, {"loss"}, DENSE),
        ("sfedbayes", {"mu", "rho", "lambda"}, {"loss"}, SPARSE),
        ("cfedbayes", {"mu", "rho"}, {"loss", "cluster"}, DENSE),
    ],
)
def test_what_leaves_a_site(
    federate: Federate,
    tmp_path: Path,
    method: str,
    upload: set[str],
    report: set[str],
    measures: dict[str, set[str]],
) -> None:
    """The distribution w_i that all sites share in making, tallies over the test data, and nothing else."""
    seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    largest = 0

    def look(number: int, message: Message, reply: Message) -> Message:
        nonlocal largest
        for name, record in reply.content.items():
            seen[message.metadata.message_type][name] |= set(record)
            if not isinstance(record, ArrayRecord):
                values = [value for value in record.values() if isinstance(value, list)]
                largest = max(largest, *(len(value) for value in values), 0)
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    federate(method, grid=grid, method=method)
    assert seen == {
        "query.hello": {"hello": HELLO},
        "train": {"w": upload, "report": report} | MODELS | measures,
        "evaluate": MODELS | measures,
    }
    assert largest == SIGMA_BINS, "counts in bins, no list with an entry an example or a weight"


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
@pytest.mark.parametrize("head", ["", "1"])
def test_heads_never_leave(federate: Federate, tmp_path: Path, method: str, head: str) -> None:
    """In neither direction: of 64·100 + 100 + 100·10 + 10 weights the body alone, and of it no measures."""
    body, seen = {"": 6500, "1": 1010}[head], defaultdict(set)

    def look(number: int, message: Message, reply: Message) -> Message:
        for way, content in (("down", message.content), ("up", reply.content)):
            for name, record in content.array_records.items():
                seen[f"{way} {name}"] |= {(row, array.numpy().shape) for row, array in record.items()}
        names = set(reply.content) - {"w", "report", "hello"}
        assert names <= {"pm", "pm_point", "counts"} and set(reply.content.get("report", {})) <= {"loss"}
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    run = federate(method=method, head=head, grid=grid, rounds=2, model="dnn")
    expected = {("theta", (body,))}
    assert dict(seen) == {"down w": expected, "up w": expected}
    assert {name: tuple(tensor.shape) for name, tensor in run.tensors.items()} == {"w": (1, body)}


def test_what_leaves_a_site_of_its_validation_data(federate: Federate, tmp_path: Path) -> None:
    seen: dict[str, set[str]] = defaultdict(set)

    def look(number: int, message: Message, reply: Message) -> Message:
        for name, record in reply.content.items():
            seen[name] |= set(record)
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    federate(grid=grid, validation_fraction=0.25)
    measures = MODELS | {"pm_val": TALLY, "gm_val": TALLY} | DENSE
    assert seen == {"hello": HELLO | {"n_validation"}, "w": {"mu", "rho"}, "report": {"loss"}} | measures


def test_a_curious_coordinator_learns_which_classes_a_site_holds(federate: Federate, tmp_path: Path) -> None:
    """An upload speaks of the data it was trained on: the biases of the last layer give the classes away."""
    settings = Settings.parse(defaults() | {"size": "10+10", "rounds": 1})
    guesses: dict[int, set[int]] = {}

    def look(number: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            before, after = (torch.from_numpy(one.content["w"]["mu"].numpy()) for one in (message, reply))
            guesses[number] = set((after - before)[-10:].topk(5).indices.tolist())
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    federate(grid=grid, size="10+10", rounds=1, local_steps=20, batch_size=50)
    assert guesses == {number: set(load(settings, number, 4).y_train.tolist()) for number in range(4)}
