"""FedAMP and HeurFedAMP by hand: three clients in the plane, and who receives what."""

import math

import pytest
import torch
from by_hand import OneRound
from torch import Tensor

from bayes_core.server.attention import by_angle, by_distance, gram, passed
from client_app.method import ClientMethod, load
from fedbayes.launch.methods import checked
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.fedamp import FedAMP
from strategies.heurfedamp import HeurFedAMP
from strategies.rounds.state import State

UPLOADS = {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[1.0, 0.0]]), "c": torch.tensor([[0.0, 1.0]])}
MODELS = torch.cat(list(UPLOADS.values()))


def started(method: FedAMP) -> State:
    return method.init(lambda *words: torch.zeros(2))


def sent(method: FedAMP, state: State, site: str) -> list[float]:
    (tensor,) = method.send(state, site).values()
    found: list[float] = tensor[0].tolist()
    return found


def test_heurfedamp(one_round: OneRound) -> None:
    """a: ½ itself, the rest by e^1 : e^0 on b and c."""
    method = HeurFedAMP(sharpness=1.0, own=0.5)
    state, came = one_round(method, started(method), UPLOADS)
    share = 0.5 * math.e / (1 + math.e)
    assert sent(method, state, "a") == pytest.approx([0.5 + share, 0.5 - share])
    assert sent(method, state, "a") == pytest.approx([0.86553, 0.13447], abs=1e-5)
    assert sent(method, state, "c") == pytest.approx([0.5, 0.5])
    row, sites = method.describe(state, came)
    assert row == pytest.approx(
        {"attention_least": 0.5 - share, "attention_mean": 0.25, "attention_most": share}, abs=1e-5
    )
    assert not sites


def test_fedamp(one_round: OneRound) -> None:
    """a and b are at distance 0: ξ = 0.1; a and c at squared distance 2: ξ = 0.1·e⁻²."""
    method = FedAMP(alpha=0.1, sigma=1.0)
    state, came = one_round(method, started(method), UPLOADS)
    assert sent(method, state, "a") == pytest.approx([0.98647, 0.01353], abs=1e-5)
    assert sent(method, state, "c") == pytest.approx([0.02707, 0.97293], abs=1e-5)
    assert method.describe(state, came)[0]["attention_alpha"] == 0.1


@pytest.mark.parametrize("method", [FedAMP(), HeurFedAMP()])
def test_each_client_receives_its_own_and_a_new_one_the_start(method: FedAMP, one_round: OneRound) -> None:
    start = started(method)
    assert sent(method, start, "a") == [0.0, 0.0]
    state, _ = one_round(method, start, UPLOADS)
    assert sent(method, state, "a") != sent(method, state, "c")
    assert sent(method, state, "new") == [0.0, 0.0], "no row in the Gram matrix yet"
    assert method.expects(state, "a", {})["w"].base.tolist() == [sent(method, state, "a")]
    assert (
        State.of({"w": state.sent["w"], **{f"kept/{k}": v for k, v in state.kept.items()}}, state.facts)
        == state
    )


def test_an_absent_client_counts_with_its_latest_upload(one_round: OneRound) -> None:
    method = HeurFedAMP(sharpness=1.0, own=0.5)
    state, _ = one_round(method, started(method), {"a": UPLOADS["a"], "c": torch.tensor([[5.0, 5.0]])})
    later, _ = one_round(method, state, {"b": UPLOADS["b"], "c": UPLOADS["c"]}, number=2)
    whole, _ = one_round(method, started(method), UPLOADS)
    assert torch.equal(later.kept["u"], whole.kept["u"]) and later.facts == whole.facts


def test_alpha_is_made_smaller_where_the_own_share_would_be_negative() -> None:
    attention, alpha = by_distance(MODELS, 5.0, 1.0)
    assert alpha == pytest.approx(1 / (1 + math.exp(-2)))
    assert attention.diagonal().min() == pytest.approx(0) and attention.min() > -1e-12
    same, alpha = by_distance(torch.ones(4, 3), 5.0, 1.0)
    assert alpha == pytest.approx(1 / 3)
    torch.testing.assert_close(passed(same, torch.ones(4, 3)), torch.ones(4, 3))
    assert (
        by_distance(torch.ones(1, 3), 5.0, 1.0)[0].tolist()
        == [[1.0]]
        == by_angle(torch.ones(1, 3), 1, 0).tolist()
    )


