"""Several labels an example, each there or not: learned, measured by decision, predicted, adapted and exported."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Outcome
from sklearn.metrics import confusion_matrix, roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits

from bayes_core.likelihoods import balanced_labels, likelihood_of
from bayes_core.networks import ManyLabels
from bayes_core.predict.histograms import label_counts
from fedbayes.cli.command import _status
from fedbayes.model.find import find_model
from fedbayes.protocol.settings import SettingsError
from server_app.evaluations import read_evaluations
from server_app.report.classes import auroc, by_class
from server_app.report.files import ByClass, read_run
from strategies import StrategyError

Federate = Callable[..., Outcome]
WORDS = {
    "clients": 2,
    "layout": "iid",
    "size": "80+40",
    "local_steps": 40,
    "zeta": 0.05,
    "lr_personal": 0.02,
    "rounds": 3,
}


def examples(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(n, 3))
    return x, (x > [0, 0, 1]).astype(int)


def test_counts_of_labels_against_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(2, (400, 4), generator=draw)
    logits = torch.randn(400, 4, generator=draw) + 2 * y - 1
    p = torch.stack([-logits, logits], -1).softmax(-1).view(-1, 2)
    confusion, scores = label_counts(p, y)
    told = ByClass(confusion=confusion, scores=scores, sites=1, many=True)
    for place in range(4):
        expected = confusion_matrix(y[:, place], logits[:, place] > 0).flatten().tolist()
        assert told.confusion[4 * place : 4 * place + 4] == expected
        exact = roc_auc_score(y[:, place], logits[:, place])
        assert auroc(*told.scores_of(place, 4)) == pytest.approx(exact, abs=3e-3)


def test_the_loss_is_binary_cross_entropy() -> None:
    network = ManyLabels(torch.nn.Linear(3, 4))
    x, y = torch.randn(5, 3), torch.tensor([[0, 1, 0, 1]] * 4 + [[1, 1, 1, 0]])
    expected = binary_cross_entropy_with_logits(network.network(x), y.float(), reduction="sum")
    torch.testing.assert_close(likelihood_of(y)(network(x), y), expected)
    each = binary_cross_entropy_with_logits(network.network(x), y.float(), reduction="none")
    weights = torch.where(
        y == 1, torch.tensor([5 / 2, 1, 5 / 2, 5 / 8]), torch.tensor([5 / 8, 1, 5 / 8, 5 / 2])
    )
    torch.testing.assert_close(balanced_labels(y)(network(x), y), (each * weights).sum())


@pytest.mark.parametrize("method", ["pfedbayes", "fedavg", "cfedbayes", "fedper"])
def test_it_is_learned_and_measured_by_decision(federate: Federate, tmp_path: Path, method: str) -> None:
    x, y = examples()
    np.savez(tmp_path / "labels.npz", x=x, y=y, classes=["fever", "cough", "rash"])
    more = {} if method == "fedavg" else {"temperature_scaling": True, "validation_fraction": 0.2}
    words = WORDS | {"rounds": 2, "method": method} if method != "pfedbayes" else WORDS
    words = {
        key: value
        for key, value in words.items()
        if key not in ("zeta", "lr_personal") or "fedbayes" in method
    }
    run = federate("run", report=True, dataset=str(tmp_path / "labels.npz"), **words, **more)
    last = run.rows[-1]
    assert float(last["gm_accuracy" if method == "fedavg" else "pm_accuracy"]) > 0.7
    assert {row["n_test"] for row in run.clients if row["round"] == last["round"]} == {"40"}, (
        "examples, not decisions"
    )
    assert not run.said("warning") and (run.folder / "report.html").exists()
    model = "gm" if method == "fedavg" else "pm"
    told = read_evaluations(run.folder)[-1]["classes"][model]
    matrix = np.array(told["confusion"]).reshape(3, 2, 2)
    assert told["sites"] == 2 and (matrix.sum((1, 2)) == 80).all(), "every test example, for each label"
    right = matrix[:, 0, 0] + matrix[:, 1, 1]
    assert right.sum() / 240 == pytest.approx(float(last[f"{model}_accuracy"]), abs=1e-6)
    rash = next(line for line in by_class(read_run(run.folder)).rows if line[0] == "rash")
    (absent, false), (missed, hit) = matrix[2]
    assert rash[2] == str(missed + hit)
    assert rash[3].startswith(f"{100 * hit / (missed + hit):.1f}"), "sensitivity"
    assert rash[4].startswith(f"{100 * absent / (absent + false):.1f}"), "specificity"
    assert float(rash[6]) > 0.5, "AUROC"
    assert f'id="classes-{model}"' in (run.folder / "report.html").read_text()
    assert last["pm_val_nll"] or method == "fedavg"


def test_a_model_is_asked_adapted_and_exported(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x, y = examples()
    names, folder = ["fever", "cough", "rash"], tmp_path / "sites"
    folder.mkdir()
    for site, part, order in (("a", slice(0, 100), [0, 1, 2]), ("b", slice(100, 200), [2, 0, 1])):
        head = ["age", *(names[i] for i in order), "u", "v"]
        lines = [[f"{r[0]:.4f}", *(("no", "yes")[t[i]] for i in order), f"{r[1]:.4f}", f"{r[2]:.4f}"]
                 for r, t in zip(x[part], y[part], strict=True)]  # fmt: skip
        (folder / f"{site}.csv").write_text("\n".join(",".join(line) for line in [head, *lines]))
    words = {key: value for key, value in WORDS.items() if key not in ("layout", "size")}
    run = federate("run", dataset=str(folder), target="fever,cough,rash", class_weights="balanced", **words)
    place = f"out-dir={run.folder.parent}"
    assert _status(["predict", "run/a", str(folder / "b.csv"), place]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(said.out.splitlines()))
    found = np.array([[float(row[f"p({name})"]) for name in names] for row in rows])
    assert f"accuracy {((found > 0.5) == y[100:200]).mean():.4f}" in said.err
    assert rows[0]["labels"] == "+".join(name for name, p in zip(names, found[0], strict=True) if p > 0.5)
    assert (
        _status(["export", "run/a", "--out", str(tmp_path / "out"), "--test", str(folder / "b.csv"), place])
        == 0
    )
    assert (
        _status(["adapt", "run", str(folder / "b.csv"), "--out", str(tmp_path / "mine"), "rounds=1", place])
        == 0
    )
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "network.onnx"))
    personal = find_model("run/a", run.folder.parent)
    inputs = personal.read(str(folder / "b.csv")).x
    theirs = session.run(None, {"x": inputs.numpy()})[0]
    assert (
        theirs.shape == (100, 3) and abs(theirs - personal.point_probabilities(inputs).numpy()).max() < 1e-5
    )


def test_what_cannot_be_is_one_sentence(federate: Federate, tmp_path: Path) -> None:
    x, y = examples(100)
    np.savez(tmp_path / "labels.npz", x=x, y=y)
    with pytest.raises(StrategyError, match="has several labels an example; take layout=iid"):
        federate(clients=2, dataset=str(tmp_path / "labels.npz"))
    with pytest.raises(SettingsError, match="method=bnfed learns one class an example"):
        federate(
            "bn", clients=2, dataset=str(tmp_path / "labels.npz"), layout="iid", size="20+10", method="bnfed"
        )
    np.savez(tmp_path / "odd.npz", x=x, y=2 * y)
    with pytest.raises(StrategyError, match="or a row of 0 and 1"):
        federate("odd", clients=2, dataset=str(tmp_path / "odd.npz"), layout="iid", size="20+10")
