"""The README's gallery: a report, the heat map of a clustered run and a reliability diagram, photographed in Chromium.

    python experiments/gallery.py --data-dir DIR [--out-dir runs/tables] [--images docs/images]

Runs what has not been run yet; `sparse-target-0.2` is a run of experiments/tables.py. Needs Debian's `chromium` (or
another at $BROWSER_PATH) and the package `playwright`.
"""

import argparse
import io
from pathlib import Path

from browser import open_browser
from PIL import Image
from tables import TABLES, run

from server_app.report import write_report

PERSONAL = "sparse-target-0.2"
ROTATED = "dataset=mnist size=small layout=rotated groups=4 method=cfedbayes rounds=5 eval-every=5"
REPORT = {"width": 1280, "height": 1590}  # what of the page is shown
PICTURES = {  # picture: (run, what of its report is shown; None: its top)
    "report": (PERSONAL, None),
    "reliability": (PERSONAL, "#reliability"),
    "heat-map": ("rotated", "#kl"),
}


def compact(png: bytes) -> bytes:
    """With 256 colours, which is all that a report needs, half of the bytes."""
    written = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    picture.save(written, "PNG", optimize=True)
    return written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/tables"))
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    out_dir = arguments.out_dir.resolve()
    run(PERSONAL, TABLES["sparse"][PERSONAL][1], arguments.data_dir, out_dir)
    run("rotated", ROTATED, arguments.data_dir, out_dir, "--clients", "20")
    with open_browser() as browser:
        for picture, (name, part) in PICTURES.items():
            page = browser.new_page(viewport=REPORT, color_scheme="light", device_scale_factor=1.5)
            page.goto(write_report(out_dir / name).as_uri())
            png = page.locator(part).screenshot() if part else page.screenshot()
            file = arguments.images / f"{picture}.png"
            file.write_bytes(compact(png))
            print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
