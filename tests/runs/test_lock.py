"""Who owns a run: one process, whatever others want, and it knows when it no longer does."""

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from mptui.errors import RunDirectoryError
from mptui.runs import lock as locks
from mptui.runs.directory import claim, status_of
from mptui.runs.lock import LOST_AFTER_S, holder_of, owner_of


@pytest.fixture
def other_owner(tmp_path):
    """Another process that has claimed the run, and lives until its input ends."""
    code = (
        "import pathlib, sys; from mptui.runs.directory import claim; "
        "claim(pathlib.Path(sys.argv[1])); print('claimed', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"claimed\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_of_a_living_process_is_refused(tmp_path, other_owner):
    assert owner_of(tmp_path) == other_owner.pid
    assert status_of(tmp_path)["status"] == "running"
    with pytest.raises(RunDirectoryError, match=f"process {other_owner.pid} is training"):
        claim(tmp_path)
    assert owner_of(tmp_path) == other_owner.pid


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, other_owner):
    other_owner.kill()
    other_owner.wait()
    assert owner_of(tmp_path) is None
    assert status_of(tmp_path)["status"] == "crashed"
    claim(tmp_path)
    assert owner_of(tmp_path) == os.getpid()


def test_a_killed_process_owns_nothing_before_anyone_has_asked_how_it_ended(tmp_path, other_owner):
    other_owner.kill()
    os.waitid(os.P_PID, other_owner.pid, os.WEXITED | os.WNOWAIT)
    assert owner_of(tmp_path) is None


def test_another_process_that_got_the_number_is_no_owner(tmp_path):
    claim(tmp_path)
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "started": 1.0}))
    assert owner_of(tmp_path) is None


def test_a_lock_from_before_the_last_boot_is_stale(tmp_path):
    claim(tmp_path)
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "boot": "another"}))
    os.utime(lock, (1, 1))
    assert holder_of(tmp_path) is None


@pytest.fixture
def elsewhere(tmp_path):
    """A lock that another machine wrote to a shared disk."""
    (tmp_path / "lock.json").write_text(
        json.dumps({"version": 1, "pid": os.getpid(), "started": 1.0, "boot": "another", "host": "node\x1b7"})
    )
    return tmp_path / "lock.json"


def test_a_run_of_a_living_process_of_another_machine_is_refused_in_words(tmp_path, elsewhere):
    assert owner_of(tmp_path) is None
    assert status_of(tmp_path)["status"] == "running"
    with pytest.raises(RunDirectoryError) as refused:
        claim(tmp_path)
    assert rf"process {os.getpid()} on node\x1b7 is training this run" in refused.value.message
    assert "lock.json" in refused.value.hint
    assert elsewhere.exists()


def test_a_run_that_another_machine_has_long_not_touched_is_taken_over(tmp_path, elsewhere):
    gone = time.time() - LOST_AFTER_S - 60
    os.utime(elsewhere, (gone, gone))
    assert status_of(tmp_path)["status"] == "crashed"
    claim(tmp_path)
    assert owner_of(tmp_path) == os.getpid()


def yes():
    return True


def no():
    return False


def test_the_owner_touches_its_lock_so_that_other_machines_see_it_live(tmp_path, monkeypatch):
    mine, lock = claim(tmp_path), tmp_path / "lock.json"
    os.utime(lock, (1, 1))
    mine.keep(no)
    assert lock.stat().st_mtime == 1  # once in a while is enough
    monkeypatch.setattr(locks, "BEAT_S", 0.0)
    mine.keep(no)
    assert time.time() - lock.stat().st_mtime < LOST_AFTER_S / 2


@pytest.mark.parametrize("lock", ["", "{}", "[]", '{"pid": "x"}', '{"pid": null, "started": 1, "boot": ""}'])
def test_a_lock_that_is_none_is_stale(tmp_path, lock):
    (tmp_path / "lock.json").write_text(lock)
    assert owner_of(tmp_path) is None
    claim(tmp_path)


