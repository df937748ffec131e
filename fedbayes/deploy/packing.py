"""The app of a run on a federation, with room for a signature; and the hash of the one that is installed here."""

import tempfile
import tomllib
from pathlib import Path

import tomli_w

from fedbayes.deploy.bundles import APP_KEY, APP_PUBLIC, SIGNATURE, UNSIGNED, app_hash, sign, unpacked
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import assemble


def sign_app(app: Path, keys: Path | None) -> None:
    """Sign an assembled app, where the federation's folder has a key for that."""
    files = _packed(app)
    if keys is None:
        return
    if (keys / APP_KEY).exists():
        (app / SIGNATURE).write_bytes(sign(files, keys / APP_KEY))
    elif (keys / APP_PUBLIC).exists():
        raise CommandError(
            f"{keys / APP_KEY} is missing: sites of this federation carry out only what is signed with it."
        )


def installed_app() -> str:
    """The hash of the app that `fedbayes run --on` sends from here, signed or not."""
    with tempfile.TemporaryDirectory(prefix="fedbayes-") as workshop:
        return app_hash(_packed(assemble(Path(workshop) / "app")))


def _packed(app: Path) -> dict[str, bytes]:
    """What Flower makes of the folder, with room for a signature: one hash, whether there is one or not."""
    from flwr.cli.build import build_fab_from_disk

    project = app / "pyproject.toml"
    content = tomllib.loads(project.read_text("utf-8"))
    packed = content["tool"]["flwr"]["app"]["fab-include"]
    packed += [SIGNATURE] if SIGNATURE not in packed else []  # Flower packs nothing that is not named
    project.write_text(tomli_w.dumps(content), "utf-8")
    (app / SIGNATURE).write_bytes(UNSIGNED)
    return unpacked(build_fab_from_disk(app))
