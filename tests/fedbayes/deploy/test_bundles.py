"""Which apps a site carries out: signed, unaltered, perhaps named ones; and that what was seen is what runs."""

import importlib
import io
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk

from fedbayes.deploy import guard
from fedbayes.deploy.bundles import SIGNATURE, RefusedAppError, Trust, app_hash, is_as_sent, unpacked
from fedbayes.deploy.keys import make_keys
from fedbayes.deploy.packing import installed_app, sign_app
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import assemble
from fedbayes.protocol.files import locked


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder / "mine", ["localhost"], 1)
    make_keys(folder / "other", ["localhost"], 1)
    return folder


@pytest.fixture(scope="module")
def bundles(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The app of this machine, signed by two federations, and not."""
    app = assemble(tmp_path_factory.mktemp("apps") / "app")
    made = {"plain": build_fab_from_disk(app)}
    for name in ("mine", "other"):
        sign_app(app, keys / name / "coordinator")
        made[name] = build_fab_from_disk(app)
    return made


@pytest.fixture
def trust(keys: Path) -> Trust:
    return Trust.of(keys / "mine" / "site-0", ())


def repacked(bundle: bytes, change: Callable[[dict[str, bytes]], Any]) -> bytes:
    """A bundle with other files, whose listing is true: Flower itself would take it."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_the_signed_app_is_carried_out_and_has_one_hash_everywhere(
    bundles: dict[str, bytes], trust: Trust
) -> None:
    files = trust.check(bundles["mine"])
    assert app_hash(files) == installed_app() == app_hash(unpacked(bundles["other"]))
    assert "client_app/app.py" in files and SIGNATURE in files
    pinned = Trust(trust.key, (installed_app(),))
    assert pinned.check(bundles["mine"]) == files and Trust.read(pinned.write()) == pinned
    Trust("", (installed_app(),)).check(bundles["other"])  # a hash alone is enough for those who name it


APP = "client_app/app.py"
ALTERED: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "a line more": (lambda files: files.update({APP: files[APP] + b"\nimport os"}), "altered after it was signed"),
    "a file more": (lambda files: files.update({"json.py": b"0"}), "altered after it was signed"),
    "a file less": (lambda files: files.pop("client_app/store.py"), "altered after it was signed"),
    "the app's name": (
        lambda files: files.update({"pyproject.toml": files["pyproject.toml"].replace(b"0.1.0", b"0.1.1")}),
        "altered after it was signed",
    ),
    "unsigned": (lambda files: files.pop(SIGNATURE), "carries out only signed apps"),
    "another's hash": (
        lambda files: files.update({APP: b"", SIGNATURE: json.dumps(
            {"app": app_hash({name: one for name, one in files.items() if name != ".info/CONTENT"} | {APP: b""}),
             "signature": json.loads(files[SIGNATURE])["signature"]}).encode()}),
        "signed with another key",
    ),
    "no JSON": (lambda files: files.update({SIGNATURE: b"[" * 100_000}), "cannot be read"),
    "a number": (lambda files: files.update({SIGNATURE: b"1"}), "cannot be read"),
    "bytecode": (lambda files: files.update({"client_app/__pycache__/app.pyc": b"0"}), "neither Python nor"),
    "capitals": (lambda files: files.update({"CLIENT_APP/app.py": b"0"}), "two of one name"),
    "a way out": (lambda files: files.update({"../app.py": b"0"}), "a strange name"),
    "a second spelling": (lambda files: files.update({"./client_app/app.py": b"0"}), "a strange name"),
}  # fmt: skip


@pytest.mark.parametrize("how", ALTERED)
def test_an_altered_app_is_refused_with_one_sentence(
    bundles: dict[str, bytes], trust: Trust, how: str
) -> None:
    change, sentence = ALTERED[how]
    with pytest.raises(RefusedAppError, match=sentence) as refused:
        trust.check(repacked(bundles["mine"], change))
    assert len(str(refused.value)) < 200, "as much as the coordinator shows"


