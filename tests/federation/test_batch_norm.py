"""Batch norm: the global model has statistics that belong to it, and what is exported scores what was measured."""

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from harness import SMALL, Outcome
from inprocess import InProcessGrid, sites
from safetensors.torch import load_file
from torch import nn

from bayes_core.flat import flat_statistics, named_statistics, statistics_of
from bayes_core.inference.plain import settled
from client_app.data import load
from client_app.site import forget
from fedbayes.model.adapt import adapt
from fedbayes.model.find import find_model
from fedbayes.model.finished import Finished
from fedbayes.protocol.settings import Settings, defaults
from strategies.rounds.state import State

Federate = Callable[..., Outcome]
WORDS = {"model": "normed:network", "size": "20+40", "rounds": 12, "local_steps": 10, "lr_global": 0.01}
METHODS = {"pfedbayes": {"lr_personal": 0.01, "zeta": 0.1}, "fedavg": {}, "fedprox": {}}


def network(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, classes)
    )


@pytest.fixture(autouse=True)
def own_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("normed")
    module.network = network  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "normed", module)
    forget()
    yield
    forget()


def accuracy_of_global(run: Outcome, word: str, clients: int = 4, **words: object) -> float:
    """Of what `fedbayes export RUN/global` writes, on all clients' test data."""
    model = find_model(word, run.folder.parent)
    plain = network((1, 8, 8), 10)
    plain.load_state_dict(model.state_dict())
    plain.eval()
    settings = Settings.parse(defaults() | SMALL | {"size": "20+40", "model": "dnn"} | words)
    parts = [load(settings, number, clients) for number in range(clients)]
    x, y = torch.cat([one.x_test for one in parts]), torch.cat([one.y_test for one in parts])
    return float((plain(x).argmax(1) == y).double().mean())


@pytest.mark.parametrize("method", METHODS)
def test_what_is_exported_scores_what_was_measured(federate: Federate, method: str) -> None:
    run = federate(method=method, layout="iid", **WORDS | METHODS[method])
    told = float(run.rows[-1]["gm_point_accuracy"])
    assert told > 0.6
    assert accuracy_of_global(run, "run/global", layout="iid") == pytest.approx(told, abs=0.005)


def test_local_statistics_never_leave_a_client(federate: Federate) -> None:
    sent: list[object] = []

    def watch(number: int, message: object, reply: object) -> object:
        sent.extend([*message.content, *reply.content])  # type: ignore[attr-defined]
        return reply

    run = federate(buffers="local", interfere=watch, **WORDS | {"rounds": 2})
    assert "w" in sent and "w.statistics" not in sent and "w.statistics" not in run.tensors
    shared = federate("shared", interfere=watch, **WORDS | {"rounds": 2})
    assert "w.statistics" in sent
    assert shared.rows[-1]["pm_accuracy"] and shared.tensors["w.statistics"].shape == (80,)
    assert int(shared.rows[1]["bytes_up"]) - int(run.rows[1]["bytes_up"]) == 4 * (80 * 4 + 128)


def test_the_mean_of_the_uploads_is_the_servers(federate: Federate) -> None:
    uploads: dict[int, torch.Tensor] = {}

    def watch(number: int, message: object, reply: object) -> object:
        if "w.statistics" in reply.content:  # type: ignore[attr-defined]
            uploads[number] = torch.tensor(reply.content["w.statistics"]["values"].numpy())  # type: ignore[attr-defined]
        return reply

    run = federate(interfere=watch, **WORDS | {"rounds": 3})
    assert len(uploads) == 4
    expected = torch.stack(list(uploads.values())).double().mean(0).float()
    torch.testing.assert_close(run.tensors["w.statistics"], expected)


def test_clusters_have_statistics_of_their_own(federate: Federate) -> None:
    words = WORDS | {"rounds": 3, "layout": "rotated", "clusters": 2, "lr_personal": 0.01, "zeta": 0.1}
    run = federate(method="cfedbayes", **words)
    tensors = run.tensors
    assert {"u0", "u1", "u0.statistics", "u1.statistics"} <= set(tensors)
    assert not torch.equal(tensors["u0.statistics"], tensors["u1.statistics"])
    assert 0 < accuracy_of_global(run, "run/global-0", layout="rotated") < 1


def test_it_resumes_to_the_digit(federate: Federate) -> None:
    whole = federate("whole", **WORDS | {"rounds": 4})
    federate("half", **WORDS | {"rounds": 2})
    again = federate("half", resume=True, **WORDS | {"rounds": 4})
    assert again.metrics[-1] == whole.metrics[-1]
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, again.tensors[name])


