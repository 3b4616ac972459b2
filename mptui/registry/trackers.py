"""The experiment trackers by name, as `logging.trackers` has them. Opening one imports its package."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Receives scalars by name and step."""

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Log the scalars of one step."""

    def close(self) -> None:
        """Write what is still buffered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSpec:
    """A tracker.

    Attributes:
        open: Called as `open(run, config)` with the run directory and the configuration (table -> key ->
            value) when a run begins, and again when it is resumed. ImportError: its package is missing.
        package: What it is installed with and imported as.
        setting: A key of [logging] that also asks for it.
    """

    open: Callable[[Path, Mapping[str, Any]], Tracker]
    package: str
    setting: str | None = None


def _tensorboard(run: Path, _: Mapping[str, Any]) -> Tracker:
    from mptui.runs.trackers.tensorboard_files import TensorBoard

    return TensorBoard(run)


def _wandb(run: Path, config: Mapping[str, Any]) -> Tracker:
    from mptui.runs.trackers.weights_and_biases import WeightsAndBiases

    return WeightsAndBiases(run, config)


TRACKERS: dict[str, TrackerSpec] = {
    "tensorboard": TrackerSpec(open=_tensorboard, package="tensorboard", setting="tensorboard"),
    "wandb": TrackerSpec(open=_wandb, package="wandb", setting="wandb_project"),
}


def chosen_trackers(logging: Mapping[str, Any]) -> dict[str, TrackerSpec]:
    """The trackers that a table [logging] asks for, by name."""
    return {
        name: spec
        for name, spec in TRACKERS.items()
        if name in logging["trackers"] or (spec.setting is not None and logging[spec.setting])
    }
