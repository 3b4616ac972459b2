"""Trackers of services: Weights & Biases, MLflow, Trackio."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from mptui.events import Event, RunFinished, RunStarted
from mptui.io.files import partial_path
from mptui.registry.names import Kept

# A run of an MLflow experiment: one over all resumes of the run here
# -------------------------------------------------------------------

_MOST_METRICS, _MOST_PARAMS = 1000, 100
"""Of one request, by MLflow's REST API."""
_LONGEST_VALUE = 500
_STATUS = {"completed": "FINISHED", "stopped": "KILLED"}
_SQLITE = "sqlite:///"
_RUNNING = "RUNNING"


class MlflowRun:
    """Logs to MLflow's tracking server, or to its files; both from MLflow's own environment variables."""

    def __init__(self, run: Path, config: Mapping[str, Any], kept: Kept) -> None:
        import mlflow
        from mlflow import MlflowClient
        from mlflow.entities import Metric

        self._metric = Metric
        self._waiting = list[Any]()
        uri = kept.get("uri")
        self._uri = uri if isinstance(uri, str) else _absolute(mlflow.get_tracking_uri())
        _create_database(self._uri)
        self._client = MlflowClient(tracking_uri=self._uri)
        self._status = self._told = kept.get("status", _RUNNING)
        known = kept.get("run_id")
        if isinstance(known, str):
            self._run_id = known
        else:
            kept["position"] = 0
            self._status = self._told = _RUNNING
            self._run_id = self._created(run, config)

    def _created(self, run: Path, config: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        name = config["logging"]["mlflow_experiment"] or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        run_id: str = self._client.create_run(number, run_name=run.resolve().name).info.run_id
        params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in _settings(config)]
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MOST_PARAMS])
        return run_id

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Keep the scalars for the next `flush`."""
        if isinstance(event, RunStarted):
            self._status = _RUNNING
        elif isinstance(event, RunFinished):
            self._status = _STATUS.get(event.status, "FAILED")
        milliseconds = round(event.time * 1000)
        self._waiting += [
            self._metric(name, value, milliseconds, event.step) for name, value in scalars.items()
        ]

    def flush(self) -> Kept:
        """Send the scalars and the status; returns once MLflow has them."""
        while self._waiting:
            self._client.log_batch(self._run_id, metrics=self._waiting[:_MOST_METRICS])
            del self._waiting[:_MOST_METRICS]
        if self._status != self._told:
            if self._status == _RUNNING:
                self._client.update_run(self._run_id, status=_RUNNING)
            else:
                self._client.set_terminated(self._run_id, status=self._status)
            self._told = self._status
        kept = {"run_id": self._run_id, "status": self._status}
        return kept if "@" in self._uri else kept | {"uri": self._uri}  # no password into a file

    def close(self) -> Kept:
        """Send the scalars and the status."""
        return self.flush()


def _absolute(uri: str) -> str:
    """Return an address for every working folder: MLflow's default is a file in this one."""
    path = uri.removeprefix(_SQLITE)
    return f"{_SQLITE}{Path(path).absolute()}" if uri.startswith(_SQLITE) and path else uri


def _create_database(uri: str) -> None:
    """Create a missing SQLite file under another name: MLflow can't open one that was half made."""
    from mlflow import MlflowClient

    path = Path(uri.removeprefix(_SQLITE))
    if not uri.startswith(_SQLITE) or path.exists():
        return
    fresh = partial_path(path)
    try:
        MlflowClient(tracking_uri=f"{_SQLITE}{fresh}").search_experiments(max_results=1)
        with contextlib.suppress(FileExistsError):  # another run has created it in the meantime
            path.hardlink_to(fresh)
    finally:
        fresh.unlink(missing_ok=True)


