"""Reading what sites say: once, when it arrives, into types with bounds. Nothing unread goes further.

A reply that has another type, name, length or size than ours can have is a failed reply, a BadReply in words. Numbers
that are possible by themselves but not together are judged later, where what they should fit to is known.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StringConstraints, TypeAdapter
from pydantic import ValidationError as Unfit

from bayes_core.predict.metrics import TALLY_LENGTHS, is_possible
from fedbayes.protocol import messages as key
from fedbayes.protocol.agreement import Claim

TEXT = 200  # characters of a sentence from a site that anybody gets to see
NOTES = 8  # of them in one reply
RECORDS = 256  # in one reply
EXAMPLES = 10**9  # at one site
IN_REPORTS = 1e100  # sums of so large numbers are still finite
LARGEST = 1e40  # of a mean; inputs are float32
CLAIM = 2**24  # characters: names, means and variances of 100 000 columns

COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # which Ray paints its tracebacks with
FLOWERS_WORDS = "Exception ClientAppException occurred. Message: "

Name = Annotated[str, StringConstraints(pattern=r"^[!-~]{1,100}$")]
Number = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | StrictFloat
Size = Annotated[StrictInt, Field(ge=0, le=EXAMPLES)]
Labels = Annotated[list[Annotated[str, StringConstraints(max_length=1000)]], Field(max_length=10_000)]

_names = TypeAdapter(Annotated[list[Name], Field(max_length=RECORDS)])
_report = TypeAdapter(Annotated[dict[Name, Number], Field(max_length=64)])
_measures = TypeAdapter(dict[Name, dict[Name, Number | Annotated[list[Number], Field(max_length=100_000)]]])
_notes = TypeAdapter(dict[Name, Annotated[str, StringConstraints(max_length=10_000)]])
_claim = TypeAdapter(Claim)

NAMED = 12  # sites in a sentence


class BadReply(ValueError):
    """A reply that cannot be used; its text says why."""


@dataclass(frozen=True)
class Reply:
    """A site's answer to an exchange."""

    arrays: dict[str, ArrayRecord] = field(default_factory=dict)
    report: dict[str, int | float] = field(default_factory=dict)  # numbers that can be added up
    notes: tuple[str, ...] = ()  # sentences, fit to be shown
    refusal: str = ""  # why it did not train, in its own words
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)  # tallies and counts, by record


def read_reply(content: RecordDict) -> Reply:
    """The reply, or BadReply. A number of the report that is beyond all sense is left out."""
    try:
        _names.validate_python(list(content))
        arrays = {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}
        others = {name: record for name, record in content.items() if name not in arrays}
        notes = others.pop(key.NOTES, ConfigRecord())
        wrong = [name for name, record in others.items() if not isinstance(record, MetricRecord)]
        if wrong or not isinstance(notes, ConfigRecord):
            raise BadReply(f'a record "{[*wrong, key.NOTES][0]}" of another type than ours')
        said = {name: dict(record) for name, record in others.items()}
        report = _report.validate_python(said.pop(key.REPORT, {}))
        words = {name: shown(text) for name, text in _notes.validate_python(dict(notes)).items()}
        refusal = words.pop(key.REFUSAL, "")
        return Reply(
            arrays=arrays,
            report={name: number for name, number in report.items() if abs(number) <= IN_REPORTS},
            notes=tuple(list(words.values())[:NOTES]),
            refusal=refusal,
            measures=_measures.validate_python(said),
        )
    except Unfit as error:
        raise BadReply(f"an unreadable reply ({what_is_wrong(error)})") from None


