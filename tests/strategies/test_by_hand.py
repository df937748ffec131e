"""Every method's step with numbers that a reader can compute: two clients (clusters: four), three scalars."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import START, OneRound
from torch import Tensor, nn

from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.cfedbayes import CFedBayes
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.local import Local
from strategies.pfedbayes import PFedBayes
from strategies.rounds.replies import BadReply
from strategies.rounds.state import State
from strategies.sfedbayes import SFedBayes

ONE, OTHER = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 4.0, 7.0])


def started(method: Any) -> State:
    state: State = method.init(lambda *words: START)
    return state


def rho(sigma: float) -> float:
    return math.log(math.expm1(sigma))


def gaussian(mu: Tensor, sigma: float = 1.0) -> Tensor:
    return torch.stack([mu, torch.full((3,), rho(sigma))])


def sparse(mu: Tensor, on: float, sigma: float = 1.0) -> Tensor:
    return torch.cat([gaussian(mu, sigma), torch.full((1, 3), on)])


@pytest.mark.parametrize("kind", [FedAvg, FedProx])
def test_fedavg_and_fedprox(kind: type[FedAvg], one_round: OneRound) -> None:
    uploads = {"a": ONE[None], "b": OTHER[None]}
    method = kind(beta=1.0)
    state, came = one_round(method, started(method), uploads)
    assert state.sent["w"].tolist() == [[2.0, 3.0, 5.0]]
    assert [one.site for one in came.uploads] == ["a", "b"] and not came.uploads[0].parts
    half, _ = one_round(kind(beta=0.5), started(method), uploads)
    beyond, _ = one_round(kind(beta=1.5), started(method), uploads)
    assert half.sent["w"].tolist() == [[1.0, 1.5, 2.5]] and beyond.sent["w"].tolist() == [[3.0, 4.5, 7.5]]


def test_fedavg_by_examples(one_round: OneRound) -> None:
    method = FedAvg(beta=1.0, weighting="examples")
    state, _ = one_round(method, started(method), {"a": ONE[None], "b": OTHER[None]}, examples=(1, 3))
    assert state.sent["w"].tolist() == [[2.5, 3.5, 6.0]]


def test_local_stays_where_it_is(one_round: OneRound) -> None:
    method = Local()
    state, came = one_round(method, started(method), {"a": ONE[None], "b": OTHER[None]})
    assert state.sent["w"].tolist() == [[0.0, 0.0, 0.0]] and len(came.uploads) == 2


def test_pfedbayes_mean(one_round: OneRound) -> None:
    method = PFedBayes(beta=1.0, rho_init=-1.0)
    start = started(method)
    assert start.sent["w"].tolist() == [[0.0] * 3, [-1.0] * 3]
    state, _ = one_round(method, start, {"a": gaussian(ONE, 1.0), "b": gaussian(OTHER, 2.0)})
    mu, row = state.sent["w"]
    assert mu.tolist() == [2.0, 3.0, 5.0]
    assert row.tolist() == pytest.approx([(rho(1.0) + rho(2.0)) / 2] * 3)


def test_pfedbayes_moments(one_round: OneRound) -> None:
    """σ² = mean of σ_i² + the variance of the means: 1 + 1, 1 + 1, 1 + 4."""
    method = PFedBayes(beta=1.0, aggregation="moments")
    state, _ = one_round(method, started(method), {"a": gaussian(ONE), "b": gaussian(OTHER)})
    mu, row = state.sent["w"]
    assert mu.tolist() == pytest.approx([2.0, 3.0, 5.0])
    assert torch.nn.functional.softplus(row).tolist() == pytest.approx([2**0.5, 2**0.5, 5**0.5], rel=1e-5)


@pytest.mark.parametrize("kind", [PFedBayes, SFedBayes])
def test_a_hyper_prior_draws_the_means_of_the_servers_distribution_to_zero(
    kind: type[PFedBayes], one_round: OneRound
) -> None:
    uploads = {"a": sparse(ONE, 0.2), "b": sparse(OTHER, 0.6)}
    uploads = {site: upload[: 2 + (kind is SFedBayes)] for site, upload in uploads.items()}
    plain, _ = one_round(kind(beta=1.0), started(kind()), uploads)
    drawn, _ = one_round(kind(beta=1.0, prior_decay=0.1), started(kind()), uploads)
    assert drawn.sent["w"][0].tolist() == pytest.approx([1.8, 2.7, 4.5])
    assert torch.equal(drawn.sent["w"][1:], plain.sent["w"][1:]), "widths and gates stay"


def test_sfedbayes(one_round: OneRound) -> None:
    method = SFedBayes(beta=1.0, lambda_init=0.5)
    uploads = {"a": sparse(ONE, 0.2), "b": sparse(OTHER, 0.6)}
    state, _ = one_round(method, started(method), uploads)
    assert state.sent["w"][0].tolist() == [2.0, 3.0, 5.0]
    assert state.sent["w"][2].tolist() == pytest.approx([0.4] * 3)
    far, _ = one_round(SFedBayes(beta=10.0, lambda_init=0.5), started(method), uploads)
    assert far.sent["w"][2].tolist() == pytest.approx([1e-6] * 3), "λ stays a probability"
    asked, _ = one_round(SFedBayes(beta=1.0, lambda_init=0.5, sparsity_target=0.1), started(method), uploads)
    logit = math.log(0.4 / 0.6) - 0.1
    assert asked.sent["w"][2].tolist() == pytest.approx([1 / (1 + math.exp(-logit))] * 3, rel=1e-5)


def test_cfedbayes_finds_clusters_and_moves_each_by_its_members(one_round: OneRound) -> None:
    method = CFedBayes(beta=1.0, clusters=2, family="gaussian")
    near, far = torch.tensor([0.0, 0.1, 0.0]), torch.tensor([9.0, 9.0, 9.0])
    first = {"a": gaussian(near), "b": gaussian(far), "c": gaussian(near + 0.2), "d": gaussian(far + 0.2)}
    state, came = one_round(method, started(method), first, number=0)
    assert sorted(state.sent) == ["u0", "u1"]
    assert state.facts["members"] == {"a": 0, "b": 1, "c": 0, "d": 1}
    assert state.sent["u0"][0].tolist() == pytest.approx([0.1, 0.2, 0.1])
    assert state.sent["u1"][0].tolist() == pytest.approx([9.1, 9.1, 9.1])
    assert came.documents["clusters"]["labels"] == [0, 1, 0, 1]

    warnings: list[str] = []
    method.tell = lambda event, **said: warnings.append(said["message"])
    again = {"a": gaussian(ONE), "c": gaussian(OTHER)}
    later, came = one_round(method, state, again, {"a": {"cluster": 0}, "c": {"cluster": 0}})
    assert later.sent["u0"][0].tolist() == [2.0, 3.0, 5.0], "the mean of its members"
    assert torch.equal(later.sent["u1"], state.sent["u1"]), "nobody chose it"
    assert method.describe(later, came)[0] == {"clusters": 2, "cluster_changes": 0}
    moved, came = one_round(method, later, first, {site: {"cluster": 0} for site in first})
    assert moved.facts["empty"] == [1] and moved.facts["changes"] == 2
    assert warnings == ["Cluster 1 has no clients any more; it stays as it is."]
    assert method.describe(moved, came)[1]["b"] == {"cluster": 0}
    for nonsense in (2, -1, 0.5):
        with pytest.raises(BadReply, match="instead of 0 … 1"):
            one_round(method, later, {"a": gaussian(ONE)}, {"a": {"cluster": nonsense}})


def test_cfedbayes_knows_the_layers_until_clusters_are_found(one_round: OneRound) -> None:
    """A background that moves a layer of 32 × 64 weights would hide the two kinds."""
    method = CFedBayes(clusters=0, family="gaussian")
    weights = method.weights_of(nn.Linear(64, 32))
    state = method.init(lambda: weights)
    state = replace(state, facts=json.loads(json.dumps(state.facts)))  # as from a checkpoint
    assert state.facts == {"layers": [[32, 64], [32, 1]]}
    random = torch.Generator().manual_seed(0)
    background = torch.randn(32, 1, generator=random) @ torch.randn(1, 64, generator=random)
    kinds = [0.3 * torch.randn(32, 64, generator=random) for _ in range(2)]
    uploads = {}
    for number in range(8):
        move = background + kinds[number % 2] + 0.3 * torch.randn(32, 64, generator=random)
        uploads[f"{number}"] = state.sent["w"].clone()
        uploads[f"{number}"][0, : 32 * 64] += 0.02 * (move + (number % 3) * background).flatten()
    found, _ = one_round(method, state, uploads, number=0)
    assert sorted(found.sent) == ["u0", "u1"] and "layers" not in found.facts
    assert list(found.facts["members"].values()) == [0, 1] * 4
    blind, _ = one_round(method, replace(state, facts={}), uploads, number=0)
    assert list(blind.sent) == ["u0"], "in an app that does not say what the layers are"


def test_an_option_that_does_not_exist_or_fit() -> None:
    with pytest.raises(SettingsError, match="no option 'zeta'; there are beta, weighting"):
        FedAvg(zeta=1)
    with pytest.raises(SettingsError, match='"beta" takes a number of at least 0'):
        PFedBayes(beta=-1)


def test_a_method_that_needs_everybody_refuses_samples() -> None:
    class Needy(FedAvg):
        traits = FedAvg.traits.__class__(every_site=True)

    Needy.check(Settings.parse(defaults()))
    with pytest.raises(SettingsError, match="needs every site in every round"):
        Needy.check(Settings.parse(defaults() | {"clients-per-round": 3}))
