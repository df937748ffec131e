"""One file per site: what sites agree on in hello, named disagreements, late sites, and the same in a simulation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid

from client_app import site
from server_app.stored import read_config
from strategies import StrategyError

Federate = Callable[..., Outcome]
WORDS: dict[str, Any] = {
    "test_fraction": 0.3,
    "local_steps": 20,
    "lr_personal": 0.01,
    "zeta": 0.1,
    "eval_every": 4,
}


@pytest.fixture
def clinics(tmp_path: Path) -> Path:
    """Three sites with two measurements each, in units of their own size; no site has all three findings."""
    random = np.random.default_rng(0)
    folder = tmp_path / "clinics"
    folder.mkdir()
    centres = {"flu": (37.0, 900.0), "cold": (39.0, 500.0), "well": (36.0, 100.0)}
    for name, header, findings in (
        ("east", "temperature,count,finding", ("flu", "cold")),
        ("north", "count,temperature,finding", ("cold", "well")),
        ("west", "temperature,count,finding", ("flu", "well")),
    ):
        lines = [header]
        for i in range(40):
            finding = findings[i % 2]
            temperature, count = random.normal(centres[finding], (0.3, 60.0))
            cells = (temperature, count) if header.startswith("t") else (count, temperature)
            lines.append(",".join(f"{cell:.3f}" for cell in cells) + f",{finding}")
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return folder


def sites(clinics: Path, **config: Any) -> InProcessGrid:
    """As `fedbayes site --data FILE` starts them."""
    nodes = [
        {
            "site-id": file.stem,
            "state-dir": str(clinics.parent / f"disk-{file.stem}"),
            "data-path": str(file),
            **config,
        }
        for file in sorted(clinics.iterdir())
    ]
    return InProcessGrid({}, len(nodes), node_configs=nodes)


def test_sites_agree_and_learn_and_a_simulation_of_the_same_files_repeats_it(
    federate: Federate, clinics: Path
) -> None:
    real = federate("real", grid=sites(clinics), **WORDS)
    config = read_config(real.folder)
    assert config and config["classes"] == ["cold", "flu", "well"]
    assert config["agreement"]["features"] == ["temperature", "count"]
    assert config["agreement"]["mean"] == pytest.approx([37.3, 500], rel=0.05)
    assert [row["site"] for row in real.clients if row["round"] == "4"] == ["east", "north", "west"]
    assert float(real.rows[-1]["pm_accuracy"]) > 0.8
    simulated = federate("simulated", clients=3, dataset=str(clinics), **WORDS)
    assert simulated.metrics == real.metrics
    assert sorted(path.name for path in (real.folder.parent / "state" / "simulated").iterdir()) == [
        "east", "north", "west",
    ]  # fmt: skip


def test_the_second_hello_goes_only_to_those_who_spoke_of_other_classes(
    federate: Federate, clinics: Path
) -> None:
    grid = sites(clinics)
    federate(grid=grid, classes="well,flu,cold", rounds=1)
    assert [message.metadata.message_type for message in grid.sent].count("query.hello") == 3
    grid = sites(clinics)
    federate("union", grid=grid, rounds=1)
    assert [message.metadata.message_type for message in grid.sent].count("query.hello") == 6


def test_a_late_site_lives_with_the_agreement_and_a_foreign_one_is_left_out(
    federate: Federate, clinics: Path
) -> None:
    (clinics / "zoo.csv").write_text("temperature,count,finding\n1,2,bite\n3,4,flu\n5,6,bite\n")
    grid = sites(clinics)
    grid.offline = {2, 3}

    def arrive(number: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            grid.offline = set()
        return reply

    grid.interfere = arrive
    run = federate(grid=grid, **(WORDS | {"eval_every": 1}))
    config = read_config(run.folder)
    assert config and config["classes"] == ["cold", "flu", "well"]
    assert [row["site"] for row in run.clients if row["round"] == "4"] == ["east", "north", "west"]
    assert any("zoo: DataError; the site's own log says more" in text for text in run.said("warning"))


def test_a_resumed_run_keeps_its_agreement(federate: Federate, clinics: Path) -> None:
    whole = federate("whole", grid=sites(clinics), **WORDS)
    federate("parts", grid=sites(clinics), **(WORDS | {"rounds": 2}))
    site.forget()
    grid = sites(clinics)
    parts = federate("parts", grid=grid, resume=True, **WORDS)
    assert parts.metrics[-1] == whole.metrics[-1]
    assert [message.metadata.message_type for message in grid.sent].count("query.hello") == 3


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        (
            "temperature,finding\n1,flu\n2,cold\n3,flu\n",
            {},
            'Sites "north" and "south" have different columns: "north" alone has "count", "south" none.',
        ),
        (
            "temperature,count,finding\n1,2,3.5\n2,2,0.25\n3,5,0.125\n",
            {},
            'Sites "north" and "south" differ in their task: "north" has classes, "south" has numbers as targets; '
            "say which with task=classification or task=regression.",
        ),
    ],
)
def test_sites_that_disagree_stop_the_run_and_are_named(
    federate: Federate, clinics: Path, text: str, words: dict, sentence: str
) -> None:
    (clinics / "south.csv").write_text(text)
    grid = sites(clinics)
    with pytest.raises(StrategyError) as caught:
        federate(grid=grid, min_clients=len(grid.contexts), **words)
    assert str(caught.value) == sentence
    assert not federate.latest.folder.exists()  # type: ignore[attr-defined]


def test_one_that_disagrees_has_no_veto(federate: Federate, clinics: Path) -> None:
    (clinics / "south.csv").write_text("temperature,finding\n1,flu\n2,cold\n3,flu\n")
    run = federate(grid=sites(clinics), rounds=1)
    assert run.said("warning")[0].startswith(
        'Left out: site south, since most sites agree without: Sites "north" and "south" have different columns'
    )
    assert {row["site"] for row in run.clients} == {"east", "north", "west"}


def test_other_names_for_the_same_things_are_suspected(federate: Federate, clinics: Path) -> None:
    text = (clinics / "east.csv").read_text()
    (clinics / "south.csv").write_text(text.replace("flu", "Flu").replace("cold", "Cold"))
    run = federate(grid=sites(clinics), rounds=1)
    assert run.said("warning")[0].startswith(
        'Site "south" shares no class with the others; it has Cold, Flu.'
    )


def test_the_coordinator_hears_of_a_wrong_file_and_the_site_s_log_names_it(
    federate: Federate, clinics: Path, tmp_path: Path
) -> None:
    file = clinics / "south.csv"
    file.write_text("temperature,count,finding\n1,hot,flu\n2,3,cold\n3,4,flu\n")
    run = federate(grid=sites(clinics, **{"log-file": str(tmp_path / "log")}), rounds=1)
    warnings = " ".join(run.said("warning"))
    assert (
        "Left out: site south: DataError; the site's own log says more" in warnings
        and str(clinics) not in warnings
    )
    assert (
        f'{file}, line 2: the column "count" has "hot"; it takes a number' in (tmp_path / "log").read_text()
    )


@pytest.mark.parametrize("dataset", ["own.npz", "/etc/sites/", "my.module:load"])
def test_a_run_cannot_choose_what_is_read_at_a_site(federate: Federate, clinics: Path, dataset: str) -> None:
    nodes = [{"site-id": "a", "state-dir": str(clinics / "disk"), "partition-id": 0, "num-partitions": 1}]
    with pytest.raises(
        StrategyError, match="A run cannot choose a file or a function at a site; its owner does"
    ):
        federate(grid=InProcessGrid({}, 1, node_configs=nodes), dataset=dataset)
