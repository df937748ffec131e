"""The site's half of a secure sum: what it adds is masked, and what it helps to take off is of sums alone.

Its X25519 key is made anew for every hello, from the operating system's randomness, and lies in `secure.key`; what it
has masked, and for whom it has answered, in `secure.json` beside the personal state: every message may find another
process. Whatever the coordinator asks for, a site
- masks once for each exchange, and only together with enough sites, whose keys are theirs where it can tell (proof.py);
- gives, of one exchange, for one set of survivors only, either its share of a site's own mask or the mask that it has
  in common with that site, never both;
- sums the uploads of one round, and the measures of the same models, over one set of sites only (summed.py).
"""

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from bayes_core import masks, shares
from bayes_core.privacy import Normal, clip_jointly, normal_from
from client_app.masking import Masking, Secrets, public_of
from client_app.redact import SiteError
from client_app.summed import noise_of, require_one_release, require_same
from fedbayes.protocol import messages as key
from fedbayes.protocol import secure as agreed
from fedbayes.protocol.codec import record_of
from fedbayes.protocol.npy import numbers_of
from fedbayes.protocol.secure import Cohort, reach_of, share_of_noise
from fedbayes.protocol.settings import Settings


def keystream_normal(seed: bytes) -> Normal:
    """Draws that only who has the seed can take off again, the same for the same seed."""
    return lambda count: normal_from(masks.keystream(seed), count)


NORMAL: Callable[[bytes], Normal] = keystream_normal


def masked(
    reply: RecordDict, asked: RecordDict, settings: Settings, secrets: Secrets, examples: int
) -> RecordDict:
    """The reply of a site with so many training examples: in the open are notes, and what is spent of a budget."""
    said, cohort = asked[key.EXCHANGE], Cohort.read(asked[key.SECURE])
    uuid, number = str(said[key.UUID]), int(said[key.ROUND])  # type: ignore[arg-type]
    notes = RecordDict({key.NOTES: reply[key.NOTES]} if key.NOTES in reply else {})
    parts = cohort.parts_of(secrets.name)
    refuses = key.REFUSAL in notes.get(key.NOTES, ConfigRecord())
    if not parts or (refuses and agreed.UPLOAD in parts):  # it trains for itself, or is not in this sum
        return notes
    private, before = secrets.private(), secrets.state()
    _require_fit(secrets, cohort, public_of(private), before.get("masked"), settings.run_name)
    vectors: dict[str, masks.Vector] = {}
    layouts: dict[str, str] = {}
    added, noise = "", {}
    if agreed.UPLOAD in parts:
        noise = noise_of(before, uuid, number) if settings.dp_noise else {}
        seed = bytes.fromhex(noise.get("seed", ""))
        steps = steps_of(_changes(reply, asked), cohort.weight(examples), settings, len(cohort.upload), seed)
        if settings.dp_noise:
            added = sha256(steps.tobytes()).hexdigest()
            require_one_release(before, uuid, number, added)
        vectors[agreed.UPLOAD] = masks.narrow(steps)
        report = dict(reply[key.REPORT]) if key.REPORT in reply else {}
        if (spent := report.pop(key.EPSILON, None)) is not None:  # by its ledger, not by its data
            notes[key.REPORT] = MetricRecord({key.EPSILON: float(spent)})  # type: ignore[arg-type]
        layouts[agreed.REPORT], numbers = agreed.flat({key.REPORT: report})
        vectors[agreed.REPORT] = masks.wide(numbers)
    if agreed.MEASURES in parts:
        layouts[agreed.MEASURES], numbers = agreed.flat(_measures(reply))
        vectors[agreed.MEASURES] = masks.wide(numbers)
    model, own_mask = agreed.model_of(asked), os.urandom(masks.SEED)
    context = agreed.context_of(asked, model)
    masking = Masking(secrets.name, private, cohort, context)
    for part, vector in vectors.items():
        masking.cover(part, vector, own_mask)
    split = shares.split(own_mask, len(cohort.names), cohort.least)
    pieces = dict(zip(cohort.names, split, strict=True))
    exchange = {"uuid": uuid, "round": number, "key": public_of(private), "context": context}
    exchange |= {"model": model, "added": added, "share": pieces[secrets.name].hex()}
    summed = {name: before.get(name) for name in ("summed", "models")}
    secrets.save({"masked": exchange | cohort.said(), **summed, "noise": noise or before.get("noise")})
    sealed = [
        bytes(agreed.SEALED) if name == secrets.name else masking.seal(name, pieces[name])
        for name in cohort.names
    ]
    arrays = {
        **vectors,
        agreed.SHARES: _bytes(sealed),
        agreed.CHECK: _bytes([masks.derive(own_mask, agreed.CHECK)]),
    }
    arrays |= {part + agreed.LAYOUT: _bytes([text.encode()]) for part, text in layouts.items()}
    notes[key.MASKED] = record_of(arrays)
    return notes


