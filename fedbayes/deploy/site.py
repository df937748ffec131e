"""`fedbayes site`: Flower's SuperNode with a site's own key, data and disk."""

import json
import os
import secrets
import shlex
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbayes.deploy import executor
from fedbayes.deploy.keys import CA_CERTIFICATE, SITE_KEY
from fedbayes.deploy.supervise import handshake
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import toml_value
from fedbayes.launch.flower import environment, free_port, program
from fedbayes.protocol.settings import DEVICE, NAME

FLEET_PORT = 9092
REFUSED = (
    "(Exit code 305 means refused: the coordinator does not know this key, which `fedbayes coordinator DIR --register` "
    "there changes; or this site runs already, or was killed less than a minute ago: start it again then.)"
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

    def node_config(self) -> str:
        """As Flower takes it: key=value words, the values in TOML."""
        values: dict[str, str | int] = {"site-id": self.name, "state-dir": str(self.state)}
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
        return " ".join(f"{key}={toml_value(value)}" for key, value in values.items())


def start(folder: Path, address: str, config: SiteConfig, extra: Sequence[str]) -> None:
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
    address = address if ":" in address else f"{address}:{FLEET_PORT}"
    check_coordinator(address, folder / CA_CERTIFICATE)
    os.umask(0o077)  # the personal model is this site's alone
    home = {"FLWR_HOME": str(folder / "flower")}  # of this site alone, unless its owner has chosen one
    variables = home | environment() | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"}
    port = str(free_port())
    words: list[str] = ["--isolation", "subprocess"]
    carrier: list[str] = []
    if executor.fits(extra):
        secret = _secret(Path(variables["FLWR_HOME"]), config.name)
        words = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        carrier = executor.command(f"127.0.0.1:{port}", secret)
    command = [
        str(program("flower-supernode")), "--superlink", address,
        "--root-certificates", str(folder / CA_CERTIFICATE), "--auth-supernode-private-key", str(folder / SITE_KEY),
        "--host", "127.0.0.1", "--port", port, *words, "--node-config", config.node_config(), *extra,
    ]  # fmt: skip
    print(f"$ {shlex.join(command)}")
    print(REFUSED, flush=True)
    plan = {
        "node": command,
        "executor": carrier,
        "address": address,
        "authority": str(folder / CA_CERTIFICATE),
    }
    watcher = [sys.executable, "-P", "-m", "fedbayes.deploy.supervise", json.dumps(plan)]
    os.execve(watcher[0], watcher, variables)


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
