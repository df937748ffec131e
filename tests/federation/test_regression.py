"""Numbers as targets: a whole federation, and everything that is done with its models afterwards."""

import csv
import io
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Outcome
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes

import client_app.site
from client_app.data.functions import NOISE, observe, truth
from fedbayes import PersonalModel
from fedbayes.cli.command import _status
from fedbayes.errors import ModelError
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import SettingsError
from server_app.stored import read_rows

Federate = Callable[..., Outcome]
PEOPLE = {
    "dataset": "diabetes",
    "layout": "iid",
    "size": "60+20",
    "local_steps": 20,
    "rounds": 12,
    "eval_every": 6,
}


@pytest.fixture(autouse=True)
def fresh_sites() -> None:
    client_app.site.forget()


@pytest.fixture(scope="module")
def trained(federate_once: Federate) -> Callable[..., Outcome]:
    """trained(method=…, scale=…): such a run, once for all tests that only look at it."""

    @cache
    def run(**words: str) -> Outcome:
        client_app.site.forget()
        return federate_once("-".join(["run", *words.values()]), report=True, **PEOPLE, **words)

    return run


def store(run: Outcome, site: str) -> Path:
    return run.folder.parent / "state" / run.folder.name / site


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = _status([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out, said.err


def people(path: Path, since: int, until: int, target: bool = True) -> str:
    """Some of the people as a CSV table, the columns in another order than in the run."""
    data = load_diabetes(scaled=False)
    names = list(reversed(data.feature_names))
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*names, "progress"] if target else names)
        for row, y in zip(data.data[since:until], data.target[since:until], strict=True):
            writer.writerow([*reversed(row.tolist()), float(y)] if target else list(reversed(row.tolist())))
    return str(path)


@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes", "cfedbayes", "fedavg", "fedprox", "local"])
def test_every_method_learns_numbers(trained: Federate, method: str) -> None:
    run = trained(method=method)
    models = {"fedavg": ["gm"], "fedprox": ["gm"], "local": ["pm"]}.get(method, ["pm", "gm"])
    first, *_, last = [row for row in run.rows if row[f"{models[0]}_rmse"]]
    for model in models:
        assert 50 < float(last[f"{model}_rmse"]) < 66 < float(first[f"{model}_rmse"]) < 110, (
            "in the target's units"
        )
        assert 0.7 < float(last[f"{model}_coverage"]) <= 1
        assert 5 < float(last[f"{model}_nll"]) < 6.2
    assert not any(row[name] for row in run.rows for name in row if "accuracy" in name or "entropy" in name)
    assert {row["n_test"] for row in run.clients if row["n_test"]} == {"20"}
    errors = [float(row[f"{models[0]}_rmse"]) ** 2 for row in run.clients if row["round"] == last["round"]]
    assert math.sqrt(sum(errors) / 4) == pytest.approx(float(last[f"{models[0]}_rmse"]), abs=1e-4)


def test_a_resumed_run_ends_the_same(federate: Federate, trained: Federate) -> None:
    whole = trained(method="pfedbayes")
    federate("half", **PEOPLE | {"rounds": 6})
    half = federate("half", **PEOPLE | {"resume": True})
    assert half.metrics == whole.metrics
    torch.testing.assert_close(half.tensors["w"], whole.tensors["w"], rtol=0, atol=0)


def test_fixed_noise_is_in_the_target_s_units(federate: Federate) -> None:
    federate("fixed", noise=55.0, **PEOPLE | {"rounds": 1})
    personal = PersonalModel.load(store(federate.latest, "0"))  # type: ignore[attr-defined]
    x = load_diabetes(scaled=False).data[:5]
    torch.testing.assert_close(personal.forecast(x).noise, torch.full((5,), 55.0, dtype=torch.float64))
    assert len(personal.v[0]) == 10 * 100 + 100 + 100 + 1


def test_each_site_may_scale_for_itself(trained: Federate) -> None:
    run = trained(method="pfedbayes", scale="site")
    assert 50 < float(run.rows[-1]["pm_rmse"]) < 72
    cards = [PersonalModel.load(store(run, site)).card.agreement.target_mean for site in "01"]
    assert cards[0] != cards[1] and all(100 < float(mean or 0) < 200 for mean in cards)


@pytest.mark.parametrize(
    "words", [{"temperature_scaling": True, "validation_fraction": 0.2}, {"aggregation_confidence": "weight"}]
)
def test_settings_about_classes_are_refused(federate: Federate, words: dict[str, object]) -> None:
    key = next(iter(words)).replace("_", "-")
    with pytest.raises(
        SettingsError, match=f"{key} is about the probabilities of classes, but the targets are numbers"
    ):
        federate(**PEOPLE | words)
    assert _status(["run", "dataset=diabetes", "layout=iid", f"{key}={str(words[next(iter(words))]).lower()}",
                    "validation-fraction=0.2"]) == 2  # fmt: skip


def test_a_false_tally_is_refused(federate: Federate) -> None:
    from flwr.app import MetricRecord

    def interfere(number, message, reply):
        if number == 1 and reply.has_content() and "pm" in reply.content:
            reply.content["pm"] = MetricRecord({**reply.content["pm"], "squared_error": [-1.0]})
        return reply

    run = federate(interfere=interfere, **PEOPLE | {"rounds": 1})
    assert any("a tally pm with impossible numbers" in text for text in run.said("warning"))
    assert {row["site"] for row in run.clients if row["pm_rmse"]} == {"0", "2", "3"}


