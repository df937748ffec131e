"""One file, folder or function a site: what is read, how it is split, and one sentence for every wrong one."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from client_app.data import DataError, Split, check, load, simulated_sites
from client_app.data.images import read_images
from client_app.data.site_data import load_site
from client_app.data.tables.table import Reading, read_table
from fedbayes.protocol.agreement import Agreement

TABLE = "age;bmi;sick\n31;22.5;no\n40;30;yes\n\n55;28.25;no\n"


@pytest.fixture
def split(settings):
    return lambda **values: Split.of(settings(**values))


# ---------------------------------------------------------------- CSV


def test_a_table_is_read_exactly(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    for text in (TABLE, TABLE.replace(";", ","), TABLE.replace(";", "\t"), "\ufeff" + TABLE):
        file.write_text(text, "utf-8")
        table, y = read_table(file, Reading())
        assert table.x.tolist() == [[31, 22.5], [40, 30], [55, 28.25]]
        assert (y.tolist(), table.features) == (["no", "yes", "no"], ("age", "bmi"))


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        ("1 0 1", "i", [1, 0, 1]),
        ("1.5 0 1", "f", [1.5, 0.0, 1.0]),
        ("1 x 1", "U", ["1", "x", "1"]),
        ("-3 2e3 1", "f", [-3.0, 2000.0, 1.0]),
    ],
)
def test_targets_are_whole_numbers_numbers_or_text(
    tmp_path: Path, cells: str, kind: str, values: list
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("y,x\n" + "".join(f"{cell},0\n" for cell in cells.split()))
    table, y = read_table(file, Reading("y"))
    assert (y.dtype.kind, y.tolist(), table.features, table.x.shape) == (kind, values, ("x",), (3, 1))


@pytest.mark.parametrize(
    ("text", "target", "sentence"),
    [
        (TABLE, "ill", ' has no column "ill" as its target; it has age, bmi, sick.'),
        (
            TABLE.replace("30;yes", "fat;yes"),
            "",
            ', line 3: the column "bmi" has "fat"; it takes a number, or nothing, or a word that na= names, unless '
            "kinds=bmi:category.",
        ),
        (
            TABLE.replace("30;yes", "inf;yes").replace("31;", "old;"),
            "",
            ', line 2: the column "age" has "old"; it takes a number, or nothing, or a word that na= names, unless '
            'kinds=age:category.\nFILE, line 3: the column "bmi" has "inf"; it takes a number, or nothing, or a word '
            "that na= names, unless kinds=bmi:category.",
        ),
        (TABLE.replace("28.25;no", "28.25;"), "", ', line 5: the target "sick" has no value.'),
        (TABLE.replace("40;30;yes", "40;30"), "", ", line 3: 2 cells instead of 3."),
        ("31;22;1\n40;30;0\n", "", " has no header line; the first line takes the names of the columns."),
        (TABLE.replace("bmi", "age"), "", ' has two columns "age".'),
        ("sick\nno\n", "", " has only one column; it takes others beside the target."),
        ("age;sick\n", "", " has no examples; it takes a header line and a line for each example."),
        ("", "", " has no examples; it takes a header line and a line for each example."),
    ],
)
def test_a_wrong_table_is_named_with_its_line(tmp_path: Path, text: str, target: str, sentence: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_table(file, Reading(target))
    assert str(caught.value) == f"{file}{sentence.replace('FILE', str(file))}"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00x,y\n1,2\n")
    with pytest.raises(DataError, match=r"a.csv cannot be read as a CSV table in UTF-8"):
        read_table(tmp_path / "a.csv", Reading())


# ---------------------------------------------------------------- folders of images


def draw(file: Path, value: int, size: tuple[int, int] = (6, 4), mode: str = "RGB") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16") else (value, 0, 9)).save(file)


def test_images_by_class(tmp_path: Path, split) -> None:
    for name, value in (("cat/1.png", 10), ("cat/2.png", 20), ("dog/b.bmp", 30), ("dog/a.png", 40)):
        draw(tmp_path / name, value)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden").touch()
    x, y = read_images(tmp_path, 0)
    assert (x.shape, x.dtype, y.tolist()) == ((4, 4, 6, 3), np.uint8, ["cat", "cat", "dog", "dog"])
    assert x[:, 0, 0, 0].tolist() == [10, 20, 40, 30] and (x[..., 2] == 9).all()
    assert read_images(tmp_path, 8)[0].shape == (4, 8, 8, 3)
    data = load_site(str(tmp_path), split(test_fraction=0.5), "s")
    assert (data.x_train.shape, data.classes, data.declared) == ((2, 3, 4, 6), ("cat", "dog"), False)
    both = torch.cat([data.x_train, data.x_test])[:, 0, 0, 0]
    assert sorted(both.tolist()) == pytest.approx([value / 127.5 - 1 for value in (10, 20, 30, 40)])


def test_grey_images_have_one_channel_unless_one_is_in_colour(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "1.png", 7, mode="L")
    assert read_images(tmp_path, 0)[0].shape == (1, 4, 6, 1)
    draw(tmp_path / "a" / "2.png", 7)
    assert read_images(tmp_path, 0)[0].shape == (2, 4, 6, 3)


def test_train_and_test_folders_are_kept_apart(tmp_path: Path, split) -> None:
    for name, value in (("train/cat/1.png", 10), ("train/dog/1.png", 20), ("test/cat/1.png", 30)):
        draw(tmp_path / name, value)
    data = load_site(str(tmp_path), split(), "s")
    assert data.x_test[:, 0, 0, 0].tolist() == pytest.approx([30 / 127.5 - 1])
    assert (data.y_train.tolist(), data.y_test.tolist(), data.classes) == ([0, 1], [0], ("cat", "dog"))


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    def sentence() -> str:
        with pytest.raises(DataError) as caught:
            read_images(tmp_path, 0)
        return str(caught.value)

    assert sentence() == f"{tmp_path} is empty; it takes one folder of images for each class."
    draw(tmp_path / "cat" / "1.png", 1)
    (tmp_path / "dog").mkdir()
    assert sentence() == f"{tmp_path}/dog has no images: a class without examples."
    draw(tmp_path / "dog" / "1.png", 1, (5, 5))
    assert sentence() == (
        f"{tmp_path}/dog/1.png has 5×5 pixels and 1.png 6×4; image-size=32, say, makes all of them 32×32."
    )
    (tmp_path / "dog" / "1.png").write_bytes(b"\x89PNG no more")
    assert sentence().startswith(f"{tmp_path}/dog/1.png is no image or is damaged (")
    draw(tmp_path / "dog" / "1.png", 500, mode="I;16")
    assert (
        sentence()
        == f"{tmp_path}/dog/1.png has more than 8 bits a pixel; save it with 8, or use an .npz file."
    )
    (tmp_path / "loose.png").touch()
    (tmp_path / "dog" / "1.png").unlink()
    draw(tmp_path / "dog" / "1.png", 1)
    assert (
        sentence()
        == f"{tmp_path}/loose.png is no folder; {tmp_path} takes one folder of images for each class."
    )


# ---------------------------------------------------------------- one's own function

OWN = """
import torch

