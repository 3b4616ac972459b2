"""Ownership of a run: exactly one process has it, and notices when it loses it."""

import errno
import fcntl
import json
import os
import signal
import stat
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mptui.errors import DiskError, RunDirectoryError
from mptui.runs.store import lock as claims
from mptui.runs.store import lock as locks
from mptui.runs.store.directory import claim, status_of
from mptui.runs.store.lock import LOST_AFTER_S, PRIVATE, holder_of, owner_of


class Claimer:
    """Another process, a fork of this one, that claims each run whose folder it is told."""

    def __init__(self):
        (theirs, self._ask), (self._answers, answers) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(theirs)
            os.close(answers)
            return
        try:
            os.close(self._ask)  # its end is that of this process
            while folder := os.read(theirs, 4096):
                os.write(answers, _claimed(Path(folder.decode())))
        finally:
            os._exit(0)

    def ask(self, folder):
        os.write(self._ask, str(folder).encode())

    def answer(self):
        return os.read(self._answers, 16).decode()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        os.waitpid(self.pid, 0)

    def close(self):
        os.close(self._ask)
        os.close(self._answers)


def _claimed(folder):
    try:
        claim(folder)
    except RunDirectoryError:
        return b"refused"
    return b"owner"


@pytest.fixture
def other_owner(tmp_path):
    """Another process that has claimed the run, and lives until it is killed."""
    process = Claimer()
    process.ask(tmp_path)
    assert process.answer() == "owner"
    yield process
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(ChildProcessError):
        process.wait()
    process.close()


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


@pytest.mark.parametrize(("touched_s", "is_stale"), [(30.0, False), (90.0, True)])
def test_whether_a_lock_is_from_before_the_last_boot_tells_its_time(
    tmp_path, monkeypatch, touched_s, is_stale
):
    """Both locks are too recent for a machine that counts as silent."""
    claim(tmp_path)
    lock, now = tmp_path / "lock.json", time.time()
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "boot": "another"}))
    os.utime(lock, (now - touched_s, now - touched_s))
    monkeypatch.setattr(locks, "_boot_time", lambda: now - 60)
    assert (holder_of(tmp_path) is None) is is_stale


def test_the_boot_of_another_machine_says_nothing(tmp_path, elsewhere, monkeypatch):
    monkeypatch.setattr(locks, "_boot_time", lambda: time.time() + 60)
    assert holder_of(tmp_path) is not None


# -- containers


def of_another_container(lock):
    """The lock as seen where its process number means another process, or none."""
    content = json.loads(lock.read_text())
    lock.write_text(json.dumps({**content, "namespace": "pid:[1]", "started": 1.0}))


def test_a_run_of_another_container_of_this_machine_is_refused_while_its_lock_is_touched(tmp_path):
    claim(tmp_path)
    lock = tmp_path / "lock.json"
    of_another_container(lock)
    assert owner_of(tmp_path) is None
    assert status_of(tmp_path)["status"] == "running"
    with pytest.raises(RunDirectoryError, match=r"on .* \(another container\) is training this run"):
        claim(tmp_path)
    gone = time.time() - LOST_AFTER_S - 60
    os.utime(lock, (gone, gone))
    claim(tmp_path)
    assert owner_of(tmp_path) == os.getpid()


def test_a_lock_of_an_older_version_names_no_container_and_is_understood(tmp_path, other_owner):
    lock = tmp_path / "lock.json"
    content = json.loads(lock.read_text())
    assert content.pop("namespace") == str(Path("/proc/self/ns/pid").readlink())
    lock.write_text(json.dumps(content))
    assert owner_of(tmp_path) == other_owner.pid


