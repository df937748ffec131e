"""A finished run in its users' hands: PersonalModel.load, predict, adapt, export, and what can be wrong."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from harness import SMALL, Outcome
from safetensors.torch import load_file, save_file

from bayes_core.predict.calibration import scale
from bayes_core.predict.metrics import summarise, tally
from bayes_core.predict.uncertainty import predict
from client_app.data import load
from fedbayes import PersonalModel
from fedbayes.cli.command import _status
from fedbayes.errors import ModelError
from fedbayes.model.export import read_pruned, write_onnx
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.streams import stream
from server_app.rows import wilson

Federate = Callable[..., Outcome]
TRAINED = {"local_steps": 20, "personal_steps": 5, "zeta": 0.5, "size": "10+10"}


def digits(site: int = 0, clients: int = 4, **words: object) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's test digits, as its network takes them."""
    data = load(Settings.parse(defaults() | SMALL | {"size": "10+10"} | words), site, clients)
    return data.x_test, data.y_test


def store(run: Outcome, site: str) -> Path:
    return run.folder.parent / "state" / run.folder.name / site


def write(file: Path, **arrays: torch.Tensor) -> str:
    np.savez(file, **{name: array.numpy() for name, array in arrays.items()})
    return str(file)


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = _status([str(word) for word in words])
    said = capsys.readouterr()
    return status, said.out, said.err


# ---------------------------------------------------------------- PersonalModel


@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes", "cfedbayes", "local"])
def test_a_personal_model_is_usable_on_its_own(federate: Federate, method: str) -> None:
    run = federate(method=method, **TRAINED)
    x, y = digits(2)
    personal = PersonalModel.load(store(run, "2"))
    last = next(row for row in run.clients if row["round"] == "4" and row["site"] == "2")
    draws = stream(1, "2", 5, "evaluate pm")  # of the exchange that ended the run
    same = predict(
        personal.network, personal.family, personal.v, x, SMALL["eval-samples"], draws, personal.buffers
    )
    assert summarise(tally(same.probabilities, y))["nll"] == pytest.approx(float(last["pm_nll"]), abs=1e-6)
    found = personal.predict(x)
    point = summarise(tally(personal.point_probabilities(x), y))["accuracy"]
    assert point == pytest.approx(float(last["pm_point_accuracy"]), abs=1e-6)
    assert personal.classes == tuple("0123456789")
    assert torch.equal(found.probabilities, personal.predict(x, seed=0).probabilities)
    assert torch.equal(found.probabilities, personal.predict(x, seed=1).probabilities) == (method == "local")


def test_the_state_dict_is_an_ordinary_network(federate: Federate) -> None:
    run = federate(**TRAINED)
    x, _ = digits()
    personal = PersonalModel.load(store(run, "0") / "personal.safetensors")
    network = build("dnn", (1, 8, 8), 10)
    network.load_state_dict(personal.state_dict())
    torch.testing.assert_close(network(x).softmax(-1).detach(), personal.point_probabilities(x))


def test_a_fitted_temperature_is_used(federate: Federate) -> None:
    run = federate(validation_fraction=0.2, temperature_scaling=True, **TRAINED)
    x, _ = digits()
    personal = PersonalModel.load(store(run, "0"))
    scaled = personal.predict(x)
    fitted, personal.temperature = personal.temperature, 1.0
    plain = personal.predict(x)
    assert fitted != 1
    torch.testing.assert_close(scaled.probabilities, scale(plain.probabilities, fitted))
    assert torch.equal(scaled.entropy, plain.entropy) and torch.equal(scaled.labels, plain.labels)


def test_bytes_are_scaled_as_for_training_and_one_channel_may_be_left_out(federate: Federate) -> None:
    personal = PersonalModel.load(store(federate(**TRAINED), "0"))
    pixels = torch.arange(64, dtype=torch.uint8).view(1, 8, 8) % 17
    scaled = pixels[:, None].float() / 8 - 1  # the white of scikit-learn's digits is 16
    for given in (pixels, pixels[:, None], pixels[..., None], scaled, pixels.numpy()):
        torch.testing.assert_close(personal.inputs(given), scaled)


# ---------------------------------------------------------------- what can be wrong


def test_wrong_inputs_are_one_sentence(federate: Federate) -> None:
    personal = PersonalModel.load(store(federate(rounds=1), "0"))
    with pytest.raises(
        ModelError, match=r"^The model takes examples of shape \(1, 8, 8\), not \(3, 8, 8\)\.$"
    ):
        personal.predict(torch.zeros(5, 3, 8, 8))
    with pytest.raises(ModelError, match="not finite"):
        personal.predict(torch.full((1, 1, 8, 8), torch.nan))


