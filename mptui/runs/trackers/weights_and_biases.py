"""A run of a Weights & Biases project: one over all resumes of the run here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptui.events import Event, RunFinished, RunStarted
from mptui.registry.tracker import Kept

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
