"""Replies and hellos as a hostile site could send them: real ones, changed at random in one to three places.

Everything here can be said in Flower's records, so it could come over the wire.
"""

import io
import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

TEXTS = [
    "", "nan", "é" * 50, "\x1b[2J\x1b]0;owned\x07", "a\nb\r\nc", "9" * 400, "-1", "[" * 200_000, "{" * 5000, "../..",
    "\u202egnp.exe", "x" * 100_000, '{"shape": 1}', "null", "1e999", "\x00",
]  # fmt: skip
NUMBERS: list[int | float] = [
    0, -1, 1, 2, 7, 10**12, 2**53, 2**63 - 1, -(2**63), 0.0, -0.0, 0.5, -5.0, 1e-320, 1e30, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
CODES = [0, 1, 2, 3, 200, 201, 499, 2**31, 2**63 - 1, -1, -(2**63)]  # 1 and 2: a ClientApp raised
REASONS = [
    *TEXTS, "x" * 2_000_000, "\n" * 100_000, "\x1b[31m" * 10_000, "<class 'ValueError'>:<'\x1b[2J\r\nowned'>",
    ":<'", "'>", "ray::\nException: \x1b]0;owned\x07", "ray::", "\u2028ray::\u2029", "RuntimeError:" * 5000,
]  # fmt: skip


PATIENCE = 60.0  # seconds for one case, which takes a fraction of one, on a busy machine


class HangError(BaseException):
    """A case that does not end; nothing that catches errors catches it."""


@contextmanager
def in_time(seconds: float = PATIENCE) -> Iterator[None]:
    """A case that lasts longer is a failure. It is told so every second: an exception in a callback is lost."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise HangError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def copy_of(content: RecordDict) -> RecordDict:
    """With records of its own and the same arrays, which nobody changes in place."""
    return RecordDict({name: type(record)(dict(record)) for name, record in content.items()})  # type: ignore


def mutate(content: RecordDict, chance: random.Random) -> RecordDict:
    """A changed copy."""
    changed = copy_of(content)
    for _ in range(chance.randint(1, 3)):
        chance.choice([_record, _entry, _entry, _entry, _more])(changed, chance)
    return changed


def answer(content: RecordDict, chance: random.Random) -> RecordDict | Error:
    """A changed copy, or as one of eight an error in its place, which is the site's own word too."""
    return error(chance) if chance.random() < 0.125 else mutate(content, chance)


def error(chance: random.Random) -> Error:
    return Error(chance.choice(CODES), chance.choice([None, *REASONS]))


def _record(content: RecordDict, chance: random.Random) -> None:
    """One whole record: gone, renamed, or something else instead."""
    if not content:
        return
    name = chance.choice(list(content))
    record, what = content.pop(name), chance.randrange(5)
    if what == 1:
        content[chance.choice(["w", "report", "notes", "pm", "gm", "hello", "\x1b[31m", "x" * 300])] = record
    elif what == 2:
        content[name] = MetricRecord(_metrics(chance))
    elif what == 3:
        content[name] = ConfigRecord(_settings(chance))
    elif what == 4:
        content[name] = ArrayRecord(
            {row: _array(chance) for row in chance.choice([("mu", "rho"), ("values",), ()])}
        )


def _more(content: RecordDict, chance: random.Random) -> None:
    """Records that nobody asked for."""
    for number in range(chance.choice([1, 2, 400])):
        content[f"more{number}"] = chance.choice(
            [MetricRecord({"a": 1.0}), ConfigRecord({"a": "b"}), ArrayRecord({"mu": _array(chance)})]
        )


def _entry(content: RecordDict, chance: random.Random) -> None:
    """One entry of one record."""
    name = chance.choice(list(content)) if content else ""
    record: Any = content.get(name)
    if isinstance(record, MetricRecord):
        given = _metrics(chance)
    elif isinstance(record, ConfigRecord):
        given = _settings(chance)
        if "claim" in record and chance.random() < 0.5:
            record["claim"] = _claim(str(record["claim"]), chance)
            return
    elif isinstance(record, ArrayRecord):
        given = {"mu": _array(chance, next(iter(record.values()), None))}
    else:
        return
    key = chance.choice([*record, *given]) if len(record) else next(iter(given))
    if chance.random() < 0.2:
        record.pop(key, None)
    else:
        record[key] = chance.choice(list(given.values()))


def _metrics(chance: random.Random) -> dict[str, Any]:
    one = chance.choice(NUMBERS)
    many = [
        chance.choice([n for n in NUMBERS if type(n) is type(one)])
        for _ in range(chance.choice([0, 1, 15, 3000]))
    ]
    key = chance.choice(
        ["n", "correct", "nll", "cluster", "uncertainty", "sigma", "loss", "rho", "\n", "k" * 200]
    )
    return {key: chance.choice([one, many]), "other": one}


def _settings(chance: random.Random) -> dict[str, Any]:
    text, number = chance.choice(TEXTS), chance.choice(NUMBERS)
    values: list[Any] = [text, number, True, b"\xff\x00", [text, text], [number, number], [], [b"x"]]
    key = chance.choice(
        ["site", "error", "n_train", "n_test", "n_validation", "input_shape", "classes", "claim", "fingerprint",
         "group", "partitions", "labels", "0", "\x1b"]
    )  # fmt: skip
    return {key: chance.choice(values), "further": chance.choice(values)}


def _array(chance: random.Random, like: Array | None = None) -> Array:
    size = int(np.prod(like.shape)) if like is not None else chance.choice([0, 1, 7])
    shapes: list[Any] = [(size,), (size + 1,), (1, size), (0,), ()]
    shape = chance.choice(shapes)
    with np.errstate(all="ignore"):
        numbers = np.full(shape, chance.choice(NUMBERS), "f8")
        numbers = numbers.astype(chance.choice(["f4", "f4", "f8", "f2", "i8", "u1"]))
    if like is None or chance.random() < 0.4:
        return Array(numbers)
    data = bytearray(like.data)
    what = chance.randrange(6)
    if what == 0:
        for _ in range(8):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif what == 1:
        del data[chance.randrange(len(data)) :]
    elif what == 2:
        data += b"\x00" * 1000
    elif what == 3:
        data = bytearray(_header("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }"))
    elif what == 4:
        data = bytearray(_header("[" * 9000))
    else:
        stream = io.BytesIO()
        np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        data = bytearray(stream.getvalue())
    return Array(
        chance.choice([like.dtype, "object", "\x1b"]),
        shape,
        chance.choice([like.stype, "pickle"]),
        bytes(data),
    )


def _header(text: str) -> bytes:
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body


def _claim(text: str, chance: random.Random) -> str:
    """The JSON of a claim, changed: a value somewhere in it, or its letters."""
    if chance.random() < 0.3:
        return chance.choice([*TEXTS, text[: chance.randrange(len(text) + 1)], text * 2])
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(said, dict) or not said:
        return text
    values: list[Callable[[], Any]] = [
        lambda: chance.choice(NUMBERS), lambda: chance.choice(TEXTS[:7]), lambda: None, lambda: [], lambda: {},
        lambda: [chance.choice(NUMBERS)] * chance.choice([1, 64, 5000]), lambda: [[[["deep"]]]],
        lambda: {"n": chance.choice(NUMBERS), "mean": [chance.choice(NUMBERS)] * 64, "variance": [1.0] * 64},
        lambda: [chance.choice(TEXTS[:7])] * chance.choice([1, 20_000]),
    ]  # fmt: skip
    said[chance.choice([*said, "more"])] = chance.choice(values)()
    return json.dumps(said)
