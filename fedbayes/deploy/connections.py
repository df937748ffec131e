"""The federations that this machine can run on, as Flower keeps them: `[superlink.NAME]` in its config.toml."""

import time
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from fedbayes.errors import CommandError
from fedbayes.protocol.settings import NAME

PATIENCE, PAUSE = 30.0, 0.2  # seconds for a coordinator's first start, on a busy machine


def config_file() -> Path:
    from flwr.supercore.utils import get_flwr_home

    return Path(get_flwr_home()) / "config.toml"


def connections() -> dict[str, dict[str, Any]]:
    """Address and root certificate of each, by name."""
    file = config_file()
    try:
        found = tomllib.loads(file.read_text("utf-8")).get("superlink", {})
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CommandError(f"Flower's configuration {file} cannot be read: {error}.") from None
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def require(name: str) -> None:
    """CommandError unless there is a federation of this name."""
    if name not in (known := connections()):
        raise CommandError(
            f'There is no federation "{name}" in {config_file()}; there are {", ".join(known) or "none"}. '
            "`fedbayes coordinator` writes it on the coordinator's machine."
        )


def wait_for(name: str) -> None:
    """The same after a while: a coordinator that is being started for the first time has yet to write it down."""
    deadline = time.monotonic() + PATIENCE
    while name not in connections() and time.monotonic() < deadline:
        time.sleep(PAUSE)
    require(name)


def keys_of(name: str) -> Path | None:
    """The folder of `fedbayes keys` that a federation's coordinator has, where it is on this machine."""
    certificate = connections().get(name, {}).get("root-certificates")
    return Path(str(certificate)).parent if certificate else None


def remember(name: str, address: str, certificate: Path) -> bool:
    """Write the connection down, once; whether it is new."""
    if not NAME.fullmatch(name) or "." in name:
        raise CommandError(f'--name takes letters, digits, "_" and "-", not "{name}".')
    wanted = {"address": address, "root-certificates": str(certificate)}
    file, known = config_file(), connections()
    if name in known:
        if {key: known[name].get(key) for key in wanted} != wanted:
            raise CommandError(
                f'"{name}" is another federation in {file}, at {known[name].get("address")}; take another --name.'
            )
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write("\n" + tomli_w.dumps({"superlink": {name: wanted}}))
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from None
    return True
