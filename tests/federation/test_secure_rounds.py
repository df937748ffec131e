"""Runs whose coordinator sees only sums, from end to end in this process."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from harness import Outcome
from inprocess import InProcessGrid, sites
from watched import SITES, Watched

import strategies
from bayes_core import masks
from bayes_core.privacy import epsilon_of
from client_app import secure
from client_app.masking import Masking, Secrets, public_of
from client_app.redact import SiteError
from fedbayes.deploy.keys import make_keys
from fedbayes.launch.app_bundle import methods
from fedbayes.protocol import secure as agreed
from fedbayes.protocol.codec import record_of
from fedbayes.protocol.columns import MEASURED
from fedbayes.protocol.secure import Cohort
from fedbayes.protocol.settings import Settings, defaults
from strategies.rounds.stages.secure import Secure, impossible

Federate = Callable[..., Outcome]


def possible(method: str) -> bool:
    found = strategies.load(method)
    settings = Settings.parse(defaults() | {"method": method})
    return impossible(settings, found(found.reads.parse(settings.as_config()))) is None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def unmasks(grid: Watched) -> list[bool]:
    """Which questions each round of questions asked: for shares, or for pairs."""
    return [bool(message.content["unmask"]["reveal"]) for _, message in grid.asked]


# ---------------------------------------------------------------- the sum, bit by bit


@pytest.mark.parametrize("gone", [(), (1,), (1, 4)])
def test_the_masked_sum_is_the_plain_sum_bit_by_bit(
    federate: Federate, watched: Watched, gone: tuple[int, ...]
) -> None:
    watched.lost = {(site, 1) for site in gone}
    run = federate(grid=watched, rounds=2, secure_sum=True, eval_every=10, round_timeout=30)
    first, second = watched.sums
    assert (first == watched.plain(1, *gone)).all() and first.size == 2 * 7510
    assert (second == watched.plain(2)).all()
    assert len(watched.steps[1]) == SITES
    assert run.rows[1]["clients_ok"] == str(SITES - len(gone))
    told = {row["site"]: row["status"] for row in run.clients if row["round"] == "1"}
    assert {site for site, status in told.items() if status != "ok"} == {str(site) for site in gone}


def test_a_late_upload_stays_masked_and_its_site_takes_part_again(
    federate: Federate, watched: Watched
) -> None:
    watched.late = {(5, 1)}
    federate(grid=watched, rounds=2, secure_sum=True, eval_every=10)
    first, second = watched.sums
    assert (first == watched.plain(1, 5)).all()
    assert set(watched.steps[2]) == set(range(SITES)), "its late answer was heard"
    assert (second == watched.plain(2)).all()
    assert unmasks(watched)[: 2 * (SITES - 1)] == [False] * (SITES - 1) + [True] * (SITES - 1)


def test_two_sites_that_fall_silent_after_their_upload_are_in_the_sum(
    federate: Federate, watched: Watched
) -> None:
    watched.silent = {(0, 1), (3, 1)}
    run = federate(grid=watched, rounds=1, secure_sum=True)
    assert (watched.sums[0] == watched.plain(1)).all()
    assert run.rows[1]["clients_ok"] == str(SITES)


def test_a_round_that_cannot_be_opened_is_repeated_and_tells_nothing(
    federate: Federate, watched: Watched
) -> None:
    """Site 1 is lost, and site 2 is silent when it is asked for the mask that both had in common."""
    watched.lost, watched.silent = {(1, 1)}, {(2, 1)}

    class Once(set[tuple[int, int]]):
        def __contains__(self, one: object) -> bool:
            return set.__contains__(self, one) and len(watched.asked) <= SITES - 1

    watched.silent = Once(watched.silent)
    run = federate(
        grid=watched, rounds=1, secure_sum=True, eval_every=10, straggler_cutoff=0, round_timeout=30
    )
    (warning,) = [words for words in run.said("warning") if "attempt 1 of 3" in words]
    assert "it did not help to unmask the sum" in warning
    assert len(watched.sums) == 1 and (watched.sums[0] == watched.plain(1, 1)).all()


def test_too_few_are_left_and_nothing_is_asked(federate: Federate, watched: Watched) -> None:
    watched.lost = {(site, 1) for site in (0, 1, 2)}
    with pytest.raises(Exception, match="Round 1: fewer than 4 usable replies"):
        federate(grid=watched, rounds=1, secure_sum=True, straggler_cutoff=0, round_timeout=30)
    assert not watched.sums and not watched.asked


def test_two_rounds_masks_differ(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same site, two rounds: what is left of its upload without its own numbers."""
    grid = Watched(monkeypatch)
    seen: dict[int, Any] = {}

    def look(site: int, message: Message, reply: Message) -> Message | None:
        found = grid.watch(site, message, reply)
        if site == 0 and message.metadata.message_type == "train":
            number = int(message.content["exchange"]["round"])  # type: ignore[arg-type]
            seen[number] = reply.content["masked"]["upload"].numpy() - grid.steps[number][0].astype(np.uint32)
        return found

    grid.interfere = look
    federate(grid=grid, rounds=3, secure_sum=True)
    for one, other in ((1, 2), (1, 3), (2, 3)):
        assert (seen[one] == seen[other]).sum() <= 2  # of 15 020 numbers of 32 bits


