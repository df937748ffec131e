"""evaluations.jsonl in the run folder: one line of JSON for each evaluated round, for the report.

A line holds the pooled tallies of the personal and the global models, every site's binned counts, and the
binned counts of all personal weights (strategies/rounds/evidence.py); each says which format it has.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbayes.protocol.files import append_text, replace_file
from fedbayes.protocol.json_text import parse_json

FILE = "evaluations.jsonl"
FORMAT = 1


def read_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluated rounds in their order. A line that a crash cut short, or of another format, is left out."""
    file = folder / FILE
    if not file.exists():
        return []
    found = []
    for line in file.read_text("utf-8", "replace").splitlines():
        try:
            content = parse_json(line)
        except ValueError:
            continue
        if (
            isinstance(content, dict)
            and content.get("format") == FORMAT
            and isinstance(content.get("round"), int)
        ):
            found.append(content)
    return found


def append_evaluation(
    folder: Path, server_round: int, evidence: Mapping[str, Any], durable: bool = True
) -> None:
    """The evidence of one more round."""
    append_text(folder / FILE, _line({"format": FORMAT, "round": server_round, **evidence}), durable)


def drop_evaluations(folder: Path, since: int) -> None:
    """Forget the rounds that a resumed run will measure again."""
    kept = [line for line in read_evaluations(folder) if line["round"] < since]
    replace_file(folder / FILE, "".join(map(_line, kept)).encode(), durable=False)


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":")) + "\n"