def groups() -> Tensor:
    """Two groups of three networks, near each other within a group."""
    random = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 40, generator=random).repeat_interleave(3, 0)
    return centres + 0.05 * torch.randn(6, 40, generator=random)


@pytest.mark.parametrize(
    "attention", [by_distance(groups(), 5.0, 1.0)[0], by_angle(groups(), 100.0, 0.0)], ids=["FedAMP", "Heur"]
)
def test_groups_that_lie_apart_do_not_attend_to_each_other(attention: Tensor) -> None:
    torch.testing.assert_close(attention.sum(1), torch.ones(6, dtype=torch.float64))
    assert attention[:3, 3:].max() < 1e-9 and attention[3:, :3].max() < 1e-9
    within = attention[:3, :3][~torch.eye(3, dtype=torch.bool)]
    assert within.min() > 0.1


def test_by_brute_force() -> None:
    w = groups()
    assert torch.allclose(gram(w), w.double() @ w.double().T)
    xi = by_angle(w, 7.0, 0.3)
    for i in range(6):
        cosines = [torch.cosine_similarity(w[i].double(), w[j].double(), 0) for j in range(6)]
        others = sum(math.exp(7 * cosines[k]) for k in range(6) if k != i)
        for j in range(6):
            expected = 0.3 if i == j else 0.7 * math.exp(7 * cosines[j]) / others
            assert float(xi[i, j]) == pytest.approx(expected, rel=1e-6)
    assert by_angle(w, 7.0, 0.0).diagonal().tolist() == pytest.approx([1 / 6] * 6)
    torch.testing.assert_close(passed(xi, w), (xi @ w.double()).float())


def settings(method: str, **words: object) -> Settings:
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in words.items()}
    return checked(Settings.parse(defaults() | {"method": method} | given), given)


def client(method: str, **words: object) -> ClientMethod:
    torch.manual_seed(0)
    network = torch.nn.Linear(2, 2, bias=False)
    x, y = torch.randn(8, 2), torch.arange(8) % 2
    return load(method)(settings(method, **words), network, x, y, "site", torch.device("cpu"))


@pytest.mark.parametrize("method", ["fedamp", "heurfedamp"])
def test_a_client_goes_on_from_its_own_network_about_the_received_one(method: str) -> None:
    """One full-batch step: w − η·(∇f(w) + (λ/α)·(w − u)), and not from u; without the pull it is `local`."""
    words = {"optimizer": "sgd", "lr_global": 0.1, "local_steps": 1}
    own, u = torch.randn(1, 4), torch.randn(1, 4)
    ends = {}
    for penalty in (0.0, 0.5):
        one = client(method, fedamp__penalty=penalty, **words)
        trained = one.train(one.start({"w": own}), {"w": u}, 1)
        assert torch.equal(trained.uploads["w"], trained.state["theta"])
        assert list(one.models(trained.state, {"w": u})) == ["pm"]
        ends[penalty] = trained.uploads["w"]
    local = client("local", **words)
    assert torch.equal(ends[0.0], local.train(local.start({"w": own}), {"w": u}, 1).state["theta"])
    torch.testing.assert_close(ends[0.5], ends[0.0] - 0.1 * 0.5 * (own - u))


def test_what_they_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match="method=fedamp needs every site in every round"):
        settings("fedamp", clients_per_round=3)
    settings("heurfedamp", clients_per_round=3)
    for method in ("fedamp", "heurfedamp"):
        with pytest.raises(SettingsError, match=f"weighs uploads in a mean, and method={method} takes none"):
            settings(method, aggregation_confidence="weight")
        with pytest.raises(SettingsError, match=f'method={method} does not use the setting "beta"'):
            settings(method, beta=0.5)
