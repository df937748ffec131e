"""`fedbayes site`: Flower's SuperNode with a site's own key, data and disk."""

import json
import os
import re
import secrets
import shlex
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedbayes.deploy import executor, renewal
from fedbayes.deploy.bundles import APP_PUBLIC, Trust
from fedbayes.deploy.keys import CA_CERTIFICATE, SITE_KEY
from fedbayes.deploy.packing import installed_app
from fedbayes.deploy.supervise import handshake
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import toml_value
from fedbayes.launch.flower import environment, free_port, program
from fedbayes.protocol.budget import Budget
from fedbayes.protocol.settings import DEVICE, NAME

FLEET_PORT = 9092
HASH, INSTALLED = re.compile("[0-9a-f]{64}"), "installed"
REFUSED = (
    "(Exit code 305 means refused: the coordinator does not know this key, which `fedbayes coordinator DIR --register` "
    "there changes; or this site runs already, or was killed less than half a minute ago: start it again.)"
)  # Flower's own words do not say so


@dataclass(frozen=True)
class SiteConfig:
    """What a site's owner decides; none of it is sent to the coordinator but the name."""

    name: str
    state: Path
    data: str | Path | None = None  # a file, a folder or a function
    share: str | None = None
    log_file: Path | None = None
    device: str | None = None  # instead of the run's
    data_changed: bool = False  # runs that began with other data go on
    dp_budget: str | None = None  # ε, or ε@δ: no more of single examples leaves, in all runs together
    only_app: tuple[str, ...] = ()  # hashes of the apps that are carried out, if not all that are signed
    allow_code: tuple[str, ...] = ()  # packages here whose functions a run may name
    keys: Path | None = None  # its folder, which shows the other sites of a secure sum who it is

    def node_config(self) -> str:
        """As Flower takes it: key=value words, the values in TOML."""
        values: dict[str, str | int] = {"site-id": self.name, "state-dir": str(self.state)}
        for package in self.allow_code:
            if not all(part.isidentifier() for part in package.split(".")):
                raise CommandError(f'--allow-code takes the name of a package, not "{package}".')
        values["own-code"] = ",".join(self.allow_code)
        if self.share is not None:
            number, slash, total = self.share.partition("/")
            if not slash or not number.isdigit() or not total.isdigit() or int(number) >= int(total):
                raise CommandError(f'--share takes I/N, the I-th of N shares from 0 on, not "{self.share}".')
            values |= {"partition-id": int(number), "num-partitions": int(total)}
        if self.data is not None:
            values["data-path"] = str(self.data)
        if self.log_file is not None:
            values["log-file"] = str(self.log_file)
        if self.device is not None:
            if not DEVICE.fullmatch(self.device):
                raise CommandError(f'--device takes auto, cpu, cuda, cuda:N or mps, not "{self.device}".')
            values["device"] = self.device
        if self.data_changed:
            values["data-changed"] = True
        if self.keys is not None:
            values["keys"] = str(self.keys)
        if self.dp_budget is not None:
            try:
                Budget.read(self.dp_budget)
            except ValueError:
                raise CommandError(
                    f'--dp-budget takes ε, such as 8, or ε@δ, not "{self.dp_budget}".'
                ) from None
            values["dp-budget"] = self.dp_budget
        return " ".join(f"{key}={toml_value(value)}" for key, value in values.items())


