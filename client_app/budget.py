"""A site's privacy budget: the ledger of everything that left it under `dp-example-noise`, and whether more may.

The ledger lies on the site's own disk, STATE/.privacy-SITE.json: it belongs to the site and not to a run, and changed
data do not begin it anew. It is written before the result of noised steps leaves: a crash between costs budget, never
privacy. A simulation, whose clients are nobody, has one for each run and client instead. Nothing else knows of it: a
site that is given another folder or another name begins a new one.

A round that is asked for again with the same w, after a crash or too few answers, gets the same upload again: that is
one release. Anything else is trained and counted anew.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayes_core.accounting import Release, epsilon_spent, merged
from bayes_core.families import is_finite
from bayes_core.flat import without_buffers
from client_app.method import Tensors, Trained
from client_app.redact import Refusal, SiteError
from client_app.site import Participant
from client_app.store import Store
from fedbayes.protocol.budget import Budget
from fedbayes.protocol.files import locked, replace_file, sync
from fedbayes.protocol.messages import EPSILON
from fedbayes.protocol.settings import Settings

SENT = "sent."  # in a stored state: what left with it, to be sent again and not made again …
FROM = "from"  # … if it is asked for from the same tensors
NOTHING = torch.empty(0, dtype=torch.uint8)
LOCK_WAIT = 60.0


@dataclass(frozen=True)
class Purse:
    """What one site may still spend, in one run."""

    file: Path
    limits: tuple[Budget, ...]
    cost: Release  # of one round
    delta: float
    durable: bool

    def refusal(self) -> str | None:
        """Why one more round is not possible, in the site's words; None where it is."""
        spent = self._read()
        for limit in self.limits:
            if epsilon_spent((*spent, self.cost), limit.delta) > limit.epsilon:
                return (
                    f"its privacy budget is spent: ε = {epsilon_spent(spent, limit.delta):.3g} at δ = {limit.delta:g}, "
                    f"and one more round would pass {limit.epsilon:g}"
                )
        return None

    def spend(self) -> None:
        """One round, before anything of it can leave; Refusal where it is one too many."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        busy = SiteError("another process has been using the privacy ledger for a minute")
        with locked(self.file.with_suffix(".lock"), LOCK_WAIT, busy):
            if words := self.refusal():
                raise Refusal(words)
            spent = merged((*self._read(), self.cost))
            said = {"format": 1, "spent": [one._asdict() for one in spent]}
            replace_file(self.file, json.dumps(said, indent=1).encode(), durable=self.durable)
            if self.durable:
                sync(self.file.parent)

    @property
    def epsilon(self) -> float:
        """Of everything that has left the site, at the run's δ."""
        return epsilon_spent(self._read(), self.delta)

    def _read(self) -> tuple[Release, ...]:
        """SiteError where there is a ledger that cannot be read: it may say that nothing is left."""
        try:
            said: Any = json.loads(self.file.read_text("utf-8"))
            found = tuple(
                Release(float(one["noise"]), float(one["rate"]), int(one["times"])) for one in said["spent"]
            )
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, KeyError):
            raise SiteError("its privacy ledger cannot be read; its owner must look at it") from None
        if not all(one.noise > 0 and 0 < one.rate <= 1 and one.times >= 0 for one in found):
            raise SiteError("its privacy ledger has impossible entries; its owner must look at it")
        return found


def purse_of(one: Participant, uuid: str) -> Purse:
    """Of a site in a run with noise for single examples."""
    settings, mechanism = one.settings, one.method.mechanism
    assert mechanism is not None  # in private runs alone
    file = one.site.states / f".privacy-{one.site.name}.json"
    if not one.real:
        file = one.folder / f".privacy-{uuid}.json"
    n = len(one.method.x)
    cost = mechanism.cost(n, settings.dp_example_batch or n, settings.local_steps)
    return Purse(file, _limits(settings, one.budget), cost, settings.dp_delta, one.site.durable)


def _limits(settings: Settings, owner: Budget | None) -> tuple[Budget, ...]:
    """The run's budget and the owner's: whichever is spent first."""
    ours = [Budget(settings.dp_example_epsilon, settings.dp_delta)] if settings.dp_example_epsilon else []
    return (*ours, *([owner] if owner else []))


def train_within(
    one: Participant, store: Store, state: Tensors, received: Tensors, server_round: int
) -> Trained:
    """A round that the budget allows, counted before it is trained; Refusal where it does not.

    If this round has been trained here from the same tensors, what it sent then is sent again, and nothing is spent.
    """
    purse = purse_of(one, store.uuid)
    asked = _print(received)
    before = store.load(before=server_round + 1)
    if before and before.round == server_round and torch.equal(before.tensors.get(FROM, NOTHING), asked):
        kept = {name: tensor.to(one.site.device) for name, tensor in before.tensors.items()}
        sent = {name.removeprefix(SENT): v for name, v in kept.items() if name.startswith(SENT)}
        trained = Trained(kept, sent)
    else:
        purse.spend()
        trained = one.method.in_round(server_round).train(state, received, server_round)
        kept = {SENT + name: upload for name, upload in trained.uploads.items()}
        trained = replace(trained, state=_finite(trained.state, state) | kept | {FROM: asked})
    return replace(trained, report={EPSILON: purse.epsilon})


def _finite(after: Tensors, before: Tensors) -> dict[str, Tensor]:
    """The personal state after a round, or that before it where training has diverged.

    It has no noise: a round that failed for it would tell of the data, and the upload is not made of it.
    """
    if all(map(is_finite, without_buffers(after).values())):
        return dict(after)
    logging.getLogger(__name__).warning("The personal model has diverged; the one before this round is kept.")
    return dict(before)


def _print(received: Mapping[str, Tensor]) -> Tensor:
    """What a round is trained from, in 32 bytes, to be kept beside what it sent."""
    found = hashlib.sha256()
    for name, tensor in sorted(received.items()):
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().numpy().data)
    return torch.tensor(list(found.digest()), dtype=torch.uint8)
