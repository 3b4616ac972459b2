"""Trackers of other projects: what goes wrong in them is told, and is not the run's."""

import pytest

from mptui.config.schema import RunConfig
from mptui.events import Step
from mptui.runs import trackers
from mptui.runs.buffer import EventBuffer

STEP = Step(
    step=3, epoch=1, epoch_step=3, steps=1, samples_seen=24, loss=0.5, loss_min=0.5, loss_max=0.5, lr=0.1
)


class Broken:
    """Fails in one of its calls."""

    def __init__(self, call):
        self.call = call
        self.logged = []

    def log(self, scalars, step):
        self.logged.append((step, scalars["train/loss"]))
        if self.call == "log":
            raise OSError("no space left")

    def close(self):
        if self.call == "close":
            raise OSError("no space left")


@pytest.mark.parametrize("call", ["log", "close"])
def test_one_that_fails_ends_no_run(tmp_path, monkeypatch, call):
    broken, told, buffer = Broken(call), [], EventBuffer()
    monkeypatch.setattr(trackers, "_open", lambda *_: [broken])
    with trackers.follow(RunConfig(), tmp_path, lambda: buffer, lambda *warning: told.append(warning)):
        buffer.put(STEP)
    assert broken.logged == [(3, 0.5)]
    ((code, message),) = told
    assert code == "tracker_failed"
    assert "no space left" in message