asked = []

def pair(site, seed):
    asked.append((site, seed))
    return torch.arange(20.0)[:, None], torch.arange(20) % 2

def four(**everything):
    asked.append(everything)
    return torch.zeros(3, 2), [0, 1, 0], torch.ones(2, 2), [1, 1]

def named():
    return {"x": torch.zeros(4, 2), "y": ["b", "a", "b", "a"], "classes": ["b", "a"]}

def failing(path):
    raise FileNotFoundError(f"nothing in {path}")

def nothing():
    pass

def uneven():
    return torch.zeros(4, 2), [1, 2, 3]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_data.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield sys
    sys.modules.pop("my_data", None)


def test_a_function_gets_what_it_asks_for(own, split) -> None:
    data = load_site("my_data:pair", split(seed=5, test_fraction=0.25), "north")
    assert sys.modules["my_data"].asked == [("north", 5)]
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((15, 1), (5, 1), ("0", "1"))
    data = load_site("my_data:four", split(data_dir="/d"), "1", 1, 3)
    assert sys.modules["my_data"].asked[-1] == {
        "site": "1",
        "number": 1,
        "clients": 3,
        "path": "/d",
        "seed": 1,
    }
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1, 0], [1, 1])
    data = load_site("my_data:named", split(), "s")
    assert (data.classes, data.declared) == (("b", "a"), True)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("failing", "my_data:failing failed with FileNotFoundError: nothing in data."),
        (
            "nothing",
            "my_data:nothing returned NoneType; it takes (x, y), (x_train, y_train, x_test, y_test) or a "
            "dictionary of these.",
        ),
        ("uneven", "my_data:uneven at site s has 4 examples in x but 3 in y."),
        ("missing", 'my_data:missing cannot be used: my_data has no "missing".'),
    ],
)
def test_a_function_that_fails_is_named(own, split, function: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        load_site(f"my_data:{function}", split(), "s")
    assert str(caught.value) == sentence


# ---------------------------------------------------------------- the split, and folders of sites


def test_the_split_follows_seed_and_site_and_loses_nothing(tmp_path: Path, split) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(50.0), y=np.arange(50) % 2)

    def held(site: str = "s", **values: object) -> list[float]:
        data = load_site(str(tmp_path / "a.npz"), split(**values), site)
        both = torch.cat([data.x_train, data.x_test])[:, 0]
        assert sorted(both.tolist()) == list(range(50))
        return data.x_test[:, 0].tolist()

    assert len(held()) == 10 and len(held(test_fraction=0.5)) == 25 and len(held(test_fraction=0.001)) == 1
    assert held() == held() != held("t") and held() != held(seed=2)


