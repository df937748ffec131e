"""Whether a site's data are still those that its run began with.

Beside its personal state a site keeps which data it was trained on, as a fingerprint that never leaves it. A run that
goes on with other data is refused in a sentence, unless the owner says that they have changed: `--data-changed`.
"""

import json
from pathlib import Path

from client_app.redact import SiteError
from fedbayes.protocol.files import replace_file

FILE = "data.json"


def require_same(folder: Path, fingerprint: str, run: str, uuid: str | None, changed: bool) -> None:
    """SiteError where the state in this folder was trained on other data, in the run `uuid` (None: in any)."""
    said = _read(folder)
    if changed or not fingerprint or not said or uuid not in (None, said.get("uuid")):
        return
    if said.get("data") != fingerprint:
        raise SiteError(
            f"the data here are not those that the run {run} was started with; if that is meant, --data-changed "
            "goes on with them."
        )


def remember(folder: Path, fingerprint: str, uuid: str) -> None:
    """The data that the run is trained on from now on."""
    said = {"uuid": uuid, "data": fingerprint}
    if fingerprint and _read(folder) != said:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FILE, json.dumps(said).encode(), durable=False)


def _read(folder: Path) -> dict[str, str]:
    """Nothing where there is no such file, or no use in it: states of older versions have none."""
    try:
        said = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
