"""Weights & Biases: its own settings (WANDB_PROJECT, WANDB_MODE=offline, …) say where; else the project is fedbayes."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbayes.loggers.worker import About

EXIT = {"finished": 0, "failed": 1, "stopped": 130}
PATIENCE = 30.0  # seconds for a server to answer at the start


class Logger:
    """One run in W&B."""

    def __init__(self) -> None:
        self._run: Any = None

    def start(self, about: About) -> str:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedbayes"),
            name=about.name,
            id=about.uuid,
            resume="allow",  # a run that goes on is the same run
            config={key: value for key, value in about.settings.items() if value is not None},
            allow_val_change=True,
            reinit="create_new",  # beside a run of the caller's own, not in it
            settings=wandb.Settings(silent=True, console="off", init_timeout=PATIENCE, x_disable_stats=True),
        )
        # Rounds that a resumed run writes again have lower steps than W&B's own counter allows.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")
        place = (
            f"in {self._run.dir}, to be sent by `wandb sync`" if self._run.offline else f"at {self._run.url}"
        )
        return f"run {about.uuid} {place}"

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log({**figures, "round": step})

    def finish(self, state: str, files: Sequence[Path]) -> None:
        run = self._run
        for file in files:  # copied: an offline run is sent later, when its folder may be gone
            shutil.copy(file, run.dir)
            run.save(str(Path(run.dir) / file.name), base_path=run.dir, policy="now")
        run.finish(exit_code=EXIT[state])
        import wandb

        # A process of W&B's stays otherwise; it is left to a caller who has a run of their own there.
        if not wandb.setup().most_recent_active_run:
            wandb.teardown()