@pytest.mark.parametrize("what", ["missing", "short", "nan"])
def test_bad_statistics_are_dropped_and_named(federate: Federate, what: str) -> None:
    from fedbayes.protocol.codec import record_of

    def hostile(number: int, message: object, reply: object) -> object:
        if number == 2 and "w.statistics" in reply.content:  # type: ignore[attr-defined]
            values = {"short": torch.zeros(3), "nan": torch.full((80,), torch.nan)}
            if what == "missing":
                del reply.content["w.statistics"]  # type: ignore[attr-defined]
            else:
                reply.content["w.statistics"] = record_of({"values": values[what].numpy()})  # type: ignore[attr-defined]
        return reply

    run = federate(interfere=hostile, **WORDS | {"rounds": 2})
    assert run.rows[-1]["clients_failed"] == "1" and run.rows[-1]["clients_ok"] == "3"
    assert any("statistics" in said for said in run.said("warning"))


def test_a_newcomer_has_statistics_of_its_own_data(federate: Federate) -> None:
    run = federate(layout="iid", **WORDS | METHODS["pfedbayes"])
    finished = Finished.open(run.folder, {"rounds": 1, "local-steps": 1})
    data = load(Settings.parse(defaults() | SMALL | {"size": "20+40", "layout": "iid"}), 1, 4)
    x = ((data.x_train + 1) * 8).to(torch.uint8)
    *_, last = adapt(finished, x, data.y_train, "new")
    found = last.personal().predict(((data.x_test + 1) * 8).to(torch.uint8))
    assert float((found.labels == data.y_test).double().mean()) > 0.6


def test_real_sites_share_statistics_too(federate: Federate, tmp_path: Path) -> None:
    run = federate(grid=sites(tmp_path / "disks"), **WORDS | {"rounds": 2})
    assert "w.statistics" in run.tensors


def test_settled_statistics_are_those_of_the_data() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(3))
    x = torch.randn(300, 3) * torch.tensor([1.0, 2.0, 3.0]) + 5
    theta = torch.cat([torch.ones(3), torch.zeros(3)])
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
    found = settled(net, theta, buffers, x)
    torch.testing.assert_close(found["0.running_mean"], x.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found["0.running_var"], x.var(0), rtol=0.05, atol=0.05)
    assert net[0].momentum == 0.1 and int(found["0.num_batches_tracked"]) == 0
    assert torch.equal(buffers["0.running_mean"], torch.zeros(3)), "its inputs are not changed"


def test_only_finite_real_buffers_are_statistics() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2))
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    net.register_buffer("turn", torch.ones(2, dtype=torch.complex64))
    shapes = statistics_of(net)
    assert list(shapes) == ["0.running_mean", "0.running_var"]
    flat = flat_statistics(dict(net.named_buffers()), shapes)
    assert flat.tolist() == [0, 0, 1, 1]
    assert named_statistics(flat, shapes)["0.running_var"].tolist() == [1, 1]


def test_a_state_keeps_them_apart() -> None:
    tensors = {"w": torch.zeros(1, 2), "kept/v": torch.zeros(1), "w.statistics": torch.ones(4)}
    state = State.of(tensors, {})
    assert set(state.sent) == {"w"} and set(state.kept) == {"v"} and set(state.statistics) == {"w"}


def test_networks_without_them_send_nothing_more(federate: Federate) -> None:
    run = federate(grid=InProcessGrid({}, 3), rounds=1)
    assert set(run.tensors) == {"w"}


def test_runs_that_take_turns_in_one_process_share_nothing(federate: Federate, tmp_path: Path) -> None:
    """As at a site with a GPU, whose process takes the next message of any run; here all sites are in one.

    Others begin and end between two messages of a round: of the same settings under another name, of another method and
    seed. The network with its statistics, which the process keeps, is theirs in turn.
    """
    words = WORDS | {"size": "5+5", "rounds": 3, "eval_every": 1} | METHODS["pfedbayes"]
    others = {"same": {}, "other": {"seed": 7, "zeta": 3.0}, "plain": {"method": "fedavg", "seed": 7}}

    def run(name: str, grid: InProcessGrid) -> Outcome:
        return federate(name, grid=grid, **words | others.get(name.partition("-")[0], {}))

    alone = {}
    for name in ("one", *others):
        forget()
        alone[name] = run(f"{name}-alone", sites(tmp_path / "alone", 3))
    forget()
    together = {}
    grid = sites(tmp_path / "together", 3)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.config_records.get("exchange")
        for name, at in zip(others, (1, 2, 3), strict=True):
            if number == 1 and exchange and exchange["round"] == at and name not in together:
                together[name] = run(name, sites(tmp_path / "together", 3))
        return reply

    grid.interfere = interfere
    together["one"] = run("one", grid)
    for name, outcome in together.items():
        assert outcome.metrics == alone[name].metrics
        for tensor, expected in zip(outcome.tensors.values(), alone[name].tensors.values(), strict=True):
            assert (tensor == expected).all()
    for number in range(3):
        kept = {
            name: load_file(
                tmp_path / "together" / f"disk-{number}" / name / f"site-{number}" / "personal.safetensors"
            )
            for name in together
        }
        for name, tensors in kept.items():
            folder = tmp_path / "alone" / f"disk-{number}" / f"{name}-alone" / f"site-{number}"
            expected = load_file(folder / "personal.safetensors")
            assert tensors.keys() == expected.keys()
            assert all((tensors[key] == expected[key]).all() for key in tensors)
