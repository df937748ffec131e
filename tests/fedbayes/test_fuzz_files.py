"""Mutated files: model files, examples, run folders. Whatever is in them, commands that read them end in a sentence.

A seeded part runs here; `make fuzz` runs two thousand. What was found stands in `FOUND` and `FOUND_IN_RUNS`.
"""

import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from mutations import in_time
from safetensors import safe_open
from safetensors.torch import save_file

from client_app.store import read
from fedbayes.cli.command import main as command

COUNT = int(os.environ.get("FUZZ_FILES", "60"))
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    10**9,
    1e308,
    "",
    "x" * 500,
    "\x1b[2J",
    "os:getcwd",
    [],
    [10**9],
    [[1]],
    {},
    {"a": 1},
    "\ud800",
    [[[[[[[[1]]]]]]]],
]
FOUND: dict[str, tuple[str, Any]] = {  # entries of a card that once ended in a traceback, or worse
    "inputs": ("inputs", [10**9]),
    "too many inputs": ("inputs", [10**7]),
    "text as inputs": ("inputs", "64"),
    "code": ("model", "os:getcwd"),
    "foreign method": ("method", "os.path"),
    "number as model": ("model", 7),
    "agreement": ("agreement", [1, 2]),
    "family": ("family", ["gaussian"]),
    "samples": ("eval_samples", "many"),
}
DEEP = "[" * 200_000
FOUND_IN_RUNS: dict[str, tuple[str, str | dict[str, Any]]] = {  # file of a run folder → what stands in it
    "deep evaluations": ("evaluations.jsonl", DEEP),
    "a long cell": ("rounds.csv", '"' + "x" * 300_000),
    "half a character": ("config.json", {"fedbayes": "\ud800"}),
    "clients without number": ("config.json", {"clients": 10**11}),
    "marks of a table": ("config.json", {"state": "[/red]\x1b[2J"}),
    "memory that is none": ("checkpoint.safetensors", "[]"),
    "a method's memory that is none": ("checkpoint.safetensors", '{"method": 7}'),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a small finished run, its personal models and some examples."""
    folder = tmp_path_factory.mktemp("files")
    words = "dataset=digits size=4+4 rounds=1 local-steps=2 eval-samples=2 batch-size=8 run-name=run"
    with pytest.raises(SystemExit) as ended:
        command(["run", "--clients", "3", f"out-dir={folder}", *words.split()])
    assert ended.value.code == 0
    np.savez(folder / "new.npz", x=np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.uint8))
    return folder


def ends_in_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Status 0, or another with one sentence; anything else is raised."""
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert ended.value.code == 0 or said.strip()
    return said


def with_card(file: Path, to: Path, **entries: Any) -> Path:
    tags, tensors = read(file)
    save_file(tensors, to, tags | {"card": json.dumps(json.loads(tags["card"]) | entries)})
    return to


def personal(run: Path) -> Path:
    return run / "state" / "run" / "0" / "personal.safetensors"


@pytest.mark.parametrize("what", FOUND)
def test_a_card_that_once_broke_something(
    run: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, value = FOUND[what]
    file = with_card(personal(run), tmp_path / "model.safetensors", **{key: value})
    said = ends_in_a_sentence(["predict", str(file), str(run / "new.npz")], capsys)
    assert str(file) in said


@pytest.mark.parametrize(
    "entries",
    [{"features": 7}, {"classes": [1]}, {"preparation": {"columns": 3}}, {"target_mean": "far"}],
    ids=str,
)
def test_an_agreement_in_a_config_that_once_broke_a_report(
    run: Path, tmp_path: Path, entries: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(run / "run", tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"agreement": config["agreement"] | entries}))
    said = ends_in_a_sentence(["report", str(tmp_path / "run")], capsys)
    assert f"config.json cannot be used: agreement: {next(iter(entries))}" in said


def every_use(run: Path, folder: Path, new: Path) -> list[list[str]]:
    """All commands that read a run folder of somebody's, but `adapt`, which trains."""
    return [
        ["report", str(run)],
        ["runs", f"out-dir={run.parent}"],
        ["compare", str(run), "--to", str(folder / "compared")],
        ["predict", f"{run}/global", str(new)],
        ["export", f"{run}/global", "--out", str(folder / "exported"), "--format", "hf"],  # quicker than ONNX
    ]


@pytest.mark.parametrize("what", FOUND_IN_RUNS)
def test_a_run_folder_that_once_broke_something(
    run: Path, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copytree(run / "run", tmp_path / "run")
    name, content = FOUND_IN_RUNS[what]
    file = tmp_path / "run" / name
    if name.endswith(".safetensors"):
        with safe_open(file, "pt") as stored:
            tags, tensors = stored.metadata(), {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
        save_file(tensors, file, tags | {"memory": content})
    else:
        file.write_text(
            content if isinstance(content, str) else json.dumps(json.loads(file.read_text()) | content)
        )
    mine = tmp_path / "mine.npz"
    np.savez(mine, x=np.zeros((8, 1, 8, 8), np.uint8), y=np.arange(8))
    adapted = ["adapt", str(tmp_path / "run"), str(mine), "--out", str(tmp_path / "adapted"), "rounds=1"]
    for use in [*every_use(tmp_path / "run", tmp_path, run / "new.npz"), adapted]:
        assert "\x1b" not in ends_in_a_sentence(use, capsys)


@pytest.mark.parametrize("method", ["fesem", "bnfed"])
def test_a_checkpoint_without_what_its_method_keeps_is_named(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"method={method} dataset=digits size=4+4 rounds=1 local-steps=1 batch-size=8 run-name=run"
    ends_in_a_sentence(["run", "--clients", "3", f"out-dir={tmp_path}", *words.split()], capsys)
    file, mine = tmp_path / "run" / "checkpoint.safetensors", tmp_path / "mine.npz"
    with safe_open(file, "pt") as stored:
        tags, tensors = stored.metadata(), {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    save_file(tensors, file, tags | {"memory": json.dumps(json.loads(tags["memory"]) | {"method": None})})
    np.savez(mine, x=np.zeros((8, 1, 8, 8), np.uint8), y=np.arange(8))
    said = ends_in_a_sentence(
        ["adapt", str(tmp_path / "run"), str(mine), "--out", str(tmp_path / "a")], capsys
    )
    assert "The checkpoint of run does not hold what" in said


def test_code_that_a_file_names_is_called_only_on_request(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spy = "from pathlib import Path\nPath(__file__).with_name('imported').touch()\ndef network(): pass\n"
    (tmp_path / "spy.py").write_text(spy)
    monkeypatch.syspath_prepend(tmp_path)
    file = with_card(personal(run), tmp_path / "model.safetensors", model="spy:network")
    said = ends_in_a_sentence(["predict", str(file), str(run / "new.npz")], capsys)
    assert "would import and call spy:network" in said and "--trust-code" in said
    assert not (tmp_path / "imported").exists()
    said = ends_in_a_sentence(["predict", str(file), str(run / "new.npz"), "--trust-code"], capsys)
    assert "model=spy:network called with" in said and (tmp_path / "imported").exists()


def test_examples_that_are_a_zip_bomb_or_packed_in_an_unknown_way(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_app.data.npz.LARGE", 2**20)
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, x=np.zeros((2**22,), np.uint8))
    assert "zip bomb" in ends_in_a_sentence(["predict", str(personal(run)), str(bomb)], capsys)
    odd = tmp_path / "odd.npz"
    odd.write_bytes((run / "new.npz").read_bytes())
    data = bytearray(odd.read_bytes())
    for sign, place in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.index(sign) + place
        data[at : at + 2] = struct.pack("<H", 97)
    odd.write_bytes(bytes(data))
    with zipfile.ZipFile(odd) as packed:
        assert packed.infolist()[0].compress_type == 97
    assert "is damaged" in ends_in_a_sentence(["predict", str(personal(run)), str(odd)], capsys)


def bytes_changed(data: bytes, chance: random.Random) -> bytes:
    changed, what = bytearray(data), chance.randrange(3)
    if what == 0:
        del changed[chance.randrange(len(changed)) :]
    elif what == 1:
        at = chance.randrange(len(changed))
        changed[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 40)))
    else:
        for _ in range(chance.randrange(1, 30)):
            changed[chance.randrange(min(len(changed), 4000))] = chance.randrange(256)
    return bytes(changed)


def json_changed(said: Any, chance: random.Random) -> Any:
    """One entry somewhere in it: another value, or gone."""
    place = said
    while True:
        keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.6:
            place = place[key]
            continue
        if chance.random() < 0.2:
            del place[key]
        else:
            place[key] = chance.choice(ODD)
        return said


def model_file(run: Path, folder: Path, chance: random.Random) -> list[str]:
    file = folder / "model.safetensors"
    if chance.random() < 0.4:
        file.write_bytes(bytes_changed(personal(run).read_bytes(), chance))
    else:
        tags, tensors = read(personal(run))
        if chance.random() < 0.3:
            name = chance.choice(list(tensors))
            tensors[name] = chance.choice([torch.zeros(0), torch.zeros(2, 3), torch.full((2, 9), torch.nan)])
        card = json_changed(json.loads(tags["card"]), chance)
        save_file(tensors, file, tags | {"card": json.dumps(card)})
    return ["predict", str(file), str(run / "new.npz")]


def examples(run: Path, folder: Path, chance: random.Random) -> list[str]:
    file = folder / "new.npz"
    file.write_bytes(bytes_changed((run / "new.npz").read_bytes(), chance))
    return ["predict", str(personal(run)), str(file)]


def run_folder(run: Path, folder: Path, chance: random.Random) -> list[str]:
    return ["report", str(changed_run(run, folder, chance))]


def run_folder_elsewhere(run: Path, folder: Path, chance: random.Random) -> list[str]:
    return chance.choice(every_use(changed_run(run, folder, chance), folder, run / "new.npz")[1:])


def changed_run(run: Path, folder: Path, chance: random.Random) -> Path:
    copy = folder / "run"
    copytree(run / "run", copy)
    file = copy / chance.choice(
        ["config.json"] * 4 + ["rounds.csv", "clients.csv", "evaluations.jsonl", "checkpoint.safetensors"]
    )
    if file.name == "config.json" and chance.random() < 0.8:
        file.write_text(json.dumps(json_changed(json.loads(file.read_text()), chance)))
    else:
        file.write_bytes(bytes_changed(file.read_bytes(), chance))
    return copy


@pytest.mark.parametrize(
    "kind", [model_file, examples, run_folder, run_folder_elsewhere], ids=lambda kind: kind.__name__
)
def test_no_file_ends_in_a_traceback(
    run: Path, tmp_path: Path, kind: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(COUNT):
        chance = random.Random(f"{kind.__name__} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            with in_time():
                ends_in_a_sentence(kind(run, folder, chance), capsys)
        except BaseException as error:
            raise AssertionError(f"{kind.__name__} {number}: {error!r}") from error
