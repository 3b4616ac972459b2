"""A journal that another program changes while its run goes is continued, and the change is told."""

import os
from functools import partial

import pytest

from mptui.engine.mailbox import Command
from mptui.events import Paused, Step, Warned
from mptui.runs.store import journal
from mptui.runs.store.index import read_index
from mptui.runs.store.journal import read_journal
from tests.made.runs import UNET, session_of

slow = partial(pytest.param, marks=pytest.mark.slow)


def cut(path):
    """Leave half of the file, as a program does that rotates or syncs it."""
    os.truncate(path, path.stat().st_size // 2)


def emptied(path):
    os.truncate(path, 0)


def removed(path):
    path.unlink()


def edited(path):
    """Replace the file by one of the same length."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(path.read_bytes().replace(b"fp32", b"FP32"))
    fresh.replace(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (cut, "bytes fewer"),
        slow(emptied, "all earlier events are lost"),
        (removed, "all earlier events are lost"),
        (edited, "the same length"),
    ],
)
def test_a_journal_that_is_changed_during_a_run_is_told(tmp_path, change, told):
    run = tmp_path / "run"
    session = session_of(run, UNET | {"training.epochs": 1})
    heard = session.listen()
    session.mailbox.post(Command("pause"))
    session.start()
    events = []
    while not session.finished:
        heard.wait(0.1)
        for event in heard.drain():
            events.append(event)
            if isinstance(event, Paused):
                change(run / journal.NAME)
                session.send("resume")
    events += heard.drain()
    assert session.result.exit_code == 0, session.result.bug
    kept = list(read_journal(run))
    for told_events in (events, kept):
        (warning,) = [event for event in told_events if isinstance(event, Warned) and event.code == "journal"]
        assert told in warning.message
        assert str(run / journal.NAME) in warning.message
    assert [event.step for event in kept if isinstance(event, Step)][-1] == 4
    _, position = read_index(run)
    assert position == (run / journal.NAME).stat().st_size
