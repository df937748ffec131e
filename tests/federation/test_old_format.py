"""A run folder and client stores that an earlier version left (old_format/): they resume, list, report and predict.

The run has two rounds of cFedBayes with four clients. `expected.csv` is the rounds.csv of the same run with four, by
that same version. Its checkpoint knows no stages, its facts no changes, and its config.json no words of the method.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Outcome
from safetensors import safe_open
from safetensors.torch import save_file

from client_app.data import load
from client_app.store import Store, read
from fedbayes.cli import command
from fedbayes.cli.listing import list_runs
from fedbayes.errors import ModelError
from fedbayes.launch.plan import plan_resume
from fedbayes.model.adapt import adapt
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.columns import OF_SITES
from server_app.report import write_report
from server_app.stored import RunError, read_config, read_rows

Federate = Callable[..., Outcome]
HERE = Path(__file__).parent / "old_format"
RUN = "old-clusters"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the run's folder, with the stores beside it."""
    for name in (RUN, f"state/{RUN}"):
        shutil.copytree(HERE / name, tmp_path / name)
    return tmp_path / RUN


FIGURES = ("val_nll", "val_accuracy", "conformal_coverage", "conformal_size", "conformal_width")
LATER = {"epsilon", "epsilon_examples"} | {
    f"{model}_{figure}" for model in ("pm", "gm") for figure in FIGURES
}  # columns


