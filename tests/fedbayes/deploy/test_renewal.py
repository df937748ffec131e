"""Certificates that expire: who is told when, and what a renewal leaves as it was."""

import math
import ssl
import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from cryptography import x509
from rich.console import Console

from fedbayes.cli.command import main
from fedbayes.deploy import connections, coordinator, keys, operators, remote, renewal, site, supervise
from fedbayes.deploy.keys import make_keys
from fedbayes.deploy.site import SiteConfig
from fedbayes.errors import CommandError
from fedbayes.launch.plan import plan_remote


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    make_keys(tmp_path / "keys", ["a.example.org", "10.0.0.5"], 1)
    return tmp_path / "keys"


def read(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def test_renewed_with_the_same_key_names_and_authority(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(SystemExit) as end:
        main(["keys", "keys", "--renew"])
    assert end.value.code == 0
    certificate = folder / "coordinator/server.crt"
    assert [file for file, content in before.items() if file.read_bytes() != content] == [certificate]
    assert "for a.example.org, 10.0.0.5, localhost, 127.0.0.1, ::1, until" in capsys.readouterr().out
    read(certificate).verify_directly_issued_by(read(folder / "ca/ca.crt"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, folder / "coordinator/server.key")
    assert renewal.renew(folder, ["b.example.org"]).names[:2] == ["b.example.org", "localhost"]


def test_an_authority_that_ends_earlier_is_renewed_too_and_the_old_one_still_holds(folder: Path) -> None:
    old = read(folder / "ca/ca.crt")
    keys.CA_DAYS, days = 100, keys.CA_DAYS
    try:
        for file in folder.rglob("ca.crt"):
            file.write_bytes(keys.authority_certificate(renewal._key(folder / "ca/ca.key")))
    finally:
        keys.CA_DAYS = days
    short = read(folder / "ca/ca.crt")
    assert renewal.renew(folder, []).authority
    new, server = read(folder / "ca/ca.crt"), read(folder / "coordinator/server.crt")
    assert new.not_valid_after_utc > server.not_valid_after_utc > short.not_valid_after_utc
    for authority in (old, short, new):
        server.verify_directly_issued_by(authority)
    assert all(read(file) == new for file in folder.rglob("ca.crt"))


def test_a_warning_thirty_days_ahead_and_not_before(folder: Path) -> None:
    first, second = renewal.expiries(folder / "coordinator")
    assert (first.file.name, second.file.name) == ("server.crt", "ca.crt") and first.until < second.until
    assert [one.file.name for one in renewal.expiries(folder / "site-0")] == ["ca.crt"]
    assert first.warning() == "" and first.days() == 824
    warning = first.warning(first.until - timedelta(days=12, hours=1))
    assert warning.startswith("The coordinator's certificate (") and "12 more days; `fedbayes keys" in warning
    assert first.warning(first.until - timedelta(days=31)) == ""
    assert "has not held since" in first.warning(first.until + timedelta(hours=1))


def test_who_starts_is_warned_and_with_expired_certificates_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.execve", lambda *_: None)
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    config = SiteConfig("site-0", folder / "state", share="0/3")
    monkeypatch.setattr(renewal, "WARNED", timedelta(days=4000))
    coordinator.start(folder / "coordinator", "lan", "0.0.0.0:9092", "127.0.0.1:8000", ())
    site.start(folder / "site-0", "127.0.0.1:1", config, ())
    said = capsys.readouterr().out
    assert said.count("Warning: The authority's certificate") == 2
    assert said.count("Warning: The coordinator's certificate") == 1

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=3651)

    monkeypatch.setattr(renewal, "datetime", Later)
    with pytest.raises(CommandError, match=r"The coordinator's certificate .* has not held since"):
        coordinator.start(folder / "coordinator", "lan", "0.0.0.0:9092", "127.0.0.1:8000", ())
    with pytest.raises(CommandError, match=r"The authority's certificate .* has not held since"):
        site.start(folder / "site-0", "127.0.0.1:1", config, ())


def test_a_coordinator_and_a_site_that_run_warn_once_a_day(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = supervise.Site(
        supervise.Part("SuperNode", ["true"], due=math.inf),
        None,
        "127.0.0.1:9",
        str(folder / "site-0/ca.crt"),
    )
    monkeypatch.setattr(supervise, "answers", lambda *_: False)
    monkeypatch.setattr(renewal, "WARNED", timedelta(days=4000))
    one._look()
    assert not capsys.readouterr().out, "at the start it was said already"
    monkeypatch.setattr(supervise, "DAY", 0.0)
    one._look()
    assert capsys.readouterr().out.startswith("Warning: The authority's certificate (")
    monkeypatch.setattr(supervise, "DAY", 3600.0)
    one._look()
    assert not capsys.readouterr().out, "once"
    (folder / "site-0/ca.crt").write_text("half a")
    assert renewal.warnings(folder / "site-0") == [], "it is being replaced"

    days: list[float] = []
    woken = threading.Event()

    def sleep(seconds: float) -> None:
        days.append(seconds)
        if len(days) == 3:
            woken.set()
            threading.Event().wait()

    monkeypatch.setattr(renewal.time, "sleep", sleep)
    renewal.keep_warning(folder / "coordinator")
    assert woken.wait(10)
    assert days == [86400.0] * 3
    assert capsys.readouterr().out.count("Warning: The coordinator's certificate (") == 2


def test_a_run_on_a_federation_whose_certificate_expires_soon_begins_with_the_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connections.remember("lan", "127.0.0.1:8000", folder / "coordinator/ca.crt")
    monkeypatch.setattr(
        remote.Remote, "start", lambda self: (_ for _ in ()).throw(CommandError("Nobody is there."))
    )
    words = plan_remote("lan", None, {"rounds": "1"})
    assert remote.run_on(words, Console(file=StringIO())) == 1
    assert "Warning" not in capsys.readouterr().out
    monkeypatch.setattr(renewal, "WARNED", timedelta(days=825))
    assert remote.run_on(words, Console(file=StringIO())) == 1
    assert "Warning: The coordinator's certificate (" in capsys.readouterr().out


def test_sites_are_shown_with_the_certificate_that_ends_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connections.remember("lan", "127.0.0.1:8000", folder / "coordinator/ca.crt")
    monkeypatch.setattr(operators, "coordinator", lambda name: nullcontext())
    for name in ("nodes", "runs"):
        monkeypatch.setattr(operators, name, lambda client: [])

    def sites() -> str:
        with pytest.raises(SystemExit):
            main(["sites"])
        return capsys.readouterr().out

    until = read(folder / "coordinator/server.crt").not_valid_after_utc
    assert f"The coordinator's certificate holds until {until:%d %B %Y}, 824 more days." in sites()
    monkeypatch.setattr(renewal, "WARNED", timedelta(days=825))
    assert "Warning: The coordinator's certificate (" in sites()


def test_what_cannot_be_renewed_is_one_sentence(folder: Path) -> None:
    (folder / "coordinator/server.crt").write_text("nonsense")
    with pytest.raises(CommandError, match=r"server\.crt is no certificate"):
        renewal.renew(folder, [])
    (folder / "ca/ca.key").unlink()
    with pytest.raises(CommandError, match=r"ca\.key is missing: a certificate is renewed where"):
        renewal.renew(folder, [])