def test_a_test_set_of_one_s_own_is_kept(tmp_path: Path, split) -> None:
    x, y = np.arange(10.0), np.arange(10) % 2
    np.savez(tmp_path / "a.npz", x_train=x[:7], y_train=y[:7], x_test=x[7:], y_test=y[7:])
    assert load_site(str(tmp_path / "a.npz"), split(), "s").x_test[:, 0].tolist() == [7, 8, 9]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "train.csv").write_text("u,v,y\n1,2,a\n3,4,b\n")
    (tmp_path / "b" / "test.csv").write_text("v,u,y\n6,5,b\n")
    data = load_site(str(tmp_path / "b"), split(), "s")
    assert (data.x_test.tolist(), data.y_test.tolist(), data.features) == ([[5, 6]], [1], ("u", "v"))
    (tmp_path / "b" / "test.csv").write_text("v,w,y\n6,5,b\n")
    with pytest.raises(DataError, match=r"b/test.csv has other columns than train.csv beside it"):
        load_site(str(tmp_path / "b"), split(), "s")


def test_what_is_no_site_is_named(tmp_path: Path, split) -> None:
    (tmp_path / "a.txt").touch()
    np.savez(tmp_path / "one.npz", x=np.zeros(1), y=[0])
    for name, sentence in (
        ("a.txt", "has another ending; a site's data are an .npz file, a .csv file or a folder of images."),
        ("b.csvx", "does not exist; a site's data are an .npz file, a .csv file or a folder of images."),
        ("one.npz", "has 1 examples, 1 of them for the test; both sides take at least one."),
    ):
        with pytest.raises(DataError) as caught:
            load_site(str(tmp_path / name), split(), "s")
        assert str(caught.value) == f"{tmp_path / name} {sentence}"


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """Two sites: the columns in another order, and one class that only the second has."""
    folder = tmp_path / "clinics"
    folder.mkdir()
    (folder / "north.csv").write_text(
        "age,bmi,finding\n" + "".join(f"{30 + i},{20 + i},{'ab'[i % 2]}\n" for i in range(10))
    )
    (folder / "south.csv").write_text(
        "bmi,age,finding\n" + "".join(f"{30 - i},{50 + i},{'bc'[i % 2]}\n" for i in range(20))
    )
    return folder


