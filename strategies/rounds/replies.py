"""Reading replies: everything that can be wrong with one gets a name, and nothing unchecked is aggregated."""

from collections.abc import Mapping

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from bayes_core.predict.metrics import TALLY_LENGTHS, is_possible
from fedbayes.protocol.codec import Wire

REASON_LENGTH = 200


class BadReply(ValueError):
    """A reply that cannot be used; its text says why."""


def reason_of(reply: Message) -> str:
    """The client's own words where Flower passes them on, without the wrapping and on one line."""
    text = " ".join((reply.error.reason or f"error code {reply.error.code}").split())
    text = text.split(":<'", 1)[-1].removesuffix("'>")
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"


def array_bytes(content: RecordDict) -> int:
    """Bytes of the arrays in a message: what grows with the model."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def read_upload(content: RecordDict, wire: Wire, base: Tensor) -> Tensor:
    """The localized global distribution in a reply, which started from `base`, or BadReply."""
    record = content.get("w")
    if not isinstance(record, ArrayRecord):
        raise BadReply('no arrays named "w"')
    try:
        upload = wire.decode_upload({key: array.numpy() for key, array in record.items()}, base)
    except Exception as error:  # whatever a hostile buffer makes numpy raise
        raise BadReply(f"unreadable arrays ({error})") from None
    if upload.shape != base.shape:
        raise BadReply(f"arrays of shape {tuple(upload.shape)} instead of {tuple(base.shape)}")
    if problem := wire.family.problem(upload):
        raise BadReply(problem)
    return upload


def read_tally(
    content: RecordDict, name: str, examples: int, lengths: Mapping[str, int] = TALLY_LENGTHS
) -> dict[str, list[float]] | None:
    """The named tally of a reply (None where there is none), or BadReply.

    `examples` is the size of the test set that the site named in hello: no site can outweigh the others. `lengths`
    says what the run's tallies hold.
    """
    record = content.get(name)
    if record is None:
        return None
    try:
        if not isinstance(record, MetricRecord):
            raise TypeError
        tally = {key: [float(number) for number in record[key]] for key in record}  # type: ignore[union-attr]
        if {key: len(numbers) for key, numbers in tally.items()} != lengths:
            raise ValueError
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadReply(f"an unreadable tally {name}") from None
    if not is_possible(tally, examples):
        raise BadReply(f"a tally {name} with impossible numbers")
    return tally
