"""The time of a run is that of all its processes, without pauses."""

import shutil
import time

from mptui.engine.mailbox import Command
from mptui.events import Paused, RunFinished
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from mptui.runs.store.journal import read_journal
from tests.made.runs import UNET, plan_of

TIME_S, PAUSE_S = 1.6, 1.5


def trained(run, time_of_run, *, resume=False, stops=False):
    """Train with a pause at the beginning, and stop after it or go on; return the result."""
    session = Session(plan_of(UNET | {"training.time": time_of_run}), run, resume=resume)
    session.mailbox.post(Command("pause"))
    heard = session.listen()
    session.start()
    while not session.finished:
        heard.wait(0.1)
        for event in heard.drain():
            if isinstance(event, Paused):
                time.sleep(PAUSE_S)  # what is tested
                if stops:
                    session.mailbox.stop(None)
                session.send("resume")
    return session.result


def test_a_pause_and_a_restart_leave_a_run_all_of_its_time(tmp_path):
    run = create_run(tmp_path, "test", "unet", None)
    assert trained(run, "1h", stops=True).status == "stopped"
    assert trained(run, f"{TIME_S}s", resume=True).status == "completed"
    last = [event for event in read_journal(run) if isinstance(event, RunFinished)][-1]
    assert (last.total_s or 0.0) > TIME_S / 3 + 2 * PAUSE_S  # it ends up to a validation before its time


def test_a_process_that_saved_nothing_has_taken_its_time(tmp_path):
    run = create_run(tmp_path, "test", "unet", None)
    first = Session(plan_of(UNET | {"training.time": "0.8s"}), run)
    first.start()
    assert first.wait(60)
    shutil.rmtree(run / "checkpoints")
    second = Session(plan_of(UNET | {"training.time": "0.8s"}), run, resume=True)
    second.start()
    assert second.wait(60)
    assert second.result.status == "completed"
    steps = [event.step for event in read_journal(run) if isinstance(event, RunFinished)]
    assert steps[1] < steps[0] / 2


def test_what_a_process_took_before_it_trains_is_of_the_time(tmp_path):
    run = create_run(tmp_path, "test", "unet", None)
    session = Session(plan_of(UNET | {"training.time": "1h"}), run, begun_s=3599.0)
    session.start()
    assert session.wait(60)
    assert session.result.status == "completed"
