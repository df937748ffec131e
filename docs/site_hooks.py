"""For `make docs`: README and changelog become pages of the site, and links to files that are none become words."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^):]+)\)")
IMAGE = re.compile(r'(!\[[^\]]*\]\(|<img src=")docs/')


def on_files(files: Files, config: Any) -> Files:
    for page, source in PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        text = IMAGE.sub(r"\1", LINK.sub(lambda link: _from_root(link[1], link[2]), text))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    return LINK.sub(lambda link: link[1] if link[2].startswith("../") else link[0], markdown)


def _from_root(words: str, target: str) -> str:
    """A link of a page at the root of the tree."""
    if target.startswith("docs/"):
        return f"[{words}]({target.removeprefix('docs/')})"
    return f"[{words}]({target})" if target.startswith("#") else words