def test_sites_that_were_told_different_things_do_not_add_up(
    federate: Federate, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that sends one site another model gets no sum: sites cannot open each other's shares."""
    prepare = Secure.prepare

    def lie(self: Secure, messages: Any, *arguments: Any) -> None:
        prepare(self, messages, *arguments)
        for site in {"0"} & set(messages):
            rows = {row: array.numpy() for row, array in messages[site].content["w"].items()}
            messages[site].content["w"] = record_of({**rows, "mu": rows["mu"] + np.float32(1e-3)})

    monkeypatch.setattr(Secure, "prepare", lie)
    run = federate(grid=watched, rounds=1, secure_sum=True, eval_every=10)
    assert not watched.sums and run.rows[1]["clients_ok"] == "0"
    assert "Round 1 is given up: the mask of site 0 does not open." in run.said("warning")
    question = next(message for site, message in watched.asked if site == 0)
    with pytest.raises(Exception, match="others were told other things than it was"):
        ask(watched, 0, question)


# ---------------------------------------------------------------- a hostile site, the first to answer


def altered(grid: Watched, kind: str, change: Callable[[dict[str, Any]], None], *rounds: int) -> None:
    """Site 0 changes the arrays of what it masks or tells, in every round or in these."""

    def watch(site: int, message: Message, reply: Message) -> Message | None:
        number = int(message.content.get("exchange", message.content.get("unmask", {})).get("round", 0))  # type: ignore[union-attr]
        right = message.metadata.message_type == kind and number in (rounds or range(99))
        if site == 0 and right and "masked" in reply.content:
            arrays = {name: array.numpy().copy() for name, array in reply.content["masked"].items()}
            change(arrays)
            reply.content["masked"] = record_of(arrays)
        return grid.watch(site, message, reply)

    grid.interfere = watch


def other_layout(arrays: dict[str, Any]) -> None:
    text = json.dumps([["report", "lost", 0]]).encode()
    arrays["report.layout"] = np.frombuffer(text, np.uint8)[None]


def longer(arrays: dict[str, Any]) -> None:
    arrays["report"] = np.concatenate([arrays["report"]] * 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_layout, "other report than those of most sites"),
        (longer, "a layout of report that its numbers do not fit"),
    ],
)
def test_a_site_that_lays_its_figures_out_otherwise_is_left_out_and_named(
    federate: Federate, watched: Watched, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    altered(watched, "train", change)
    run = federate(grid=watched, rounds=2, secure_sum=True, eval_every=10)
    assert [row["clients_ok"] for row in run.rows[1:]] == [str(SITES - 1)] * 2
    assert all((one == watched.plain(number, 0)).all() for number, one in enumerate(watched.sums, 1))
    statuses = {row["site"]: row["status"] for row in run.clients if row["round"] == "1"}
    assert statuses == {**{str(i): "ok" for i in range(1, SITES)}, "0": f"failed: {words}"}


def all_false(arrays: dict[str, Any]) -> None:
    if "shares" in arrays:
        arrays["shares"] ^= 1


def one_false(arrays: dict[str, Any]) -> None:
    if "shares" in arrays:
        arrays["shares"][3] ^= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            all_false,
            [f"Site 0 told a false share of the mask of 0, 1, 2 and {more} more." for more in (2, 3, 3)],
        ),
        (one_false, ["Site 0 told a false share of the mask of 3; or site 3 has dealt it."] * 3),
    ],
    ids=["all", "one"],
)
def test_false_shares_open_the_sum_all_the_same_and_are_named(
    federate: Federate, watched: Watched, change: Callable[[dict[str, Any]], None], words: list[str]
) -> None:
    altered(watched, "query.unmask", change)
    watched.lost = {(4, 1)}
    run = federate(grid=watched, rounds=2, secure_sum=True, eval_every=10, round_timeout=30)
    assert (watched.sums[0] == watched.plain(1, 4)).all() and (watched.sums[1] == watched.plain(2)).all()
    assert [said for said in run.said("warning") if "false" in said] == words
    assert run.rows[2]["clients_ok"] == str(SITES)


def unsealed(arrays: dict[str, Any]) -> None:
    arrays["shares"] ^= 1


def some_unsealed(arrays: dict[str, Any]) -> None:
    arrays["shares"][3:] ^= 1


def another_check(arrays: dict[str, Any]) -> None:
    arrays["check"] ^= 1


@pytest.mark.parametrize("change", [unsealed, some_unsealed, another_check])
def test_a_site_whose_mask_does_not_open_costs_one_round_and_is_left_out(
    federate: Federate, watched: Watched, change: Callable[[dict[str, Any]], None]
) -> None:
    """What the others have told of that round is told: they sum it over no other sites, and the next one without it."""
    altered(watched, "train", change)
    run = federate(grid=watched, rounds=3, secure_sum=True, eval_every=1)
    assert run.state == "finished"
    assert [row["clients_ok"] for row in run.rows[1:]] == ["0", "5", "5"]
    assert len(watched.sums) == 2 and all(
        (one == watched.plain(number)).all() and len(watched.steps[number]) == SITES - 1
        for number, one in enumerate(watched.sums, 2)
    )
    assert "Round 1 is given up: the mask of site 0 does not open." in run.said("warning")
    told = {row["site"]: row["status"] for row in run.clients if row["round"] == "2"}
    assert told["0"] == "failed: the shares of its mask do not fit together" and told["1"] == "ok"
    assert run.rows[2]["gm_accuracy"] and run.rows[3]["gm_accuracy"]


