"""Trackers people already use, fed from the same events as the screens: TensorBoard and Weights & Biases.

They run in a thread of their own behind a bounded buffer: a slow disk or network costs the run nothing, and a
tracker that fails is left behind with a warning.
"""

import contextlib
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from mptui.config.schema import RunConfig
from mptui.events import Event
from mptui.runs.store.directory import VERSION, read_json, write_json
from mptui.runs.view.event_buffer import EventBuffer
from mptui.runs.view.events.event_registry import EVENTS

POLL_S = 1.0

NAME = "trackers.json"
"""What trackers call the run, in its directory."""

_WANDB_ID = re.compile(r"[A-Za-z0-9._+-]{1,128}")


class Tracker(Protocol):
    """Takes scalars by name and step."""

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Take the scalars of one step."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Event files in the run's `tensorboard` folder."""

    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Take the scalars of one step."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """A run of a W&B project; the key comes from its own environment or login, never from a profile."""

    def __init__(self, run: Path, config: RunConfig) -> None:
        import wandb

        self._run = wandb.init(
            project=config.logging.wandb_project,
            name=config.logging.wandb_name or run.name,
            id=_wandb_id(run),
            resume="allow",
            dir=str(run),
            config=config.model_dump(),
        )

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Take the scalars of one step."""
        self._run.log(scalars, step=step)

    def close(self) -> None:
        """Write what is left."""
        self._run.finish()


def _wandb_id(run: Path) -> str:
    """The run's id at W&B, kept in its directory: a run that is resumed goes on there too.

    Raises:
        DiskError: It can't be kept.
    """
    kept = read_json(run / NAME).get("wandb_id")
    if isinstance(kept, str) and _WANDB_ID.fullmatch(kept):
        return kept
    fresh = f"{run.name[:64]}-{secrets.token_hex(4)}"  # two runs of one name are two there
    write_json(run / NAME, {"version": VERSION, "wandb_id": fresh})
    return fresh


def scalars_of(event: Event) -> dict[str, float]:
    """The scalars of an event, by the names they have in a tracker; empty where it has none."""
    return {name: value for name, value in EVENTS[event.kind].scalars(event) if value is not None}


@contextlib.contextmanager
def follow(
    config: RunConfig, run: Path, listen: Callable[[], EventBuffer], warn: Callable[[str, str], None]
) -> Iterator[None]:
    """Feed the configured trackers while the context lasts."""
    trackers = _open(config, run, warn)
    if not trackers:
        yield
        return
    buffer = listen()
    ending = threading.Event()

    def feed() -> None:
        while True:
            last = ending.wait(POLL_S)
            for event in buffer.drain():
                if scalars := scalars_of(event):
                    _log(trackers, scalars, event.step, warn)
            if last:
                return

    thread = threading.Thread(target=feed, name="mptui-trackers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
        for tracker in trackers:
            _close(tracker, warn)


def _open(config: RunConfig, run: Path, warn: Callable[[str, str], None]) -> list[Tracker]:
    makers: dict[str, Callable[[], Tracker]] = {}
    if config.logging.tensorboard:
        makers["tensorboard"] = lambda: TensorBoard(run)
    if config.logging.wandb_project is not None:
        makers["wandb"] = lambda: WeightsAndBiases(run, config)
    trackers: list[Tracker] = []
    for name, make in makers.items():
        try:
            trackers.append(make())
        except ImportError:
            warn(f"{name}_missing", f"{name} is not installed, so nothing goes there: pip install {name}")
        except Exception as error:  # noqa: BLE001 - another project's code; the run goes on without it
            warn(f"{name}_failed", f"{name} can't be used: {error}")
    return trackers


def _close(tracker: Tracker, warn: Callable[[str, str], None]) -> None:
    try:
        tracker.close()
    except Exception as error:  # noqa: BLE001 - another project's code; how the run ended stands
        warn("tracker_failed", f"{type(tracker).__name__} could not write what was left: {error}")


def _log(
    trackers: list[Tracker], scalars: dict[str, float], step: int, warn: Callable[[str, str], None]
) -> None:
    for tracker in list(trackers):
        try:
            tracker.log(scalars, step)
        except Exception as error:  # noqa: BLE001 - another project's code; the run goes on without it
            trackers.remove(tracker)
            warn("tracker_failed", f"{type(tracker).__name__} failed and is left out from now on: {error}")
