"""The experiment trackers by name, as `logging.trackers` has them. Opening one imports its package."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptui.registry.names import Kept, Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSpec:
    """A tracker.

    Attributes:
        open: Called as `open(run, config, kept)` with the run directory, the configuration (table -> key ->
            value) and what the tracker has kept, when a run begins, and again when it is resumed. It may set
            `kept["position"]` to 0 to get all events again. ImportError: its package is missing.
        package: What it is imported as; the extra that installs it has the name of the tracker.
        setting: A key of [logging] that also asks for it.
    """

    open: Callable[[Path, Mapping[str, Any], Kept], Tracker]
    package: str
    setting: str | None = None


def _csv(run: Path, _: Mapping[str, Any], kept: Kept) -> Tracker:
    from mptui.runs.trackers.local_files import CsvFile

    return CsvFile(run, kept)


def _tensorboard(run: Path, _: Mapping[str, Any], kept: Kept) -> Tracker:
    from mptui.runs.trackers.local_files import TensorBoard

    return TensorBoard(run, kept)


def _wandb(run: Path, config: Mapping[str, Any], kept: Kept) -> Tracker:
    from mptui.runs.trackers.services import WeightsAndBiases

    return WeightsAndBiases(run, config, kept)


def _mlflow(run: Path, config: Mapping[str, Any], kept: Kept) -> Tracker:
    from mptui.runs.trackers.services import MlflowRun

    return MlflowRun(run, config, kept)


def _trackio(run: Path, config: Mapping[str, Any], kept: Kept) -> Tracker:
    from mptui.runs.trackers.services import TrackioRun

    return TrackioRun(run, config, kept)


TRACKERS: dict[str, TrackerSpec] = {
    "csv": TrackerSpec(open=_csv, package="csv"),
    "tensorboard": TrackerSpec(open=_tensorboard, package="tensorboard", setting="tensorboard"),
    "wandb": TrackerSpec(open=_wandb, package="wandb", setting="wandb_project"),
    "mlflow": TrackerSpec(open=_mlflow, package="mlflow", setting="mlflow_experiment"),
    "trackio": TrackerSpec(open=_trackio, package="trackio", setting="trackio_project"),
}


def chosen_trackers(logging: Mapping[str, Any]) -> dict[str, TrackerSpec]:
    """The trackers that a table [logging] asks for, by name."""
    by_setting = [name for name, spec in TRACKERS.items() if spec.setting and logging[spec.setting]]
    asked = {*logging["trackers"], *by_setting}
    return {name: spec for name, spec in TRACKERS.items() if name in asked}
