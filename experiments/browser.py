"""The system's own Chromium, headless, for pictures and for tests of pages. Nothing is installed or downloaded."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


def find_browser() -> str | None:
    """The browser's path, or None where there is none; $BROWSER_PATH names another."""
    named = os.environ.get("BROWSER_PATH")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def open_browser() -> Iterator[Any]:
    """A Playwright browser with a fresh profile."""
    from playwright.sync_api import sync_playwright

    path = find_browser()
    if path is None:
        raise SystemExit("There is no Chromium here; on Debian, `apt-get install chromium` brings it.")
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)  # root has no sandbox
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()
