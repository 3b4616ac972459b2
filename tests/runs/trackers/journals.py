"""Journals to feed trackers from, and the feeding of them in this process."""

from dataclasses import replace

from mptui.config.schema import LoggingConfig, RunConfig
from mptui.events import RunFinished
from mptui.registry.trackers import chosen_trackers
from mptui.testing import tracker
from mptui.testing.tracker import BEGAN, course


def step(number, **changes):
    return replace(next(course(number, number)), **{"grad_norm": None, **changes})


def end(last, status="completed"):
    return RunFinished(time=BEGAN + last + 1, step=last, status=status, exit_code=0)


def config(**logging):
    return RunConfig(logging=LoggingConfig(**logging))


def feed(run, **logging):
    """Feed trackers what the journal has; return (kind, tracker, message) of each."""
    document = config(**logging).model_dump(mode="json")
    return tracker.feed(run, chosen_trackers(document["logging"]), document)
