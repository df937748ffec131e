"""Whose key it is: a coordinator in the middle of a secure sum is found out."""

import json
from pathlib import Path

import pytest

from client_app.proof import Identity
from client_app.redact import SiteError
from fedbayes.deploy.keys import make_keys

KEY = "ab" * 32


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("proof") / "keys"
    make_keys(folder, ["localhost"], 2)
    return folder


def test_a_site_shows_another_whose_key_it_is(keys: Path) -> None:
    proof = Identity(keys / "site-0").prove("run", "site-0", KEY)
    Identity(keys / "site-1").require(proof, "run", "site-0", KEY)


@pytest.mark.parametrize(
    ("run", "name", "key"),
    [("other", "site-0", KEY), ("run", "site-1", KEY), ("run", "site-0", "cd" * 32)],
)
def test_it_is_of_one_run_one_site_and_one_key(keys: Path, run: str, name: str, key: str) -> None:
    proof = Identity(keys / "site-0").prove("run", "site-0", KEY)
    with pytest.raises(SiteError, match=f"nobody has shown that the key of site {name} is its own"):
        Identity(keys / "site-1").require(proof, run, name, key)


@pytest.mark.parametrize("proof", ["", "{}", "[]", '{"certificate": "x", "signature": "zz"}', "null"])
def test_nonsense_shows_nothing(keys: Path, proof: str) -> None:
    with pytest.raises(SiteError, match="nobody has shown"):
        Identity(keys / "site-1").require(proof, "run", "site-0", KEY)


def test_neither_another_authority_nor_another_sites_certificate_will_do(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["localhost"], 1)
    forged = Identity(tmp_path / "other" / "site-0").prove("run", "site-0", KEY)
    with pytest.raises(SiteError, match="nobody has shown"):
        Identity(keys / "site-1").require(forged, "run", "site-0", KEY)
    mixed = json.loads(Identity(keys / "site-1").prove("run", "site-0", KEY))
    mixed["certificate"] = json.loads(Identity(keys / "site-0").prove("run", "site-0", KEY))["certificate"]
    with pytest.raises(SiteError, match="nobody has shown"):
        Identity(keys / "site-1").require(json.dumps(mixed), "run", "site-0", KEY)


def test_without_a_certificate_a_site_says_what_to_do(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"`fedbayes keys` makes site\.crt"):
        Identity(tmp_path)


def test_an_older_folder_gets_its_certificate(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["localhost"], 2)
    before = (tmp_path / "keys/site-1/site.crt").read_bytes()
    (tmp_path / "keys/site-0/site.crt").unlink()
    make_keys(tmp_path / "keys", [], 2)
    assert (tmp_path / "keys/site-1/site.crt").read_bytes() == before
    proof = Identity(tmp_path / "keys/site-0").prove("run", "site-0", KEY)
    Identity(tmp_path / "keys/site-1").require(proof, "run", "site-0", KEY)