def test_unsigned_foreign_and_other_apps_are_refused(bundles: dict[str, bytes], trust: Trust) -> None:
    for bundle, sentence in (
        (bundles["plain"], "this site carries out only signed apps"),
        (bundles["other"], "is signed with another key than this federation's"),
        (b"no zip", "the app cannot be read"),
        (bundles["mine"][:-100], "the app cannot be read"),
    ):
        with pytest.raises(RefusedAppError, match=sentence):
            trust.check(bundle)
    with pytest.raises(RefusedAppError, match=r"only the app abababababababab…, and was sent") as refused:
        Trust(trust.key, ("ab" * 32,)).check(bundles["mine"])
    assert installed_app()[:16] in str(refused.value) and len(str(refused.value)) < 200


def test_a_federation_whose_signing_key_is_gone_says_so(keys: Path, tmp_path: Path) -> None:
    app = assemble(tmp_path / "app")
    make_keys(tmp_path / "keys", ["localhost"], 0)
    (tmp_path / "keys/coordinator/app.key").unlink()
    with pytest.raises(CommandError, match=r"app\.key is missing: sites of this federation"):
        sign_app(app, tmp_path / "keys/coordinator")
    (tmp_path / "keys/coordinator/app.pub").write_text("nonsense")
    with pytest.raises(CommandError, match=r"app\.pub is no public key"):
        Trust.of(tmp_path / "keys/coordinator", ())


@pytest.fixture
def runner(trust: Trust, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Flower's ClientApp process as a site has it."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))
    module = importlib.import_module(guard.RUNNER)
    for name in guard.NEEDED:
        monkeypatch.setattr(module, name, getattr(module, name))  # put back afterwards
    guard.watch(trust)
    return module


def test_what_was_looked_at_is_what_is_imported(
    runner: Any, bundles: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RefusedAppError):
        runner.install_from_fab(bundles["plain"], skip_prompt=True)
    assert "Refused: this site carries out only signed apps" in capsys.readouterr().out
    assert not (tmp_path / "flower").exists(), "nothing of it was unpacked"
    folder = runner.install_from_fab(bundles["mine"], skip_prompt=True)
    code = (folder / APP).read_bytes()
    (folder / "__pycache__").mkdir()
    for name in (APP, "json.py"):  # Flower takes a folder of the right name as it is
        (folder / name).write_bytes(b"import evil")
        assert runner.install_from_fab(bundles["mine"], skip_prompt=True) == folder
        assert (folder / APP).read_bytes() == code and not (folder / "json.py").exists()

    def said(*names: str) -> str:
        with pytest.raises(RefusedAppError) as refused:
            runner.get_load_client_app_fn("", None, True)(*names)
        return str(refused.value)

    elsewhere = tmp_path / "flower/apps/elsewhere"
    elsewhere.mkdir()
    name, version, digest = "fedbayes/fedbayes", "0.1.0", folder.name.rpartition(".")[2]
    for names in ((name, version, "f" * 64), (name, "0.1.0/../elsewhere", digest), ("a/b", version, digest)):
        assert said(*names) == "the coordinator names another app than the one that it sent"


def test_two_messages_at_once_unpack_one_after_the_other(runner: Any, bundles: dict[str, bytes]) -> None:
    """Flower takes a folder that another process is still filling for the whole app."""
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: runner.install_from_fab(bundles["mine"], skip_prompt=True), range(4)))
    assert len(set(found)) == 1 and is_as_sent(found[0], unpacked(bundles["mine"]))


def test_an_app_that_is_in_its_place_is_not_waited_for(
    runner: Any, bundles: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen sites of one machine, a busy one: somebody is unpacking all the time."""
    folder = runner.install_from_fab(bundles["mine"], skip_prompt=True)
    monkeypatch.setattr(guard, "PATIENCE", 0.0)
    with locked(tmp_path / "flower" / "apps.lock", 0.0, RuntimeError()):
        assert runner.install_from_fab(bundles["mine"], skip_prompt=True) == folder
        (folder / APP).write_bytes(b"import evil")
        with pytest.raises(RefusedAppError, match="another app is being unpacked here"):
            runner.install_from_fab(bundles["mine"], skip_prompt=True)


def test_an_unknown_flower_carries_out_nothing(
    runner: Any, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(runner, "install_from_fab")
    with pytest.raises(SystemExit, match="apps cannot be checked before they run"):
        guard.watch(trust)
    guard.watch(Trust())  # who trusts everybody needs no check
