"""What leaves a site, name by name, and what a curious coordinator reads out of it (docs/security.md)."""

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message
from harness import Outcome
from inprocess import sites
from torch.func import functional_call

from bayes_core.flat import shapes_of, unflatten
from bayes_core.predict.histograms import SIGMA_BINS
from client_app import examples
from client_app.data import load
from fedbayes.protocol.models import build
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
HELLO = {
    "site",
    "n_train",
    "n_test",
    "input_shape",
    "classes",
    "claim",
    "fingerprint",
    "group",
    "partitions",
    "installed",
}
TOLD = {"pm_entropy", "gm_entropy", "pm_answers", "gm_answers"}
SPARSE = {"nonzero": {"pm", "gm"}, "counts": {*TOLD, "sigma", "lambda", "nonzero"}}
DENSE = {"counts": {*TOLD, "sigma"}}


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


def test_what_leaves_a_site_of_a_secure_sum(federate: Federate, tmp_path: Path) -> None:
    """Masked numbers, encrypted shares, names and lengths of figures; no figure, no array in the open."""
    seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))

    def look(number: int, message: Message, reply: Message) -> Message:
        for name, record in reply.content.items():
            seen[message.metadata.message_type][name] |= set(record)
        return reply

    grid = sites(tmp_path / "far", **{"share-labels": True})
    grid.interfere = look
    federate(grid=grid, secure_sum=True)
    measures = {"measures", "measures.layout", "shares", "check"}
    assert seen == {
        "query.hello": {"hello": HELLO | {"key", "proof"}},
        "train": {"masked": measures | {"upload", "report", "report.layout"}},
        "evaluate": {"masked": measures},
        "query.unmask": {"masked": {"shares"}},
    }
    for disk in tmp_path.glob("far/disk-*/run/site-*"):
        kept = {file.name: file.stat().st_mode & 0o077 for file in disk.iterdir()}
        assert set(kept) == {"personal.safetensors", "previous.safetensors", "secure.key", "secure.json"}
        assert kept["secure.key"] == kept["secure.json"] == 0, "for their owner alone"


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


def test_of_masked_uploads_it_learns_nothing(federate: Federate, tmp_path: Path) -> None:
    """The same attack on what leaves a site of a secure sum: half of the classes are right, as by chance.

    A guess of five classes of ten has k hits with the probability C(5, k)²/C(10, 5): 2.5 of them, with a variance of
    25/36. Two hundred guesses have 500, and four standard deviations are 47: by chance alone this test fails once in
    16 000 runs. In the open all 1000 are right.
    """
    settings, rounds = Settings.parse(defaults() | {"size": "10+10"}), 50
    truth = {number: set(load(settings, number, 4).y_train.tolist()) for number in range(4)}
    hits: list[int] = []

    def look(number: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            masked = torch.from_numpy(reply.content["masked"]["upload"].numpy().view("int32").copy())
            change = masked[: len(masked) // 2]  # of μ, which comes before ρ
            hits.append(len(truth[number] & set(change[-10:].topk(5).indices.tolist())))
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    same = {"size": "10+10", "rounds": rounds, "local_steps": 20, "batch_size": 50}
    federate(grid=grid, secure_sum=True, eval_every=100, **same)
    guesses = 4 * rounds
    assert len(hits) == guesses
    assert abs(sum(hits) - 2.5 * guesses) < 4 * math.sqrt(25 / 36 * guesses)


@pytest.mark.parametrize(("noise", "right"), [(0.5, 1.0), (2.68, 0.87)])
def test_which_classes_a_site_holds_is_no_secret_of_single_examples(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float, right: float
) -> None:
    """A like attack on uploads with example-level noise: classes are a property of many examples.

    One round of 20 steps with all 50 examples each, so that 2.68 is ε = 8. The coordinator asks both models about
    inputs of pure chance: which classes have become more probable? By guessing, half of the answers are right.
    """
    settings = Settings.parse(defaults() | {"size": "10+10", "rounds": 1})
    monkeypatch.setattr(examples, "NORMAL", np.random.default_rng(1).standard_normal)
    own = load(settings, 0, 10).x_train  # tells the range of inputs
    chance = torch.empty(500, *own.shape[1:]).uniform_(
        float(own.min()), float(own.max()), generator=torch.Generator().manual_seed(1)
    )
    network = build("dnn", tuple(own.shape[1:]), 10, 1)
    hits: dict[int, int] = {}

    def look(number: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            means = [torch.tensor(one.content["w"]["mu"].numpy()) for one in (message, reply)]
            weights = [unflatten(mean, shapes_of(network)) for mean in means]
            before, after = (
                functional_call(network, one, (chance,)).log_softmax(1).mean(0) for one in weights
            )
            guess = set((after - before).topk(5).indices.tolist())
            hits[number] = len(guess & set(load(settings, number, 10).y_train.tolist()))
        return reply

    grid = sites(tmp_path / "far", 10)
    grid.interfere = look
    federate(grid=grid, size="10+10", rounds=1, local_steps=20, batch_size=50, dp_example_noise=noise)
    assert sum(hits.values()) / 50 == pytest.approx(right, abs=0.1)
