"""Raw clinical tables of four sites, as they come: trained, asked about new raw rows, exported and run elsewhere."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Outcome

from client_app.data import check
from client_app.data.errors import DataError
from client_app.site import forget
from fedbayes.cli.command import _status
from fedbayes.model.find import find_model
from fedbayes.protocol.settings import Settings, defaults

Federate = Callable[..., Outcome]
HEADER = ["patient_id", "admitted", "age", "crp", "sex", "ward", "smoker", "outcome"]
WORDS = {
    "target": "outcome",
    "ignore": "patient_id",
    "rounds": 6,
    "local_steps": 30,
    "zeta": 0.1,
    "lr_personal": 0.01,
}


def rows(site: str, n: int, seed: int) -> list[dict[str, str]]:
    """Outcome follows CRP and ward; values are missing, and sites write what they like."""
    draw = np.random.default_rng(seed)
    found = []
    for i in range(n):
        crp, ward, smokes = (
            draw.gamma(2, 10),
            str(draw.choice(["ICU", "surgery", "north"])),
            draw.random() < 0.4,
        )
        ill = crp + 15 * (ward == "ICU") + 5 * draw.normal() > 22
        found.append({
            "patient_id": f"{site}-{i:04d}",
            "admitted": f"2023-{1 + i % 12:02d}-{1 + i % 28:02d}",
            "age": "" if draw.random() < 0.15 else f"{draw.integers(20, 90)}",
            "crp": f"{crp:.2f}",
            "sex": str(draw.choice(["f", "m"])),
            "ward": ward,
            "smoker": ("yes" if smokes else "no") if draw.random() > 0.1 else "NA",
            "outcome": "ill" if ill else "well",
        })  # fmt: skip
    return found


def write(
    file: Path, lines: list[dict[str, str]], header: list[str], delimiter: str = ",", comma: bool = False
) -> Path:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, header, delimiter=delimiter, extrasaction="ignore")
        writer.writeheader()
        for line in lines:
            writer.writerow(line | ({"crp": line["crp"].replace(".", ",")} if comma else {}))
    return file


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ways to write the same things."""
    folder = tmp_path_factory.mktemp("raw") / "clinics"
    write(folder / "aachen.csv", rows("a", 90, 1), HEADER, ";", comma=True)
    write(folder / "bern.csv", rows("b", 80, 2), ["outcome", *HEADER[:-1]])
    german = [
        line | {"admitted": ".".join(reversed(line["admitted"].split("-"))), "age": line["age"] or "?"}
        for line in rows("c", 100, 3)
    ]
    write(folder / "celle.csv", german, list(reversed(HEADER)), "\t")
    own_ward = [
        line | {"ward": "dialysis" if i < 7 else line["ward"]} for i, line in enumerate(rows("d", 90, 4))
    ]
    own_ward[20]["ward"] = "Mrs. Miller's room"
    write(folder / "davos.csv", own_ward, HEADER)
    return folder


@pytest.fixture(scope="module")
def trained(federate_once: Federate, clinics: Path) -> Outcome:
    return federate_once("raw", clients=4, dataset=str(clinics), **WORDS)


def test_columns_are_agreed_on_and_learned_from(trained: Outcome) -> None:
    config = json.loads((trained.folder / "config.json").read_text())
    columns = {one["name"]: one for one in config["agreement"]["preparation"]["columns"]}
    kinds = {name: one["kind"] for name, one in columns.items()}
    assert list(kinds.values()) == ["date", "number", "number", "category", "category", "boolean"]
    assert columns["ward"]["categories"] == ["ICU", "dialysis", "north", "surgery"], (
        "the rare one is nobody's business"
    )
    assert [name for name, one in columns.items() if one["missing"]] == ["age", "smoker"]
    assert config["agreement"]["features"][:4] == ["admitted", "age", "age missing", "crp"]
    assert "Miller" not in json.dumps(config) and "patient_id" not in config["agreement"]["features"]
    assert float(trained.rows[-1]["pm_accuracy"]) > 0.75
    about = next(one for one in trained.events if one["event"] == "start")["about"]
    assert any("ward (ICU, dialysis, north, surgery)" in line and "14 inputs" in line for line in about)


def test_new_raw_rows_are_asked_about_and_onnx_says_the_same(
    trained: Outcome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    new = [
        line | {"ward": "unheard of" if i == 3 else line["ward"]} for i, line in enumerate(rows("n", 40, 9))
    ]
    file = write(
        tmp_path / "new.csv", new, ["ward", *[name for name in HEADER if name != "ward"]], ";", comma=True
    )
    place = f"out-dir={trained.folder.parent}"
    assert _status(["predict", "raw/davos", str(file), place]) == 0
    said = capsys.readouterr()
    answers = list(csv.DictReader(said.out.splitlines()))
    assert [one["patient_id"] for one in answers] == [line["patient_id"] for line in new], (
        "ids are passed through"
    )
    right = [one["class"] == line["outcome"] for one, line in zip(answers, new, strict=True)]
    assert np.mean(right) > 0.7 and f"accuracy {np.mean(right):.4f}" in said.err
    assert all(abs(float(one["p(ill)"]) + float(one["p(well)"]) - 1) < 1e-5 for one in answers)

    assert _status(["export", "raw/davos", "--out", str(tmp_path / "out"), place]) == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "network.onnx"))
    agreement = json.loads(session.get_modelmeta().custom_metadata_map["agreement"])
    theirs = session.run(None, {"x": by_hand(new, agreement["preparation"]["columns"])})[0]
    personal = find_model("raw/davos", trained.folder.parent)
    ours = personal.point_probabilities(personal.read(str(file)).x).numpy()
    assert abs(theirs - ours).max() < 1e-5