def read_tally(
    reply: Reply, name: str, examples: int, lengths: Mapping[str, int] = TALLY_LENGTHS
) -> dict[str, list[float]] | None:
    """The named tally of a reply (None where there is none, or nothing to count), or BadReply.

    `examples` is the size of the test set that the site named in hello: no site counts for more. `lengths` says what
    the run's tallies hold.
    """
    said = reply.measures.get(name)
    if said is None or examples == 0:
        return None
    try:
        tally = {key: [float(number) for number in numbers] for key, numbers in said.items()}
        if {key: len(numbers) for key, numbers in tally.items()} != lengths:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadReply(f"an unreadable tally {name}") from None
    if not is_possible(tally, examples):
        raise BadReply(f"a tally {name} with impossible numbers")
    return tally


# ---------------------------------------------------------------------- hello


class Hello(BaseModel):
    """What a site says of itself before it takes part."""

    model_config = ConfigDict(strict=True, extra="ignore")

    n_train: Size
    n_test: Size
    n_validation: Size = 0
    input_shape: Annotated[list[Annotated[int, Field(ge=1, le=10**9)]], Field(max_length=8)]
    classes: Labels
    claim: Annotated[str, StringConstraints(max_length=CLAIM)]
    fingerprint: Name
    group: Annotated[int, Field(ge=-1, le=EXAMPLES)] = -1
    partitions: Size = 0
    labels: Annotated[list[int], Field(max_length=10_000)] = []
    data_changed: bool = False
    installed: Annotated[str, StringConstraints(max_length=40, pattern=r"^[A-Za-z0-9.+_-]*$")] = ""
    key: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""
    proof: Annotated[str, StringConstraints(max_length=10_000)] = ""


def read_hello(said: Mapping[str, Any]) -> Hello:
    """BadReply where it is not one."""
    try:
        return Hello.model_validate(dict(said))
    except Unfit as error:
        raise BadReply(f"said an unreadable hello ({what_is_wrong(error)})") from None


def read_claim(hello: Hello) -> Claim:
    """What a site brings into the agreement; BadReply for anything that Claim has no place for."""
    try:
        _claim.validate_json(hello.claim, strict=True)  # types and depth first
        claim = Claim.read(hello.claim)
    except Unfit as error:
        raise BadReply(f"said an unreadable claim ({what_is_wrong(error)})") from None
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise BadReply(f"said an impossible claim ({shown(error)})") from None
    for moments in filter(None, (claim.inputs, claim.target)):
        widest = max(*map(abs, moments.mean), *(v**0.5 for v in moments.variance), 0.0)
        if moments.n > hello.n_train + hello.n_validation or widest > LARGEST:
            raise BadReply("said an impossible claim (means and variances that its examples cannot have)")
    if max(len(claim.classes), len(claim.shape)) > 10_000:
        raise BadReply("said an impossible claim (more than 10000 classes)")
    return claim


# ---------------------------------------------------------------------- words


def shown(said: object, limit: int = TEXT) -> str:
    """Words from elsewhere, fit for a terminal and a table: one line, no control characters, cut."""
    text = str(said)[: 8 * limit]
    plain = "".join(" " if unicodedata.category(letter)[0] in "CZ" else letter for letter in text)
    line = " ".join(plain.split())
    return line if len(line) <= limit else line[:limit] + "…"


def reason_of(reply: Message) -> str:
    """The client's own words where Flower passes them on, without the wrapping and on one line."""
    text = COLOURS.sub("", reply.error.reason or f"error code {reply.error.code}")
    if "ray::" in text:  # a traceback, the words in its last line
        text = text.strip().splitlines()[-1].split("Exception: ", 1)[-1].removeprefix(FLOWERS_WORDS)
    return shown(" ".join(text.split()).split(":<'", 1)[-1].removesuffix("'>"))


def what_is_wrong(error: Unfit) -> str:
    """The first thing that does not fit, without what it was."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"][:3]))
    return shown(f"{where}: {first['msg']}" if where else first["msg"])


def unforeseen(error: Exception) -> str:
    """Why a site's reply was dropped, where nobody had thought of the reason."""
    return shown(f"its reply could not be handled ({type(error).__name__}: {error})")


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
