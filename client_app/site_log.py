"""What the administrator of a site reads: one line per exchange, on the site's standard output.

With `log-file` in the node's own configuration the lines go to that file as well, which is rotated: at most
six files of 1 MB, the latest without a number.
"""

import logging
import sys
import time
from logging.handlers import RotatingFileHandler

from flwr.app import RecordDict

from bayes_core.predict.metrics import summarise
from fedbayes.protocol.columns import HEADLINES, MODELS
from fedbayes.protocol.messages import CLUSTER, EPSILON, EXCHANGE, NOTES, REFUSAL, REPORT, ROUND, RUN, TRAIN

BYTES, KEPT = 1_000_000, 5


def write(line: str, log_file: str | None) -> None:
    """One line, with the time in front; a log that cannot be written never stops a site."""
    text = f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {line}"
    sys.stdout.write(f"{text}\n")  # one write: lines stay whole between Flower's own
    sys.stdout.flush()
    if not log_file:
        return
    try:
        handler = RotatingFileHandler(log_file, maxBytes=BYTES, backupCount=KEPT, encoding="utf-8")
        handler.emit(logging.LogRecord("site", logging.INFO, "", 0, text, None, None))
        handler.close()
    except OSError as error:
        sys.stdout.write(f"the log file cannot be written: {error}\n")


def describe(asked: RecordDict, reply: RecordDict, seconds: float) -> str:
    """One exchange: what was done, how the models before it measured, how long it took and what it moved."""
    said = asked[EXCHANGE]
    number = int(said[ROUND])  # type: ignore[arg-type]
    parts = [str(said[RUN])]
    if said[TRAIN]:
        parts.append(f"round {number}")
        report = dict(reply.get(REPORT, {}))
        if (cluster := report.get(CLUSTER)) is not None:
            parts.append(f"cluster {cluster!s}")
        if (spent := report.get(EPSILON)) is not None:
            parts.append(f"ε {spent!s:.5} spent")
        if (refusal := dict(reply.get(NOTES, {})).get(REFUSAL)) is not None:
            parts.append(f"not trained: {refusal!s}")
    measured = [name for name in MODELS if name in reply]
    if measured:
        parts.append(f"after round {number - 1}:")
        parts += [f"{name.upper()} {_headline(reply, name)}" for name in measured]
    parts += [f"{seconds:.2f} s", f"{_bytes(asked)} bytes in", f"{_bytes(reply)} bytes out"]
    return "  ".join(parts)


def _headline(reply: RecordDict, name: str) -> str:
    """How good a model is: its accuracy, or `RMSE 53.1204`."""
    figures = summarise(dict(reply[name]))  # type: ignore[arg-type]
    metric = next(metric for metric in HEADLINES if metric.key in figures)
    return f"{figures[metric.key]:.4f}" if metric.share else f"{metric.title} {figures[metric.key]:.4f}"


def _bytes(content: RecordDict) -> int:
    """Of the arrays: what grows with the model."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