def test_damaged_and_foreign_files_are_one_sentence(federate: Federate, tmp_path: Path) -> None:
    good = store(federate(rounds=1), "0") / "personal.safetensors"
    cut, text, foreign = tmp_path / "cut", tmp_path / "text", tmp_path / "foreign"
    cut.write_bytes(good.read_bytes()[:-7])
    text.write_text("not a model")
    save_file({"weight": torch.zeros(3)}, foreign)
    for file, words in ((cut, "damaged or no model file"), (text, "damaged or no model file")):
        with pytest.raises(ModelError, match=words):
            PersonalModel.load(file)
    with pytest.raises(ModelError, match=r"is no personal model of fedbayes \(format none, not 2\)"):
        PersonalModel.load(foreign)
    with pytest.raises(ModelError, match="There is no model file"):
        PersonalModel.load(tmp_path / "nowhere")

    from client_app.store import read

    tags, tensors = read(good)

    def damaged(tensors: dict[str, torch.Tensor] = tensors, **changed: str) -> Path:
        save_file(tensors, tmp_path / "damaged", tags | changed)
        return tmp_path / "damaged"

    with pytest.raises(
        ModelError, match="format 1, which does not say which network it is for; resume its run"
    ):
        PersonalModel.load(damaged(format="1"))
    with pytest.raises(ModelError, match=r"is no personal model of fedbayes \(format 9, not 2\)"):
        PersonalModel.load(damaged(format="9"))
    with pytest.raises(ModelError, match="does not say what network it is for"):
        PersonalModel.load(damaged(card="{}"))
    card = json.loads(tags["card"])
    with pytest.raises(ModelError, match="other parameters than the one that was trained"):
        PersonalModel.load(damaged(card=json.dumps(card | {"fingerprint": "0"})))
    with pytest.raises(ModelError, match=r"has weights of shape \(2, 5\); its network takes \(2, 7510\)"):
        PersonalModel.load(damaged(tensors | {"q": torch.zeros(2, 5)}))
    with pytest.raises(ModelError, match="is damaged: it has values that are not finite"):
        PersonalModel.load(damaged(tensors | {"q": torch.full((2, 7510), torch.nan)}))


def test_a_method_without_personal_models_says_so(federate: Federate) -> None:
    run = federate(method="fedavg", rounds=1)
    with pytest.raises(
        ModelError, match="Site 0 of the run run has no personal model: fedavg has only the global"
    ):
        PersonalModel.load(store(run, "0"))


def test_unknown_models_and_clients_are_one_sentence(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federate(rounds=1)
    data = write(tmp_path / "new.npz", x=digits()[0])
    out_dir = f"out-dir={tmp_path}"
    status, _, said = command(capsys, "predict", "run/17", data, out_dir)
    assert (status, said) == (2, 'fedbayes: The run run has no model of a site "17"; there are 0, 1, 2, 3.\n')
    status, _, said = command(capsys, "predict", "gone/1", data, out_dir)
    assert status == 2 and said.startswith('fedbayes: There is no model "gone/1": no file of that name')
    assert "no folder with personal.safetensors, and no RUN/SITE in" in said
    status, _, said = command(capsys, "predict", "run", data, out_dir)
    assert (status, said) == (2, 'fedbayes: "run" is a run; name one of its sites too, as in run/0.\n')
    status, _, said = command(capsys, "predict", tmp_path / "run" / "checkpoint.safetensors", data)
    assert status == 2 and "is no personal model of fedbayes (format 1, not 2)." in said
    assert command(capsys, "predict", "run/1/", data, out_dir)[0] == 0
    status, _, said = command(capsys, "predict", "run/1", data, "zeta=3")
    assert (status, said) == (2, 'fedbayes: This command takes only out-dir=…, not "zeta".\n')


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": torch.zeros(3, 4, 4)}, "The model takes examples of shape (1, 8, 8), not (1, 4, 4)."),
        ({"z": torch.zeros(3, 8, 8)}, 'lacks the array "x"'),
        ({"x": torch.zeros(0, 8, 8)}, "has no examples."),
        ({"x": torch.zeros(3, 8, 8), "y": torch.zeros(2)}, "has 3 examples in x but 2 in y."),
        (
            {"x": torch.zeros(1, 8, 8), "y": torch.tensor([12])},
            'has the label "12", which is not among the classes 0, 1,',
        ),
    ],
)
def test_wrong_data_files_are_one_sentence(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], arrays: dict, words: str
) -> None:
    federate(rounds=1)
    file = write(tmp_path / "new.npz", **arrays)
    status, out, said = command(capsys, "predict", "run/0", file, f"out-dir={tmp_path}")
    assert status == 2 and said.startswith(f"fedbayes: {file}") and words in said and said.count("\n") == 1
    assert out == ""
    assert (
        command(capsys, "predict", "run/0", file, f"out-dir={tmp_path}", "--out", tmp_path / "a.csv")[0] == 2
    )
    assert not (tmp_path / "a.csv").exists()


