"""MLflow: where MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say; else in a local store, experiment "fedbayes"."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbayes.loggers.worker import About

TAG = "fedbayes.uuid"  # by which a run that goes on finds itself
STATES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# MLflow's own patience with a server that is away is half an hour.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
MOST = 100  # parameters in a request
LONGEST = 500  # characters of a parameter


class Logger:
    """One run in MLflow."""

    def __init__(self) -> None:
        self._client: Any = None
        self._run = ""

    def start(self, about: About) -> str:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        import mlflow
        from mlflow.entities import Param, RunTag

        client = mlflow.MlflowClient()
        experiment = _experiment(client, os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedbayes"))
        found = client.search_runs([experiment], f"tags.`{TAG}` = '{about.uuid}'", max_results=1)
        if found:
            self._run, known = found[0].info.run_id, found[0].data.params
            client.update_run(self._run, status="RUNNING")
        else:
            self._run, known = (
                client.create_run(experiment, run_name=about.name, tags={TAG: about.uuid}).info.run_id,
                {},
            )
        self._client = client
        settings = {key: str(value)[:LONGEST] for key, value in about.settings.items()}
        new = [Param(key, value) for key, value in settings.items() if key not in known]
        for place in range(0, len(new), MOST):
            client.log_batch(self._run, params=new[place : place + MOST])
        # A parameter cannot change in MLflow; what a resumed run may change is a tag.
        changed = [
            RunTag(f"now.{key}", value) for key, value in settings.items() if known.get(key, value) != value
        ]
        if changed:
            client.log_batch(self._run, tags=changed)
        return f"run {self._run} at {mlflow.get_tracking_uri()}"

    def log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(
            self._run, metrics=[Metric(name, value, now, step) for name, value in figures.items()]
        )

    def finish(self, state: str, files: Sequence[Path]) -> None:
        client = self._client
        for file in files:
            client.log_artifact(self._run, str(file))
        client.set_terminated(self._run, STATES[state])


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))
