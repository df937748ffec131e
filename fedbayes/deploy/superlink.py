"""Flower's SuperLink as `fedbayes coordinator` runs it: `python -m fedbayes.deploy.superlink PLAN WORDS…`.

PLAN is JSON: the folder of the sites' public keys, where to serve metrics, how to write the log. WORDS are those of
`flower-superlink`. Without a `--database` its state is in memory (linkstate.py), and a message through the sites' port
has at most `LARGEST` bytes: gRPC refuses more by its first five bytes, before anything of it is read. What comes
through that port must be the sender's own (fleet.py). Where Flower is not as it is known here, it is started as it is.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

LARGEST = 32 * 2**20  # bytes of one gRPC message; arrays travel in pieces of 5 MB, all the rest is small


def main() -> None:
    plan, *words = sys.argv[1:]
    prepare(json.loads(plan))
    sys.argv = ["flower-superlink", *words]
    from flwr.superlink.cli.flower_superlink import flower_superlink

    flower_superlink()


def prepare(plan: Mapping[str, str]) -> None:
    """Give Flower our state, and the limit."""
    if plan.get("log") == "json":
        from fedbayes.deploy.log_lines import turn_output

        turn_output()
    # as a module: its package has a function of that name, too
    program: Any = import_module("flwr.superlink.cli.flower_superlink")
    from fedbayes.deploy import renewal
    from fedbayes.deploy.coordinator import public_keys

    renewal.keep_warning(Path(plan["sites"]).parent)

    try:
        from flwr.server.superlink.linkstate import linkstate_factory

        from fedbayes.deploy.fleet import SitesPort
        from fedbayes.deploy.linkstate import MemoryState
        from fedbayes.deploy.orphans import Orphans
    except ImportError as error:
        print(
            f"Flower's state in memory is not as it is known here ({error}); it is taken as it is.",
            flush=True,
        )
        return
    MemoryState.KEYS = public_keys(Path(plan["sites"]))

    def made(*words: Any, **named: Any) -> MemoryState:
        state = MemoryState(*words, **named)
        if plan.get("log") == "json":  # Flower throws away what a ServerApp writes, but for the run's own log
            state.tell = write
        if metrics := plan.get("metrics"):
            serve_metrics(metrics, state)
        if not any(word.startswith("--isolation") for word in sys.argv):  # else ServerApps may be elsewhere
            Orphans(state).start()
        return state

    linkstate_factory.InMemoryLinkState = made  # type: ignore[assignment,attr-defined]
    if hasattr(program, "FleetServicer"):
        program.FleetServicer = SitesPort
    else:
        print(
            "Flower's port for sites is not where it is known; it is not asked whose a message is.",
            flush=True,
        )
    if hasattr(program, "GRPC_MAX_MESSAGE_LENGTH"):
        program.GRPC_MAX_MESSAGE_LENGTH = LARGEST
    else:
        print(
            "Flower's limit of a message is not where it is known; it takes messages of any size.", flush=True
        )


def write(event: Mapping[str, Any]) -> None:
    """A line of a run's log, for whoever reads the coordinator's."""
    from server_app.events import PREFIX

    print(f"{PREFIX}{json.dumps(event)}", flush=True)


def serve_metrics(address: str, state: Any) -> None:
    from fedbayes.deploy.metrics import render, serve

    host, _, port = address.rpartition(":")
    try:
        serve(host, int(port), lambda: render(state.connected(), state.runs_told(), state.forged))
    except OSError as error:
        sys.exit(f"fedbayes: metrics cannot be served at {address}: {error.strerror}.")
    print(f"Metrics:     http://{address}/metrics", flush=True)


if __name__ == "__main__":
    main()
