"""The course of a trained run, read from its files."""

import contextlib
from dataclasses import dataclass

from mptui.config.merge import resolve
from mptui.events import EpochFinished, Validated
from mptui.lab.use.trained import Trained
from mptui.registry.tasks import VAL_LOSS
from mptui.runs.store import journal
from mptui.runs.store.directory import CONFIG, read_summary
from mptui.runs.store.journal_reader import read_events


@dataclass(frozen=True, slots=True)
class Course:
    """The course of a run.

    Attributes:
        epochs: Its epochs.
        validated: The validation at the checkpoint that is used, if there was one.
        precision: The precision that it was trained in; "": unknown.
        weights: What its weights were at the start, as `model.weights`; None: random.
    """

    epochs: list[EpochFinished]
    validated: Validated | None
    precision: str
    weights: str | None

    @property
    def measured(self) -> dict[str, float] | None:
        """The loss, as `val_loss`, and the metrics at the checkpoint; None if it was not validated."""
        found = self.validated
        return None if found is None else {VAL_LOSS: found.loss, **found.metrics}


def course_of(trained: Trained) -> Course:
    """Read the course of a run from its files; an unreadable journal has no epochs."""
    epochs: dict[int, EpochFinished] = {}
    validated = None
    with contextlib.suppress(OSError):
        for _, events in read_events(trained.run / journal.NAME, 0):
            for event in events:
                if isinstance(event, EpochFinished):
                    epochs[event.epoch] = event
                elif isinstance(event, Validated) and event.step == trained.step:
                    validated = event
    precision = read_summary(trained.run).get("precision", {}).get("used")
    config = resolve(str(trained.run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    return Course(
        [epochs[number] for number in sorted(epochs)], validated, str(precision or ""), config.model.weights
    )
