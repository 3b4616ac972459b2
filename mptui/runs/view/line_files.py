"""train.log and device.csv: what happened in a run as lines of text, for grep, awk and spreadsheets.

The journal has all of it, too: a line that can't be written waits, and the oldest are dropped.
"""

import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from mptui.events import DeviceSample, EpochFinished, EpochStarted, Event, RunFinished, Step
from mptui.hardware.device_rows import csv_header, csv_row
from mptui.io.line_file import LineFile
from mptui.runs.view.events.event_registry import EVENTS
from mptui.runs.view.events.training_specs import step_words
from mptui.text import clean

TRAIN_LOG, DEVICE_CSV = "train.log", "device.csv"
_STEPS_EVERY_S = 10.0
_MOST_WAITING = 10_000


class _Lines:
    """Lines that wait to be appended to a file."""

    def __init__(self, path: Path, header: str = "") -> None:
        self._path, self._header = path, header
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._file: LineFile | None = None

    def add(self, line: str) -> None:
        """Append a line with the next `write`; any thread may call it."""
        self._waiting.append(line)

    def write(self) -> None:
        """Write what waits. One thread at a time.

        Raises:
            OSError: The disk is full or gone; the lines wait.
        """
        lines = list(self._waiting)
        if not lines:
            return
        if self._file is None:
            self._file = LineFile(self._path, self._header)
        self._file.append(lines)
        for _ in lines:
            self._waiting.popleft()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class TrainLog(_Lines):
    """train.log: the lines of a console with the time, and a step every ten seconds and at an epoch's end."""

    def __init__(self, run: Path) -> None:
        super().__init__(run / TRAIN_LOG)
        self._steps = 0
        self._step: Step | None = None
        self._step_at = 0.0

    def handle(self, event: Event) -> None:
        """Add the lines of an event, if it has any."""
        if isinstance(event, EpochStarted):
            self._steps = event.steps
        elif isinstance(event, Step):
            self._step = event
            if not 0 <= event.time - self._step_at < _STEPS_EVERY_S:
                self._add_step()
        elif isinstance(event, EpochFinished | RunFinished):
            self._add_step()
        spec = EVENTS[event.kind]
        lines = [text for text, _ in spec.log_lines(event)] if isinstance(event, RunFinished) else ()
        for line in lines or spec.console_lines(event):
            self._say(event.time, line)

    def _add_step(self) -> None:
        if (step := self._step) is None:
            return
        self._step, self._step_at = None, step.time
        self._say(step.time, step_words(step, self._steps))

    def _say(self, moment: float, words: str) -> None:
        self.add(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment))}  {clean(words)}")


class DeviceCsv(_Lines):
    """device.csv: a row for each sample of the device, in the columns of `mptui monitor --csv`."""

    def __init__(self, run: Path) -> None:
        super().__init__(run / DEVICE_CSV, csv_header())
        self._processes: DeviceSample | None = None

    def handle(self, event: Event) -> None:
        """Add the row of a sample."""
        if not isinstance(event, DeviceSample):
            return
        if event.processes is not None:
            self._processes = event
        elif self._processes is not None:
            event = replace(event, processes=self._processes.processes)
        self.add(csv_row(event))