def by_hand(lines: list[dict[str, str]], columns: list[dict]) -> np.ndarray:
    """Inputs from raw rows and the metadata alone, as someone without fedbayes would make them."""
    days = np.datetime64("1970-01-01")
    read = {
        "number": float,
        "date": lambda cell: (np.datetime64(cell) - days).astype(int),
        "boolean": lambda cell: float(cell == "yes"),
    }
    x = []
    for line in lines:
        row: list[float] = []
        for column in columns:
            cell = line[column["name"]]
            gone = cell in ("", "NA")
            if column["kind"] == "category":
                known = [float(cell == word) for word in column["categories"]]
                row += [*known, float(not gone and not any(known))]
            else:
                row.append(column["fill"] if gone else read[column["kind"]](cell))
            row += [float(gone)] if column["missing"] else []
        x.append(row)
    return np.array(x, np.float32)


def test_a_new_site_adapts_with_its_own_raw_table(trained: Outcome, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.csv", rows("e", 60, 11), HEADER)
    words = ["adapt", "raw", str(mine), "--out", str(tmp_path / "mine"), "rounds=2"]
    assert _status([*words, f"out-dir={trained.folder.parent}"]) == 0
    assert _status(["predict", str(tmp_path / "mine"), str(mine), "--out", str(tmp_path / "said.csv")]) == 0


@pytest.mark.parametrize("scale", ["site", "none"])
def test_other_scales_train_too(federate: Federate, clinics: Path, scale: str) -> None:
    run = federate("run", clients=4, dataset=str(clinics), **(WORDS | {"rounds": 1, "scale": scale}))
    assert run.state == "finished"


def test_given_categories_spare_the_sites_telling_theirs(federate: Federate, clinics: Path) -> None:
    told: list[str] = []

    def look(number: int, message: object, reply: object) -> object:
        if "hello" in reply.content:  # type: ignore[attr-defined]
            told.append(str(reply.content["hello"].get("claim")))  # type: ignore[attr-defined]
        return reply

    words = WORDS | {"rounds": 1, "categories": "ward:ICU|surgery;sex:f|m"}
    run = federate("run", clients=4, dataset=str(clinics), interfere=look, **words)
    columns = json.loads((run.folder / "config.json").read_text())["agreement"]["preparation"]["columns"]
    assert next(one["categories"] for one in columns if one["name"] == "ward") == ["ICU", "surgery"]
    assert "dialysis" not in " ".join(told) and "Miller" not in " ".join(told)


def test_every_problem_of_every_site_is_told_at_once(tmp_path: Path) -> None:
    good = rows("a", 30, 1)
    broken = [dict(line) for line in good]
    broken[3]["crp"], broken[5]["outcome"], broken[7]["age"] = "high", "", "old"
    write(tmp_path / "sites" / "one.csv", broken, HEADER)
    write(tmp_path / "sites" / "two.csv", good, HEADER)
    write(tmp_path / "sites" / "three.csv", [line | {"admitted": "soon"} if i == 2 else line
                                             for i, line in enumerate(good)], HEADER)  # fmt: skip
    settings = Settings.parse(defaults() | {"dataset": str(tmp_path / "sites"), "target": "outcome"})
    with pytest.raises(DataError) as caught:
        check(settings, 3)
    said = str(caught.value)
    for words in (
        'line 5: the column "crp" has "high"',
        'line 7: the target "outcome" has no value',
        'line 9: the column "age" has "old"',
        'three.csv, line 4: the column "admitted" has "soon"',
    ):
        assert words in said


def test_kinds_that_differ_between_sites_are_named_and_can_be_given(tmp_path: Path) -> None:
    for name, stages in (("one", ["1", "2"]), ("two", ["I", "II"])):
        lines = [{"stage": stages[i % 2], "ok": "yn"[i % 2], "y": "ab"[i % 2]} for i in range(40)]
        write(tmp_path / "sites" / f"{name}.csv", lines, ["stage", "ok", "y"])
    words = defaults() | {"dataset": str(tmp_path / "sites")}
    with pytest.raises(
        DataError, match='The column "stage" is a category at "two" and a number at "one"; kinds='
    ):
        check(Settings.parse(words), 2)
    found = check(Settings.parse(words | {"kinds": "stage:category"}), 2)
    assert found.features == ("stage=1", "stage=2", "stage=I", "stage=II", "stage=other", "ok")


def test_a_label_with_a_blank_is_no_further_class(federate: Federate, tmp_path: Path) -> None:
    """A site that writes "Benign " has the class "Benign", in the agreement, in training and of new rows."""
    forget()
    draw = np.random.default_rng(0)
    for site, benign in (("a", "Benign"), ("b", "Benign ")):
        size = draw.normal(size=60)
        lines = [f"{value:.3f},{benign if value < 0 else 'Malignant'}" for value in size]
        write_lines(tmp_path / "sites" / f"{site}.csv", ["size,finding", *lines])
    run = federate(clients=2, dataset=str(tmp_path / "sites"), target="finding", rounds=1)
    config = json.loads((run.folder / "config.json").read_text())
    assert config["classes"] == ["Benign", "Malignant"] and not run.said("warning")
    personal = find_model("run/b", run.folder.parent)
    found = personal.read(
        str(write_lines(tmp_path / "new.csv", ["size,finding", "-1,Benign ", "1,Malignant"]))
    )
    assert found.y is not None and found.y.tolist() == [0, 1]


def write_lines(file: Path, lines: list[str]) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n")
    return file