def test_predict_writes_numbers_with_intervals(
    trained: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(method="pfedbayes")
    data = people(tmp_path / "new.csv", 400, 442)
    status, table, said = command(capsys, "predict", store(run, "2"), data)
    rows = list(csv.DictReader(io.StringIO(table)))
    assert status == 0 and len(rows) == 42 and "42 of 42 examples answered; RMSE" in said
    found = PersonalModel.load(store(run, "2")).forecast(load_diabetes(scaled=False).data[400:])
    for row, mean, sd, low, high in zip(
        rows, *(part.tolist() for part in (found.mean, found.sd, *found.interval())), strict=True
    ):
        told = [float(row[name]) for name in ("mean", "sd", "low", "high")]
        assert told == pytest.approx([mean, sd, low, high], rel=1e-4)
        assert low < mean < high and float(row["doubt"]) < sd
    status, table, said = command(
        capsys,
        "predict",
        store(run, "2"),
        people(tmp_path / "x.csv", 400, 442, target=False),
        "--abstain",
        0.5,
    )
    kept = list(csv.DictReader(io.StringIO(table)))
    assert status == 0 and len(kept) == 21 and "a standard deviation above" in said and "RMSE" not in said
    assert max(float(row["sd"]) for row in kept) <= sorted(float(row["sd"]) for row in rows)[21]
    with pytest.raises(ModelError, match="predicts numbers, not classes; ask it with `forecast`"):
        PersonalModel.load(store(run, "2")).predict(np.zeros((1, 10)))


@pytest.mark.parametrize("scale", ["pooled", "site"])
def test_a_new_site_adapts(
    trained: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: str
) -> None:
    run = trained(method="pfedbayes", **{"scale": "site"} if scale == "site" else {})
    mine, held = people(tmp_path / "mine.csv", 320, 400), people(tmp_path / "held.csv", 400, 442)
    status, said, error = command(
        capsys, "adapt", run.folder, mine, "--out", tmp_path / "mine", "--test", held, "rounds=5"
    )
    assert status == 0, error
    assert "80 training examples" in said and "RMSE" in said and "accuracy" not in said
    y = torch.tensor(load_diabetes(scaled=False).target[400:])
    found = PersonalModel.load(tmp_path / "mine").forecast(load_diabetes(scaled=False).data[400:])
    assert 40 < float((found.mean - y).square().mean().sqrt()) < 75


def test_the_exported_network_says_the_same(
    trained: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = trained(method="pfedbayes")
    held = people(tmp_path / "held.csv", 400, 442)
    status, said, error = command(
        capsys, "export", store(run, "1"), "--out", tmp_path / "out", "--test", held
    )
    assert status == 0 and "RMSE" in said, error
    x = load_diabetes(scaled=False).data[400:].astype(np.float32)
    mean, sd = onnxruntime.InferenceSession(str(tmp_path / "out" / "network.onnx")).run(
        ["mean", "sd"], {"x": x}
    )
    personal = PersonalModel.load(store(run, "1"))
    plain = build("dnn", (10,), 1)
    plain.load_state_dict(load_file(tmp_path / "out" / "network.safetensors"))
    centre, width = personal.card.agreement.target_scale
    ours = plain(personal.inputs(x))[:, 0].detach().numpy() * width + centre
    np.testing.assert_allclose(mean, ours, rtol=1e-4)
    error_ = float(np.sqrt(np.mean((mean - load_diabetes(scaled=False).target[400:]) ** 2)))
    assert f"{error_:.4f}"[:5] in said and sd.std() < 1e-3 and 30 < sd[0] < 90


def test_the_report_tells_of_numbers(trained: Federate) -> None:
    page = (trained(method="pfedbayes").folder / "report.html").read_text("utf-8")
    assert 'id="convergence"' in page and 'id="intervals"' in page and "an RMSE of" in page
    assert "Intervals that should hold 90" in page
    for figure in ("reliability", "uncertainty", "histograms"):
        assert f'id="{figure}"' not in page
    assert "What is not here" not in page


def test_comparisons_and_lists_tell_of_numbers(
    trained: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = trained(method="pfedbayes").folder, trained(method="local").folder
    words = (one.name, other.name, f"out-dir={one.parent}", "--to", tmp_path / "both")
    status, said, _ = command(capsys, "compare", *words)
    assert status == 0 and "PM RMSE" in said
    assert "The lowest personal RMSE" in (tmp_path / "both.html").read_text("utf-8")
    status, said, _ = command(capsys, "runs", f"out-dir={one.parent}")
    rmse = float([row for row in read_rows(other / "rounds.csv") if row["pm_rmse"]][-1]["pm_rmse"])
    assert status == 0 and f"{rmse:.3f}" in said


def test_clients_with_known_functions(federate: Federate) -> None:
    run = federate(dataset="functions", model="mlp", size="50+100", rounds=6, eval_every=3, local_steps=20,
                   batch_size=50, zeta=0.5, lr_personal=0.005, lr_global=0.005, rho_init=-4.0)  # fmt: skip
    first, *_, last = [row for row in run.rows if row["pm_rmse"]]
    assert float(last["pm_rmse"]) < 0.8 * float(first["pm_rmse"])


def test_the_functions_are_what_they_say() -> None:
    arrays, more = observe(3, (2000, 500), seed=1), observe(3, (4000, 500), seed=1)
    x, y = arrays["x_train"][:, 0], arrays["y_train"]
    assert np.std(y - truth(x, 3, 1)) == pytest.approx(NOISE, rel=0.05) and abs(x).max() <= 1
    np.testing.assert_array_equal(more["y_train"][:2000], y)
    apart = truth(x, 3, 1) - truth(x, 4, 1)
    waves = [abs(np.mean(apart * np.exp(1j * np.pi * 2**k * x))) for k in range(5)]
    assert max(waves[:2]) < 0.1 < waves[2], "the wide waves are common, the finer ones are not"
