"""What a run relies on from a tracker, as tests; see `mptui.testing`."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mptui.config.schema import RunConfig
from mptui.events import EpochFinished, Event, Step, Validated, Warned
from mptui.registry.trackers import TrackerSpec
from mptui.runs.store.journal import Journal, read_journal
from mptui.runs.trackers.feeder import Feeder, TrackerState, scalars_of

BEGAN = 1_790_000_000.0
"""Seconds since the epoch at which the runs of these tests begin."""
Scalar = tuple[float, int, str, float]
"""Time, step, name and value."""
Report = tuple[str, str, str]
"""How a feeding ended: `done` or another kind, the tracker, and a message or the number of events."""

_NAME = "contract"


def course(first: int, last: int) -> Iterator[Any]:
    """Yield the events of an epoch with the steps from `first` to `last`; one of them has no scalar."""
    for number in range(first, last + 1):
        yield Step(
            time=BEGAN + number,
            step=number,
            epoch=1,
            epoch_step=number,
            steps=1,
            samples_seen=8 * number,
            loss=1 / (number + 2),
            loss_min=0.1,
            loss_max=0.9,
            lr=0.1,
            grad_norm=number / 3,
        )
    end = BEGAN + last + 0.5
    yield Warned(time=end, step=last, code="x", message="no scalar")
    yield Validated(time=end, step=last, epoch=1, loss=0.7, metrics={"acc1": 0.8}, seconds=1.0, best=True)
    yield EpochFinished(
        time=end,
        step=last,
        epoch=1,
        epochs=2,
        train_loss=0.6,
        train_metrics={"acc1": 0.75},
        val_loss=0.7,
        val_metrics={"acc1": 0.8},
        lr=0.1,
        seconds=5.0,
    )


def write(run: Path, *events: Event) -> None:
    """Append events to the journal of a run, as the process that trains it does."""
    run.mkdir(exist_ok=True)
    journal = Journal(run)
    for event in events:
        journal.write(event)
    journal.close()


def feed(run: Path, trackers: Mapping[str, TrackerSpec], document: Mapping[str, Any]) -> list[Report]:
    """Feed trackers what the journal has, in this process; `document` is the configuration of the run."""
    reports: list[Report] = []
    ended, state = threading.Event(), TrackerState(run)
    ended.set()
    for name, spec in trackers.items():
        Feeder(
            name,
            spec,
            run,
            document,
            state=state,
            ending=ended,
            report=lambda *report: reports.append(report),
        ).run()
    return reports


def scalars_in(run: Path) -> list[Scalar]:
    """Return each scalar of the journal, in its order."""
    return [
        (event.time, event.step, name, value)
        for event in read_journal(run)
        for name, value in scalars_of(event).items()
    ]


class TrackerContract:
    """What a run relies on from a tracker, an entry of `TRACKERS`.

    A subclass has the fixture `spec` and the method `read`; and `logging`, `stored` where they differ.
    """

    @pytest.fixture
    def spec(self) -> TrackerSpec:
        """The entry."""
        raise NotImplementedError

    @pytest.fixture
    def logging(self) -> Mapping[str, Any]:
        """Keys of [logging] and their values."""
        return {}

    def read(self, run: Path) -> list[Scalar]:
        """Return each scalar that the tracker has of a run, by the reader that a person would use."""
        raise NotImplementedError

    def stored(self, value: float) -> float:
        """Return a value of the journal as the tracker has it."""
        return value

    @pytest.fixture
    def run(self, tmp_path: Path) -> Path:
        """The directory of a run, in a folder of its own, which a person has renamed."""
        return tmp_path / "runs" / "a run (copied), ü"

    @pytest.fixture(autouse=True)
    def _feeding(
        self, spec: TrackerSpec, logging: Mapping[str, Any], run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        document = RunConfig.model_validate({"logging": logging}).model_dump(mode="json")
        run.parent.mkdir()
        days = count()

        def fed(run: Path) -> list[Report]:
            later = time.time() + 86_400 * next(days)
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda: later)
                return feed(run, {_NAME: spec}, document)

        self._feed = fed

    def _assert_it_has_all(self, run: Path) -> None:
        expected = [(*entry[:3], self.stored(entry[3])) for entry in scalars_in(run)]
        assert sorted(self.read(run)) == sorted(expected)

    def test_it_has_each_scalar_once_over_all_resumes(self, run: Path) -> None:
        """A resume goes on where the run was, and a value need not be finite."""
        write(run, *course(1, 12))
        assert self._feed(run) == [("done", _NAME, "14")]
        assert self._feed(run) == [("done", _NAME, "0")]
        first, *others = course(13, 20)
        write(run, replace(first, loss=math.inf), *others)
        assert self._feed(run) == [("done", _NAME, "10")]
        self._assert_it_has_all(run)

    def test_what_comes_again_after_a_kill_is_there_once(
        self, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Events are sent again if the process ended before it was stored how far the tracker had got."""
        write(run, *course(1, 10))
        self._feed(run)
        write(run, *course(11, 20))

        def killed(*_: object) -> None:
            raise OSError("killed")

        with monkeypatch.context() as patch:
            patch.setattr(TrackerState, "store", killed)
            assert self._feed(run) == [("failed", _NAME, f"{_NAME}: killed")]
        write(run, *course(21, 25))
        self._feed(run)
        self._assert_it_has_all(run)

    def test_what_it_has_kept_is_not_believed_blindly(self, run: Path) -> None:
        """Entries of another type, as a hostile file has them, are as none."""
        write(run, *course(1, 3))
        self._feed(run)
        own = TrackerState(run).of(_NAME).keys() - {"position", "id"}
        values: list[object] = [None, -1, [], {"a": 1}]
        for number, value in enumerate(values):
            other = run.with_name(f"{run.name} {number}")
            write(other, *course(1, 3))
            TrackerState(other).store(_NAME, dict.fromkeys(own, value))
            assert self._feed(other) == [("done", _NAME, "5")]
            self._assert_it_has_all(other)
