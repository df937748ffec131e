"""Single classes: confusion, sensitivity, specificity and AUROC from counts, only of sites that tell their labels."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid, sites
from sklearn.metrics import confusion_matrix, roc_auc_score

from bayes_core.predict.histograms import SCORE_BINS, confusion_counts, score_counts
from server_app.evaluations import read_evaluations
from server_app.report.classes import auroc, by_class, classes
from server_app.report.files import ByClass, read_run
from server_app.rows import wilson

Federate = Callable[..., Outcome]


def test_counts_against_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(3, (400,), generator=draw)
    p = (torch.randn(400, 3, generator=draw) + 2 * torch.nn.functional.one_hot(y, 3)).softmax(-1)
    assert confusion_counts(p, y) == confusion_matrix(y, p.argmax(-1), labels=[0, 1, 2]).flatten().tolist()
    told = ByClass(confusion=[0] * 9, scores=score_counts(p, y), sites=1)
    assert len(told.scores) == 6 * SCORE_BINS and sum(told.scores) == 1200
    for place in range(3):
        exact = roc_auc_score(y == place, p[:, place])
        assert auroc(*told.scores_of(place, 3)) == pytest.approx(exact, abs=2e-3)
    assert auroc([0.0, 3.0], [0.0, 0.0]) is None


def test_a_run_tells_them_and_its_report_shows_them(federate: Federate) -> None:
    run = federate(report=True, local_steps=20, size="10+10", personal_steps=3, zeta=0.5)
    last = read_evaluations(run.folder)[-1]["classes"]["pm"]
    matrix = np.array(last["confusion"]).reshape(10, 10)
    assert last["sites"] == 4 and matrix.sum() == 4 * 5 * 10
    assert np.trace(matrix) / matrix.sum() == pytest.approx(float(run.rows[-1]["pm_accuracy"]), abs=1e-6)
    figure = classes(read_run(run.folder), "pm")
    assert figure and "of the 4 sites" in figure.caption
    columns = [">" + name + "</text>" for name in "0123456789"]
    assert all(figure.svg.count(name) >= 2 for name in columns), "every class heads a row and a column"
    table = by_class(read_run(run.folder))
    assert [line[:2] for line in table.rows[6:8]] == [["3", "personal"], ["3", "global"]]
    line = dict(zip(table.header, table.rows[6], strict=True))
    hits, true = matrix[3, 3], matrix[3].sum()
    low, high = wilson(hits / true, int(true))
    said = f"{100 * hits / true:.1f} % ({100 * low:.1f}–{100 * high:.1f} %)"
    assert line["sensitivity (95 % interval)"].replace("\u202f", " ") == said
    others = matrix.sum() - true
    right = others - (matrix[:, 3].sum() - hits)
    assert line["specificity (95 % interval)"].startswith(f"{100 * right / others:.1f}")
    assert float(line["AUROC"]) > 0.5
    page = (run.folder / "report.html").read_text()
    assert 'id="classes-pm"' in page and "sensitivity" in page and "specificity" in page


def test_real_sites_tell_them_only_with_their_labels(federate: Federate, tmp_path: Path) -> None:
    quiet = federate("quiet", grid=sites(tmp_path / "a"), rounds=1)
    assert read_evaluations(quiet.folder)[-1]["classes"] == {}
    open_ = federate("open", grid=sites(tmp_path / "b", **{"share-labels": True}), rounds=1)
    assert read_evaluations(open_.folder)[-1]["classes"]["pm"]["sites"] == 4


def test_counts_that_do_not_add_up_are_left_out(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 1 and "counts" in reply.content:
            reply.content["counts"]["pm_confusion"] = [7] * 100
            reply.content["counts"]["gm_scores"] = [1]
        return reply

    run = federate(grid=InProcessGrid({}, 4, interfere), rounds=1)
    told = read_evaluations(run.folder)[-1]["classes"]
    assert (told["pm"]["sites"], told["gm"]["sites"]) == (3, 3) and run.state == "finished"
