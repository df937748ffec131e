"""`fedbayes coordinator`: Flower's SuperLink with TLS and node authentication, from a folder of `fedbayes keys`.

The folder's `sites/*.pub` are the truth on who may take part: the SuperLink begins with them, and `register` adds the
keys that it does not know and removes those that the folder does not have.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedbayes.deploy import renewal
from fedbayes.deploy.connections import remember
from fedbayes.deploy.keys import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from fedbayes.deploy.packing import installed_app
from fedbayes.errors import CommandError
from fedbayes.launch.flower import environment

PATIENCE = 120.0  # seconds until a SuperLink that was just started must answer


def start(
    folder: Path,
    name: str,
    listen: str,
    control: str,
    extra: Sequence[str],
    metrics: str = "",
    log_format: str = "text",
) -> None:
    """Become the SuperLink; a helper registers the sites as soon as it answers."""
    folder = folder.resolve()
    for file in (CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY):
        if not (folder / file).is_file():
            raise CommandError(f"{folder / file} is missing; `fedbayes keys` makes it.")
    renewal.warn(folder)
    host, _, port = control.rpartition(":")
    if not host or not port.isdigit():
        raise CommandError(f'--control takes HOST:PORT, such as 127.0.0.1:8000, not "{control}".')
    reached = f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::") else control
    if metrics and any(word.startswith("--database") for word in extra):
        raise CommandError(
            "--metrics-port takes a coordinator whose state is in memory; leave --database out."
        )
    remember(name, reached, folder / CA_CERTIFICATE)
    plan = {"sites": str(folder / "sites"), "metrics": metrics, "log": log_format}
    command = [
        sys.executable, "-P", "-m", "fedbayes.deploy.superlink", json.dumps(plan),
        "--fleet-api-address", listen, "--host", host.strip("[]"), "--port", port,
        "--ssl-ca-certfile", str(folder / CA_CERTIFICATE), "--ssl-certfile", str(folder / SERVER_CERTIFICATE),
        "--ssl-keyfile", str(folder / SERVER_KEY), "--enable-supernode-auth",
        "--disable-runtime-dependency-installation", *extra,
    ]  # fmt: skip
    print(f"Run folders: out-dir is resolved in {Path.cwd()}")
    print(f"Train with:  fedbayes run --on {name}")
    print(f"Its app is   {installed_app()} (for `fedbayes site --only-app`)")
    print(f"$ {shlex.join(command)}", flush=True)
    helper = [
        sys.executable,
        "-m",
        "fedbayes.cli",
        "coordinator",
        str(folder),
        "--name",
        name,
        "--register",
    ]
    subprocess.Popen(helper, stdin=subprocess.DEVNULL, start_new_session=True)
    os.umask(0o077)  # whatever it writes is its own
    os.execve(command[0], command, environment() | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5"})


def register(folder: Path, name: str) -> None:
    """Let exactly the sites take part whose public keys are in the folder."""
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection
    from flwr.proto.control_pb2 import RegisterNodeRequest, UnregisterNodeRequest

    keys = public_keys(folder / "sites")
    client = init_http_client_from_connection(read_superlink_connection(name))
    try:
        known = {node.public_key: node for node in _nodes(client) if not node.unregistered_at}
        for key, site in keys.items():
            if key not in known:
                client.RegisterNode(RegisterNodeRequest(public_key=key, name=site))
                print(f"Registered {site}.", flush=True)
        for key, node in known.items():
            if key not in keys:
                client.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
                print(
                    f"Removed {node.name or node.node_id}: its public key is not in {folder / 'sites'}.",
                    flush=True,
                )
    finally:
        client.close()
    print(f"{len(keys)} sites may take part: {', '.join(sorted(keys.values())) or 'none'}.", flush=True)


def public_keys(folder: Path) -> dict[bytes, str]:
    """The sites' names by their public keys."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys = {}
    for file in sorted(folder.glob("*.pub")):
        try:
            keys[public_key_to_bytes(load_ssh_public_key(file.read_bytes()))] = file.stem  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            raise CommandError(f"{file} is no public key of `fedbayes keys`: {error}.") from None
    return keys


def _nodes(client: Any) -> Any:
    """What the SuperLink knows, as soon as it answers."""
    import httpx
    from flwr.proto.control_pb2 import ListNodesRequest

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return client.ListNodes(ListNodesRequest()).nodes_info
        except httpx.TransportError as error:
            if time.monotonic() > deadline:
                raise CommandError(f"The coordinator does not answer ({error}).") from None
            time.sleep(0.5)
