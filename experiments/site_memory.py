"""What a site at rest holds in memory, process by process (docs/reliability.md).

    python experiments/site_memory.py

starts a coordinator and three sites on this machine, has them train for two rounds, waits a little, and prints the
proportional memory of a site's processes: a page that n processes share counts 1/n for each of them (Linux:
/proc/PID/smaps_rollup). The mean of the sites is in the table.
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "federation")]  # real federations are the tests'

# ruff: noqa: E402
from deployed import family, started
from harness import SMALL
from soaked import part

SITES = 3
REST = 10.0  # seconds after the last message


def proportional(process: psutil.Process) -> float:
    """MB."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sizes: dict[str, float] = defaultdict(float)
    settings = {key.replace("-", "_"): value for key, value in SMALL.items()}
    with tempfile.TemporaryDirectory() as folder, started(Path(folder), SITES) as federation:
        run = federation.run("memory", **settings | {"rounds": 2})
        assert run.ends() == 0, run.said
        time.sleep(REST)
        for number in range(SITES):
            for process in family(federation.running[f"site-{number}"].process):
                with suppress(psutil.Error, OSError):
                    sizes[part(process, f"site-{number}")] += proportional(process) / SITES
    print("| of a site at rest | MB |\n|---|---|")
    for kind, size in sorted(sizes.items(), key=lambda one: one[1]):
        print(f"| {kind} | {size:.0f} |")
    print(f"| in all | {sum(sizes.values()):.0f} |")


if __name__ == "__main__":
    main()