def test_what_cannot_be_written_is_one_sentence(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federate(rounds=1)
    x, y = digits()
    file, out_dir = write(tmp_path / "new.npz", x=x, y=y), f"out-dir={tmp_path}"
    for words in (
        ["predict", "run/0", file, out_dir, "--out", tmp_path / "no" / "a.csv"],
        ["export", "run/0", out_dir, "--out", tmp_path / "new.npz"],
        ["adapt", "run", file, out_dir, "rounds=1", "--out", tmp_path / "new.npz" / "mine"],
    ):
        status, _, said = command(capsys, *words)
        assert status == 2 and f"{words[-1]} cannot be written (" in said and said.count("\n") == 1
    for words, sentence in (
        (
            ["adapt", "run", file, out_dir, "--out", tmp_path / "m", "--site", "a/b"],
            "--site takes letters, digits",
        ),
        (
            ["export", "run/0", out_dir, "--out", tmp_path / "m", "--threshold", 3],
            "3.0 is not in the range 0<=x<=1",
        ),
        (["adapt", "run", file, out_dir, "--out", tmp_path / "m", "rounds=no"], "rounds"),
        (["adapt", "run", file, out_dir, "--out", tmp_path / "m", "bogus=1"], "bogus"),
    ):
        status, _, said = command(capsys, *words)
        assert status == 2 and sentence in said and said.count("\n") == 1


# ---------------------------------------------------------------- fedbayes predict


def test_predict_writes_a_row_for_each_example(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = federate(**TRAINED)
    x, y = digits(1)
    file = write(tmp_path / "new.npz", x=x, y=y)
    status, out, said = command(capsys, "predict", "run/1", file, f"out-dir={tmp_path}")
    found = PersonalModel.load(store(run, "1")).predict(x)
    right = (found.labels == y).double().mean()
    low, high = wilson(float(right), 50)
    spread = f"{right:.4f} (95 %: {low:.4f} – {high:.4f})"
    assert (status, said) == (0, f"50 of 50 examples answered; accuracy {spread}.\n")
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["example"] for row in rows] == [str(i) for i in range(50)]
    assert [row["class"] for row in rows] == [str(label) for label in found.labels.tolist()]
    for name, column in (
        ("probability", found.confidence),
        ("entropy", found.entropy),
        ("mutual_information", found.mutual_information),
    ):
        assert [float(row[name]) for row in rows] == pytest.approx(column.tolist(), abs=1e-6)
    again = tmp_path / "again.csv"
    assert command(capsys, "predict", store(run, "1"), file, "--out", again)[0] == 0
    assert again.read_bytes().decode() == out


def test_abstain_leaves_out_the_least_certain(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = federate(**TRAINED)
    x, _ = digits(1)
    file = write(tmp_path / "new.npz", x=x)
    entropy = PersonalModel.load(store(run, "1")).predict(x).entropy
    status, out, said = command(capsys, "predict", "run/1", file, f"out-dir={tmp_path}", "--abstain", 0.3)
    rows = list(csv.DictReader(out.splitlines()))
    assert status == 0 and {int(row["example"]) for row in rows} == set(entropy.argsort()[:35].tolist())
    assert [int(row["example"]) for row in rows] == sorted(int(row["example"]) for row in rows)
    border = entropy.sort().values[34]
    assert said == f"35 of 50 examples answered, the others have an entropy above {border:.3f}.\n"
    status, _, said = command(capsys, "predict", "run/1", file, f"out-dir={tmp_path}", "--abstain", 1)
    assert (status, said) == (2, "fedbayes: --abstain takes a share from 0 up to, but not, 1, not 1.\n")


def clinic(file: Path, header: str, seed: int, rows: int = 40) -> Path:
    """A table with a temperature and a count, in units of their own, of two findings that both tell apart."""
    random = np.random.default_rng(seed)
    lines = [header]
    for i in range(rows):
        finding, centre = (("flu", (39.0, 900.0)), ("well", (36.5, 300.0)))[i % 2]
        cells = dict(zip(("temperature", "count"), random.normal(centre, (0.3, 60.0)), strict=True))
        lines.append(
            ",".join(f"{cells[name]:.3f}" if name in cells else finding for name in header.split(","))
        )
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize("scale", ["pooled", "site"])
def test_tables_are_read_by_column_and_scaled_as_for_training(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], scale: str
) -> None:
    for seed, name in enumerate(("east", "west")):
        clinic(tmp_path / "clinics" / f"{name}.csv", "temperature,count,finding", seed)
    words = {"lr_personal": 0.01, "local_steps": 20, "zeta": 0.1, "rounds": 8, "test_fraction": 0.3}
    federate(clients=2, dataset=str(tmp_path / "clinics"), scale=scale, **words)
    new = clinic(tmp_path / "new.csv", "finding,count,temperature", 7)
    status, out, said = command(capsys, "predict", "run/east", new, f"out-dir={tmp_path}")
    assert (status, said) == (0, "40 of 40 examples answered; accuracy 1.0000 (95 %: 0.9124 – 1.0000).\n")
    assert [row["class"] for row in csv.DictReader(out.splitlines())][:2] == ["flu", "well"]
    bare = clinic(tmp_path / "bare.csv", "count,temperature", 7)
    assert command(capsys, "predict", "run/east", bare, f"out-dir={tmp_path}")[:2] == (0, out)
    x = [[39.1, 880.0], [36.4, 310.0]]
    assert PersonalModel.load(tmp_path / "state" / "run" / "east").predict(x).labels.tolist() == [0, 1]

    mine = clinic(tmp_path / "mine.csv", "count,temperature,finding", 8)
    adapt = [
        "adapt",
        "run",
        mine,
        "--test",
        new,
        f"out-dir={tmp_path}",
        "rounds=2",
        "--out",
        tmp_path / "mine",
    ]
    status, out, _ = command(capsys, *adapt)
    assert status == 0 and "│ accuracy                │          1.0000 │" in out
    assert "│ 95 % interval of it     │ 0.9124 – 1.0000 │" in out  # after Wilson, 40 of 40
    status, _, said = command(capsys, "predict", tmp_path / "mine", new)
    assert (status, said) == (0, "40 of 40 examples answered; accuracy 1.0000 (95 %: 0.9124 – 1.0000).\n")

    wrong = clinic(tmp_path / "wrong.csv", "temperature,finding", 1)
    status, _, said = command(capsys, "predict", "run/east", wrong, f"out-dir={tmp_path}")
    assert (status, said) == (
        2,
        f'fedbayes: {wrong} has no column "count"; the model takes temperature, count.\n',
    )
    more = clinic(tmp_path / "more.csv", "id,temperature,count,finding", 7)
    status, out, _ = command(capsys, "predict", "run/east", more, f"out-dir={tmp_path}")
    assert status == 0 and out.startswith("example,id,class,"), (
        "it knows its columns, and passes others through"
    )
    assert [row["id"] for row in csv.DictReader(out.splitlines())][:2] == ["flu", "well"]
    taken = clinic(tmp_path / "taken.csv", "class,temperature,count", 7)
    status, out, _ = command(capsys, "predict", "run/east", taken, f"out-dir={tmp_path}")
    assert status == 0 and out.startswith("example,class (given),class,probability,")


def test_images_are_read_with_and_without_classes(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    for site in ("a", "b"):
        for label, grey in (("dark", 20), ("light", 230)):
            folder = tmp_path / "sites" / site / label
            folder.mkdir(parents=True)
            for i in range(10):
                Image.new("L", (6, 6), grey + i).save(folder / f"{i}.png")
    words = {
        "lr_personal": 0.01,
        "local_steps": 20,
        "zeta": 0.1,
        "rounds": 4,
        "test_fraction": 0.3,
        "image_size": 4,
    }
    federate(clients=2, dataset=str(tmp_path / "sites"), **words)
    status, out, said = command(capsys, "predict", "run/a", tmp_path / "sites" / "b", f"out-dir={tmp_path}")
    assert (status, said) == (0, "20 of 20 examples answered; accuracy 1.0000 (95 %: 0.8389 – 1.0000).\n")
    assert next(csv.DictReader(out.splitlines()))["example"] == "dark/0.png"
    plain = tmp_path / "plain"
    plain.mkdir()
    Image.new("RGB", (9, 5), (240, 240, 240)).save(plain / "new.jpg")  # in colour, of another size
    (plain / "notes.txt").write_text("no image")
    status, out, said = command(capsys, "predict", "run/a", plain, f"out-dir={tmp_path}")
    assert (status, said) == (0, "1 of 1 examples answered.\n")
    assert "new.jpg,light," in out
    (plain / "broken.png").write_bytes(b"no image")
    status, _, said = command(capsys, "predict", "run/a", plain, f"out-dir={tmp_path}")
    assert (
        status == 2 and f"{plain / 'broken.png'} is no image or is damaged" in said and said.count("\n") == 1
    )


# ---------------------------------------------------------------- fedbayes adapt


def new_site(tmp_path: Path, **words: object) -> tuple[str, str]:
    """Training and test files of a site that is not in the run: the fifth of five."""
    data = load(Settings.parse(defaults() | {"size": "10+10"} | words), 4, 5)
    return (
        write(tmp_path / "train.npz", x=data.x_train, y=data.y_train),
        write(tmp_path / "test.npz", x=data.x_test, y=data.y_test),
    )


@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes"])
def test_a_new_site_gets_a_model_without_anyone_else(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    federate(method=method, **TRAINED)
    train, test = new_site(tmp_path)
    words = ["adapt", "run", train, "--test", test, f"out-dir={tmp_path}", "rounds=3", "--out"]
    status, out, _ = command(capsys, *words, tmp_path / "mine")
    assert status == 0 and "50 training examples, 60 local steps, the global distribution as the prior" in out
    accuracy = next(line for line in out.splitlines() if line.startswith("│ accuracy"))
    personal, start = (float(cell) for cell in accuracy.split("│")[2:4])
    assert personal > start > 0.2
    model = PersonalModel.load(tmp_path / "mine")
    assert (model.card.run, model.card.site, model.card.method) == ("run", "new", method)
    found = model.predict(torch.from_numpy(np.load(test)["x"]))
    assert (found.labels.numpy() == np.load(test)["y"]).mean() == pytest.approx(personal, abs=1e-4)

    status, _, said = command(capsys, *words, tmp_path / "mine")
    assert status == 2 and "personal.safetensors is there already" in said
    assert command(capsys, *words, tmp_path / "again")[0] == 0
    first, again = (load_file(tmp_path / name / "personal.safetensors") for name in ("mine", "again"))
    assert all(torch.equal(first[name], again[name]) for name in first), "one seed, one model"


@pytest.mark.parametrize("group", [0, 1])
def test_the_prior_is_the_cluster_that_fits(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], group: int
) -> None:
    run = federate(method="cfedbayes", clusters=2, layout="rotated", rounds=4, **TRAINED | {"size": "5+5"})
    data = load(Settings.parse(defaults() | {"size": "5+5", "layout": "rotated", "seed": 9}), 3 * group, 4)
    assert data.group == group
    file = write(tmp_path / "new.npz", x=data.x_train, y=data.y_train)
    members = {row["site"]: row["cluster"] for row in run.clients if row["round"] == "4"}
    expected = members["0" if group == 0 else "3"]
    assert members["0"] != members["3"]
    out = tmp_path / "mine"
    status, said, _ = command(capsys, "adapt", "run", file, "--out", out, f"out-dir={tmp_path}", "rounds=1")
    assert status == 0 and f"cluster {expected} as the prior" in said


def test_what_cannot_be_adapted_is_one_sentence(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for method in ("fedavg", "local", "pfedbayes"):
        federate(method, method=method, rounds=1)
    train, _ = new_site(tmp_path)

    def refused(*words: object) -> str:
        status, _, said = command(capsys, "adapt", *words, f"out-dir={tmp_path}", "--out", tmp_path / "mine")
        assert status == 2 and said.count("\n") == 1 and not (tmp_path / "mine").exists()
        return said

    assert "The run fedavg used fedavg, which has no personal models to adapt." in refused("fedavg", train)
    assert (
        "The run local used local: every client trains alone, for comparison; it has no global model."
        in refused("local", train)
    )
    assert "The run pfedbayes has model=dnn, which stays." in refused("pfedbayes", train, "model=vgg")
    assert 'There is no run "gone"' in refused("gone", train)
    assert "train.npz2" in refused("pfedbayes", train + "2")
    unlabelled = write(tmp_path / "x.npz", x=digits()[0])
    assert "x.npz does not say what each example is" in refused("pfedbayes", unlabelled)
    (tmp_path / "pfedbayes" / "checkpoint.safetensors").unlink()
    assert "The run pfedbayes has no checkpoint" in refused("pfedbayes", train)


# ---------------------------------------------------------------- fedbayes export


@pytest.mark.parametrize("method", ["pfedbayes", "local"])
def test_the_exported_network_says_the_same(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = federate(method=method, **TRAINED)
    x, y = digits(3)
    test = write(tmp_path / "test.npz", x=x, y=y)
    words = ["export", "run/3", "--out", tmp_path / "out", "--test", test, f"out-dir={tmp_path}"]
    status, said, _ = command(capsys, *words)
    ours = PersonalModel.load(store(run, "3")).point_probabilities(x)
    accuracy = (ours.argmax(-1) == y).double().mean()
    low, high = wilson(float(accuracy), 50)
    assert status == 0 and f"{accuracy:.4f} ({low:.4f}–{high:.4f})" in said

    network = build("dnn", (1, 8, 8), 10)
    network.load_state_dict(load_file(tmp_path / "out" / "network.safetensors"))
    torch.testing.assert_close(network(x).softmax(-1).detach(), ours, rtol=0, atol=1e-6)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "network.onnx"))
    for examples in (x, x[:1]):
        theirs = session.run(["probabilities"], {"x": examples.numpy()})[0]
        assert abs(theirs - ours[: len(examples)].numpy()).max() < 1e-5
    said_of_itself = session.get_modelmeta().custom_metadata_map
    assert json.loads(said_of_itself["classes"]) == list("0123456789")
    assert json.loads(said_of_itself["agreement"])["brightest"] == 16
    assert not (tmp_path / "out" / "pruned.onnx").exists(), "nothing to prune"


def test_an_exported_vgg_says_the_same(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    network = build("vgg", (3, 32, 32), 10, seed=3)
    write_onnx(network, (3, 32, 32), tmp_path / "vgg.onnx")
    x = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    theirs = onnxruntime.InferenceSession(str(tmp_path / "vgg.onnx")).run(None, {"x": x.numpy()})[0]
    assert abs(theirs - network.eval()(x).softmax(-1).detach().numpy()).max() < 1e-5


def test_without_the_extra_packages_export_says_what_to_install(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    federate(rounds=1)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    status, said, _ = command(capsys, "export", "run/0", "--out", tmp_path / "out", f"out-dir={tmp_path}")
    assert status == 0 and "ONNX files take `pip install onnx onnxscript`" in said
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["network.safetensors"]


def test_a_sparse_model_is_pruned(
    federate: Federate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    settings = {"method": "sfedbayes", "sparsity_target": 0.3, "lr_lambda": 0.1, "rounds": 8}
    run = federate(**TRAINED | settings)
    x, y = digits(3)
    test = write(tmp_path / "test.npz", x=x, y=y)
    out = tmp_path / "out"
    words = ["export", store(run, "3"), "--out", out, "--test", test, "--threshold", 0.5]
    status, said, _ = command(capsys, *words)
    personal = PersonalModel.load(store(run, "3"))
    on = personal.family.constrain(personal.v)[2] > 0.5
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in said.splitlines()
        if ".safetensors" in line
    ]
    assert status == 0 and [row[1] for row in rows] == ["7,510", f"{int(on.sum()):,}"]
    sizes = [(out / f"{name}.safetensors").stat().st_size for name in ("network", "pruned")]
    assert [row[2] for row in rows] == [f"{size:,}" for size in sizes] and sizes[1] < 0.6 * sizes[0]

    pruned = read_pruned(out / "pruned.safetensors")
    weights = torch.cat([weight.reshape(-1) for weight in pruned.values()])
    torch.testing.assert_close(weights, personal.family.centre(personal.v) * on)
    network = build("dnn", (1, 8, 8), 10)
    network.load_state_dict(pruned)
    ours = network(x).softmax(-1).detach()
    right = float((ours.argmax(-1) == y).double().mean())
    assert rows[1][3] == "{:.4f} ({:.4f}–{:.4f})".format(right, *wilson(right, 50))
    theirs = onnxruntime.InferenceSession(str(out / "pruned.onnx")).run(None, {"x": x.numpy()})[0]
    assert abs(theirs - ours.numpy()).max() < 1e-5
    with pytest.raises(ModelError, match="is no pruned network of fedbayes"):
        read_pruned(out / "network.safetensors")
