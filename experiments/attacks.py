"""Poison inside the bounds: what one to three hostile sites of ten do to the global model, by rule of aggregation.

    python experiments/attacks.py --out attacks.jsonl

prints the table of docs/security.md. Ten in-process sites share scikit-learn's digits; the last ones are hostile and
change what they upload, from the first round on:

- gates: λ = 0 everywhere (sFedBayes);
- flip: eight times as far as they went, in the other direction (pFedBayes);
- cluster: what they learned, as if they had chosen the other cluster (cFedBayes, rotated digits);
- shift: one secret direction for all of them, three times as long as their own step, on top of it (pFedBayes).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "federation")]  # the grid of in-process sites is the tests'

from inprocess import InProcessGrid  # noqa: E402

from fedbayes.protocol.settings import Settings, defaults  # noqa: E402
from server_app import app as server  # noqa: E402
from server_app.stored import read_rows  # noqa: E402
from strategies.rounds import roster  # noqa: E402
from strategies.rounds.stages import outliers  # noqa: E402

SITES = 10
RULES = ("mean", "moments", "trimmed-mean", "median", "krum")
SMALL: dict[str, Any] = {
    "dataset": "digits",
    "size": "10+5",
    "rounds": 20,
    "eval-every": 20,
    "hostile-share": 0.3,
}
RUNS: dict[str, dict[str, Any]] = {
    "gates": {"method": "sfedbayes", "layout": "iid"},
    "flip": {"method": "pfedbayes", "layout": "iid"},
    "cluster": {"method": "cfedbayes", "layout": "rotated", "groups": 2, "clusters": 2},
    "shift": {"method": "pfedbayes", "layout": "iid"},
}
Rows = dict[str, Any]


def gates(w: Rows, base: Rows) -> Rows:
    return w | {"lambda": np.zeros_like(w["lambda"])}


def flip(w: Rows, base: Rows) -> Rows:
    return {name: base[name] - np.float32(8) * (w[name] - base[name]) for name in w}


def shift(w: Rows, base: Rows) -> Rows:
    secret = np.random.default_rng(7)
    far = {name: np.sqrt(np.mean((w[name] - base[name]) ** 2)) for name in w}
    return {
        name: (w[name] + 3 * far[name] * secret.choice([-1, 1], w[name].shape)).astype(np.float32)
        for name in sorted(w)
    }


UPLOADS: dict[str, Callable[[Rows, Rows], Rows]] = {"gates": gates, "flip": flip, "shift": shift}


def hostile(attack: str, number: int) -> Callable[..., Message]:
    """The last `number` sites do it in every round; before round 1 they are still like everybody."""

    def interfere(site: int, message: Message, reply: Message) -> Message:
        said: Any = message.content.get("exchange")
        if site < SITES - number or "w" not in reply.content or said["round"] < 1:
            return reply
        content: Any = reply.content
        if attack == "cluster":
            content["report"]["cluster"] = 1 - content["report"]["cluster"]
            return reply
        base = {name: array.numpy() for name, array in message.content["w"].items()}  # type: ignore[union-attr]
        w = {name: array.numpy() for name, array in content["w"].items()}
        content["w"] = ArrayRecord({name: Array(row) for name, row in UPLOADS[attack](w, base).items()})
        return reply

    return interfere


def measured(
    attack: str, rule: str, number: int, seed: int, judged: bool = True, **more: Any
) -> dict[str, Any]:
    """The last row of one run; `judged` says whether absurd uploads are dropped."""
    with tempfile.TemporaryDirectory() as folder:
        words = (
            SMALL
            | RUNS[attack]
            | {"aggregation": rule, "seed": seed, "out-dir": folder, "run-name": "run"}
            | more
        )
        settings = Settings.parse(defaults() | words)
        grid = InProcessGrid({}, SITES, hostile(attack, number))
        for context in grid.contexts.values():
            context.run_config = settings.as_config()
        judge = outliers.Outliers.judge
        if not judged:
            outliers.Outliers.judge = lambda *_: None  # type: ignore[method-assign, assignment]
        try:
            server.run(grid, settings)
        finally:
            outliers.Outliers.judge = judge  # type: ignore[method-assign]
        rows = read_rows(Path(folder) / "run" / "rounds.csv")
    failed = sum(int(row["clients_failed"] or 0) for row in rows)
    return {"attack": attack, "rule": rule, "hostile": number, "seed": seed, "judged": judged, "failed": failed,
            "gm": float(rows[-1]["gm_accuracy"]), "pm": float(rows[-1]["pm_accuracy"]), **more}  # fmt: skip


def plan(seeds: int) -> list[dict[str, Any]]:
    for_seeds = range(1, seeds + 1)
    found = [
        {"attack": attack, "rule": rule, "number": number, "seed": seed}
        for seed in for_seeds
        for attack in RUNS
        for number in range(4)
        for rule in RULES
        if not (attack == "shift" and number == 0)  # as calm as flip
    ]
    found += [
        {"attack": "gates", "rule": rule, "number": number, "seed": seed, "judged": False}
        for seed in for_seeds
        for number in (1, 2, 3)
        for rule in RULES
    ]
    return found + [  # what the rules cost where sites differ and nobody is hostile
        {"attack": "flip", "rule": rule, "number": 0, "seed": seed, "layout": "labels"}
        for seed in for_seeds
        for rule in RULES
    ]


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| attack | hostile of ten | " + " | ".join(RULES) + " |", "|---|---|" + "---|" * len(RULES)]
    kinds = list(dict.fromkeys((r["attack"], r["judged"], r.get("layout", ""), r["hostile"]) for r in rows))
    for attack, judged, layout, number in kinds:
        cells = []
        for rule in RULES:
            same = [
                r for r in rows
                if (r["attack"], r["judged"], r.get("layout", ""), r["hostile"], r["rule"])
                == (attack, judged, layout, number, rule)
            ]  # fmt: skip
            mean = sum(r["gm"] for r in same) / len(same) if same else float("nan")
            cells.append(
                f"{mean:.3f}"
                + (f" ({max(r['failed'] for r in same)})" if any(r["failed"] for r in same) else "")
            )
        name = attack + (" unchecked" if not judged else "") + (f" {layout}" if layout else "")
        lines.append(f"| {name} | {number} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("attacks.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    server.emit = lambda event, **said: None
    roster.SETTLE = 0.0
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    for one in plan(asked.seeds)[len(rows) :]:  # what is there already is not done again
        rows.append(measured(**one))
        with asked.out.open("a") as stream:
            stream.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
