"""The personal state on disk: which state a round starts from, crashes, damage, strangers."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from client_app import store as module
from client_app.checksum import checksum, crc
from client_app.store import Store, read, read_model


def state(number: float) -> dict[str, torch.Tensor]:
    return {"q": torch.full((2, 3), number)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "run" / "site", "uuid-1", durable=True)


def trained(store: Store, server_round: int) -> float:
    """What a client does in a round: start from the right state, save the next."""
    before = store.load(before=server_round)
    start = float(before.tensors["q"][0, 0]) if before else 0.0
    store.save(server_round, state(start + server_round), before)
    return start


def test_rounds_follow_each_other(store: Store) -> None:
    assert [trained(store, number) for number in (1, 2, 5)] == [0, 1, 3]
    latest = store.load(before=6)
    assert latest and latest.round == 5 and float(latest.tensors["q"][0, 0]) == 8


def test_a_repeated_round_starts_where_it_started_before(store: Store) -> None:
    for number in (1, 2, 3):
        trained(store, number)
    assert trained(store, 3) == trained(store, 3) == 3, "1 + 2, however often"
    assert trained(store, 4) == 6


def test_a_state_says_which_one_it_was_trained_from(store: Store) -> None:
    origins = []
    for number in (1, 2, 5, 5):
        trained(store, number)
        origins.append(read(store.folder / "personal.safetensors")[0]["from"])
    assert origins == ["", "1", "2", "2"], "round 5 was repeated from where it began"


def test_a_simulations_state_is_written_over_the_one_before_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And never over the latest, though a crash may have left both names for one file."""
    store = Store(tmp_path / "site", "uuid-1", durable=False)
    latest, previous = (store.folder / name for name in ("personal.safetensors", "previous.safetensors"))
    for number in (1, 2):
        trained(store, number)
    freed = previous.stat().st_ino
    assert trained(store, 3) == 3 and latest.stat().st_ino == freed

    def crash(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(module, "save_file", crash)
        with pytest.raises(KeyboardInterrupt):
            trained(store, 4)
    assert not previous.exists() and sorted(path.name for path in store.folder.iterdir()) == [latest.name]
    assert [trained(store, number) for number in (4, 5)] == [6, 10]

    previous.unlink()
    previous.hardlink_to(latest)  # as after a crash between the two
    held = latest.stat().st_ino
    assert trained(store, 6) == 15 and latest.stat().st_ino != held
    assert float(read(previous)[1]["q"][0, 0]) == 15 and previous.stat().st_ino == held


def test_a_client_without_a_past_has_no_state(store: Store) -> None:
    assert store.load(before=9) is None and store.notes == []
    trained(store, 4)
    assert store.load(before=4) is None, "round 4 repeated: nothing came before it"


@pytest.mark.parametrize("crash_at", ["write", "link", "first rename", "second rename"])
def test_a_crash_leaves_the_previous_or_the_new_state(
    store: Store, monkeypatch: pytest.MonkeyPatch, crash_at: str
) -> None:
    for number in (1, 2):
        trained(store, number)

    class Crash(BaseException):
        pass

    renames = []

    def crash(*_: object) -> None:
        raise Crash

    def rename(path: Path, target: Path) -> Path:
        renames.append(path)
        if len(renames) == (1 if crash_at == "first rename" else 2):
            raise Crash
        return original(path, target)

    original = Path.replace
    with monkeypatch.context() as patch:
        if crash_at == "write":
            patch.setattr(module.os, "fsync", crash)
        elif crash_at == "link":
            patch.setattr(module.os, "link", crash)
        else:
            patch.setattr(Path, "replace", rename)
        with pytest.raises(Crash):
            trained(store, 3)
    again = Store(store.folder, "uuid-1", durable=True)
    assert trained(again, 3) == 3 and trained(again, 4) == 6 and again.notes == []


def test_a_damaged_file_is_reported_by_name_and_set_aside(store: Store) -> None:
    for number in (1, 2):
        trained(store, number)
    file = store.folder / "personal.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    assert trained(store, 3) == 1, "the state before the damaged one is still good"
    assert "personal.safetensors is damaged" in store.notes[0]
    assert str(store.folder) not in store.notes[0], "a site's paths stay at the site"
    assert (store.folder / "personal.safetensors.damaged").exists()


def spoil(store: Store, change: Callable[[torch.Tensor], object], checked: bool) -> None:
    """Change the numbers in the latest state; `checked`: by somebody who writes the checksum anew."""
    file = store.folder / "personal.safetensors"
    tags, tensors = read(file)
    change(tensors["q"])
    save_file(tensors, file, tags | ({"checksum": checksum(tensors)} if checked else {}))


@pytest.mark.parametrize(
    ("change", "checked", "words", "name"),
    [
        (lambda q: q.view(-1)[1:2].fill_(7.0), False, "is damaged (its checksum is another)", "damaged"),
        (
            lambda q: q.view(-1)[1:2].fill_(float("nan")),
            False,
            "is damaged (its checksum is another)",
            "damaged",
        ),
        (lambda q: q.view(-1)[1:2].fill_(float("nan")), True, "has values that are not finite", "not-finite"),
        (
            lambda q: q.view(-1)[1:4].fill_(3e4),
            True,
            "has numbers up to 3e+04, which no round leads to",
            "absurd",
        ),
    ],
    ids=["changed", "nan", "nan with its checksum", "absurd"],
)
def test_a_state_that_went_bad_is_set_aside_and_the_one_before_it_used(
    store: Store, change: Callable[[torch.Tensor], object], checked: bool, words: str, name: str
) -> None:
    for number in (1, 2):
        trained(store, number)
    spoil(store, change, checked)
    assert trained(store, 3) == 1, "the state after round 1"
    assert store.notes == [f"personal.safetensors {words}; it was set aside as personal.safetensors.{name}"]
    assert trained(store, 4) == 4 and len(store.notes) == 1


def test_large_numbers_are_absurd_only_where_they_are_new(store: Store) -> None:
    for number in (1, 2, 3):
        store.save(number, state(4e4 * number), store.load(before=number))
    found = store.load(before=4)
    assert found is not None and found.round == 3 and store.notes == []


def test_a_state_without_a_checksum_is_an_older_versions(store: Store) -> None:
    trained(store, 1)
    file = store.folder / "personal.safetensors"
    tags, tensors = read(file)
    del tags["checksum"]
    save_file(tensors, file, tags)
    assert trained(store, 2) == 1 and store.notes == []


@pytest.mark.parametrize("damaged", [False, True])
def test_a_checksum_of_an_earlier_version_is_still_looked_at(store: Store, damaged: bool) -> None:
    trained(store, 1)
    file = store.folder / "personal.safetensors"
    tags, tensors = read(file)
    tags["checksum"] = crc(tensors)
    tensors["q"] += damaged
    save_file(tensors, file, tags)
    assert trained(store, 2) == (0 if damaged else 1) and len(store.notes) == damaged


def test_a_full_disk_is_an_error_of_the_system_and_leaves_no_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(store, 1)

    def full(tensors: object, path: Path, tags: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "save_file", full)
        with pytest.raises(OSError, match="No space left on device") as error:
            trained(store, 2)
    assert error.value.errno == errno.ENOSPC
    assert [file.name for file in store.folder.iterdir()] == ["personal.safetensors"]
    assert trained(store, 2) == 1, "as if nothing had been"


def test_another_run_of_the_same_name_never_overwrites(store: Store) -> None:
    for number in (1, 2):
        trained(store, number)
    other = Store(store.folder, "uuid-2", durable=False)
    assert trained(other, 1) == 0
    assert "belongs to another run of the same name" in other.notes[0]
    kept = store.folder / "personal.safetensors.of-uuid-1"
    assert kept.exists()
    kept.replace(store.folder / "personal.safetensors")
    assert trained(store, 3) == 3, "the first run's state came through"


def test_everything_comes_back_as_it_was(store: Store) -> None:
    tensors = {"q": torch.randn(2, 5), "steps": torch.tensor([7, 3]), "buffer.running_mean": torch.ones(4)}
    store.save(1, tensors, None)
    loaded = store.load(before=2)
    assert loaded and loaded.tensors.keys() == tensors.keys()
    assert all(torch.equal(loaded.tensors[name], tensors[name]) for name in tensors)
    assert loaded.tensors["steps"].dtype == torch.int64


def test_a_model_beside_the_state_is_the_newer_of_both(store: Store) -> None:
    store.card = "of this model"
    store.save(3, state(3), None)
    assert read_model(store.folder).name == "personal.safetensors", "most methods write no other"
    store.save_model(3, state(0.5))
    assert read_model(store.folder).name == "model.safetensors", (
        "of one round: the model is made after the state"
    )
    tags, tensors = read(read_model(store.folder))
    assert (tags["round"], tags["uuid"], tags["card"]) == ("3", "uuid-1", "of this model")
    assert torch.equal(tensors["q"], state(0.5)["q"])
    store.save(4, state(4), store.load(before=4))
    assert read_model(store.folder).name == "personal.safetensors", "the model is of an earlier round"
    store.save_model(5, state(1))
    assert read_model(store.folder).name == "model.safetensors"
    latest = store.load(before=9)
    assert latest and latest.round == 4, "no round starts from a model"


def test_a_model_that_cannot_be_read_is_older_than_any_state(store: Store) -> None:
    store.save(1, state(1), None)
    (store.folder / "model.safetensors").write_bytes(b"rubbish")
    assert read_model(store.folder).name == "personal.safetensors"


def test_a_crash_leaves_the_previous_model(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_model(1, state(1))

    def full(tensors: object, path: Path, tags: object) -> None:
        path.write_bytes(b"a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError, match="No space left on device"):
        store.save_model(2, state(2))
    assert [file.name for file in store.folder.iterdir()] == ["model.safetensors"]
    assert torch.equal(read(store.folder / "model.safetensors")[1]["q"], state(1)["q"])


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")


def elsewhere(value: float) -> dict[str, torch.Tensor]:
    return {"q": torch.full((3,), value).as_subclass(Elsewhere)}


def test_a_state_on_a_gpu_stays_there_while_its_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "a", "uuid", False)
    trained = elsewhere(1.0)
    store.save(1, trained, None)
    kept = store.load(before=2)
    assert kept is not None and kept.tensors["q"] is trained["q"] and kept.round == 1
    assert Store(tmp_path / "a", "another", False).load(before=2) is None  # set aside, as ever
    store.save(1, trained, None)
    Store(tmp_path / "b", "uuid", False).save(2, {"q": torch.zeros(3)}, None)
    (tmp_path / "b" / "personal.safetensors").replace(tmp_path / "a" / "personal.safetensors")
    changed = store.load(before=3)
    assert changed is not None and changed.round == 2 and changed.tensors["q"].tolist() == [0, 0, 0]
    monkeypatch.setattr("client_app.store.MOST_ON_DEVICE", 20)  # one state of twelve bytes
    first, second = Store(tmp_path / "c", "uuid", False), Store(tmp_path / "d", "uuid", False)
    for one in (first, second):
        one.save(1, elsewhere(1.0), None)
    held = [type(one.load(before=2).tensors["q"]) for one in (first, second)]  # type: ignore[union-attr]
    assert held == [torch.Tensor, Elsewhere]


def test_a_simulated_state_stays_in_memory_while_its_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of it, in one piece as a file gives it; a real site (durable) reads its disk every time."""
    message = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = {"q": torch.from_numpy(message), "turned": torch.ones(2, 3).T, "count": torch.tensor(3)}
    stores = [Store(tmp_path / name, "uuid", durable) for name, durable in (("a", False), ("b", True))]
    reads: list[Path] = []
    monkeypatch.setattr(module, "read", lambda path: reads.append(path) or read(path))
    for store in stores:
        store.save(1, given, None)
    message.fill(-1)  # its memory is used again
    for store in stores:
        loaded = store.load(before=2)
        assert loaded and loaded.round == 1 and loaded.tensors["q"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert loaded.tensors["turned"].is_contiguous() and loaded.tensors["count"].item() == 3
        loaded.tensors.clear()
        again = store.load(before=2)
        assert again and len(again.tensors) == 3
    assert reads == [tmp_path / "b" / "personal.safetensors"] * 2
    file = tmp_path / "a" / "personal.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    (tmp_path / "new").write_bytes(damaged)
    (tmp_path / "new").replace(file)
    assert stores[0].load(before=2) is None and "its checksum is another" in stores[0].notes[0]


def test_no_more_states_stay_in_memory_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IN_MEMORY", 50)  # two states of 24 bytes
    stores = [Store(tmp_path / str(number), "uuid", False) for number in range(3)]
    for number, store in enumerate(stores):
        store.save(1, state(float(number)), None)
    reads: list[Path] = []
    monkeypatch.setattr(module, "read", lambda path: reads.append(path) or read(path))
    loaded = [store.load(before=2) for store in stores]
    assert [float(one.tensors["q"][0, 0]) for one in loaded if one] == [0, 1, 2]
    assert reads == [stores[0].folder / "personal.safetensors"]