def test_the_same_while_another_site_is_missing(federate: Federate, watched: Watched) -> None:
    """Of six sites four are the least: two are lost, and of the four one has dealt false shares."""
    watched.lost = {(4, 1), (5, 1)}
    altered(watched, "train", unsealed)
    run = federate(grid=watched, rounds=3, secure_sum=True, eval_every=10, round_timeout=30)
    assert [row["clients_ok"] for row in run.rows[1:]] == ["0", "5", "5"]


def test_where_most_lie_the_run_ends_in_a_sentence(federate: Federate, watched: Watched) -> None:
    def watch(site: int, message: Message, reply: Message) -> Message | None:
        if site < 3 and "unmask" in message.content:
            reply.content["masked"] = record_of({"shares": reply.content["masked"]["shares"].numpy() ^ 1})
        return Watched.watch(watched, site, message, reply)

    watched.interfere = watch
    with pytest.raises(Exception, match=r"Round 3: more sites told false shares .*, 3 rounds in a row"):
        federate(grid=watched, rounds=5, secure_sum=True, eval_every=10)
    assert not watched.sums


# ---------------------------------------------------------------- what a site answers


def ask(grid: Watched, site: int, message: Message, **changed: Any) -> RecordDict:
    """Put a question to a site again, with other words."""
    said = {**message.content["unmask"], **changed}
    arrays = {"masked": message.content["masked"]} if "masked" in message.content else {}
    node = list(grid.contexts)[site]
    question = Message(RecordDict({"unmask": ConfigRecord(said), **arrays}), node, "query.unmask")
    return grid.app(question, grid.contexts[node]).content


@pytest.mark.parametrize("gone", [1, 3])
def test_never_both_shares_and_pairs_of_one_site(federate: Federate, watched: Watched, gone: int) -> None:
    """Of the sites that every site was asked about, the seeds of those that are gone and shares of the others."""
    watched.lost = {(gone, 1)}
    federate(grid=watched, rounds=1, secure_sum=True, eval_every=10, round_timeout=30)
    everybody = {str(site) for site in range(SITES)}
    for site, message in watched.asked[: 2 * (SITES - 1)]:
        left = set(message.content["unmask"]["survivors"])  # type: ignore[arg-type]
        assert left == everybody - {str(gone)} and site != gone
    # A coordinator that says to site 0 that the other one is there after all, or somebody else gone:
    (mine, *_) = [message for site, message in watched.asked if site == 0]
    for survivors in (everybody, everybody - {"2"}, everybody - {"2", str(gone)}):
        for reveal in (False, True):
            with pytest.raises(Exception, match=r"masked nothing in that exchange|one sum only"):
                ask(watched, 0, mine, survivors=sorted(survivors), reveal=reveal)


