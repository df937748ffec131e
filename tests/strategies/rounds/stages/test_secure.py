"""Which runs cannot have secure sums, and what of a hostile site's masked reply is refused."""

import numpy as np
import pytest

import strategies
from fedbayes.launch.methods import checked
from fedbayes.protocol import secure as agreed
from fedbayes.protocol.codec import record_of
from fedbayes.protocol.secure import Cohort
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.rounds.masked import MaskedSums
from strategies.rounds.replies import BadReply
from strategies.rounds.stages import stages_of

SINGLE = ["cfedbayes", "ifca", "fesem", "fedcfl", "fedamp", "heurfedamp", "bnfed", "pfedvem"]


def at_the_server(one: Settings) -> list[str]:
    found = strategies.load(one.method)
    return [stage.name for stage in stages_of(one, found(found.reads.parse(one.as_config())))]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"method": "local"},
            "with method=local nothing leaves a client that could be summed; leave it out.",
        ),
        *(({"method": name}, f"method={name} needs single uploads, not only their sum") for name in SINGLE),
        ({"wire": "bfloat16"}, "masked numbers take 32 bits; leave wire=bfloat16 out"),
        ({"wire": "float16"}, "masked numbers take 32 bits; leave wire=float16 out"),
        ({"aggregation-confidence": "weight"}, "leave aggregation-confidence out"),
        ({"aggregation": "moments"}, "only aggregation=mean is a sum, not moments"),
        ({"aggregation": "median"}, "only aggregation=mean is a sum, not median"),
        ({"clients-per-round": 2}, "a sum of 2 uploads hides none; clients-per-round takes at least 3"),
    ],
    ids=str,
)
def test_what_cannot_be_summed_is_refused(words: dict[str, object], sentence: str) -> None:
    one = Settings.parse(defaults() | {"secure-sum": True} | words)
    for refuse in (at_the_server, checked):
        with pytest.raises(SettingsError, match=f"^secure-sum=true: .*{sentence}"):
            refuse(one)


def test_what_stages_a_run_then_has() -> None:
    one = Settings.parse(defaults() | {"secure-sum": True})
    assert at_the_server(one) == ["secure"]
    assert at_the_server(one.model_copy(update={"dp_noise": 1.0})) == ["private", "secure"]
    assert "secure" not in at_the_server(one.model_copy(update={"secure_sum": False}))


COHORT = Cohort(1, ("a", "b", "c"), ("",) * 3, ("",) * 3, frozenset("abc"), frozenset("abc"))
LAYOUT = '[["report", "loss", 0]]'


def reply(**changed: object) -> dict[str, np.ndarray]:
    figures = np.zeros((1, 2), np.uint64)
    text = np.frombuffer(LAYOUT.encode(), np.uint8)[None]
    whole = {
        agreed.UPLOAD: np.zeros(4, np.uint32),
        agreed.REPORT: figures,
        agreed.MEASURES: figures,
        agreed.REPORT + agreed.LAYOUT: text,
        agreed.MEASURES + agreed.LAYOUT: text,
        agreed.SHARES: np.zeros((3, agreed.SEALED), np.uint8),
        agreed.CHECK: np.zeros((1, 32), np.uint8),
    }
    return {name: found for name, found in (whole | changed).items() if found is not None}  # type: ignore[misc]


def words(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8)[None]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"upload": np.zeros(5, np.uint32)}, "upload of a secure sum with"),
        ({"upload": np.zeros(4, np.float32)}, "upload of a secure sum with"),
        ({"upload": None}, "other parts of a secure sum than were asked for"),
        ({"more": np.zeros(1, np.uint8)}, "other parts of a secure sum than were asked for"),
        ({"shares": np.zeros((2, agreed.SEALED), np.uint8)}, "shares of a secure sum with"),
        ({"check": np.zeros((1, 31), np.uint8)}, "check of a secure sum with"),
        ({"measures": np.zeros(2, np.uint64)}, "measures of a secure sum with"),
        ({"measures": np.zeros((2, 2), np.uint64)}, "a layout of measures that its numbers do not fit"),
        ({"measures.layout": words("[[[")}, "a layout of measures that its numbers do not fit"),
        ({"measures.layout": words('[["a", "b", -1]]')}, "a layout of measures that its numbers do not fit"),
        ({"measures.layout": words('[["a", "b", 1e9]]')}, "a layout of measures that its numbers do not fit"),
        ({"upload": np.zeros(2**20, np.uint32)}, "more masked numbers than were asked for"),
    ],
    ids=str,
)
def test_a_reply_that_cannot_be_added_is_refused_before_anything_is(
    changed: dict[str, np.ndarray], sentence: str
) -> None:
    sums = MaskedSums(COHORT, 4)
    with pytest.raises(BadReply, match=sentence):
        sums.take("a", record_of(reply(**changed)))
    assert not sums.totals and not sums.left and not sums.layouts
    assert not sums.settle() and not sums.totals


def test_what_most_sites_say_is_the_layout_whoever_comes_first() -> None:
    sums = MaskedSums(COHORT, 4)
    sums.take("a", record_of(reply(**{"report.layout": words('[["report", "lost", 0]]')})))
    for site in ("b", "c"):
        sums.take(site, record_of(reply(upload=np.arange(4, dtype=np.uint32))))
    assert sums.settle() == {"a": "other report than those of most sites"}
    assert sums.left == ["b", "c"] and sums.totals["upload"].tolist() == [0, 2, 4, 6]
