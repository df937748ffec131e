"""Reading replies: everything that can be wrong with one gets a name, and nothing unchecked is aggregated."""

from collections.abc import Iterator, Mapping

from flwr.app import MetricRecord, RecordDict

from bayes_core.predict.metrics import TALLY_LENGTHS, is_possible

NAMED = 12  # sites in a sentence


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


def dropped(failures: Mapping[str, str]) -> Iterator[str]:
    """Who failed in a round: one sentence for each reason, however many sites have it."""
    sites: dict[str, list[str]] = {}
    for site, reason in failures.items():
        sites.setdefault(reason, []).append(site)
    for reason, names in sites.items():
        who = f"Site {names[0]}" if len(names) == 1 else f"Sites {', '.join(names[:NAMED])}"
        who += f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        yield as_sentence(f"{who} dropped from this round: {reason}")


def as_sentence(words: str) -> str:
    """Reasons in Flower's words have a full stop already."""
    return words if words.endswith((".", "?")) else f"{words}."
