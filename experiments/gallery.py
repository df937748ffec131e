"""The gallery of README and docs, photographed in Chromium: a report, the heat map of a clustered run, a reliability
diagram, a comparison, and the live page of a run.

    python experiments/gallery.py --data-dir DIR [--out-dir runs/tables] [--images docs/images] [--only compare,watch]

Runs what has not been run yet, some minutes of MNIST; `compare` and `watch` are of scikit-learn's digits, which need no
DIR. Needs Debian's `chromium` (or another at $BROWSER_PATH) and the package
`playwright`.
"""

import argparse
import io
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from browser import open_browser
from PIL import Image
from tables import run

from fedbayes.watch.server import Server
from server_app.report import write_report
from server_app.report.compare import write_comparison

PERSONAL = "dataset=mnist size=small zeta=1 rounds=60 eval-every=10"
ROTATED = "dataset=mnist size=small layout=rotated groups=4 method=cfedbayes rounds=5 eval-every=5"
REPORT = {"width": 1280, "height": 1590}  # what of the page is shown
PICTURES = {  # picture: (run, what of its report is shown; None: its top)
    "report": ("mnist-small", None),
    "reliability": ("mnist-small", "#reliability"),
    "heat-map": ("rotated", "#kl"),
}
SCALE = 1.5
DIGITS = "dataset=digits size=medium eval-every=2"
PERSONAL_DIGITS = f"{DIGITS} personal-steps=5 zeta=auto"
COMPARED = {
    "digits-pfedbayes": PERSONAL_DIGITS,
    "digits-fedavg": f"{DIGITS} method=fedavg",
    "digits-finetune": f"{DIGITS} method=finetune",
}
SHOOT_AT = 30  # rounds of the run that goes on, of 60


def compact(png: bytes) -> bytes:
    """With 128 colours, which is all that a report needs, half of the bytes."""
    written = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    picture.save(written, "PNG", optimize=True)
    return written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/tables"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", default=",".join([*PICTURES, "compare", "watch"]))
    arguments = parser.parse_args()
    out_dir, wanted = arguments.out_dir.resolve(), arguments.only.split(",")
    with open_browser() as browser:

        def shoot(
            picture: str, url: str, part: str | None = None, ready: Callable[[Any], None] | None = None
        ) -> None:
            page = browser.new_page(viewport=REPORT, color_scheme="light", device_scale_factor=SCALE)
            page.goto(url)
            if ready is not None:
                ready(page)
            png = page.locator(part).screenshot() if part else page.screenshot()
            file = arguments.images / f"{picture}.png"
            file.write_bytes(compact(png))
            print(f"{file}: {file.stat().st_size:,} bytes")

        if set(wanted) & set(PICTURES):
            run("mnist-small", PERSONAL, arguments.data_dir, out_dir)
            run("rotated", ROTATED, arguments.data_dir, out_dir, "--clients", "20")
        for picture in [picture for picture in PICTURES if picture in wanted]:
            name, part = PICTURES[picture]
            shoot(picture, write_report(out_dir / name).as_uri(), part)
        if "compare" in wanted:
            for name, words in COMPARED.items():
                run(name, f"{words} rounds=20", arguments.data_dir, out_dir)
            files = write_comparison([out_dir / name for name in COMPARED], out_dir / "digits")
            shoot("compare", files[0].as_uri())
        if "watch" in wanted:
            watch(out_dir, shoot)


def watch(out_dir: Path, shoot: Callable[..., None]) -> None:
    """The page of a run that is going on."""
    words = [*PERSONAL_DIGITS.split(), "rounds=60", "run-name=digits-live", f"out-dir={out_dir}"]
    going = subprocess.Popen([sys.executable, "-m", "fedbayes.cli", "run", *words], stdout=subprocess.DEVNULL)
    with Server(out_dir, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            while not (out_dir / "digits-live" / "config.json").exists():
                if going.poll() is not None:
                    raise SystemExit("There is a run digits-live already; delete its folder.")

            def ready(page: Any) -> None:
                while float(page.locator("progress").get_attribute("value") or 0) < SHOOT_AT:
                    page.wait_for_timeout(200)

            shoot("watch", server.url("digits-live"), None, ready)
        finally:
            going.send_signal(signal.SIGINT)
            going.wait()
            server.shutdown()


if __name__ == "__main__":
    main()
