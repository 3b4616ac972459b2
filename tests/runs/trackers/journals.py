"""Journals to feed trackers from, and the feeding of them in this process."""

import threading

from mptui.config.base_tables import LoggingConfig
from mptui.config.schema import RunConfig
from mptui.events import EpochFinished, RunFinished, Step, Validated, Warned
from mptui.registry.trackers import chosen_trackers
from mptui.runs.store.journal import Journal, read_journal
from mptui.runs.trackers.feeder import Feed, scalars_of
from mptui.runs.trackers.tracker_state import TrackerState

BEGAN = 1_790_000_000.0


def step(number, **changes):
    values = {
        "time": BEGAN + number,
        "step": number,
        "epoch": 1,
        "epoch_step": number,
        "steps": 1,
        "samples_seen": 8 * number,
        "loss": 1 / (number + 2),
        "loss_min": 0.1,
        "loss_max": 0.9,
        "lr": 0.1,
    }
    return Step(**{**values, **changes})


def course(first, last):
    """The events of an epoch with the steps from `first` to `last`."""
    end = BEGAN + last + 0.5
    yield from (step(number, grad_norm=number / 3) for number in range(first, last + 1))
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


def end(last, status="completed"):
    return RunFinished(time=BEGAN + last + 1, step=last, status=status, exit_code=0)


def write(run, *events):
    """Append events to the journal of a run, as a process that trains it does."""
    run.mkdir(exist_ok=True)
    journal = Journal(run)
    for event in events:
        journal.write(event)
    journal.close()


def config(**logging):
    return RunConfig(logging=LoggingConfig(**logging))


def feed(run, **logging):
    """Feed trackers what the journal has; return (kind, tracker, message) of each."""
    document = config(**logging).model_dump(mode="json")
    reports, ended, state = [], threading.Event(), TrackerState(run)
    ended.set()
    for name, spec in chosen_trackers(document["logging"]).items():
        Feed(name, spec, run, document, state, ended, lambda *report: reports.append(report)).run()
    return reports


def scalars_in(run):
    """(time, step, name, value) of each scalar of the journal, in its order."""
    return [
        (event.time, event.step, name, value)
        for event in read_journal(run)
        for name, value in scalars_of(event).items()
    ]
