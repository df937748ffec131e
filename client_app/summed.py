"""What a site has helped to sum, so that no two sums differ by a few sites: their difference would be these sites' own.

A site helps to open the sum of a round's uploads over one set of sites; over the same set again, if it is asked to (the
coordinator may have died before it saved the sum). Every sum takes the help of two thirds of the sites in it, and who
has helped with one set helps with no other. So of k sums, whatever they are weighed with, the sites that did not help
can hide at most half of those that did: three sites or more are left in every difference. Measures are held to the
same, by the tensors that were measured.

With noise of its own (`dp-noise`) a round leaves a site once: the noise is drawn from a seed that is kept, and what is
summed again must be the same to the last bit.
"""

import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from bayes_core import masks
from client_app.redact import SiteError

State = Mapping[str, Any]  # of `secure.json`
SHORT = 32  # hexadecimal digits of a digest


def require_same(state: State, uploaded: Sequence[str], measured: Sequence[str]) -> dict[str, Any]:
    """What to keep once the latest exchange is summed over these sites; SiteError where that was done over others."""
    masked = state["masked"]
    uuid, number, model = masked["uuid"], masked["round"], masked["model"]
    before, models = state.get("summed"), _models(state, uuid)
    if uploaded:
        _require_same_round(before, uuid, number, uploaded)
        before = {"uuid": uuid, "round": number, "sites": list(uploaded), "added": masked["added"]}
    if measured:
        sites = _digest("\n".join(measured))
        if models.setdefault(model, sites) != sites:
            raise SiteError(
                "these models were measured already, over other sites, and the difference would tell of single ones"
            )
    return {"summed": before, "models": {"uuid": uuid, "measured": models}}


def _require_same_round(before: State | None, uuid: str, number: int, uploaded: Sequence[str]) -> None:
    if not before or before["uuid"] != uuid or before["round"] < number:
        return
    if before["round"] > number:
        raise SiteError(f"round {before['round']} was summed already, and round {number} lies before it")
    if apart := set(before["sites"]) ^ set(uploaded):
        raise SiteError(
            f"round {number} was summed already, and a second sum that differs by {', '.join(sorted(apart))} would "
            "tell of single uploads; it takes the same sites again"
        )


def _models(state: State, uuid: str) -> dict[str, str]:
    """Those that were measured in this run, each with the sites that were."""
    found = state.get("models") or {}
    return dict(found["measured"]) if found.get("uuid") == uuid else {}


def noise_of(state: State, uuid: str, number: int) -> dict[str, Any]:
    """The seed of this site's noise in a round: the one that is kept, or a new one to be."""
    found: dict[str, Any] = state.get("noise") or {}
    if (found.get("uuid"), found.get("round")) == (uuid, number):
        return found
    return {"uuid": uuid, "round": number, "seed": os.urandom(masks.SEED).hex()}


def require_one_release(state: State, uuid: str, number: int, added: str) -> None:
    """SiteError where a round that has left this site with noise would leave it as something else."""
    before = state.get("summed") or {}
    if (before.get("uuid"), before.get("round")) == (uuid, number) and before.get("added") != added:
        raise SiteError(
            f"round {number} was summed already, and what this site would add now is something else; "
            "with noise it adds to a round once"
        )


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:SHORT]
