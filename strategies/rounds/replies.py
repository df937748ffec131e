"""Reading replies: everything that can be wrong with one gets a name, and nothing unchecked is aggregated."""

from collections.abc import Mapping

from flwr.app import MetricRecord, RecordDict

from bayes_core.predict.metrics import TALLY_LENGTHS, is_possible


class BadReply(ValueError):
    """A reply that cannot be used; its text says why."""


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
