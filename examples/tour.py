"""python examples/tour.py executes tour.ipynb anew and writes docs/tour.md, the same as a page."""

import base64
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
NOTEBOOK, PAGE = HERE / "tour.ipynb", HERE.parent / "docs" / "tour.md"
HEAD = "<!-- Made from examples/tour.ipynb by `python examples/tour.py`. -->\n"


def execute(folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of now; its runs are written to `folder`."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when each cell was run
    return notebook


def page(notebook: nbformat.NotebookNode) -> tuple[str, dict[str, bytes]]:
    """The notebook as Markdown, and its pictures by their names in docs/images."""
    parts, pictures = [HEAD], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source.replace("](../docs/", "](") + "\n")
            continue
        parts.append(f"```python\n{cell.source}\n```\n")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"tour-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{cell.source.splitlines()[0]}](images/{name})\n")
            elif text := data.get("text/plain") or output.get("text", ""):
                parts.append(f"```\n{text.rstrip()}\n```\n")
    return "\n".join(parts), pictures


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(Path(folder))
    nbformat.write(notebook, NOTEBOOK)
    text, pictures = page(notebook)
    PAGE.write_text(text, "utf-8")
    for name, content in pictures.items():
        (PAGE.parent / "images" / name).write_bytes(content)


if __name__ == "__main__":
    main()
