"""Runs in which single examples are private, from end to end in this process: uploads, ledgers, budgets."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid, sites

from bayes_core.privacy import epsilon_of
from client_app import examples
from client_app.site import forget

Federate = Callable[..., Outcome]
METHODS = ["pfedbayes", "sfedbayes", "fedavg", "fedprox", "finetune"]
# 20 examples at each of four sites and batches of 10: three steps meet an example twice at most
NOISE, TEN = 5.0, {"dp_example_batch": 10}


def epsilon(rounds: int, noise: float = NOISE) -> float:
    return epsilon_of(math.sqrt(2 * rounds) / noise, 1e-5)


def ledger(folder: Path, number: int) -> Any:
    return json.loads((folder / f"disk-{number}" / f".privacy-site-{number}.json").read_text())["spent"]


@pytest.mark.parametrize("method", METHODS)
def test_what_leaves_and_what_is_told(federate: Federate, tmp_path: Path, method: str) -> None:
    """ε by the closed form in every row; no loss and nothing of the personal model's weights leaves.

    What does leave is the upload and what docs/privacy.md lists as not covered: figures on test data.
    """
    seen: dict[str, set[str]] = defaultdict(set)

    def look(number: int, message: Message, reply: Message) -> Message:
        for name, record in reply.content.items():
            seen[name] |= set(record)
        return reply

    grid = sites(tmp_path / "far")
    grid.interfere = look
    run = federate(method=method, rounds=2, dp_example_noise=NOISE, **TEN, grid=grid)
    found = [float(row["epsilon_examples"]) for row in run.rows if row["epsilon_examples"]]
    assert found == pytest.approx([epsilon(1), epsilon(2)], abs=1e-6)
    assert run.rows[-1]["clients_failed"] == "0"
    assert seen["report"] == {"epsilon"}
    measured = {f"{model}{end}" for model in ("pm", "gm") for end in ("", "_point")}
    assert set(seen) <= {"hello", "w", "report", "counts", "nonzero", "notes"} | measured
    assert seen["counts"] <= {f"{model}_{what}" for model in ("pm", "gm") for what in ("entropy", "answers")}
    assert seen["nonzero"] == ({"gm"} if method == "sfedbayes" else set())  # of w, which everybody has
    assert ledger(tmp_path / "far", 3) == [{"noise": NOISE, "rate": 1.0, "times": 4}]


def test_the_personal_model_does_not_reach_the_upload(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the noise given and gradients silenced by a tiny clip, sites with other data upload the same w."""
    uploads: dict[int, list[np.ndarray]] = defaultdict(list)

    def look(number: int, message: Message, reply: Message) -> Message:
        if "w" in reply.content:
            uploads[number].append(reply.content["w"]["mu"].numpy())
        return reply

    monkeypatch.setattr(examples, "NORMAL", lambda count: np.zeros(count))
    run = federate(rounds=2, dp_example_noise=1.0, dp_example_clip=1e-12, optimizer="sgd", interfere=look)
    assert np.allclose(uploads[0], uploads[1], atol=1e-6)
    assert float(run.rows[-1]["pm_accuracy"]) != float(run.rows[-1]["gm_accuracy"])


