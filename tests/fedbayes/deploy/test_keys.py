"""Keys and certificates: what OpenSSL and OpenSSH say of them, file modes, and that nothing is overwritten."""

import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedbayes.cli.command import main
from fedbayes.deploy.keys import make_keys
from fedbayes.errors import CommandError


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", ["coordinator.example.org", "10.0.0.5"], 2)
    return tmp_path / "keys"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_one_folder_for_each_machine(keys: Path) -> None:
    assert sorted(contents(keys)) == [
        "ca/ca.crt", "ca/ca.key",
        "coordinator/app.key", "coordinator/app.pub",
        "coordinator/ca.crt", "coordinator/server.crt", "coordinator/server.key",
        "coordinator/sites/site-0.pub", "coordinator/sites/site-1.pub",
        "site-0/app.pub", "site-0/ca.crt", "site-0/site.crt", "site-0/site.key",
        "site-1/app.pub", "site-1/ca.crt", "site-1/site.crt", "site-1/site.key",
    ]  # fmt: skip


def test_private_files_are_for_their_owner_alone(keys: Path) -> None:
    private = {path.name for path in keys.rglob("*") if path.is_file() and not path.stat().st_mode & 0o077}
    assert private == {"ca.key", "server.key", "site.key", "app.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.rglob("*.key")} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [keys, *keys.rglob("*")] if path.is_dir()} == {
        0o700
    }


def test_the_certificate_names_every_host_and_is_for_servers(keys: Path) -> None:
    certificate = x509.load_pem_x509_certificate((keys / "coordinator/server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        "coordinator.example.org", "10.0.0.5", "localhost", "127.0.0.1", "::1",
    ]  # fmt: skip
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert usage == x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    authority = x509.load_pem_x509_certificate((keys / "ca/ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    signs = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert signs.critical and signs.value.key_cert_sign and signs.value.crl_sign


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")
def test_openssl_accepts_the_chain_in_strict_mode(keys: Path) -> None:
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", "ca/ca.crt"]
    checks = ["-verify_hostname", "coordinator.example.org"], ["-verify_ip", "10.0.0.5"]
    for check in checks:
        subprocess.run(
            [*command, *check, "coordinator/server.crt"], cwd=keys, check=True, capture_output=True
        )
    wrong = [*command, "-verify_hostname", "elsewhere.example.org", "coordinator/server.crt"]
    assert subprocess.run(wrong, cwd=keys, capture_output=True).returncode != 0


def test_a_sites_key_is_an_openssh_pair_on_p384(keys: Path) -> None:
    private = load_ssh_private_key((keys / "site-0/site.key").read_bytes(), None)
    public = load_ssh_public_key((keys / "coordinator/sites/site-0.pub").read_bytes())
    assert private.public_key() == public and public.curve.name == "secp384r1"  # type: ignore[union-attr]
    assert public != load_ssh_public_key((keys / "coordinator/sites/site-1.pub").read_bytes())


def test_called_again_it_adds_what_is_missing_and_keeps_the_rest(keys: Path) -> None:
    before = contents(keys)
    assert make_keys(keys, [], 2).new == [] and contents(keys) == before
    assert make_keys(keys, ["10.0.0.5"], 4).new == ["site-2", "site-3"]
    after = contents(keys)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) == [
        "coordinator/sites/site-2.pub", "coordinator/sites/site-3.pub",
        "site-2/app.pub", "site-2/ca.crt", "site-2/site.crt", "site-2/site.key",
        "site-3/app.pub", "site-3/ca.crt", "site-3/site.crt", "site-3/site.key",
    ]  # fmt: skip


def test_sites_can_be_added_where_the_authoritys_key_and_delivered_folders_are_gone(keys: Path) -> None:
    (keys / "ca/ca.key").unlink()
    shutil.rmtree(keys / "site-0")
    assert make_keys(keys, [], 3).new == ["site-2"], "site-0 has its key already, wherever it is"


def test_the_certificate_is_renewed_with_the_same_authority_and_key(keys: Path) -> None:
    before = contents(keys)
    with pytest.raises(
        CommandError, match=r"server\.crt is for coordinator.*not for new\.example\.org; with --renew"
    ):
        make_keys(keys, ["new.example.org"], 2)
    (keys / "coordinator/server.crt").unlink()
    made = make_keys(keys, ["new.example.org"], 2)
    assert made.new == ["server.crt"] and made.names[0] == "new.example.org"
    after = contents(keys)
    assert {name for name in before if after[name] != before[name]} == {"coordinator/server.crt"}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "coordinator/server.crt", keys / "coordinator/server.key")

    (keys / "coordinator/server.crt").unlink()
    (keys / "ca/ca.key").unlink()
    with pytest.raises(CommandError, match=r"ca\.key is missing"):
        make_keys(keys, ["new.example.org"], 2)


def test_a_revoked_site_does_not_come_back_by_itself(keys: Path) -> None:
    (keys / "coordinator/sites/site-1.pub").unlink()
    with pytest.raises(CommandError, match=r"site-1.*revoked, or is half made; delete"):
        make_keys(keys, [], 2)
    old = (keys / "site-1/site.key").read_bytes()
    shutil.rmtree(keys / "site-1")
    assert make_keys(keys, [], 2).new == ["site-1"]
    assert (keys / "site-1/site.key").read_bytes() != old


def test_the_command_says_what_goes_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["keys", "keys", "--host", "a.example.org", "--host", "b.example.org", "--sites", "1"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "New: app.key, app.pub, ca.crt, ca.key, server.crt, server.key, site-0."
    assert "a.example.org, b.example.org, localhost, 127.0.0.1, ::1, until" in lines[1]
    assert (
        lines[2]
        == "Take keys/coordinator to the coordinator and keys/site-… to that site; keep keys/ca here."
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["keys", "keys", "--sites", "2"], "--host takes a name or address"),
        (["keys", "keys", "--host", "bücher.example", "--sites", "2"], '--host takes a name or an address, not "bü'),
        (["keys", "missing/keys", "--host", "a"], "missing/keys cannot be read or written: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.startswith("fedbayes: ") and said.count("\n") == 1
    assert sentence in said
    assert list(tmp_path.iterdir()) == [], "nothing is half made"
