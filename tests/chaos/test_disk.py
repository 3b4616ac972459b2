"""A disk that fills up during a real run: the run waits, warns, and continues without losing a step."""

import errno
import math
import os
import shutil
import signal
import subprocess
import time

import pytest

from mptui.engine.checkpoint.files import read_newest
from mptui.engine.mailbox import INSIST_S
from mptui.events import Paused, Recovered, Step, Warned
from mptui.runs.store.directory import read_summary
from mptui.runs.store.journal import read_journal
from tests.chaos.killer import outcome_of
from tests.chaos.runs import LIMIT_S, LONG, UNET, Case, finished, in_phase, started, stepped, wait_for
from tests.made.waiting import wait_until
from tests.program import Program, run_to_end

pytestmark = pytest.mark.program


def kinds(run, kind):
    return [event for event in read_journal(run) if isinstance(event, kind)]


CHAOS = [pytest.param(error, marks=pytest.mark.chaos) for error in (errno.EIO, errno.EROFS)]


@pytest.mark.parametrize("error", [errno.ENOSPC, *CHAOS], ids=["ENOSPC", "EIO", "EROFS"])
def test_a_run_waits_for_its_disk_and_loses_no_step(fork_server, tmp_path, undisturbed, error):
    fault = {"at": 50, "when": "half", "error": error, "count": 2, "only": ["write"]}
    child = started(fork_server, UNET, tmp_path, "run", fault)
    assert child.wait(LIMIT_S) == 0, child.output()
    run = tmp_path / "run"
    assert outcome_of(run) == undisturbed
    assert kinds(run, Paused)
    assert any(event.problem == "disk" for event in kinds(run, Recovered))
    (warning,) = [event for event in kinds(run, Warned) if event.code == "disk"]
    assert os.strerror(error).lower() in warning.message
    assert "MiB are needed" in warning.message
    assert "are free" in warning.message


@pytest.mark.slow
def test_a_stop_while_it_waits_ends_with_seven_and_the_older_checkpoint_whole(
    fork_server, tmp_path, undisturbed
):
    fault = {"at": 5, "error": errno.ENOSPC, "count": math.inf, "only": ["mkdir"]}  # two a save
    child = started(fork_server, UNET, tmp_path, "run", fault)
    wait_for(child, tmp_path / "run", in_phase("paused"))
    child.send(signal.SIGTERM)
    assert child.wait(LIMIT_S) == 7, child.output()
    assert "no space left" in child.output()
    assert "Traceback" not in child.output()
    snapshot, complaints = read_newest(tmp_path / "run" / "checkpoints")
    assert snapshot.step > 0
    assert complaints == []
    assert outcome_of(finished(fork_server, UNET, tmp_path, "run")) == undisturbed


def test_a_stop_command_says_which_steps_a_full_disk_loses_and_fails_with_the_run(fork_server, tmp_path):
    fault = {"at": 5, "error": errno.ENOSPC, "count": math.inf, "only": ["mkdir"]}
    child = started(fork_server, UNET.but(checkpoint__every_steps=1), tmp_path, "run", fault)
    run = tmp_path / "run"
    wait_for(child, run, in_phase("paused"))
    first = Program("stop", "run", "--runs-dir", tmp_path)
    wait_for(child, run, lambda events: any("asked to stop" in e.message for e in warnings(events)))
    time.sleep(INSIST_S)  # what comes within it is the same request on another way
    second = run_to_end("stop", "run", "--runs-dir", tmp_path)
    _, told = first.communicate()
    assert child.wait(LIMIT_S) == 7, child.output()
    saved = read_newest(run / "checkpoints")[0].step
    lost = f"since the checkpoint of step {saved} "
    assert (first.returncode, second.returncode) == (7, 7)
    assert "asked to stop while a save waits" in told
    assert lost in told
    assert lost in second.stdout
    assert "no space left" in second.stdout
    assert lost in child.output()
    assert read_summary(run)["lost"] == {
        "steps": read_summary(run)["optimizer_steps"] - saved,
        "since": saved,
    }


@pytest.mark.slow
def test_the_disk_that_has_room_again_after_a_stop_saves_all(fork_server, tmp_path):
    fault = {"at": 5, "error": errno.ENOSPC, "count": 3, "only": ["mkdir"]}
    child = started(fork_server, LONG.but(checkpoint__every_steps=1), tmp_path, "run", fault)
    run = tmp_path / "run"
    wait_for(child, run, in_phase("paused"))
    child.send(signal.SIGTERM)
    assert child.wait(LIMIT_S) == 143, child.output()
    steps = [event.step for event in kinds(run, Step)]
    assert read_newest(run / "checkpoints")[0].step == steps[-1]


def warnings(events):
    return [event for event in events if isinstance(event, Warned)]


def test_a_run_s_directory_that_is_gone_for_a_while_is_waited_for(fork_server, tmp_path):
    """As with a disk that is unmounted and mounted again: the directory isn't recreated."""
    run, away = tmp_path / "runs" / "run", tmp_path / "away"
    case = UNET.but(training__epochs=100_000)
    child = started(fork_server, case, run.parent, "run", output=tmp_path / "said")
    wait_for(child, run, stepped(3))
    run.rename(away)
    wait_until(lambda: "the run waits" in child.output() or child.poll() is not None, child.output)
    assert child.poll() is None, child.output()
    assert list(run.parent.iterdir()) == []
    away.rename(run)
    wait_for(child, run, lambda events: any(isinstance(event, Recovered) for event in events))
    child.send(signal.SIGTERM)
    assert child.wait(LIMIT_S) == 143, child.output()
    steps = [event.step for event in kinds(run, Step)]
    assert steps == list(range(1, len(steps) + 1))
    assert read_newest(run / "checkpoints")[0].step == steps[-1]
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 16 MiB; only root can mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "mptui-test", str(place)]
    subprocess.run(mount, check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place):
    """Fill all but a little of the free space."""
    with (place / "filler").open("wb") as file:
        file.write(b"\0" * (shutil.disk_usage(place).free - 200_000))
    with (place / "filler 2").open("wb") as file:
        file.write(b"\0" * max(0, shutil.disk_usage(place).free - 4096))


@pytest.mark.chaos
def test_a_real_disk_that_is_full_for_a_while(fork_server, tmp_path, small_disk):
    case = UNET.but(training__epochs=6)
    expected = outcome_of(finished(fork_server, case, tmp_path, "undisturbed"))
    runs = small_disk / "runs"
    child = started(fork_server, case, runs, "run", output=tmp_path / "said")
    wait_for(child, runs / "run", lambda events: len(events) > 20)
    fill(small_disk)
    wait_until(lambda: "the run waits" in child.output() or child.poll() is not None, child.output)
    assert child.poll() is None, child.output()
    for filler in small_disk.glob("filler*"):
        filler.unlink()
    assert child.wait(LIMIT_S) == 0, child.output()
    assert outcome_of(runs / "run") == expected
    assert read_summary(runs / "run")["status"] == "completed"


@pytest.mark.chaos
def test_too_small_a_disk_is_told_before_the_start(fork_server, tmp_path, small_disk):
    case = Case("large", ("--model", "resnet18"), {"data.image_size": 32, "data.samples": 16})
    child = started(fork_server, case, small_disk, "run", output=tmp_path / "said")
    assert child.wait(LIMIT_S) == 7
    assert "MiB are needed" in child.output()
    assert "are free" in child.output()
    assert "Traceback" not in child.output()