# -- unreadable locks


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.EACCES], ids=errno.errorcode.get)
def test_a_lock_that_can_not_be_read_is_no_missing_one(tmp_path, monkeypatch, other_owner, error):
    whole = os.open

    def opens(path, *arguments, **options):
        if os.fspath(path).endswith("lock.json"):
            raise OSError(error, os.strerror(error))
        return whole(path, *arguments, **options)

    before = (tmp_path / "lock.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opens)
        assert status_of(tmp_path)["status"] == "running"
        with pytest.raises(DiskError, match=os.strerror(error)):
            claim(tmp_path)
    assert (tmp_path / "lock.json").read_bytes() == before


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
    assert lock.stat().st_mtime == 1  # rewriting it once in a while is enough
    monkeypatch.setattr(claims, "BEAT_S", 0.0)
    mine.keep(no)
    assert time.time() - lock.stat().st_mtime < LOST_AFTER_S / 2


@pytest.mark.parametrize("lock", ["", "{}", "[]", '{"pid": "x"}', '{"pid": null, "started": 1, "boot": ""}'])
def test_a_lock_that_is_none_is_stale(tmp_path, lock):
    (tmp_path / "lock.json").write_text(lock)
    assert owner_of(tmp_path) is None
    claim(tmp_path)


def test_of_many_that_claim_in_the_same_instant_one_owns_it(tmp_path):
    """Several processes claim a stale lock, which each of them may take over."""
    processes = [Claimer() for _ in range(4)]
    try:
        for round_ in range(8):
            run = tmp_path / str(round_)
            run.mkdir()
            (run / "lock.json").write_text('{"pid": 1, "started": 1.0, "boot": "before"}')
            os.utime(run / "lock.json", (1, 1))
            for process in processes:
                process.ask(run)
            answers = [process.answer() for process in processes]
            assert sorted(answers) == ["owner", *["refused"] * 3]
            owner = processes[answers.index("owner")].pid
            assert owner_of(run) == owner
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.close()


def test_a_process_may_claim_again_and_release(tmp_path):
    claim(tmp_path)
    mine = claim(tmp_path)
    mine.release()
    assert owner_of(tmp_path) is None
    mine.release()
    mine.keep(yes)  # the run has ended: its lock would have no owner
    assert owner_of(tmp_path) is None


@pytest.fixture
def theirs(tmp_path):
    """Overwrite this process's lock with that of another machine's process."""

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
    # between the check that the file is gone, and the claim
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


# -- changes


def test_nobody_takes_a_run_over_in_the_middle_of_a_change(tmp_path, monkeypatch):
    """The owner is stopped there, long enough to seem dead."""
    monkeypatch.setattr(claims, "DIRECTORY_WAIT_S", 0.05)
    mine = claim(tmp_path)
    lock = tmp_path / "lock.json"
    with mine.change(no):
        of_another_container(lock)
        os.utime(lock, (1, 1))
        with pytest.raises(RunDirectoryError, match="another process has been writing to this directory"):
            claim(tmp_path)
    claim(tmp_path)


def test_a_change_waits_until_the_run_is_not_being_claimed(tmp_path, monkeypatch):
    mine = claim(tmp_path)
    monkeypatch.setattr(claims, "DIRECTORY_WAIT_S", 0.05)
    with claims._alone_with(tmp_path), pytest.raises(TimeoutError), mine.change(no):
        pass
    with mine.change(no):
        pass


def test_a_child_that_was_forked_in_a_change_does_not_go_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "DIRECTORY_WAIT_S", 0.05)
    mine = claim(tmp_path)
    with mine.change(no):
        child = os.fork()
        if not child:
            time.sleep(300)
            os._exit(0)
    try:
        with mine.change(no):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_change_is_refused_to_who_has_lost_the_run(tmp_path, theirs):
    mine = claim(tmp_path)
    theirs()
    with (
        pytest.raises(RunDirectoryError, match=r"process 7 on node7 has taken this run over"),
        mine.change(yes),
    ):
        pytest.fail("it may not")


def test_a_change_makes_a_lock_again_that_was_only_removed(tmp_path):
    mine = claim(tmp_path)
    (tmp_path / "lock.json").unlink()
    with mine.change(yes):
        assert owner_of(tmp_path) == os.getpid()


def test_a_change_in_a_directory_that_is_gone_is_a_fault_of_the_disk(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    mine = claim(run)
    run.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError), mine.change(yes):
        pytest.fail("it is gone")


def test_a_directory_that_goes_while_its_lock_is_looked_for_was_taken_by_nobody(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    mine = claim(run)
    (run / "lock.json").unlink()

    def gone():
        run.rename(tmp_path / "away")
        return False

    with pytest.raises(FileNotFoundError), mine.change(gone):
        pytest.fail("it has changed something")
    mine.keep(gone)


def test_who_takes_a_run_over_removes_what_was_left_half_written(tmp_path):
    (tmp_path / ".summary.json.7-0123abcd.partial").write_text("{")
    claim(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "lock.json"]


# -- the private file


def test_who_may_only_read_a_run_can_not_hold_it_up(tmp_path):
    reader = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(reader, fcntl.LOCK_EX)
        mine = claim(tmp_path)
        with mine.change(lambda: True):
            pass
    finally:
        os.close(reader)
    assert stat.S_IMODE((tmp_path / PRIVATE).stat().st_mode) == 0o600
    mine.release()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK, errno.ESTALE], ids=errno.errorcode.get)
def test_a_lock_that_fails_takes_no_run(tmp_path, monkeypatch, number):
    def flock(file, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(DiskError, match="can't be locked") as caught:
        claim(tmp_path)
    assert os.strerror(number) in caught.value.message
    assert "free disk space" not in caught.value.hint
    assert not (tmp_path / "lock.json").exists()


def test_a_private_file_that_was_removed_does_not_make_two_owners(tmp_path):
    mine = claim(tmp_path)
    (tmp_path / PRIVATE).unlink()
    with mine.change(lambda: True):
        assert (tmp_path / PRIVATE).exists()
    mine.release()
