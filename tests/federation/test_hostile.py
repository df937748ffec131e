"""What one hostile site says ends nobody's run: it is left out, or dropped, named and counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord
from harness import Outcome
from inprocess import InProcessGrid

from fedbayes.protocol import codec
from fedbayes.protocol.npy import numbers_of
from server_app.stored import read_config

Federate = Callable[..., Outcome]
Change = Callable[[Any], None]


def liar(what: str, change: Change, number: int = 1) -> Callable[..., Message]:
    """Changes the record `what` in this site's replies."""

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == number and what in reply.content:
            change(reply.content)
        return reply

    return interfere


def hello(**words: Any) -> Change:
    return lambda content: content["hello"].update(words)


@pytest.mark.parametrize(
    "record",
    [
        MetricRecord({"loss": 1.0, "uncertainty": [1.0, 2.0]}),
        ConfigRecord({"loss": 1.0, "uncertainty": "very"}),
        MetricRecord({f"number{i}": 1.0 for i in range(100)}),
    ],
    ids=["list", "text", "long"],
)
@pytest.mark.parametrize("rule", ["off", "weight"])
def test_a_report_of_another_kind_is_a_failed_reply(federate: Federate, record: Any, rule: str) -> None:
    run = federate(
        interfere=liar("report", lambda content: content.update(report=record)), aggregation_confidence=rule
    )
    assert run.state == "finished"
    assert [row["clients_failed"] for row in run.rows[1:]] == ["1"] * 4
    assert "Site 1 dropped from this round: a" in run.said("warning")[0]


@pytest.mark.parametrize(
    "words",
    [
        {"claim": "[" * 200_000},
        {"claim": "{}"},
        {"n_train": "9" * 400},
        {"n_train": 10**12},
        {"n_test": -1},
        {"input_shape": ["64"]},
        {"classes": "0123456789"},
        {"fingerprint": "\x1b[2J"},
        {"site": ["1"]},
    ],
    ids=lambda words: f"{next(iter(words))}-{str(next(iter(words.values())))[:8]!r}",
)
def test_a_hello_that_is_none_is_left_out(federate: Federate, words: dict[str, Any]) -> None:
    run = federate(interfere=liar("hello", hello(**words)), weighting="examples", rounds=1)
    assert run.state == "finished" and {row["site"] for row in run.clients} == {"0", "2", "3"}
    (warning,) = run.said("warning")
    assert warning.startswith(("Left out: site 1 said an ", "Left out: node 1007 has the impossible site id"))
    assert warning.isprintable() and len(warning) < 300


def other_classes(asked: Any, told: Any) -> None:
    """Not at first, but in answer to what all have agreed on."""
    if "agreed" in asked:
        told["classes"] = ["ill", "other"]


