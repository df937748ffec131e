"""A real federation whose sites come and go during a run, and whose sites are sent what nobody has signed."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from deployed import Deployment, Running, interrupt, started, until
from harness import SMALL
from rich.console import Console

from fedbayes.deploy import packing, remote
from fedbayes.launch.plan import plan_remote

pytestmark = pytest.mark.deployment
SITES = 3
SETTINGS = {key.replace("-", "_"): value for key, value in SMALL.items()}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Site 2 starts a new Python for every message, which must look at signatures too."""
    separately = ("--isolation", "subprocess")
    with started(tmp_path_factory.mktemp("federation"), SITES, site_2=separately) as federation:
        yield federation


@pytest.mark.parametrize(
    ("name", "reason"),
    [("altered", "was altered after it was signed"), ("unsigned", "this site carries out only signed apps")],
)
def test_what_was_altered_after_it_was_signed_is_refused_and_the_sites_live_on(
    federation: Deployment, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """Whoever reaches the control port sends code of their own; without the key it runs at no site."""
    ran = federation.folder / "ran"

    def changed(app: Path, keys: Path) -> None:
        packing.sign_app(app, keys if name == "altered" else None)
        with (app / "client_app" / "app.py").open("a") as code:
            code.write(f"\nopen({str(ran)!r}, 'w').close()\n")

    monkeypatch.setenv("FLWR_HOME", federation.environment["FLWR_HOME"])
    monkeypatch.setattr(remote, "sign_app", changed)
    said = StringIO()
    words = {**SMALL, "run-name": name, "min-clients": str(SITES)}
    status = remote.run_on(
        plan_remote("lan", None, {key: str(value) for key, value in words.items()}),
        Console(file=said, width=200),
    )
    assert status == 1
    for number in range(SITES):
        site = federation.running[f"site-{number}"]
        site.hears(reason)
        assert site.process.poll() is None
        assert not apps(federation.home(number)), "nothing of it was unpacked"
    assert not ran.exists(), "not a line of it has run"


def test_a_site_with_another_apps_hash_refuses_what_the_others_carry_out(federation: Deployment) -> None:
    federation.running["site-1"].stop()
    home = federation.folder / "pinned"
    federation.launch_site(1, words=("--only-app", "0" * 64), FLWR_HOME=str(home)).hears("SuperNode ID")
    try:
        run = federation.run("pinned", **SETTINGS | {"rounds": 1, "min_clients": 2})
        assert run.ends() == 0 and "1 round, 2 sites" in run.said, run.said
        federation.running["site-1"].hears(
            "this site carries out only the app 0000000000000000…, and was sent"
        )
        assert federation.running["site-1"].process.poll() is None and not apps(home)
        assert apps(federation.home(0)) and apps(federation.home(2)), "where it is trusted it was unpacked"
    finally:
        federation.running["site-1"].stop()
        federation.start_site(1)
    run = federation.run("signed", **SETTINGS | {"rounds": 1})
    assert run.ends() == 0 and "1 round, 3 sites, 0 failed replies" in run.said, run.said


def apps(home: Path) -> list[Path]:
    """What Flower has unpacked there."""
    return list((home / "apps").iterdir()) if (home / "apps").exists() else []


def test_a_site_is_removed_and_another_one_added_while_a_run_goes_on(federation: Deployment) -> None:
    run = federation.run("changing", **SETTINGS | {"rounds": 500, "eval_every": 500})
    federation.wait_for_round("changing", 1, run)
    (federation.folder / "keys/coordinator/sites/site-2.pub").unlink()
    register(federation, "Removed site-2")
    removed = federation.saved("changing")

    def answered(site: str, since: int) -> list[int]:
        rows = [row for row in federation.outcome("changing").clients if row["site"] == site]
        return [t for t in (int(row["round"]) for row in rows if row["status"] == "ok") if t > since]

    federation.wait_for_round("changing", removed + 3, run)
    assert not answered("site-2", removed + 1), "it is dropped within a round"
    assert answered("site-0", removed + 1) and answered("site-1", removed + 1)

    assert federation.command("keys", "keys", "--sites", "4").ends() == 2, "the removed one is not made again"
    (federation.folder / "keys/site-2").rename(federation.folder / "gone")
    assert federation.command("keys", "keys", "--sites", "4").ends() == 0
    (federation.folder / "keys/coordinator/sites/site-2.pub").unlink()
    register(federation, "Registered site-3")
    words = ("--at", federation.fleet, "--share", "2/3", "--state", str(federation.folder / "disk-3"))
    federation.running["site-3"] = federation.command("site", "keys/site-3", *words, log="site-3")
    until(lambda: len(answered("site-3", 0)) >= 2, "the new site's answers")
    interrupt(run)
    assert run.ends() == 130, run.said


def register(federation: Deployment, words: str) -> Running:
    sync = federation.command("coordinator", "keys/coordinator", "--register", log="register")
    assert sync.ends() == 0 and words in sync.said, sync.said
    return sync