def test_a_personal_model_that_diverges_is_nobodys_business(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no noise, and what leaves is not made of it: the upload leaves, and the site keeps the model before."""
    from client_app.store import read

    far = tmp_path / "far"
    run = federate(
        rounds=1,
        dp_example_noise=NOISE,
        **TEN,
        optimizer="sgd",
        lr_personal=1e38,
        personal_steps=3,
        grid=sites(far),
    )
    assert run.rows[-1]["clients_failed"] == "0" and not run.said("warning")
    _, tensors = read(next((far / "disk-0").rglob("personal.safetensors")))
    assert bool(tensors["q"].isfinite().all()) and bool(tensors["sent.w"].isfinite().all())
    assert "The personal model has diverged; the one before this round is kept." in caplog.text


def test_a_site_whose_budget_is_spent_says_so_and_only_measures(federate: Federate, tmp_path: Path) -> None:
    """In a run of another name, and with other data, too."""
    far = tmp_path / "far"
    budget = epsilon(3) + 1e-9
    nodes = [
        {"site-id": f"site-{i}", "state-dir": str(far / f"disk-{i}"), "partition-id": i, "num-partitions": 4}
        | ({"dp-budget": f"{budget}"} if i == 2 else {})
        for i in range(4)
    ]

    def grid() -> InProcessGrid:
        return InProcessGrid({}, 4, node_configs=nodes)

    first = federate("first", rounds=4, eval_every=1, dp_example_noise=NOISE, **TEN, grid=grid())
    assert [row["clients_failed"] for row in first.rows] == ["", "0", "0", "0", "1"]
    sentence = (
        f"its privacy budget is spent: ε = {epsilon(3):.3g} at δ = 1e-05, and one more round would pass"
    )
    (warning,) = [words for words in first.said("warning") if "budget" in words]
    assert warning.startswith(f"Site site-2 dropped from this round: {sentence}")
    (status,) = [row["status"] for row in first.clients if row["site"] == "site-2" and row["round"] == "4"]
    assert status.startswith(f"failed: {sentence}")
    measured = [row for row in first.clients if row["site"] == "site-2" and row["pm_accuracy"]]
    assert [row["round"] for row in measured] == ["0", "1", "2", "3", "4"]
    assert ledger(far, 2) == [{"noise": NOISE, "rate": 1.0, "times": 6}]

    forget()
    again = federate("other", rounds=1, seed=2, size="5+4", dp_example_noise=3 * NOISE, **TEN, grid=grid())
    assert again.rows[-1]["clients_failed"] == "1"
    assert ledger(far, 2) == [{"noise": NOISE, "rate": 1.0, "times": 6}]


def test_a_run_ends_saved_when_no_site_trains_any_further(federate: Federate, tmp_path: Path) -> None:
    run = federate(
        rounds=9,
        dp_example_noise=NOISE,
        **TEN,
        dp_example_epsilon=epsilon(2) + 1e-9,
        grid=sites(tmp_path / "far"),
    )
    assert [row["round"] for row in run.rows] == ["0", "1", "2"]
    assert run.state == "finished"
    (note,) = [words for words in run.said("note") if "budget" in words]
    assert note.startswith("No site trains any further. Site site-0: its privacy budget is spent: ε = ")
    assert run.rows[-1]["pm_accuracy"] and run.rows[-1]["epsilon_examples"]


def test_an_owners_budget_lets_no_run_without_noise_in(federate: Federate, tmp_path: Path) -> None:
    with pytest.raises(
        Exception, match="has set a privacy budget, and a run without dp-example-noise keeps to none"
    ):
        federate(rounds=1, grid=sites(tmp_path / "far", **{"dp-budget": "8@1e-6"}))
    with pytest.raises(Exception, match="takes dp-budget: ε such as 8, or ε@δ"):
        federate(
            "other", rounds=1, dp_example_noise=1.0, grid=sites(tmp_path / "far", **{"dp-budget": "much"})
        )


def test_a_round_that_is_asked_for_again_is_one_release(federate: Federate, tmp_path: Path) -> None:
    """Too few answers the first time: the others send the same again, and count it once."""
    uploads: dict[int, list[bytes]] = defaultdict(list)

    def lose(number: int, message: Message, reply: Message) -> Message | None:
        if "w" not in reply.content:
            return reply
        uploads[number].append(reply.content["w"]["mu"].data)
        return None if number == 0 and len(uploads[0]) == 1 else reply

    grid = sites(tmp_path / "far")
    grid.interfere = lose
    run = federate(rounds=1, min_clients=4, dp_example_noise=NOISE, **TEN, grid=grid)
    assert {number: len(set(sent)) for number, sent in uploads.items()} == dict.fromkeys(range(4), 1)
    assert len(uploads[1]) == 2
    assert float(run.rows[-1]["epsilon_examples"]) == pytest.approx(epsilon(1), abs=1e-6)
    assert [ledger(tmp_path / "far", i)[0]["times"] for i in range(4)] == [2, 2, 2, 2]


def test_a_resumed_run_counts_every_round_once(federate: Federate, tmp_path: Path) -> None:
    far = tmp_path / "far"
    federate(rounds=1, dp_example_noise=NOISE, **TEN, grid=sites(far))
    run = federate(rounds=3, dp_example_noise=NOISE, **TEN, resume=True, grid=sites(far))
    assert [float(row["epsilon_examples"]) for row in run.rows[1:]] == pytest.approx(
        [epsilon(t) for t in (1, 2, 3)], abs=1e-6
    )
    assert ledger(far, 0) == [{"noise": NOISE, "rate": 1.0, "times": 6}]


def test_a_crash_after_the_ledger_costs_budget_and_no_privacy(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round is trained again with other noise, and counted again."""
    from client_app.methods import pfedbayes

    real, calls = pfedbayes.client_update, []

    def crash(*arguments: Any, **given: Any) -> Any:
        if given.get("private"):
            calls.append(1)
            if len(calls) == 1:
                raise OSError("the machine has lost its power")
        return real(*arguments, **given)

    monkeypatch.setattr(pfedbayes, "client_update", crash)
    run = federate(rounds=1, min_clients=4, dp_example_noise=NOISE, **TEN, grid=sites(tmp_path / "far"))
    spent = sorted(ledger(tmp_path / "far", i)[0]["times"] for i in range(4))
    assert spent == [2, 2, 2, 4]
    assert float(run.rows[-1]["epsilon_examples"]) == pytest.approx(epsilon(2), abs=1e-6)


def test_a_ledger_that_cannot_be_read_lets_nothing_out(federate: Federate, tmp_path: Path) -> None:
    far = tmp_path / "far"
    (far / "disk-1").mkdir(parents=True)
    (far / "disk-1" / ".privacy-site-1.json").write_text("{")
    run = federate(rounds=1, dp_example_noise=NOISE, **TEN, grid=sites(far))
    assert run.rows[-1]["clients_failed"] == "1"
    assert any("its privacy ledger cannot be read" in words for words in run.said("warning"))


def test_poisson_batches_cost_less(federate: Federate, tmp_path: Path) -> None:
    run = federate(
        rounds=1, dp_example_noise=2.0, **TEN, dp_example_sampling="poisson", grid=sites(tmp_path / "far")
    )
    assert ledger(tmp_path / "far", 0) == [{"noise": 2.0, "rate": 0.5, "times": 3}]
    assert 0 < float(run.rows[-1]["epsilon_examples"]) < epsilon_of(math.sqrt(3) / 2.0, 1e-5)


def test_a_simulation_has_a_ledger_for_each_run(federate: Federate) -> None:
    for name in ("one", "two"):
        run = federate(name, rounds=1, dp_example_noise=NOISE, **TEN)
        assert float(run.rows[-1]["epsilon_examples"]) == pytest.approx(epsilon(1), abs=1e-6)


def test_both_kinds_of_privacy_at_once(federate: Federate) -> None:
    run = federate(rounds=1, dp_example_noise=NOISE, **TEN, dp_noise=5.0)
    assert float(run.rows[-1]["epsilon_examples"]) == pytest.approx(epsilon(1), abs=1e-6)
    assert float(run.rows[-1]["epsilon"]) == pytest.approx(epsilon_of(1 / 5, 1e-5), abs=1e-6)


def test_masked_uploads_with_a_site_that_has_spent_its_budget(federate: Federate, tmp_path: Path) -> None:
    """With secure sums the largest ε is told all the same, and a spent site is one that is missing from the sum."""
    budget = {"dp-budget": f"{epsilon(1) + 1e-9}"}
    nodes = [
        {
            "site-id": f"site-{i}",
            "state-dir": str(tmp_path / f"disk-{i}"),
            "partition-id": i,
            "num-partitions": 4,
        }
        | (budget if i == 2 else {})
        for i in range(4)
    ]
    grid = InProcessGrid({}, 4, node_configs=nodes)
    run = federate(rounds=2, eval_every=9, dp_example_noise=NOISE, **TEN, secure_sum=True, grid=grid)
    found = [float(row["epsilon_examples"]) for row in run.rows if row["epsilon_examples"]]
    assert found == pytest.approx([epsilon(1), epsilon(2)], abs=1e-6)
    (status,) = [row["status"] for row in run.clients if row["site"] == "site-2" and row["round"] == "2"]
    assert status.startswith(f"failed: its privacy budget is spent: ε = {epsilon(1):.3g}")


def test_the_stored_state_predicts_with_the_personal_model(federate: Federate, tmp_path: Path) -> None:
    from client_app.store import read

    federate(rounds=1, dp_example_noise=NOISE, **TEN, grid=sites(tmp_path / "far"))
    _, tensors = read(next((tmp_path / "far" / "disk-0").rglob("personal.safetensors")))
    assert {"q", "sent.w", "from"} <= set(tensors)
    assert not torch.equal(tensors["q"], tensors["sent.w"])
