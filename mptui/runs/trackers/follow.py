"""Sends scalars to trackers in a separate thread, through a bounded buffer.

A slow disk or network doesn't delay the run, and a failing tracker is disabled with a warning.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from mptui.config.schema import RunConfig
from mptui.events import Event
from mptui.registry.trackers import Tracker, chosen_trackers
from mptui.runs.view.event_buffer import EventBuffer
from mptui.runs.view.events.event_registry import EVENTS

POLL_S = 1.0

Warn = Callable[[str, str], None]


def scalars_of(event: Event) -> dict[str, float]:
    """Return the scalars of an event by their names in trackers; empty if it has none."""
    return {name: value for name, value in EVENTS[event.kind].scalars(event) if value is not None}


@contextlib.contextmanager
def follow(config: RunConfig, run: Path, listen: Callable[[], EventBuffer], warn: Warn) -> Iterator[None]:
    """Send scalars to the configured trackers until the context ends.

    Args:
        config: The configuration of the run.
        run: The run directory.
        listen: Returns a buffer that receives all events from now on.
        warn: Called with a code and a message for each tracker that fails.
    """
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


def _open(config: RunConfig, run: Path, warn: Warn) -> list[Tracker]:
    document = config.model_dump()
    trackers: list[Tracker] = []
    for name, spec in chosen_trackers(document["logging"]).items():
        try:
            trackers.append(spec.open(run, document))
        except ImportError:
            message = f"{name} is not installed and is not used: pip install {spec.package}"
            warn(f"{name}_missing", message)
        except Exception as error:  # noqa: BLE001 - another project's code; the run continues without it
            warn(f"{name}_failed", f"{name} can't be used: {error}")
    return trackers


def _close(tracker: Tracker, warn: Warn) -> None:
    try:
        tracker.close()
    except Exception as error:  # noqa: BLE001 - another project's code; it does not change how the run ended
        warn("tracker_failed", f"{type(tracker).__name__} could not write its last data: {error}")


def _log(trackers: list[Tracker], scalars: dict[str, float], step: int, warn: Warn) -> None:
    for tracker in list(trackers):
        try:
            tracker.log(scalars, step)
        except Exception as error:  # noqa: BLE001 - another project's code; the run continues without it
            trackers.remove(tracker)
            warn("tracker_failed", f"{type(tracker).__name__} failed and is disabled: {error}")