def unmask(said: Mapping[str, Any], record: ArrayRecord | None, secrets: Secrets) -> RecordDict:
    """Of those who are left, shares of their own masks; of the others, the masks in common with them."""
    state, left = secrets.state(), list(map(str, said["survivors"]))
    found, private = state.get("masked") or {}, secrets.private()
    asked = (str(said[key.UUID]), int(said[key.ROUND]), int(said["attempt"]), public_of(private))
    if asked != tuple(found.get(word) for word in ("uuid", "round", "attempt", "key")):
        raise SiteError("this site has masked nothing in that exchange")
    cohort = Cohort.read(found)
    if left != sorted(set(left) & set(cohort.names)) or secrets.name not in left:
        raise SiteError("it takes a list of sites of that exchange with this one in it")
    if words := cohort.too_few(left):
        raise SiteError(f"nothing is unmasked: {words}")
    if state.get("survivors") not in (None, left):
        raise SiteError("of one exchange, this site unmasks one sum only, and that was over other sites")
    masking = Masking(secrets.name, private, cohort, found["context"])
    if not said["reveal"]:
        secrets.save({**state, "survivors": left})
        gone = [name for name in cohort.names if name not in left]
        return RecordDict(
            {key.MASKED: record_of({agreed.PAIRS: _bytes([masking.secrets[name] for name in gone])})}
        )
    state |= require_same(state, *(sorted(some & set(left)) for some in (cohort.upload, cohort.measures)))
    sealed = np.zeros((0, 0)) if record is None else record[agreed.SHARES].numpy()
    if sealed.shape != (len(left), agreed.SEALED):
        raise SiteError("it takes a share for this site from each of those who are left")
    own = bytes.fromhex(found["share"])
    opened = [
        own if name == secrets.name else masking.unseal(name, bytes(line)) or shares.NONE
        for name, line in zip(left, sealed, strict=True)
    ]
    if 2 * opened.count(shares.NONE) > len(left):
        raise SiteError(
            "most of the shares for this site are none: others were told other things than it was"
        )
    secrets.save({**state, "survivors": left})
    return RecordDict({key.MASKED: record_of({agreed.SHARES: _bytes(opened)})})


def _require_fit(
    secrets: Secrets, cohort: Cohort, public: str, before: Mapping[str, Any] | None, run: str
) -> None:
    """SiteError for an exchange in which this site would not be hidden."""
    named = dict(zip(cohort.names, cohort.keys, strict=True))
    if named[secrets.name] != public:
        raise SiteError("the coordinator names another key for this site than it has told")
    if words := cohort.too_few(cohort.names):
        raise SiteError(f"nothing is sent: {words}")
    if before and before["key"] == public and before["attempt"] >= cohort.attempt:
        raise SiteError("this site has masked something in that exchange already")
    if len(set(cohort.keys)) < len(cohort.keys):
        raise SiteError("two sites of that exchange have one key")
    if secrets.identity:
        for name, key_of_it, proof in zip(cohort.names, cohort.keys, cohort.proofs, strict=True):
            secrets.identity.require(proof, run, name, key_of_it)


def _changes(reply: RecordDict, asked: RecordDict) -> dict[str, NDArray[np.float64]]:
    """What is uploaded, (rows, T), less what was received under its name."""
    found = {}
    for name, record in reply.array_records.items():
        if name not in asked.array_records or list(record) != list(asked.array_records[name]):
            raise SiteError(f'the upload "{name}" is no change of what was received')
        base = asked.array_records[name]
        rows = [numbers_of(record[row]).astype(np.float64) - numbers_of(base[row]) for row in record]
        found[name] = np.stack(rows)
    return found


def steps_of(
    changes: Mapping[str, NDArray[np.float64]],
    weight: float,
    settings: Settings,
    sites: int,
    seed: bytes = b"",
) -> NDArray[np.int64]:
    """All changes, one after the other by name, in steps of fixed point; with this site's share of the noise.

    The noise is made of `seed` and of what it is added to: for the same changes the same again, and for others another,
    so that it is never the same in two sums whose difference is not 0.
    """
    ordered = [change for _, change in sorted(changes.items())]
    if not all(np.isfinite(change).all() for change in ordered):
        raise SiteError("training diverged to values that are not finite")
    reach = reach_of(settings, sites)
    if not settings.dp_noise:
        return np.concatenate([masks.to_steps(one.reshape(-1) * weight, sites, reach) for one in ordered])
    # On its way through float32 a change may have come to lie outside of the clip, and no server clips it again: so it
    # is clipped here, and its steps are those towards 0.
    units = clip_jointly([torch.from_numpy(change) for change in ordered], settings.dp_scales)
    scales = np.concatenate([np.repeat(settings.dp_scales[: len(one)], one.shape[1]) for one in ordered])
    clipped = np.concatenate([unit.numpy().reshape(-1) for unit in units]) * scales
    steps = masks.to_steps(clipped * weight, sites, reach, np.trunc)
    # in whole steps of its own: what is added to the sum of the changes does not depend on them
    normal = NORMAL(masks.derive(seed, "noise", sha256(steps.tobytes()).hexdigest()))
    return steps + masks.to_steps(normal(steps.size) * scales * share_of_noise(settings, sites), sites, reach)


def _measures(reply: RecordDict) -> agreed.Measures:
    """The measures in a reply as sums."""
    found = {
        name: dict(record)
        for name, record in reply.items()
        if isinstance(record, MetricRecord) and name != key.REPORT
    }
    return agreed.summable(found)


def _bytes(lines: list[bytes]) -> NDArray[np.uint8]:
    """Lines of one length as an array."""
    width = len(lines[0]) if lines else 0
    return np.frombuffer(b"".join(lines), np.uint8).reshape(len(lines), width)
