"""`fedbayes run --log NAME`: a run's settings, figures and files in MLflow or Weights & Biases, where people keep runs.

Written by the command from the run's events, so a federation elsewhere needs none of it.
"""

from collections.abc import Sequence
from importlib.util import find_spec

from fedbayes.errors import CommandError

# Package, and what to install. A logger NAME is the class `Logger` of the module fedbayes.loggers.NAME_.
KNOWN = {
    "mlflow": ("mlflow", "mlflow-skinny sqlalchemy alembic"),
    "wandb": ("wandb", "wandb"),
}
TENSORBOARD = "tensorboard"  # the same as --tensorboard


def chosen(names: Sequence[str], tensorboard: bool = False) -> tuple[tuple[str, ...], bool]:
    """The loggers, and whether TensorBoard's files are wanted, which `--log tensorboard` asks for too.

    A sentence, before anything is started, for one that does not exist or whose package is missing.
    """
    if tensorboard or TENSORBOARD in names:
        from fedbayes.cli.tensorboard import require_tensorboard

        require_tensorboard()
        tensorboard = True
    logs = tuple(dict.fromkeys(name for name in names if name != TENSORBOARD))
    for name in logs:
        if name not in KNOWN:
            raise CommandError(f'--log takes {", ".join([*KNOWN, TENSORBOARD])}, not "{name}".')
        package, install = KNOWN[name]
        if not _is_installed(package):
            raise CommandError(
                f"--log {name} needs the package {package}; install it with `pip install {install}`."
            )
    return logs, tensorboard


def _is_installed(package: str) -> bool:
    """Without importing it: that takes seconds, and the run's processes are copies of this one."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a package that was hidden
        return False
