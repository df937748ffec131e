"""Every method on a device that is not the CPU: the strict one, which treats the program as a GPU does."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import strategies
from fedbayes.launch.app_bundle import methods

NUMBERS = {"dataset": "diabetes", "layout": "iid", "size": "large", "model": "mlp"}
CASES: dict[str, dict[str, Any]] = {
    **{method: {"method": method} for method in methods()},
    **{
        f"{method}, numbers": {"method": method, **NUMBERS}
        for method in methods()
        if strategies.load(method).traits.numbers
    },
    "sparse clusters": {"method": "cfedbayes", "clusters": 2, "family": "spike-slab"},
    "sgd": {"optimizer": "sgd", "lr-personal": 1e-5, "lr-global": 1e-5},
    "Hessian-free": {"method": "perfedavg", "perfedavg.hessian-free": True},
    "16 bits": {"method": "sfedbayes", "wire": "bfloat16"},
    "moments": {"aggregation": "moments", "beta": 1.5},
    "temperature": {"validation-fraction": 0.3, "temperature-scaling": True},
    "confidence": {"aggregation-confidence": "weight"},
    "fixed noise": {**NUMBERS, "noise": 50.0},
    "batch norm": {"model": "device_networks:normed"},
    "dropout": {"model": "device_networks:dropped"},
    "bfloat16": {"precision": "bfloat16"},
    "bfloat16, weights alone": {
        "method": "fedavg",
        "precision": "bfloat16",
        "model": "device_networks:normed",
    },
    "partly Bayesian": {"bayesian": "head"},
    "sampled": {"clients-per-round": 2},
    "flipped, weighed": {"augment": "flip-crop", "class-weights": "balanced"},
    "own statistics": {"model": "device_networks:normed", "buffers": "local"},
    "conformal": {"validation-fraction": 0.5, "conformal": 0.8},
    "conformal, numbers": {**NUMBERS, "validation-fraction": 0.3, "conformal": 0.8, "noise": "input"},
    "secure sums": {"secure-sum": True, "clients-per-round": 3},
    "a hostile one": {"aggregation": "median"},
    "a prior that grows": {"zeta-start": 0.1},
    "private examples": {"dp-example-noise": 5.0, "dp-example-batch": 10, "dp-noise": 5.0},
    "by rule": {"zeta": "auto", "personal-steps": "auto", "prior-decay": 0.1, "lr-end": 0.2},
    "adapt": {"validation-fraction": 0.2, "temperature-scaling": True},
    "adapt-normed": {"model": "device_networks:normed"},
    "adapt-half-frozen": {"model": "networks_of_users:half_frozen"},
    "adapt-adapters": {"model": "networks_of_users:adapted"},
    "resumed": {},
    "resumed-private": {
        "dp-example-noise": 5.0,
        "dp-noise": 5.0,
        "validation-fraction": 0.3,
        "temperature-scaling": True,
    },
}


BROKEN: dict[str, dict[str, Any]] = {"broken-pfedbayes": {}, "broken-fedavg": {"method": "fedavg"}}


def printed(script: str, *words: str | Path) -> Any:
    """The last line that a script beside this one prints, which is JSON; in a process of its own."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, here / script, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(here.parents[1]), str(here)))},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def runs(folder: Path, cases: dict[str, Any], script: str = "device_runs.py") -> dict[str, Any]:
    named = {
        name if name.startswith(("adapt", "resumed", "broken")) else str(number): settings
        for number, (name, settings) in enumerate(cases.items())
    }
    found: dict[str, Any] = printed(script, folder, json.dumps(named))
    return dict(zip(cases, found.values(), strict=True))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return runs(tmp_path_factory.mktemp("device"), CASES | BROKEN)


# Whose steps wait: half of a pFedGP step is a Gaussian process, which is the CPU's. Its examples' places and the
# gradient go to the device, the embeddings come from it.
NOISE = ["_to_copy, to it"]  # the operating system's
WAITING = {
    "pfedgp": ["_to_copy", "_to_copy, to it", "index, to it"],
    "private examples": NOISE,
    "resumed-private": NOISE,
}


@pytest.mark.parametrize("case", CASES)
def test_the_figures_are_those_of_the_cpu(found: dict[str, Any], case: str) -> None:
    """And a client's state stays on the device from round to round, and no step of a round waits for the device.

    A process that resumes a run reads the states from the disk.
    """
    waits = sorted(2 * WAITING.get(case, []))  # two more steps
    assert found[case] == {"same": True, "warnings": [], "stayed": "resumed" not in case, "waits": waits}


@pytest.mark.parametrize("case", BROKEN)
def test_data_that_stays_on_the_cpu_is_noticed(found: dict[str, Any], case: str) -> None:
    assert "npux:0 and cpu" in found[case]["error"]


IN_PYTHON = {"compile": False}  # the CPU's kernels in C round otherwise
ON_WORKERS = {
    "fedamp": CASES["fedamp"],
    **{name: CASES[name] | IN_PYTHON for name in ("pfedbayes", "sparse clusters")},
}

WELL = {"same": True, "warnings": [], "all on it": True, "stayed": True}


@pytest.fixture(scope="module")
def on_workers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cases = ON_WORKERS | {"broken-pfedbayes": IN_PYTHON}
    return runs(tmp_path_factory.mktemp("engine"), cases, script="device_engine.py")


@pytest.mark.parametrize("case", ON_WORKERS)
def test_workers_of_the_embedded_engine_have_the_figures_of_the_cpu(
    on_workers: dict[str, Any], case: str
) -> None:
    assert on_workers[case] == WELL


def test_a_worker_whose_data_stays_on_the_cpu_is_noticed(on_workers: dict[str, Any]) -> None:
    assert "npux:0 and cpu" in on_workers["broken-pfedbayes"]["error"]


def test_the_steps_of_a_round_never_wait_for_the_device() -> None:
    found = printed("device_crossings.py")
    few, many = found.pop("waiting")
    assert len(many) == len(few) + 2 * 10  # two draws of ten more steps: the count sees what it should
    for step in (
        steps := found.pop("step")
    ).values():  # what docs/scale.md says of launches; shuffles are a fraction
        assert step["calls of formulas"] == (0 if step is steps["plain, adam"] else 6)
    assert [int(step["kernels"]) for step in steps.values()] == [56, 105, 99, 24]
    assert [int(step["of formulas"]) for step in steps.values()] == [34, 79, 36, 0]
    private = {name: found.pop(name) for name in ("private", "private, convolutions", "private, plain")}
    assert len(found) == 14 and all(few == many for few, many in found.values())
    for (
        few,
        many,
    ) in private.values():  # the noise is the operating system's: it goes there, and nothing comes back
        assert Counter(many) - Counter(few) == {"_to_copy, to it": 10}