def test_of_many_that_claim_in_the_same_instant_one_owns_it(tmp_path):
    """Over a stale lock, which all of them may take over."""
    code = (
        "import pathlib, sys; from mptui.errors import RunDirectoryError; from mptui.runs import directory\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    try: directory.claim(pathlib.Path(line.strip())); print('owner', flush=True)\n"
        "    except RunDirectoryError: print('refused', flush=True)"
    )
    processes: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for round_ in range(8):
            run = tmp_path / str(round_)
            run.mkdir()
            (run / "lock.json").write_text('{"pid": 1, "started": 1.0, "boot": "before"}')
            os.utime(run / "lock.json", (1, 1))
            for process in processes:
                process.stdin.write(f"{run}\n")
                process.stdin.flush()
            answers = [process.stdout.readline().strip() for process in processes]
            assert sorted(answers) == ["owner", *["refused"] * 3]
            owner = processes[answers.index("owner")].pid
            assert owner_of(run) == owner
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_process_may_claim_again_and_release(tmp_path):
    claim(tmp_path)
    mine = claim(tmp_path)
    mine.release()
    assert owner_of(tmp_path) is None
    mine.release()
    mine.keep(yes)  # it has ended: a lock of it would be nobody's
    assert owner_of(tmp_path) is None


@pytest.fixture
def theirs(tmp_path):
    """Writes the lock of another machine's process over that of this one."""

    def write(**changes):
        lock = tmp_path / "lock.json"
        content = {"version": 2, "pid": 7, "started": 1.0, "boot": "another", "host": "node7", **changes}
        fresh = tmp_path / "fresh"
        fresh.write_text(json.dumps(content))
        fresh.rename(lock)
        return lock

    return write


def test_a_run_that_another_machine_took_over_is_noticed_by_its_first_owner(tmp_path, theirs):
    mine = claim(tmp_path)
    mine.keep(no)
    lock = theirs()
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match=r"process 7 on node7 has taken this run over"):
            mine.keep(yes)
    mine.release()
    assert lock.exists()


def test_a_run_that_was_taken_over_by_a_process_that_died_is_noticed(tmp_path, theirs):
    mine = claim(tmp_path)
    lock = theirs()
    os.utime(lock, (1, 1))
    with pytest.raises(RunDirectoryError, match=r"another process has taken this run over, and has ended,"):
        mine.keep(yes)
    assert lock.exists()


def test_a_run_that_was_taken_over_and_ended_is_noticed(tmp_path, theirs):
    mine = claim(tmp_path)
    theirs().unlink()
    with pytest.raises(RunDirectoryError, match=r"another process has taken this run over, and has ended,"):
        mine.keep(no)
    assert owner_of(tmp_path) is None


def test_a_lock_that_was_only_removed_is_made_again(tmp_path):
    mine = claim(tmp_path)
    (tmp_path / "lock.json").unlink()
    mine.keep(yes)
    assert owner_of(tmp_path) == os.getpid()


def test_a_lock_that_was_removed_and_made_by_another_is_theirs(tmp_path):
    mine = claim(tmp_path)
    (tmp_path / "lock.json").unlink()
    living = json.dumps({"version": 2, "pid": 1, "started": 1.0, "boot": "x", "host": "node7"})
    # between the look at the file that is gone, and the claim
    with pytest.raises(RunDirectoryError, match="process 1 on node7 has taken this run over"):
        mine.keep(lambda: bool((tmp_path / "lock.json").write_text(living)))


def test_a_disk_that_is_gone_is_no_other_process(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    mine = claim(run)
    run.rename(tmp_path / "away")
    mine.keep(no)
    (tmp_path / "away").rename(run)
    mine.keep(no)
    assert owner_of(run) == os.getpid()


def test_a_clock_that_is_set_makes_no_lock_stale(tmp_path, other_owner, monkeypatch):
    monkeypatch.setattr("psutil.boot_time", lambda: 12345.0)  # from which psutil counts in seconds
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 12345.0, raising=False)
    assert owner_of(tmp_path) == other_owner.pid
