"""`conformal`: sets and intervals from each client's validation data, in a run, its files and its models."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import Outcome
from inprocess import sites
from safetensors import safe_open

from bayes_core.predict.conformal import least
from client_app.data import load
from client_app.store import read
from fedbayes.errors import ModelError
from fedbayes.model.adapt import adapt
from fedbayes.model.export import export
from fedbayes.model.find import find_model
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.model.predict import predict_file
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from server_app.rows import wilson
from strategies.rounds.roster import StrategyError

Federate = Callable[..., Outcome]
DIGITS = {
    "conformal": 0.8,
    "validation_fraction": 0.5,
    "size": "10+10",
    "rounds": 3,
    "eval_every": 3,
    "zeta": 0.1,
}
NUMBERS = {"dataset": "functions", "layout": "iid", "model": "mlp", "size": "40+60", "batch_size": 20}


@pytest.fixture(scope="module")
def digits(federate_once: Federate) -> Outcome:
    return federate_once("digits", lr_personal=0.01, local_steps=10, **DIGITS)


@pytest.fixture(scope="module")
def numbers(federate_once: Federate) -> Outcome:
    return federate_once("numbers", **DIGITS | NUMBERS)


def cells(row: dict[str, str], model: str = "pm") -> list[str]:
    return [row[f"{model}_conformal_{what}"] for what in ("coverage", "size", "width")]


def test_rounds_and_clients_tell_coverage_and_size(digits: Outcome) -> None:
    last = [row for row in digits.clients if row["round"] == "3"]
    for model in ("pm", "gm"):
        covered, size, width = cells(digits.rows[-1], model)
        assert width == "" and 0.65 < float(covered) <= 1 and 1 <= float(size) <= 10
        mean = sum(float(cells(row, model)[0]) * int(row["n_test"]) for row in last)
        assert float(covered) == pytest.approx(mean / sum(int(row["n_test"]) for row in last), abs=2e-6)


def test_of_numbers_coverage_and_width(numbers: Outcome) -> None:
    covered, size, width = cells(numbers.rows[-1])
    assert size == "" and 0.65 < float(covered) <= 1 and 0 < float(width) < 20


def test_off_by_default_and_the_same_figures(federate: Federate, digits: Outcome) -> None:
    plain = federate("plain", lr_personal=0.01, local_steps=10, **{**DIGITS, "conformal": 0.0})
    assert cells(plain.rows[-1]) == ["", "", ""]
    same = ("pm_accuracy", "pm_nll", "gm_nll", "pm_val_nll")
    assert [plain.rows[-1][key] for key in same] == [digits.rows[-1][key] for key in same]


def test_a_model_file_has_the_threshold_and_predict_writes_sets(digits: Outcome, tmp_path: Path) -> None:
    folder = digits.folder.parent / "state" / "digits" / "0"
    _, tensors = read(folder / "personal.safetensors")
    assert tensors["conformal"][0] == 0.8 and 0 <= float(tensors["conformal"][1]) <= 1
    personal = PersonalModel.load(folder)
    data = load(Settings.parse(defaults() | {"size": "10+10"}), 0, 4)
    x = ((data.x_test + 1) * 8).to(torch.uint8)
    np.savez(tmp_path / "new.npz", x=x[:, 0].numpy(), y=data.y_test.numpy())
    text, said = predict_file(personal, str(tmp_path / "new.npz"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [tuple(row["set"].split("+")) for row in rows] == personal.sets(x)
    assert all(row["class"] in row["set"].split("+") for row in rows)
    held = sum(str(int(y)) in row["set"].split("+") for row, y in zip(rows, data.y_test, strict=True))
    low, high = wilson(held / len(rows), len(rows))
    spread = f"{100 * held / len(rows):.1f} % (95 %: {100 * low:.1f} – {100 * high:.1f} %)"
    assert f"{spread} of the conformal sets hold the class" in said
    shared = find_model("digits/global", digits.folder.parent)
    text, said = predict_file(shared, str(tmp_path / "new.npz"))
    assert (
        "set" not in next(csv.reader(io.StringIO(text)))
        and "no conformal sets or intervals: each site" in said
    )
    with pytest.raises(ModelError, match="each site measures its own"):
        shared.sets(x)


def test_predict_writes_intervals(numbers: Outcome, tmp_path: Path) -> None:
    personal = PersonalModel.load(numbers.folder.parent / "state" / "numbers" / "1")
    x = np.linspace(-1, 1, 7)[:, None]
    np.savez(tmp_path / "new.npz", x=x, y=np.zeros(7) + 0.5)
    text, said = predict_file(personal, str(tmp_path / "new.npz"))
    found = personal.forecast(x)
    assert personal.conformal is not None
    assert len(personal.conformal.thresholds) == 3 and personal.conformal.level == 0.8
    deviation, groups = personal.card.agreement.target_scale[1], set()
    for row, mean, sd in zip(csv.DictReader(io.StringIO(text)), found.mean, found.sd, strict=True):
        group = sum(float(sd) > cut * deviation for cut in personal.conformal.cuts)
        half = personal.conformal.thresholds[group] * float(sd)
        groups.add(group)
        assert float(row["conformal_low"]) == pytest.approx(float(mean) - half, rel=1e-4, abs=1e-4)
        assert float(row["conformal_high"]) == pytest.approx(float(mean) + half, rel=1e-4, abs=1e-4)
    assert len(groups) > 1 and "within the conformal ones" in said


def test_exported_files_tell_it_in_the_target_s_own_units(numbers: Outcome, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    personal = PersonalModel.load(numbers.folder.parent / "state" / "numbers" / "1")
    assert personal.conformal is not None
    export(personal, tmp_path / "out")
    with safe_open(tmp_path / "out" / "network.safetensors", "pt") as file:
        plain = file.metadata()["conformal"]
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "network.onnx"))
    assert session.get_modelmeta().custom_metadata_map["conformal"] == plain
    said, deviation = json.loads(plain), personal.card.agreement.target_scale[1]
    assert said["level"] == 0.8 and said["thresholds"] == list(personal.conformal.thresholds)
    assert said["cuts"] == pytest.approx([cut * deviation for cut in personal.conformal.cuts])


def test_adapted_models_have_it_and_others_say_so(digits: Outcome, federate: Federate) -> None:
    data = load(Settings.parse(defaults() | {"size": "10+10"}), 0, 4)
    x = ((data.x_train + 1) * 8).to(torch.uint8)
    *_, last = adapt(Finished.open(digits.folder, {"rounds": 1}), x, data.y_train, "new")
    assert last.personal().sets(x[:2])
    with pytest.raises(ModelError, match=r"takes at least 4 validation examples, and .* leaves 3; raise it"):
        next(adapt(Finished.open(digits.folder, {"rounds": 1}), x[:6], data.y_train[:6], "new"))
    run = federate("without", rounds=1)
    with pytest.raises(ModelError, match="no conformal sets or intervals"):
        PersonalModel.load(run.folder.parent / "state" / "without" / "0").sets(x[:2])


def test_over_the_network_alike(federate: Federate, digits: Outcome, tmp_path: Path) -> None:
    run = federate("sites", grid=sites(tmp_path), lr_personal=0.01, local_steps=10, **DIGITS)
    assert 0.65 < float(cells(run.rows[-1])[0]) <= 1


def test_what_cannot_be_is_told_in_a_sentence(federate: Federate) -> None:
    with pytest.raises(
        SettingsError, match=r"conformal=0\.9 measures .* takes a validation-fraction above 0"
    ):
        Settings.parse(defaults() | {"conformal": 0.9})
    assert least(0.9) == 9
    with pytest.raises(
        StrategyError, match=r"conformal=0\.9 takes at least 9 validation examples, and .* leaves 4"
    ):
        federate(conformal=0.9, validation_fraction=0.2)