def _settings(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{prefix}{name}.")
        elif value is not None and value != "":
            yield prefix + name, value


# A run of a Trackio project: one over all resumes of the run here
# ----------------------------------------------------------------

PROJECT = "mptui"
"""Of a run that names none."""


class TrackioRun:
    """Logs to Trackio's database on this machine (TRACKIO_DIR), for its dashboard and `trackio sync`.

    `trackio.log` writes later, and drops what it can't write. So this writes by the function beneath it,
    which returns when the rows are stored, and ignores a row whose ID it has.
    """

    def __init__(self, run: Path, config: Mapping[str, Any], kept: Kept) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        self._store = SQLiteStorage
        self._config = dict(config)
        self._project = config["logging"]["trackio_project"] or PROJECT
        self._name = run.resolve().name
        self._id = kept["id"]
        rows = kept.get("rows")
        self._rows = rows if kept["position"] and isinstance(rows, int) else 0
        self._waiting: list[tuple[Event, dict[str, float]]] = []

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Keep the scalars for the next `flush`."""
        if scalars:
            self._waiting.append((event, scalars))

    def flush(self) -> Kept:
        """Store the scalars."""
        first, events = self._rows, [event for event, _ in self._waiting]
        self._store.bulk_log(
            self._project,
            self._name,
            [scalars for _, scalars in self._waiting],
            steps=[event.step for event in events],
            timestamps=[datetime.fromtimestamp(event.time, timezone.utc).isoformat() for event in events],
            config=None if first else self._config,
            log_ids=[f"{self._id}-{row}" for row in range(first, first + len(events))],
            run_id=self._id,
        )
        self._rows += len(events)
        self._waiting = []
        return {"rows": self._rows}

    def close(self) -> Kept:
        """Store the scalars."""
        return self.flush()


# A run of a Weights & Biases project: one over all resumes of the run here
# -------------------------------------------------------------------------

STEP = "step"
"""The optimizer step, the x-axis of all charts there."""

_INIT_S = 60.0
_NOT_ENDED = 1


class WeightsAndBiases:
    """Logs to W&B; the API key comes from wandb's own environment or login, never from a profile.

    W&B's own step counts the events with scalars. It drops a step that it has: what is sent again after a
    kill or an offline part is there once. What it has is certain only when a run is closed. An offline part
    (WANDB_MODE=offline) stays in the `wandb` folder of the run; when W&B can be reached again, the run is
    sent from its beginning.
    """

    def __init__(self, run: Path, config: Mapping[str, Any], kept: Kept) -> None:
        import wandb

        exit_code = kept.get("exit_code")
        self._exit_code = exit_code if isinstance(exit_code, int) else _NOT_ENDED
        self._run = wandb.init(
            project=config["logging"]["wandb_project"],
            name=config["logging"]["wandb_name"] or run.resolve().name,
            id=kept["id"],
            resume="allow",
            dir=str(run),
            config=dict(config),
            # figures of this process say nothing of the training
            settings=wandb.Settings(
                console="off", x_disable_stats=True, x_disable_meta=True, init_timeout=_INIT_S
            ),
        )
        self._run.define_metric("*", step_metric=STEP)
        self._offline = bool(self._run.offline)
        if kept.get("offline") and not self._offline:
            kept["position"] = 0
        rows = kept.get("rows")
        self._rows = rows if kept["position"] and isinstance(rows, int) else 0

    def log(self, event: Event, scalars: dict[str, float]) -> None:
        """Log the scalars with the time and the step of their event."""
        if isinstance(event, RunStarted):
            self._exit_code = _NOT_ENDED
        elif isinstance(event, RunFinished):
            self._exit_code = event.exit_code
        if scalars:
            row = {**scalars, STEP: event.step, "_timestamp": event.time}
            self._run.log(row, step=self._rows)
            self._rows += 1

    def flush(self) -> None:
        """Nothing: W&B doesn't tell what has arrived before the end."""

    def close(self) -> Kept:
        """Upload what is buffered, and finish the run."""
        import wandb

        self._run.finish(exit_code=self._exit_code)
        wandb.teardown()
        return {"rows": self._rows, "offline": self._offline, "exit_code": self._exit_code}