def no_table(asked: Any, told: Any) -> None:
    told["claim"] = json.dumps(json.loads(told["claim"]) | {"table": None})


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (other_classes, 'Site "1" has other classes than all sites have agreed on'),
        (no_table, 'Site "1" has no table, but others have tables'),
    ],
    ids=["other classes", "no table"],
)
def test_one_that_does_not_fit_to_the_tables_of_the_others_is_left_out(
    federate: Federate, tmp_path: Path, lie: Callable[[Any, Any], None], why: str
) -> None:
    """Sites of tables are asked again under what all have agreed on."""
    for site in range(4):
        lines = [f"{i},{'ICU' if i % 2 else 'north'},{'ill' if i % 3 else 'well'}" for i in range(40)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,ward,outcome", *lines]) + "\n")

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == 1 and "hello" in message.content:
            lie(message.content["hello"], reply.content["hello"])
        return reply

    run = federate(interfere=interfere, dataset=str(tmp_path), target="outcome", rounds=1)
    assert run.state == "finished" and run.rows[1]["clients_ok"] == "3"
    (said,) = [text for text in run.said("warning") if text.startswith("Left out")]
    assert f"since most sites agree without: {why}" in said


def test_a_late_joiner_with_a_bottomless_claim_leaves_the_run_as_it_is(federate: Federate) -> None:
    calm = federate("calm", grid=InProcessGrid({}, 3))
    grid = InProcessGrid({}, 4)
    grid.offline = {3}

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == 0 and "report" in reply.content:
            grid.offline = set()
        if client == 3 and "hello" in reply.content:
            reply.content["hello"]["claim"] = "[" * 200_000
        return reply

    for number, context in enumerate(grid.contexts.values()):
        context.node_config = {"partition-id": min(number, 2), "num-partitions": 3}
    grid.interfere = interfere
    run = federate("run", grid=grid)
    assert run.state == "finished" and "unreadable claim" in run.said("warning")[0]
    assert (run.tensors["w"] == calm.tensors["w"]).all()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"claim": "[" * 200_000}, "site 1 said an unreadable claim"),
        ({"classes": ["ill", "other"]}, 'Site "1" has other classes than all sites have agreed on'),
    ],
    ids=["bottomless", "other classes"],
)
def test_a_hello_that_is_none_ends_no_resumed_run_either(
    federate: Federate, words: dict[str, Any], why: str
) -> None:
    """There the agreement is that of the first attempt: no claim is needed for one, and yet it is read."""
    federate(rounds=2)
    run = federate(interfere=liar("hello", hello(**words)), rounds=4, resume=True)
    assert run.state == "finished" and run.rows[-1]["round"] == "4"
    assert {row["site"] for row in run.clients if row["round"] in ("3", "4")} == {"0", "2", "3"}
    (warning,) = run.said("warning")
    assert warning.startswith("Left out: ") and why in warning and len(warning) < 300
    (left,) = read_config(run.folder)["left_out"]  # type: ignore[index]
    assert why in left


def test_the_first_site_alone_does_not_say_into_how_many_shares_data_are_cut(federate: Federate) -> None:
    """A run that was started without its lie can be resumed with it, and the other way round."""
    lie = liar("hello", hello(partitions=99), number=0)
    for name, lies in (("run", (None, lie)), ("other", (lie, None))):
        federate(name, rounds=1, interfere=lies[0])
        run = federate(name, rounds=2, resume=True, interfere=lies[1])
        assert run.state == "finished" and read_config(run.folder)["partitions"] == 4  # type: ignore[index]


def test_one_that_says_other_sizes_than_before_is_left_out_of_a_resumed_run(federate: Federate) -> None:
    """At its start, and when it joins later; all say so of themselves only where their data are others."""
    federate(rounds=1)
    for rounds, late in ((2, False), (3, True)):
        grid = InProcessGrid({}, 4)
        grid.offline = {1} if late else set()

        def interfere(client: int, message: Message, reply: Message, grid: InProcessGrid = grid) -> Message:
            if client == 0 and "report" in reply.content:
                grid.offline = set()
            return liar("hello", hello(n_test=21))(client, message, reply)

        grid.interfere = interfere
        run = federate(grid=grid, rounds=rounds, resume=True)
        assert run.state == "finished"
        assert {row["site"] for row in run.clients if row["round"] == str(rounds)} == {"0", "2", "3"}
        (warning,) = run.said("warning")
        assert warning.startswith(
            "Left out: site 1 had {'n_train': 20, 'n_test': 20} when the run began and now"
        )
        assert read_config(run.folder)["sites"]["1"]["n_test"] == 20  # type: ignore[index]
    run = federate(interfere=liar("hello", hello(n_test=21, data_changed=True)), rounds=4, resume=True)
    assert {row["site"] for row in run.clients if row["round"] == "4"} == set("0123")


def test_a_site_without_test_examples_is_not_divided_by(federate: Federate) -> None:
    def nothing(content: Any) -> None:
        if "hello" in content:
            content["hello"]["n_test"] = 0
        for name in ("pm", "gm", "pm_point", "gm_point"):
            if name in content:
                content[name] = MetricRecord(
                    {key: [0.0] * len(numbers) for key, numbers in content[name].items()}
                )

    run = federate(interfere=lambda n, message, reply: (nothing(reply.content) if n == 1 else None, reply)[1])
    assert run.state == "finished"
    measured = [row["site"] for row in run.clients if row["round"] == "4" and row["gm_accuracy"]]
    assert measured == ["0", "2", "3"] and 0 <= float(run.rows[-1]["gm_accuracy"]) <= 1