def test_a_folder_of_sites_is_a_simulation(clinics: Path, settings) -> None:
    chosen = settings(dataset=str(clinics))
    assert simulated_sites(str(clinics)) == ["north", "south"] and simulated_sites("digits") == []
    north, south = load(chosen, 0, 2), load(chosen, 1, 2)
    assert (north.features, north.classes) == (("age", "bmi"), ("a", "b"))
    assert (south.features, south.classes) == (("bmi", "age"), ("b", "c"))
    agreed = check(chosen, 2)
    assert (agreed.features, agreed.classes) == (("age", "bmi"), ("a", "b", "c"))
    with pytest.raises(DataError, match=r"holds 2 sites \(north, south\), not 10; give --clients 2."):
        check(chosen, 10)


def test_agreed_data_mean_the_same_everywhere(clinics: Path, settings) -> None:
    chosen = settings(dataset=str(clinics))
    raw = [load(chosen, number, 2) for number in range(2)]
    agreement = Agreement.of({str(i): data.claim("pooled") for i, data in enumerate(raw)})
    agreed = [data.agreed(agreement, "pooled") for data in raw]
    ages = torch.cat([raw[0].x_train[:, 0], raw[1].x_train[:, 1]])
    together = torch.cat([data.x_train for data in agreed])
    assert together.mean(0).abs().max() < 1e-6 and (together.std(0, correction=0) - 1).abs().max() < 1e-6
    assert torch.allclose(together[:, 0], (ages - ages.mean()) / ages.std(correction=0), atol=1e-6)
    for before, after in zip(raw, agreed, strict=True):
        assert [before.classes[y] for y in before.y_test] == [after.classes[y] for y in after.y_test]
    alone = [data.agreed(agreement, "site").x_train for data in raw]
    assert all(x.mean(0).abs().max() < 1e-6 for x in alone)
    assert torch.equal(raw[1].agreed(Agreement(agreement.classes, ("age", "bmi")), "none").x_train,
                       raw[1].x_train.flip(1))  # fmt: skip
    with pytest.raises(DataError, match='The class "c" here is not among those of the federation: a, b'):
        raw[1].agreed(Agreement(("a", "b"), ("age", "bmi")), "none")


def test_sites_that_do_not_fit_together_are_named_before_the_start(clinics: Path, settings) -> None:
    (clinics / "west.csv").write_text("age,weight,finding\n1,2,a\n3,4,b\n")
    with pytest.raises(DataError) as caught:
        check(settings(dataset=str(clinics)), 3)
    assert str(caught.value) == (
        'Sites "south" and "west" have different columns: "south" alone has "bmi", "west" "weight".'
    )
    (clinics / "west.csv").unlink()
    with pytest.raises(DataError) as caught:
        check(settings(dataset=str(clinics), classes="a,b"), 2)
    assert str(caught.value) == f'{clinics}/south.csv has the label "c", which is not among the classes a, b.'
    (clinics / "south.npz").touch()
    with pytest.raises(DataError, match=r"has two sites of one name: north.csv, south.csv, south.npz"):
        check(settings(dataset=str(clinics)), 3)


def test_unequal_numbers_of_features_are_named(tmp_path: Path, settings) -> None:
    for name, features in (("east", 3), ("west", 4)):
        np.savez(tmp_path / f"{name}.npz", x=np.ones((6, features)), y=[0, 1] * 3)
    with pytest.raises(DataError) as caught:
        check(settings(dataset=str(tmp_path)), 2)
    assert str(caught.value) == (
        'Sites "east" and "west" have examples of different shapes: 3 features and 4 features.'
    )


def test_declared_classes_are_for_one_s_own_data(settings) -> None:
    with pytest.raises(DataError, match="classes names those of one's own data; digits has its own"):
        check(settings(classes="a,b"), 2)
