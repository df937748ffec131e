"""python -m benchmarks [--full] [--only step,inference] [--out-dir DIR] [--data-dir DIR]: runs, prints, writes JSON."""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.measure import PREFIX, LeftOut, Measurement, Options, perform
from fedbayes.protocol.files import replace_file

HERE = Path(__file__).parent


def names() -> list[str]:
    """Every benchmark there is, by the names of their files."""
    return sorted(file.stem.removeprefix(PREFIX) for file in HERE.glob(f"{PREFIX}*.py"))


def machine() -> dict[str, object]:
    """What the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.cuda.is_available(),
        "load": [round(value, 2) for value in psutil.getloadavg()],
    }


def _processor() -> str:
    """Linux names the model only in /proc/cpuinfo."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def table(title: str, rows: Sequence[Measurement]) -> Table:
    columns = list(dict.fromkeys(column for row in rows for column in row.ratios))
    shown = Table(title=title, title_justify="left")
    shown.add_column("")
    for column in ("", *columns):
        shown.add_column(column, justify="right")
    shown.add_column("")
    for row in rows:
        ratios = [f"{row.ratios[column]:.2f}" if column in row.ratios else "" for column in columns]
        shown.add_row(row.name, f"{row.value:.4g} {row.unit}", *ratios, row.note)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all of it: up to an hour and a half")
    parser.add_argument("--only", default="", help=f"some of {', '.join(names())}, with commas")
    parser.add_argument("--out-dir", type=Path, default=HERE / "results")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where MNIST lies")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else names()
    if unknown := set(wanted) - set(names()):
        parser.error(f"There is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}.")

    console = Console(width=None if sys.stdout.isatty() else 200)  # a table in a file is not to be folded
    options = Options(arguments.full, arguments.data_dir.resolve())
    results: dict[str, object] = {}
    report = {"machine": machine(), "full": options.full, "results": results}
    arguments.out_dir.mkdir(parents=True, exist_ok=True)
    file = arguments.out_dir / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    failed: list[str] = []
    left_out: dict[str, list[str]] = {}  # by what they lack
    for name in wanted:
        console.print(f"[dim]{name} …[/]")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            try:
                done = process.submit(perform, name, options).result()
            except LeftOut as missing:
                left_out.setdefault(str(missing), []).append(name)
                continue
            except Exception:  # its own failure, whatever it is, must not lose the other benchmarks
                traceback.print_exc()
                failed.append(name)
                continue
        console.print(table(f"{done.title} ({done.seconds:.0f} s)", done.rows))
        results[name] = {
            "title": done.title, "seconds": done.seconds, "rows": [asdict(row) for row in done.rows]
        }  # fmt: skip
        if done.left_out:
            left_out.setdefault(done.lacks, []).append(f"{done.left_out} of {name}")
        replace_file(file, json.dumps(report, indent=1).encode())  # after each: a long run may be cut short

    if results:
        console.print(f"Written to {file}.")
    for lacks, those in left_out.items():
        console.print(f"Left out: {', '.join(those)}, for want of {lacks}.", soft_wrap=True)
    if failed:
        console.print(f"Failed: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
