"""FedPA by hand: SGD on ½(θ − 1)² from 3 with rate ½ goes to 2, 1.5, 1.25, 1.125, 1.0625."""

from typing import Any

import pytest
import torch
from by_hand import OneRound
from toy import quadratic

from fedbayes.launch.methods import checked
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.fedpa import FedPA

START = {"w": torch.tensor([[3.0]])}
STEPS = {"fedpa__lr": 0.5, "fedpa__burn_in": 1, "fedpa__samples": 2, "fedpa__sample_steps": 2}
DELTA = (3 - 1.234375) / (0.5 + 0.5 * (1.375 - 1.09375) ** 2 / 2)  # samples 1.375 and 1.09375, ϱ = ½


def settings(**given: Any) -> Settings:
    return Settings.parse(defaults() | {"method": "fedpa"} | given)


def test_a_round_of_samples() -> None:
    one = quadratic("fedpa", 1.0, fedpa__shrinkage=1.0, **STEPS)
    trained = one.train({}, START, 1)
    assert trained.uploads["w"].tolist() == [[pytest.approx(3 - DELTA, rel=1e-6)]]
    assert trained.report["correction"] == pytest.approx(1 - DELTA / 2 / 1.765625, rel=1e-6)
    assert not trained.state and START["w"].tolist() == [[3.0]], "nothing is kept, and nothing was changed"


def test_without_shrinkage_the_mean_of_the_samples_is_sent() -> None:
    trained = quadratic("fedpa", 1.0, fedpa__shrinkage=0.0, **STEPS).train({}, START, 1)
    assert trained.uploads["w"].tolist() == [[pytest.approx(1.234375)]]
    assert trained.report["correction"] == 0


def test_before_sampling_begins_a_round_is_fedavgs() -> None:
    one = quadratic("fedpa", 1.0, fedpa__sampling_from=3, local_steps=3, **STEPS)
    early = one.train({}, START, 2)
    assert early.uploads["w"].tolist() == [[1.25]] and "correction" not in early.report
    assert "correction" in one.train({}, START, 3).report


def test_adam_is_not_what_samples() -> None:
    """The steps are SGD's, whatever `optimizer` says; the settings of other steps are refused."""
    usual, other = (quadratic("fedpa", 1.0, optimizer=name, **STEPS) for name in ("sgd", "adam"))
    assert torch.equal(usual.train({}, START, 1).uploads["w"], other.train({}, START, 1).uploads["w"])
    with pytest.raises(SettingsError, match=r"takes plain SGD steps at rates of its own \(fedpa.lr\)"):
        checked(settings(**{"lr-global": 0.1}))
    with pytest.raises(SettingsError, match="leave optimizer out"):
        checked(settings(optimizer="adam"), given=["optimizer"])
    assert checked(settings(optimizer="sgd"), given=["optimizer"])


def test_the_servers_step(one_round: OneRound) -> None:
    """β before sampling begins is 1; then the mean of the uploads is a target at w − mean Δ."""
    uploads = {"a": torch.tensor([[1.0, 2.0, 3.0]]), "b": torch.tensor([[3.0, 4.0, 7.0]])}
    method = FedPA(beta=0.5, sampling_from=2)
    state = method.init(lambda *words: torch.zeros(3))
    early, came = one_round(method, state, uploads, number=1)
    assert early.sent["w"].tolist() == [[2.0, 3.0, 5.0]] and method.describe(early, came) == ({}, {})
    reports = {"a": {"correction": 0.2}, "b": {"correction": 0.4}}
    later, came = one_round(method, state, uploads, reports, number=2)
    assert later.sent["w"].tolist() == [[1.0, 1.5, 2.5]]
    assert method.describe(later, came) == ({"correction": 0.3}, {})
    _, came = one_round(method, state, uploads, {"a": {"correction": float("nan")}}, number=2)
    assert method.describe(later, came) == ({}, {}), "nonsense is left out"


def test_updates_that_would_be_dropped_are_refused_at_the_start() -> None:
    FedPA.check(settings(**{"fedpa.samples": 9, "fedpa.shrinkage": 1.0}))
    with pytest.raises(
        SettingsError, match=r"fedpa.samples=10 with fedpa.shrinkage=1 can lengthen an update"
    ):
        FedPA.check(settings(**{"fedpa.samples": 10, "fedpa.shrinkage": 1.0}))
    with pytest.raises(SettingsError, match=r'"fedpa.samples" takes a whole number of at least 2, not "1"'):
        FedPA.check(settings(**{"fedpa.samples": 1}))