def test_a_site_answers_the_same_question_alike_and_no_other(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Watched(monkeypatch)
    grid.late = {(5, 1)}
    tried: list[str] = []
    everybody = [str(site) for site in range(SITES)]

    def watch(site: int, message: Message, reply: Message) -> Message | None:
        if site == 0 and int(message.content.get("unmask", {}).get("round", 0)) == 1:  # type: ignore[union-attr]
            again = ask(grid, 0, message)
            for name, array in reply.content["masked"].items():
                assert (array.numpy() == again["masked"][name].numpy()).all()
            for survivors in (everybody, everybody[:4], everybody[:3], ["0"], [*everybody[:4], "elsewhere"]):
                for reveal in (False, True):
                    with pytest.raises(Exception) as error:
                        ask(grid, 0, message, survivors=survivors, reveal=reveal)
                    tried.append(str(error.value))
            with pytest.raises(Exception, match="masked nothing in that exchange"):
                ask(grid, 0, message, attempt=99)
        return grid.watch(site, message, reply)

    grid.interfere = watch
    federate(grid=grid, rounds=1, secure_sum=True, eval_every=10)
    assert any("of one exchange, this site unmasks one sum only" in words for words in tried)
    assert "nothing is unmasked: 3 of 6 sites are left in the sum of uploads, and 4 are the least" in tried
    assert (grid.sums[0] == grid.plain(1, 5)).all()


# ---------------------------------------------------------------- what is told of a site that is gone


def exchanged(folder: Path, number: int, attempt: int) -> tuple[dict[str, Secrets], dict[str, RecordDict]]:
    """Four sites that have masked one exchange, by their own code: what they keep, and what they send."""
    names = [f"s{i}" for i in range(4)]
    kept = {name: Secrets(folder / name, name, False) for name in names}
    if number == 1:
        for one in kept.values():
            one.introduce("run")
    keys = tuple(public_of(one.private()) for one in kept.values())
    cohort = Cohort(attempt, tuple(names), keys, ("",) * 4, frozenset(names), frozenset())
    base = np.zeros(100, np.float32)
    said = {"run": "run", "uuid": "u", "round": number, "settings": "s", "agreed": "a"}
    asked = RecordDict(
        {"exchange": ConfigRecord(said), "secure": ConfigRecord(cohort.said()), "w": record_of({"mu": base})}
    )
    settings = Settings.parse(defaults() | {"secure-sum": True, "run-name": "run"})
    sent = {}
    for i, (name, one) in enumerate(kept.items()):
        upload = np.random.default_rng(i).normal(size=100).astype(np.float32)
        reply = RecordDict({"w": record_of({"mu": upload}), "report": MetricRecord({"loss": 1.0})})
        sent[name] = secure.masked(reply, asked, settings, one, 10)
    return kept, sent


@pytest.mark.parametrize("of_round", [1, 2])
def test_what_is_told_of_a_late_site_opens_none_of_its_shares(tmp_path: Path, of_round: int) -> None:
    """The coordinator has all seeds of pairs with s3, and s3's own upload of that round, or of the next one.

    Whichever key it makes of a seed as it would be for a share, no share opens: s3's own mask stays on.
    """
    kept, sent = exchanged(tmp_path, 1, 1)
    said = {"uuid": "u", "round": 1, "attempt": 1, "survivors": ["s0", "s1", "s2"], "reveal": False}
    pairs = {
        name: bytes(secure.unmask(said, None, kept[name])["masked"]["pairs"].numpy()[0])
        for name in ("s0", "s1", "s2")
    }
    if of_round == 2:
        kept, sent = exchanged(tmp_path, 2, 2)
        assert not set(pairs.values()) & set(masking_of(kept["s3"]).secrets.values())
    sealed = sent["s3"]["masked"]["shares"].numpy()
    context = kept["s3"].state()["masked"]["context"]
    for place, (name, seed) in enumerate(pairs.items()):
        line = bytes(sealed[place])
        for words in (("share", "s3", name), ("share", context, "s3", name), ("pair", context, name, "s3")):
            with pytest.raises(InvalidTag):
                AESGCM(masks.derive(seed, *words)).decrypt(line[:12], line[12:], None)
        with pytest.raises(InvalidTag):
            AESGCM(seed).decrypt(line[:12], line[12:], None)
        if of_round == 1:
            assert masking_of(kept[name]).unseal("s3", line), "who it is for can open it"


def masking_of(kept: Secrets) -> Masking:
    found = kept.state()["masked"]
    return Masking(kept.name, kept.private(), Cohort.read(found), found["context"])


def test_a_site_masks_once_an_exchange_and_knows_its_own_key(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Watched(monkeypatch)
    refused: list[str] = []

    def watch(site: int, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "train" and site == 0:
            said = dict(message.content["secure"])
            keys = list(said["keys"])  # type: ignore[call-overload]
            for changed in (
                {},
                {"keys": [keys[1], keys[0], *keys[2:]], "attempt": 90},
                {"keys": [keys[0], *[keys[1]] * (SITES - 1)], "attempt": 91},
                {
                    "names": ["0", "1"],
                    "keys": keys[:2],
                    "proofs": ["", ""],
                    "upload": ["0", "1"],
                    "measures": [],
                    "attempt": 92,
                },
            ):
                other = {**message.content, "secure": ConfigRecord(said | changed)}
                node = next(iter(grid.contexts))
                with pytest.raises(Exception) as error:
                    grid.app(Message(RecordDict(other), node, "train"), grid.contexts[node])
                refused.append(str(error.value))
        return grid.watch(site, message, reply)

    grid.interfere = watch
    federate(grid=grid, rounds=1, secure_sum=True, eval_every=10)
    assert refused == [
        "this site has masked something in that exchange already",
        "the coordinator names another key for this site than it has told",
        "two sites of that exchange have one key",
        "nothing is sent: a sum of the uploads of 2 sites hides none of them; it takes 3",
    ]


def test_a_round_is_summed_again_only_over_the_same_sites(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator dies after it has opened a sum and before it is saved; then one site is missing."""
    from server_app.runs import RunFolder

    save = RunFolder.save_checkpoint

    def torn(self: RunFolder, server_round: int, *arguments: Any) -> None:
        if server_round == 2:
            raise KeyboardInterrupt
        save(self, server_round, *arguments)

    grid = Watched(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", torn)
        with pytest.raises(KeyboardInterrupt):
            federate("torn", grid=grid, rounds=2, secure_sum=True, eval_every=10)
    assert len(grid.sums) == 2
    fewer = Watched(monkeypatch)
    fewer.offline = {3}
    with pytest.raises(Exception, match="a second sum that differs by 3 would tell of single uploads"):
        federate("torn", grid=fewer, rounds=2, secure_sum=True, eval_every=10, resume=True)
    assert not fewer.sums
    calm = federate("calm", clients=SITES, rounds=2, secure_sum=True, eval_every=10)
    whole = federate("torn", grid=Watched(monkeypatch), rounds=2, secure_sum=True, eval_every=10, resume=True)
    assert whole.metrics == calm.metrics


class Cohorts:
    """Sites by their own code, of which a coordinator asks for sums over sets of its choice, in one round."""

    def __init__(self, folder: Path, count: int, **settings: Any) -> None:
        self.kept = {f"{i:02}": Secrets(folder / f"{i:02}", f"{i:02}", False) for i in range(1, count + 1)}
        self.keys = {name: one.introduce("run")["key"] for name, one in self.kept.items()}
        words = {"secure-sum": True, "run-name": "run", **settings}
        self.settings = Settings.parse(defaults() | words)
        self.attempt = 0

    def sums(
        self,
        numbers: range | tuple[int, ...],
        measure: bool = False,
        model: float = 0.0,
        trained: float = 1.0,
    ) -> tuple[int, str]:
        """How many of these sites help to sum over them, and what the others say."""
        names = tuple(f"{i:02}" for i in numbers)
        everybody, nobody = frozenset(names), frozenset[str]()
        self.attempt += 1
        keys = tuple(self.keys[name] for name in names)
        members = (nobody, everybody) if measure else (everybody, nobody)
        cohort = Cohort(self.attempt, names, keys, ("",) * len(names), *members)
        base = np.full(10, model, np.float32)
        said = {"run": "run", "uuid": "u", "round": 1, "settings": "s", "agreed": "a"}
        asked = RecordDict(
            {
                "exchange": ConfigRecord(said),
                "secure": ConfigRecord(cohort.said()),
                "w": record_of({"mu": base}),
            }
        )
        sent, helped, words = {}, 0, ""
        for name in names:
            reply = RecordDict(
                {"w": record_of({"mu": base + np.float32(trained)}), "report": MetricRecord({})}
            )
            try:
                sent[name] = secure.masked(reply, asked, self.settings, self.kept[name], 10)["masked"]
            except SiteError as error:
                return 0, str(error)
        for place, name in enumerate(names):
            sealed = record_of({"shares": np.stack([sent[one]["shares"].numpy()[place] for one in names])})
            question = {"uuid": "u", "round": 1, "attempt": self.attempt, "survivors": names, "reveal": True}
            try:
                secure.unmask(question, sealed, self.kept[name])
                helped += 1
            except SiteError as error:
                words = str(error)
        return helped, words


def test_no_sums_of_one_round_differ_by_a_few_sites(tmp_path: Path) -> None:
    """Of {1…12}, {1…9} and {2…12}, or {1…9} and {10, 11, 12, 1}, a difference would be the upload of site 1."""
    sites = Cohorts(tmp_path, 12)
    assert sites.sums(range(1, 13)) == (12, "")
    for others in (range(1, 10), range(2, 13), (1, 10, 11, 12), range(4, 13)):
        helped, words = sites.sums(others)
        assert helped == 0 and "round 1 was summed already, and a second sum that differs by" in words
    assert sites.sums(range(1, 13)) == (12, ""), "the same once more"


def test_those_who_only_measure_do_not_open_a_sum_of_uploads_without_those_in_it() -> None:
    """Twelve sites of which six upload: shares of eight could else be had without four of the six."""
    names = tuple(f"{i:02}" for i in range(12))
    cohort = Cohort(1, names, ("",) * 12, ("",) * 12, frozenset(names[:6]), frozenset(names))
    assert cohort.least == 10 and cohort.too_few(names[:10]) is None
    assert cohort.too_few([*names[:4], *names[6:11]]) == "9 of 12 sites are left, and 10 are the least"
    for count in range(3, 100):  # where all upload, it is two thirds
        names = tuple(f"{i:02}" for i in range(count))
        everybody = Cohort(1, names, ("",) * count, ("",) * count, frozenset(names), frozenset(names))
        assert everybody.least == masks.threshold(count)


def test_measures_of_the_same_models_are_summed_over_the_same_sites(tmp_path: Path) -> None:
    sites = Cohorts(tmp_path, 5)
    assert sites.sums(range(1, 6), measure=True) == (5, "")
    assert sites.sums(range(1, 5), measure=True, model=0.5) == (4, ""), "another model"
    helped, words = sites.sums(range(1, 5), measure=True)
    assert helped == 0 and "these models were measured already, over other sites" in words
    assert sites.sums(range(1, 6), measure=True) == (5, "")


def test_with_noise_a_round_leaves_a_site_once(tmp_path: Path) -> None:
    sites = Cohorts(tmp_path, 4, **{"dp-noise": 1.0})
    assert sites.sums(range(1, 5)) == (4, "")
    assert sites.sums(range(1, 5)) == (4, ""), "the same once more"
    helped, words = sites.sums(range(1, 5), trained=0.25)
    assert helped == 0 and "with noise it adds to a round once" in words


def test_a_closed_run_that_goes_on_with_fewer_sites_is_not_measured_again(
    federate: Federate, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last models have been measured with all of them: the difference would be the missing site's tallies."""
    first = federate("more", grid=watched, rounds=2, secure_sum=True, eval_every=2)
    fewer = Watched(monkeypatch)
    fewer.offline = {3}
    run = federate("more", grid=fewer, rounds=3, secure_sum=True, eval_every=2, resume=True)
    assert [row["round"] for row in run.rows] == ["0", "1", "2", "3"]
    assert run.metrics[2] == first.metrics[2] and run.rows[3]["gm_accuracy"]
    again = federate("all", grid=Watched(monkeypatch), rounds=2, secure_sum=True, eval_every=2)
    whole = federate("all", grid=Watched(monkeypatch), rounds=3, secure_sum=True, eval_every=2, resume=True)
    assert whole.metrics[2] == again.metrics[2]
    assert len((whole.folder / "evaluations.jsonl").read_text().splitlines()) == 4, (
        "with the same sites it is"
    )


@pytest.fixture
def certified(tmp_path: Path) -> InProcessGrid:
    """Sites that were started with their folders of keys."""
    make_keys(tmp_path / "keys", ["localhost"], 4)
    nodes = [
        {"site-id": f"site-{i}", "state-dir": str(tmp_path / f"disk-{i}"), "keys": str(tmp_path / f"keys/site-{i}"),
         "partition-id": i, "num-partitions": 4}
        for i in range(4)
    ]  # fmt: skip
    return InProcessGrid({}, 4, node_configs=nodes)


def test_sites_that_know_each_other_take_part(federate: Federate, certified: InProcessGrid) -> None:
    run = federate(grid=certified, rounds=1, secure_sum=True)
    assert run.rows[1]["clients_ok"] == "4" and not run.said("warning")


def test_a_coordinator_in_the_middle_is_found_out(
    federate: Federate, certified: InProcessGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives everybody a key of its own in the place of site-1's: whoever sees it sends nothing."""
    own = X25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    prepare = Secure.prepare

    def forged(self: Secure, messages: Any, *arguments: Any) -> None:
        prepare(self, messages, *arguments)
        for message in messages.values():
            keys = list(message.content["secure"]["keys"])
            message.content["secure"]["keys"] = [keys[0], own, *keys[2:]]

    monkeypatch.setattr(Secure, "prepare", forged)
    with pytest.raises(Exception, match="nobody has shown that the key of site site-1 is its own"):
        federate(grid=certified, rounds=1, secure_sum=True)


def test_a_site_without_its_certificate_is_left_out(
    federate: Federate, certified: InProcessGrid, tmp_path: Path
) -> None:
    (tmp_path / "keys/site-2/site.crt").unlink()
    run = federate(grid=certified, rounds=1, secure_sum=True)
    (warning,) = run.said("warning")
    assert warning.startswith(
        "Left out: site site-2: secure sums take a certificate of this site; `fedbayes keys`"
    )
    assert run.rows[1]["clients_ok"] == "3"


# ---------------------------------------------------------------- runs


def figures(run: Outcome) -> list[list[float]]:
    return [[float(row[name]) for name in MEASURED if row[name]] for row in run.rows]


@pytest.mark.parametrize("method", [name for name in methods() if possible(name)])
def test_every_method_that_takes_a_mean_has_the_figures_of_its_plain_run(
    federate: Federate, method: str
) -> None:
    """Within 2⁻²⁶ of a weight in a round; the figures of two rounds within 1e-4."""
    same = {"method": method, "rounds": 2, "eval_every": 1, "clients": 4}
    plain, run = federate("plain", **same), federate("secure", **same, secure_sum=True)
    assert figures(run)[0] == pytest.approx(figures(plain)[0], abs=1.1e-6), (
        "before the first round every digit"
    )
    assert np.array(figures(run)) == pytest.approx(np.array(figures(plain)), abs=1e-4)
    for name, tensor in plain.tensors.items():
        assert torch.allclose(run.tensors[name], tensor, atol=2e-6, rtol=0)
    assert run.rows[-1]["clients_failed"] == "0"
    own = {"round", "site", "status"}
    assert {name for row in run.clients for name, cell in row.items() if cell} == own
    assert {row["status"] for row in run.clients if row["round"] != "0"} == {"ok"}


def test_the_methods_are_many() -> None:
    found = {name for name in methods() if possible(name)}
    assert found >= {
        "pfedbayes",
        "sfedbayes",
        "fedavg",
        "fedprox",
        "ditto",
        "pfedme",
        "apfl",
        "fedrep",
        "fedper",
    }
    assert not found & {
        "cfedbayes",
        "ifca",
        "fesem",
        "fedcfl",
        "fedamp",
        "heurfedamp",
        "bnfed",
        "pfedvem",
        "local",
    }


@pytest.mark.parametrize(
    "settings",
    [
        {"weighting": "examples", "layout": "dirichlet", "size": "20+10"},
        {"clients_per_round": 3, "clients": 6},
        {"clients_per_round": 3, "clients": 6, "train_all": True},
        {"validation_fraction": 0.25, "temperature_scaling": True, "conformal": 0.5, "size": "30+5"},
        {"bayesian": "head"},
        {"method": "sfedbayes", "sparsity_target": 0.3},
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_ride_along(federate: Federate, settings: dict[str, Any]) -> None:
    same = {"rounds": 2, "eval_every": 1, "clients": 4, **settings}
    plain, run = federate("plain", **same), federate("secure", **same, secure_sum=True)
    filled = [[name for name in row if row[name]] for row in plain.rows]
    assert [[name for name in row if row[name]] for row in run.rows] == filled, "no figure is missing"
    assert figures(run)[0] == pytest.approx(figures(plain)[0], abs=2e-6)
    assert np.array(figures(run)) == pytest.approx(np.array(figures(plain)), abs=1e-3)


def test_a_regression(federate: Federate, tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    paths = []
    for site in range(4):
        x = generator.normal(size=(60, 3))
        y = 1e5 * (x[:, 0] - x[:, 1]) + 1e3 * generator.normal(size=60)
        lines = ["a,b,c,y", *(",".join(map(str, (*row, target))) for row, target in zip(x, y, strict=True))]
        paths.append(tmp_path / "data" / f"{site}.csv")
        paths[-1].parent.mkdir(exist_ok=True)
        paths[-1].write_text("\n".join(lines))
    same = {"rounds": 2, "eval_every": 1, "dataset": str(tmp_path / "data"), "model": "mlp"}
    plain, run = federate("plain", **same), federate("secure", **same, secure_sum=True)
    assert np.array(figures(run)) == pytest.approx(np.array(figures(plain)), rel=1e-3, abs=1e-3)
    assert float(run.rows[-1]["gm_rmse"]) > 1e3, "in the targets' own units"


@pytest.mark.parametrize(("server_round", "client"), [(1, 2), (3, 1), (4, 3)])
def test_killed_and_resumed_it_ends_with_every_digit(
    federate: Federate, server_round: int, client: int
) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        said = message.content.get("exchange")
        if said is not None and (int(said["round"]), number) == (server_round, client):  # type: ignore[arg-type]
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        federate("killed", interfere=interfere, secure_sum=True)
    resumed, calm = federate("killed", resume=True, secure_sum=True), federate("calm", secure_sum=True)
    assert resumed.metrics == calm.metrics
    assert all((resumed.tensors[name] == tensor).all() for name, tensor in calm.tensors.items())


def test_the_report_of_such_a_run_is_whole(federate: Federate) -> None:
    run = federate(report=True, secure_sum=True)
    page = (run.folder / "report.html").read_text()
    assert "the coordinator saw uploads and measures only as sums over at least three sites" in page
    lines = (run.folder / "evaluations.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert len(told) == 4 and all(one["sites"] == {} for one in told)
    assert not run.said("warning")


def test_with_two_sites_nothing_starts(federate: Federate) -> None:
    with pytest.raises(
        Exception, match="hides a site among others and takes at least 3, but only 2 take part"
    ):
        federate(clients=2, secure_sum=True)


def test_statistics_of_batch_norm_are_refused(federate: Federate) -> None:
    with pytest.raises(Exception, match="statistics of this network's batch norm would leave sites unmasked"):
        federate(secure_sum=True, model="networks_of_users:normed")


# ---------------------------------------------------------------- nothing of a single site


def test_nothing_that_the_coordinator_has_contains_a_single_upload(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in messages nor in files: no weights, no steps, no measures of one site."""
    grid = Watched(monkeypatch)
    single: list[bytes] = []
    sent: list[bytes] = []

    def masked(reply: RecordDict, *arguments: Any) -> RecordDict:
        for record in reply.array_records.values():
            single.extend(array.numpy().tobytes()[:64] for array in record.values())
        found = original(reply, *arguments)
        single.append(np.asarray(grid.latest).astype(np.uint32).tobytes()[:64])
        return found

    def watch(site: int, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type != "query.hello":
            assert set(reply.content) == {"masked"}
        for record in reply.content.values():
            if isinstance(record, ArrayRecord):
                sent.extend(array.data for array in record.values())
            else:
                sent.append(repr(dict(record)).encode())
        return grid.watch(site, message, reply)

    original = secure.masked
    monkeypatch.setattr(secure, "masked", masked)
    grid.interfere = watch
    run = federate(grid=grid, rounds=2, secure_sum=True)
    stored = [file.read_bytes() for file in run.folder.rglob("*") if file.is_file()]
    stored.append(json.dumps(run.events, default=str).encode())
    assert len(single) >= 3 * SITES * 2
    for one in single:
        assert not any(one in content for content in (*sent, *stored))


# ---------------------------------------------------------------- budgets of single examples


def after(rounds: int) -> float:
    """ε of so many rounds of the settings below: two passes over the examples in each."""
    return epsilon_of(math.sqrt(2 * rounds) / 5, 1e-5) + 1e-9


SPENDING = {"dp_example_noise": 5.0, "dp_example_batch": 10, "secure_sum": True, "eval_every": 1}


def test_a_run_whose_sites_have_spent_their_budgets_ends_saved(federate: Federate, tmp_path: Path) -> None:
    run = federate(grid=sites(tmp_path / "far"), rounds=5, dp_example_epsilon=after(2), **SPENDING)
    assert run.state == "finished" and [row["round"] for row in run.rows] == ["0", "1", "2"]
    assert all(row["gm_accuracy"] for row in run.rows)
    (note,) = [words for words in run.said("note") if "any further" in words]
    assert note.startswith(
        "Fewer than three sites train any further. Site site-0: its privacy budget is spent"
    )


def test_a_site_that_has_spent_its_budget_still_measures(federate: Federate, tmp_path: Path) -> None:
    grid = sites(tmp_path / "far", 5)
    node = list(grid.contexts)[1]
    grid.contexts[node].node_config["dp-budget"] = f"{after(1)}@1e-5"
    asked: list[tuple[int, bool, bool]] = []

    def look(site: int, message: Message, reply: Message) -> Message:
        if site == 1 and "exchange" in message.content:
            said = message.content["exchange"]
            asked.append((int(said["round"]), bool(said["train"]), "masked" in reply.content))  # type: ignore[arg-type]
        return reply

    grid.interfere = look
    run = federate(grid=grid, rounds=3, **SPENDING)
    assert [row["clients_ok"] for row in run.rows[1:]] == ["5", "4", "4"]
    assert asked == [(1, True, True), (2, True, False), (3, False, True), (4, False, True)]
    told = {row["site"]: row["status"] for row in run.clients if row["round"] == "2"}
    assert told["site-1"].startswith("failed: its privacy budget is spent")


# ---------------------------------------------------------------- with noise


def test_the_noise_of_the_fewest_sites_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """z = 3 at ten sites, of which seven are the least: each has 3/√7, in units of the clips of its rows."""
    settings = Settings.parse(
        defaults() | {"dp-noise": 3.0, "dp-clip": 0.5, "dp-clip-rho": 0.1, "secure-sum": True}
    )
    drawn = np.random.default_rng(1).standard_normal
    monkeypatch.setattr(secure, "NORMAL", lambda seed: drawn)
    still = {"w": np.zeros((2, 10_000))}
    total = sum(secure.steps_of(still, 1.0, settings, 10) for _ in range(7))
    reach = max(4.0, 0.5 * (1 + 8 * 3 / math.sqrt(7)))
    numbers = masks.from_narrow(masks.narrow(np.asarray(total)), 10, reach).reshape(2, -1)
    assert numbers[0].std() == pytest.approx(3 * 0.5, rel=0.03)
    assert numbers[1].std() == pytest.approx(3 * 0.1, rel=0.03)


def test_both_together(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without draws it is the mean of clipped changes over all that were asked; with them ε is what z says."""
    same = {"rounds": 2, "dp_noise": 5.0, "dp_clip": 0.05, "dp_clip_rho": 0.05, "clients": 4}
    monkeypatch.setattr("strategies.rounds.stages.private.NORMAL", np.zeros)
    monkeypatch.setattr(secure, "NORMAL", lambda seed: np.zeros)
    plain, run = federate("plain", **same), federate("secure", **same, secure_sum=True)
    assert torch.allclose(run.tensors["w"], plain.tensors["w"], atol=1e-6, rtol=0)
    expected = [epsilon_of(math.sqrt(t) / 5, 1e-5) for t in (1, 2)]
    assert [float(row["epsilon"]) for row in run.rows if row["epsilon"]] == pytest.approx(expected, abs=1e-6)


def test_noise_comes_from_the_sites_alone(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(count: int) -> np.ndarray[Any, Any]:
        raise AssertionError("the coordinator draws no noise")

    monkeypatch.setattr("strategies.rounds.stages.private.NORMAL", never)
    run = federate(rounds=1, dp_noise=5.0, secure_sum=True, eval_every=10)
    moved = run.tensors["w"][0].double()
    # 4 sites, 3 the least: σ² = 25·4/3, divided by 4
    assert moved.std() == pytest.approx(5 * math.sqrt(4 / 3) / 4, rel=0.05)


def test_a_round_that_is_repeated_has_the_same_noise_bit_by_bit(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator dies with the sum in its hands, and sums again when it goes on: that is one release, not two."""
    from server_app.runs import RunFolder

    save, same = (
        RunFolder.save_checkpoint,
        {"rounds": 2, "secure_sum": True, "dp_noise": 5.0, "eval_every": 10},
    )

    def torn(self: RunFolder, server_round: int, *arguments: Any) -> None:
        if server_round == 2:
            raise KeyboardInterrupt
        save(self, server_round, *arguments)

    grid = Watched(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save_checkpoint", torn)
        with pytest.raises(KeyboardInterrupt):
            federate("torn", grid=grid, **same)
    run = federate("torn", grid=grid, resume=True, **same)
    one, two, two_again = grid.sums
    assert (two == two_again).all()
    assert (one != two).mean() > 0.99, "another round has other noise"
    assert float(run.rows[2]["epsilon"]) == pytest.approx(epsilon_of(math.sqrt(2) / 5, 1e-5), abs=1e-6)


def test_no_step_leads_out_of_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that was clipped, and then rounded to float32 with the model under it, is a little too long again."""
    words = {"dp-noise": 3.0, "dp-clip": 0.5, "dp-clip-rho": 0.1, "secure-sum": True}
    settings = Settings.parse(defaults() | words)
    monkeypatch.setattr(secure, "NORMAL", lambda seed: np.zeros)
    drawn = np.random.default_rng(1)
    units = drawn.normal(size=(2, 5000))
    change = units / np.linalg.norm(units) * np.array([[0.5], [0.1]])
    base = drawn.normal(size=change.shape).astype(np.float32)
    rounded = (base + change).astype(np.float32).astype(np.float64) - base
    scales = np.array([[0.5], [0.1]])
    for one in (rounded, 1.0001 * change, 7 * change):
        assert np.linalg.norm(one / scales) > 1
        steps = secure.steps_of({"w": one}, 1.0, settings, 10)
        numbers = masks.from_narrow(masks.narrow(steps), 10, agreed.reach_of(settings, 10)).reshape(2, -1)
        assert 0.999 < np.linalg.norm(numbers / scales) <= 1