def start(
    folder: Path, address: str, config: SiteConfig, extra: Sequence[str], log_format: str = "text"
) -> None:
    """Become the watcher (supervise.py) over the SuperNode of this site and its executor."""
    folder = folder.resolve()
    for file in (CA_CERTIFICATE, SITE_KEY):
        if not (folder / file).is_file():
            raise CommandError(f"{folder / file} is missing; `fedbayes keys` makes it.")
    if not NAME.fullmatch(config.name):
        raise CommandError(f"A site's name has letters, digits, '.', '_' and '-', unlike {config.name!r}.")
    if (config.data is None) == (config.share is None):
        raise CommandError(
            "A site takes either --data PATH, its own data, or --share I/N of the run's data set."
        )
    renewal.warn(folder)
    config = replace(config, keys=folder)
    trust = Trust.of(folder, _pinned(config.only_app))
    address = address if ":" in address else f"{address}:{FLEET_PORT}"
    check_coordinator(address, folder / CA_CERTIFICATE)
    os.umask(0o077)  # the personal model is this site's alone
    home = {"FLWR_HOME": str(folder / "flower")}  # of this site alone, unless its owner has chosen one
    variables = home | environment() | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
    port = str(free_port())
    words, carrier = ["--isolation", "subprocess"], list[str]()
    if (forks := executor.fits(extra)) or trust:
        extra = _arranged(extra)
        secret = _secret(Path(variables["FLWR_HOME"]), config.name)
        words = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        carrier = executor.command(f"127.0.0.1:{port}", secret, trust, forks)
    command = [
        str(program("flower-supernode")), "--superlink", address,
        "--root-certificates", str(folder / CA_CERTIFICATE), "--auth-supernode-private-key", str(folder / SITE_KEY),
        "--host", "127.0.0.1", "--port", port, *words, "--node-config", config.node_config(), *extra,
    ]  # fmt: skip
    print(f"$ {shlex.join(command)}")
    print(_trusted(trust, folder))
    print(REFUSED, flush=True)
    plan = {
        "node": command,
        "executor": carrier,
        "address": address,
        "authority": str(folder / CA_CERTIFICATE),
        "trust": trust.write(),
        "log": log_format,
    }
    watcher = [sys.executable, "-P", "-m", "fedbayes.deploy.supervise", json.dumps(plan)]
    os.execve(watcher[0], watcher, variables)


def _pinned(given: Sequence[str]) -> list[str]:
    """Hashes of apps, of which one may be the word "installed"."""
    found = [installed_app() if one == INSTALLED else one.lower() for one in given]
    if wrong := [one for one in found if not HASH.fullmatch(one)]:
        raise CommandError(
            f'--only-app takes the hash of an app, 64 digits and letters to f, or "{INSTALLED}", not "{wrong[0]}".'
        )
    return found


def _trusted(trust: Trust, folder: Path) -> str:
    """What this site carries out, in a sentence."""
    if trust.only:
        return f"Carried out here: the app {' or '.join(trust.only)} alone{', signed' if trust.key else ''}."
    if trust.key:
        return f"Carried out here: apps that are signed with the key of {folder / APP_PUBLIC}."
    return (
        f"Carried out here: whatever the coordinator sends; with {APP_PUBLIC} of `fedbayes keys` in {folder}, only "
        "what is signed."
    )


def _arranged(extra: Sequence[str]) -> Sequence[str]:
    """Flower's further words for a SuperNode whose messages our executor carries out."""
    if (words := executor.without_isolation(extra)) is None:
        raise CommandError(
            "With these words for Flower, its own programs carry out messages, and look at no signature; start the "
            f"site without them, or without {APP_PUBLIC} in its folder and --only-app."
        )
    return words


def _secret(home: Path, name: str) -> Path:
    """What the SuperNode and its executor know of each other: no other process here can take a message.

    Flower's port for executors is open to everybody on this machine. A file that only this user can read, new for
    every start.
    """
    home.mkdir(parents=True, exist_ok=True)
    file = home / f"executor-{name}.secret"
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(32))
    return file


def check_coordinator(address: str, authority: Path) -> None:
    """Whoever answers at the address must be the coordinator: Flower itself would retry for ever without a word.

    A coordinator that does not answer yet is waited for, by Flower.
    """
    try:
        handshake(address, str(authority))
    except ssl.SSLCertVerificationError as error:
        raise CommandError(
            f"Whoever answers at {address} is not the coordinator of {authority}: {error.verify_message}."
        ) from None
    except ssl.SSLError as error:
        raise CommandError(f"{address} does not speak TLS as a coordinator does: {error.reason}.") from None
    except (OSError, ValueError) as error:
        print(f"{address} does not answer yet ({error}); waiting for it.", flush=True)
