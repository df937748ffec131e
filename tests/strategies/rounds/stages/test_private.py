"""A private sum: what one client can move, the noise on it, and the runs that cannot have one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import strategies
from bayes_core import Gaussian
from fedbayes.launch.methods import checked
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.rounds.roster import StrategyError
from strategies.rounds.stages import Arrival, private, stages_of
from strategies.rounds.stages.private import Private
from strategies.rounds.state import Part, State, Upload

BASE = torch.tensor([[0.1, -0.2, 0.3], [-2.5, -2.5, -2.5]])


def settings(**words: object) -> Settings:
    given = {key.replace("_", "-"): value for key, value in words.items()}
    return Settings.parse(defaults() | {"dp-noise": 1.0} | given)


def at_the_server(one: Settings) -> list[str]:
    found = strategies.load(one.method)
    return [stage.name for stage in stages_of(one, found(found.reads.parse(one.as_config())))]


def stage(**words: object) -> Private:
    one = Private(settings(**words), Gaussian())
    one.open(1, 4)
    return one


def clipped(one: Private, upload: torch.Tensor) -> torch.Tensor:
    arrival = Arrival(Upload("a", 10, {}), {"w": Part("w", BASE)}, {"w": upload})
    (gone,) = one.arrive(arrival)
    return gone.tensors["w"]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "NORMAL", np.zeros)


@pytest.mark.usefixtures("silent")
def test_without_noise_it_is_the_mean_of_small_changes() -> None:
    one = stage(dp_clip=100, dp_clip_rho=100)
    total = one.sum_for(BASE)
    for change in (0.1, -0.2, 0.3, 0.4):
        total.add(clipped(one, BASE + change))
    assert torch.allclose(total.result(), BASE + 0.15)


@pytest.mark.usefixtures("silent")
def test_one_client_moves_the_sum_by_the_clip_at_most_whatever_it_sends() -> None:
    one = stage(dp_clip=0.5, dp_clip_rho=0.1)
    honest = [BASE + 0.001 * torch.randn(BASE.shape) for _ in range(3)]

    def result(uploads: list[torch.Tensor]) -> torch.Tensor:
        total = one.sum_for(BASE)
        for upload in uploads:
            total.add(clipped(one, upload))
        return total.result()

    without = result(honest)
    for hostile in (BASE + 1e4, BASE * -30, torch.full_like(BASE, 1e3)):
        moved = (result([*honest, hostile]) - without) * 4  # S is 4, however many answered
        assert moved[0].norm() <= 0.5 + 1e-5
        assert ((moved / torch.tensor([[0.5], [0.1]])).norm()) <= 1 + 1e-5


def test_the_noise_has_the_size_that_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "NORMAL", np.random.default_rng(3).standard_normal)
    base = torch.zeros(2, 10_000)
    one = stage(dp_noise=2.0, dp_clip=0.5, dp_clip_rho=0.25)
    drawn = one.sum_for(base).result()
    assert float(drawn[0].std()) == pytest.approx(2.0 * 0.5 / 4, rel=0.03)
    assert float(drawn[1].std()) == pytest.approx(2.0 * 0.25 / 4, rel=0.03)


def test_a_result_is_drawn_once_and_counted_once() -> None:
    one = stage(dp_noise=5.0)
    first, second = one.sum_for(BASE), one.sum_for(BASE)
    assert torch.equal(first.result(), first.result())
    second.result()  # another sum of the same exchange
    assert one.spent == pytest.approx(1 / 25)
    one.open(2, 3)
    assert one.sum_for(BASE).result().shape == BASE.shape
    assert one.spent == pytest.approx(2 / 25)
    assert one.planned == 4  # as in the first round


def test_an_exchange_that_came_to_nothing_costs_nothing() -> None:
    one = stage()
    clipped(one, BASE)
    one.open(1, 4)
    assert one.spent == 0


def test_with_mu_alone_rho_stays() -> None:
    one = stage(dp_rows="mu")
    total = one.sum_for(BASE)
    total.add(clipped(one, BASE + 1))
    assert torch.equal(total.result()[1], BASE[1])
    assert not torch.equal(total.result()[0], BASE[0])


def test_its_ledger_goes_through_a_checkpoint() -> None:
    one = stage(dp_noise=5.0)
    one.sum_for(BASE).result()
    other = stage(dp_noise=5.0)
    other.remember(one.memory())
    assert (other.spent, other.planned) == (one.spent, one.planned)


def test_a_declared_number_of_clients_divides_the_sum_whoever_is_there() -> None:
    one = Private(settings(clients_per_round=5), Gaussian())
    one.open(1, 3)
    assert one.planned == 5


def test_whether_a_client_is_there_decides_about_one_other_at_most() -> None:
    """Of S in a round: the others are those that are asked without it, but for the one in whose place it is."""
    one, clients = stage(), [f"site-{i}" for i in range(30)]
    times: dict[str, int] = dict.fromkeys(clients, 0)
    for number in range(400):
        asked = one.sample(clients, 10, 1, "sample", number, 0)
        for client in clients if number < 10 else ():
            without = one.sample([other for other in clients if other != client], 10, 1, "sample", number, 0)
            assert len(set(asked) - {client} - set(without)) == 0
            assert len(without) == 10 and len(set(without) - set(asked)) == (client in asked)
        for client in asked:
            times[client] += 1
    assert one.sample(clients, 0, 1) == one.sample(clients, 30, 1) == clients
    # each is asked as often as any other: 400 · 1/3, to within four standard deviations
    assert max(abs(count - 400 / 3) for count in times.values()) < 4 * (400 * 2 / 9) ** 0.5


def test_an_upload_that_is_no_change_cannot_be_clipped_and_is_refused() -> None:
    class Whole(strategies.load("fedavg")):  # type: ignore[misc]  # a method from elsewhere
        def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
            return {**super().expects(state, site, report), "head": Part("head", None, (1, 3))}

    method = Whole(Whole.reads.parse(settings(method="fedavg").as_config()))
    words = 'dp-noise clips changes of what is sent, and the upload "head" of this method is none'
    with pytest.raises(StrategyError, match=words):
        stage().require(State({"w": BASE}), False, method)
    stage().require(State({"w": BASE}), False, strategies.load("fedavg")(method.options))


def test_outliers_are_not_remembered_beside_it() -> None:
    assert at_the_server(checked(settings())) == ["private"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"method": "local"}, "with method=local nothing leaves a client; leave it out."),
        ({"method": "cfedbayes"}, "method=cfedbayes lets out what single uploads tell"),
        ({"method": "fesem"}, "method=fesem lets out what single uploads tell"),
        ({"method": "ifca"}, "method=ifca lets out"),
        ({"weighting": "examples"}, "leave weighting=examples out"),
        ({"aggregation-confidence": "weight"}, "leave aggregation-confidence out"),
        ({"aggregation": "moments"}, "only aggregation=mean is a private sum, not moments"),
        ({"aggregation": "median"}, "only aggregation=mean is a private sum, not median"),
    ],
)
def test_what_cannot_be_private_is_refused(words: dict[str, str], sentence: str) -> None:
    one = Settings.parse(defaults() | {"dp-noise": 1.0} | words)
    for refuse in (at_the_server, checked):
        with pytest.raises(SettingsError, match=f"^dp-noise=1: .*{sentence}"):
            refuse(one)


def test_a_budget_needs_noise() -> None:
    with pytest.raises(
        SettingsError, match="dp-epsilon=8 is a budget for noise and takes a dp-noise above 0"
    ):
        Settings.parse(defaults() | {"dp-epsilon": 8.0})