def without_time(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Nor columns that came later; all but the means over sites are empty here."""
    assert not any(row.get(name) for row in rows for name in LATER)
    later = {"seconds", *LATER, *OF_SITES}
    return [{name: value for name, value in row.items() if name not in later} for row in rows]


def resume(federate: Federate, old: Path, **words: Any) -> Outcome:
    """As `fedbayes run --resume` does: with what the run's own config.json says."""
    plan = plan_resume(str(old), {"rounds": 4, **words}, None)
    return federate(RUN, clients=plan.clients, **plan.settings.as_config())


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def retag(file: Path, **tags: str) -> None:
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata()
    save_file(read(file)[1], file, metadata | tags)


def test_it_goes_on_as_it_would_have_then(federate: Federate, old: Path) -> None:
    run = resume(federate, old)
    assert run.state == "finished" and not run.said("warning"), "every store was taken over"
    assert without_time(run.rows) == without_time(read_rows(HERE / "expected.csv"))
    assert (read_config(old) or {})["method"]["title"] == "cFedBayes", "from now on it says so itself"


def test_it_is_listed(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = list_runs(old.parent)
    assert (one.name, one.state, one.method, one.dataset, one.rounds) == (
        RUN, "finished", "cfedbayes", "digits", "2/2",
    )  # fmt: skip
    assert (one.personal, one.global_) == (0.10625, 0.1)
    with pytest.raises(SystemExit) as ended:
        command.main(["runs", f"out-dir={old.parent}"])
    assert ended.value.code == 0 and RUN in capsys.readouterr().out


def test_it_is_reported(old: Path) -> None:
    page = write_report(old).read_text()
    assert "cFedBayes" in page and RUN in page


def test_its_personal_models_predict(old: Path) -> None:
    settings = Finished.open(old).settings
    rows = [row for row in read_rows(old / "clients.csv") if row["round"] == "2"]
    for number, row in enumerate(rows):
        model = PersonalModel.load(old.parent / "state" / RUN / str(number))
        assert (model.card.method, model.card.site, model.classes) == (
            "cfedbayes", row["site"], tuple("0123456789"),
        )  # fmt: skip
        data = load(settings, number, 4)
        labels = model.point_probabilities(data.x_test).argmax(-1)
        assert float((labels == data.y_test).double().mean()) == float(row["pm_point_accuracy"])
        found = model.predict(data.x_test).probabilities
        assert found.shape == (40, 10)
        torch.testing.assert_close(found.sum(-1), torch.ones(40, dtype=found.dtype))


def test_a_new_site_adapts_to_it(old: Path) -> None:
    finished = Finished.open(old, {"rounds": 2})
    assert sorted(finished.tensors) == ["u0", "u1"]
    data = load(finished.settings, 3, 4)
    *_, last = adapt(finished, ((data.x_train + 1) * 8).to(torch.uint8), data.y_train, "new")
    x = ((data.x_test + 1) * 8).to(torch.uint8)
    assert last.personal().predict(x).probabilities.shape == (40, 10)


@pytest.mark.parametrize("key", ["proximal", "sparsity-target"])
def test_a_setting_that_the_method_does_not_use_is_no_obstacle(
    federate: Federate, old: Path, key: str
) -> None:
    """Earlier versions took every setting with every method. (A Gaussian family does not look at sparsity.)"""
    edit(old / "config.json", lambda config: config["settings"].update({key: 0.5}))
    assert plan_resume(str(old), {"rounds": 4}, None).settings.as_config()[key] == 0.5
    run = resume(federate, old)
    assert without_time(run.rows) == without_time(read_rows(HERE / "expected.csv"))


def test_settings_that_came_later_have_their_defaults(federate: Federate, old: Path) -> None:
    def forget(config: dict[str, Any]) -> None:
        del config["settings"]["aggregation-confidence"], config["settings"]["resume-with"]

    edit(old / "config.json", forget)
    run = resume(federate, old)
    assert without_time(run.rows) == without_time(read_rows(HERE / "expected.csv"))


def test_a_run_from_the_future_is_refused_in_a_sentence(
    federate: Federate, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = plan_resume(str(old), {"rounds": 4}, None).settings.as_config()
    edit(old / "config.json", lambda config: config.update(format=99))
    before = (old / "rounds.csv").read_bytes()
    words = f"{old} has format 99; this version reads format 1."
    with pytest.raises(RunError, match=words):
        plan_resume(str(old), {"rounds": 4}, None)
    with pytest.raises(RunError, match=words):
        federate(RUN, **settings)
    with pytest.raises(RunError, match=words):
        write_report(old)
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "--resume", str(old), "rounds=4"])
    said = "".join(capsys.readouterr())
    assert ended.value.code not in (0, None)
    assert "has format 99" in " ".join(said.split()) and "Traceback" not in said
    assert [one.state for one in list_runs(old.parent)] == ["unreadable"]
    assert (old / "rounds.csv").read_bytes() == before


def test_a_checkpoint_from_the_future_is_refused_in_a_sentence(federate: Federate, old: Path) -> None:
    retag(old / "checkpoint.safetensors", format="99")
    with pytest.raises(RunError, match=r"checkpoint\.safetensors has format 99; this version reads 1\."):
        resume(federate, old)


def test_a_store_from_the_future_is_set_aside(federate: Federate, old: Path) -> None:
    store = old.parent / "state" / RUN / "1"
    retag(store / "personal.safetensors", format="9")
    newer = (store / "personal.safetensors").read_bytes()
    with pytest.raises(ModelError, match=r"is no personal model of fedbayes \(format 9, not 2\)"):
        PersonalModel.load(store)
    run = resume(federate, old)
    assert run.state == "finished" and run.said("warning") == [
        "Site 1: personal.safetensors has format 9, not 2; it was set aside as personal.safetensors.format-9."
    ]
    assert (store / "personal.safetensors.format-9").read_bytes() == newer, "nothing of it is lost"
    assert PersonalModel.load(store).card.site == "1"


def test_a_store_without_a_card_is_gone_on_from(old: Path) -> None:
    """Format 1, from before there were cards: the same tensors."""
    folder = old.parent / "state" / RUN / "0"
    expected = read(folder / "personal.safetensors")[1]["q"]
    retag(folder / "personal.safetensors", format="1", card="")
    uuid = str((read_config(old) or {})["uuid"])
    store = Store(folder, uuid, durable=False)
    stored = store.load(before=3)
    assert stored and stored.round == 2 and torch.equal(stored.tensors["q"], expected) and not store.notes