def test_a_reply_that_nobody_thought_of_is_its_senders_trouble(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strategies.pfedbayes import PFedBayes

    expects = PFedBayes.expects

    def surprised(self: Any, state: Any, site: str, report: Any) -> Any:
        if site == "1":
            raise ZeroDivisionError("what\na surprise")
        return expects(self, state, site, report)

    monkeypatch.setattr(PFedBayes, "expects", surprised)
    run = federate()
    assert [row["clients_failed"] for row in run.rows[1:]] == ["1"] * 4
    assert "its reply could not be handled (ZeroDivisionError: what a surprise)" in run.said("warning")[0]


def test_forged_measures_are_not_counted(federate: Federate) -> None:
    """Each of these made the pooled figures better than any model can be."""

    def forged(**entries: list[float]) -> Callable[..., Message]:
        return liar("gm", lambda content: content["gm"].update(entries))

    calm = federate("calm")
    examples = int(next(row["n_test"] for row in calm.clients if row["site"] == "1" and row["n_test"]))
    n = float(examples)
    for number, lie in enumerate(
        [
            {"nll": [-5.0 * n]},
            {"brier": [-1.0]},
            {"brier": [2.5 * n]},
            {"correct": [n], "bin_correct": [0.0] * 15},
            {"bin_n": [n] * 15},
            {"bin_confidence": [-1.0] * 15},
            {"entropy": [-n]},
        ]
    ):
        run = federate(f"forged{number}", interfere=forged(**lie), rounds=1)
        measured = [row["site"] for row in run.clients if row["round"] == "1" and row["gm_accuracy"]]
        assert measured == ["0", "2", "3"], lie
        assert any("a tally gm with impossible numbers" in text for text in run.said("warning"))


def perfect(n: int, of: str = "n_test", kinds: tuple[str, ...] = ("", "_point")) -> Change:
    """Says in hello that it has so many examples, and that its models are right in all of them."""
    sums = {"n": [float(n)], "correct": [float(n)]}
    sums |= {name: [0.0] for name in ("nll", "brier", "entropy", "mutual_information")}
    bins = {name: [0.0] * 14 + [float(n)] for name in ("bin_n", "bin_confidence", "bin_correct")}

    def forge(content: Any) -> None:
        if "hello" in content:
            content["hello"][of] = n
        for name in (f"{model}{kind}" for model in ("pm", "gm") for kind in kinds):
            if name in content:
                content[name] = MetricRecord(sums | bins)

    return forge


def forging(change: Change, number: int = 1) -> Callable[..., Message]:
    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == number and reply.has_content():
            change(reply.content)
        return reply

    return interfere


def pooled(run: Outcome, number: int, column: str = "gm_accuracy", besides: str = "1") -> float:
    """The figure over all test examples but this site's, by hand."""
    rows = [
        row for row in run.clients if row["round"] == str(number) and row["site"] != besides and row[column]
    ]
    return sum(int(r["n_test"]) * float(r[column]) for r in rows) / sum(int(r["n_test"]) for r in rows)


def test_a_million_test_examples_do_not_count_and_the_mean_over_sites_stays(federate: Federate) -> None:
    calm = federate("calm", rounds=1)
    run = federate("run", interfere=forging(perfect(10**6)), rounds=1, report=True)
    assert float(run.rows[-1]["gm_accuracy"]) == pytest.approx(pooled(calm, 1), abs=1e-5)
    said = run.said("warning")
    assert len(said) == 1 and "Site 1 says that it has 1000000 test examples" in said[0]
    assert "that is not plausible, and the pooled figures are without it" in said[0]
    honest = [float(row["gm_accuracy"]) for row in calm.clients if row["round"] == "1" and row["site"] != "1"]
    assert float(run.rows[-1]["gm_sites_accuracy"]) == pytest.approx((sum(honest) + 1) / 4, abs=1e-5)
    evidence = json.loads((run.folder / "evaluations.jsonl").read_text().splitlines()[-1])
    measured = [row for row in calm.clients if row["round"] == "1" and row["site"] != "1"]
    assert evidence["gm"]["n"] == [sum(float(row["n_test"]) for row in measured)], "the report's, too"
    assert (calm.tensors["w"] == run.tensors["w"]).all()


def test_a_joiner_with_a_billion_test_examples_does_not_count_either(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)
    grid.offline = {3}
    change = forging(perfect(10**9), number=3)

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == 0 and "report" in reply.content:
            grid.offline = set()
        return change(client, message, reply)

    grid.interfere = interfere
    run = federate(grid=grid, rounds=2, eval_every=1)
    assert {row["site"] for row in run.clients if row["round"] == "2" and row["gm_accuracy"]} == set("0123")
    assert float(run.rows[-1]["gm_accuracy"]) == pytest.approx(pooled(run, 2, besides="3"), abs=1e-5)
    assert "Site 3 says that it has 1000000000 test examples" in run.said("warning")[0]


def test_a_claim_of_validation_examples_does_not_count_for_early_stopping(federate: Federate) -> None:
    """It looks at the pooled NLL on validation data, which one site could hold at 0."""
    words = {"validation_fraction": 0.5, "rounds": 2, "eval_every": 1, "patience": 9}
    calm = federate("calm", **words)
    run = federate("run", interfere=forging(perfect(10**6, "n_validation", ("_val",))), **words)
    assert (
        "Site 1 says that it has 1000000 validation examples, the others about 10" in run.said("warning")[0]
    )
    honest = [float(r["pm_val_nll"]) for r in calm.clients if r["round"] == "2" and r["site"] != "1"]
    assert float(run.rows[2]["pm_val_nll"]) == pytest.approx(sum(honest) / 3, abs=1e-5)
    assert [row["pm_accuracy"] for row in run.rows] == [row["pm_accuracy"] for row in calm.rows]


def test_a_claim_of_training_examples_does_not_take_over_the_mean(federate: Federate) -> None:
    def claim(n: int) -> Callable[..., Message]:
        return liar("hello", hello(n_train=n))

    held = federate("calm", rounds=1, weighting="examples")
    run = federate("run", interfere=claim(10**9), rounds=1, weighting="examples")
    assert (
        "1000000000 training examples, the others about 20: that is not plausible" in run.said("warning")[0]
    )
    assert (run.tensors["w"] == held.tensors["w"]).all(), "its uploads count as the others', who have as many"
    large = federate("large", interfere=claim(20_000), rounds=1, weighting="examples")
    assert not (large.tensors["w"] == held.tensors["w"]).all(), "a thousand times as many may be honest"
    assert "they are mostly its own" in large.said("warning")[0]


def test_an_upload_that_is_too_large_is_not_unpacked(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[int] = []
    monkeypatch.setattr(
        codec, "numbers_of", lambda array: (unpacked.append(len(array.data)), numbers_of(array))[1]
    )

    def huge(content: Any) -> None:
        content["w"]["mu"] = Array("float32", (10**6,), "numpy.ndarray", bytes(4 * 10**6))

    run = federate(interfere=liar("w", huge), rounds=1)
    assert "arrays of 4" in run.said("warning")[0] and "bytes are expected" in run.said("warning")[0]
    assert max(unpacked) < 10**6


def test_notes_reach_the_terminal_on_one_line_without_control_characters(federate: Federate) -> None:
    def note(*texts: str) -> Callable[..., Message]:
        notes = ConfigRecord({str(i): text for i, text in enumerate(texts)})
        return liar("report", lambda content: content.update(notes=notes))

    run = federate("short", interfere=note("\x1b[2Jall is\r\nwell\u202e", *["x" * 999] * 20), rounds=1)
    first, *others = run.said("warning")
    assert first == "Site 1: [2Jall is well."
    assert len(others) == 7 and all(len(text) < 220 for text in others)
    run = federate("long", interfere=note("x" * 10**6), rounds=1)
    assert run.rows[1]["clients_failed"] == "1"
    assert run.said("warning")[0] == (
        "Site 1 dropped from this round: an unreadable reply (0: String should have at most 10000 characters)."
    )
