"""A truncated journal is read up to its last complete line, and continued from there."""

import contextlib
import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading

import pytest

from mptui.errors import DiskError
from mptui.events import CheckpointSaved, Warned
from mptui.runs.store.journal import NAME, Journal, read_journal
from tests.tools.faulty_disk import Fault, failing, faulty_disk

EVENTS = [
    Warned(time=1.5, step=1, code="a", message="one"),
    CheckpointSaved(time=2.5, step=2, path="checkpoints/é", reason="epoch", seconds=0.5, size_bytes=9),
    Warned(time=3.5, step=3, code="b", message="line\nbreak \u2028 \ud800 and 猫"),
]


def written(folder, events=EVENTS):
    journal = Journal(folder)
    for event in events:
        journal.write(event)
    journal.close()
    return folder / NAME


def test_what_is_written_is_read(tmp_path):
    written(tmp_path)
    assert list(read_journal(tmp_path)) == EVENTS


def test_each_event_is_a_line_with_what_all_have(tmp_path):
    header, *lines = written(tmp_path).read_text().splitlines()
    assert json.loads(header).keys() == {"event", "time", "step", "version"}
    assert len(lines) == 3
    for line, event in zip(lines, EVENTS, strict=True):
        record = json.loads(line)
        assert (record["event"], record["time"], record["step"]) == (event.kind, event.time, event.step)


def test_it_is_for_its_owner_alone(tmp_path):
    assert stat.S_IMODE(written(tmp_path).stat().st_mode) == 0o600


def test_a_second_writer_appends(tmp_path):
    written(tmp_path)
    written(tmp_path)
    assert list(read_journal(tmp_path)) == EVENTS * 2


def test_where_there_is_none_nothing_is_read(tmp_path):
    assert list(read_journal(tmp_path)) == []
    assert list(read_journal(tmp_path / "missing")) == []


def test_cut_at_any_byte_one_event_is_lost_and_the_next_writer_repairs(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        complete = EVENTS[: sum(end <= length for end in ends[1:])]
        assert list(read_journal(tmp_path)) == complete
        written(tmp_path, EVENTS[:1])
        assert list(read_journal(tmp_path)) == [*complete, EVENTS[0]]


def test_a_torn_line_longer_than_a_block_is_removed(tmp_path):
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"event":"warning","message":"' + b"x" * 200_000)
    written(tmp_path, EVENTS[:1])
    assert list(read_journal(tmp_path)) == [*EVENTS, EVENTS[0]]


def test_a_journal_that_is_one_torn_line_begins_anew(tmp_path):
    (tmp_path / NAME).write_bytes(b"\0" * 100_000)
    written(tmp_path)
    assert list(read_journal(tmp_path)) == EVENTS


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff\xfe",
        b"\0\0\0",
        b"null",
        b"[1]",
        b'"step"',
        b"{}",
        b'{"event":"later_version"}',
        b'{"event":"step"}',
        b'{"event":"warning","time":' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"event":"validated","metrics":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    ],
    ids=lambda line: line[:20],
)
def test_a_line_that_is_no_event_is_passed_over(tmp_path, line):
    path = written(tmp_path, EVENTS[:1])
    with path.open("ab") as file:
        file.write(line + b"\n")
    written(tmp_path, EVENTS[1:])
    assert list(read_journal(tmp_path)) == EVENTS


def test_threads_may_share_a_writer(tmp_path):
    journal = Journal(tmp_path)

    def write(number):
        for step in range(200):
            journal.write(Warned(step=step, code=str(number), message="x" * 300))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    events = list(read_journal(tmp_path))
    assert len(events) == 800
    for number in range(4):
        steps = [e.step for e in events if isinstance(e, Warned) and e.code == str(number)]
        assert steps == list(range(200))


@contextlib.contextmanager
def full_after(path, room):
    """A disk on which `path` can grow by no more than `room` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def numbered(count):
    return [Warned(time=1.0, step=step, code="n", message="x" * 50) for step in range(count)]


def test_on_a_full_disk_events_wait_and_none_is_lost_when_there_is_room(tmp_path):
    journal, events = Journal(tmp_path), numbered(30)
    for event in events[:5]:
        journal.write(event)
    with full_after(tmp_path / NAME, room=20):
        for event in events[5:20]:
            journal.write(event)  # some bytes of the first event fit, none of the others
        assert NAME in str(journal.trouble)
        assert journal.waiting == 15
        assert not journal.retry()
        assert list(read_journal(tmp_path)) == events[:5]
    assert journal.retry()
    assert journal.trouble is None
    for event in events[20:]:
        journal.write(event)
    journal.close()
    assert list(read_journal(tmp_path)) == events
    assert journal.lost == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("when", ["before", "half", "after"])
def test_any_call_may_fail_and_each_event_is_there_once(tmp_path, when, error):
    for place in range(12):
        for count in (1, 2, 5):
            folder = tmp_path / f"{place} {count}"
            folder.mkdir()
            with faulty_disk(folder, Fault(place, when, failing(error), count, only=["write", "ftruncate"])):
                journal = Journal(folder)
                for event in numbered(8):
                    journal.write(event)
                while not journal.retry():
                    pass
                journal.close()
            assert list(read_journal(folder)) == numbered(8)


def test_where_too_many_wait_the_oldest_go_and_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("mptui.runs.store.journal.MOST_WAITING", 10)
    journal, events = Journal(tmp_path), numbered(25)
    journal.write(events[0])
    with full_after(tmp_path / NAME, room=0):
        for event in events[1:]:
            journal.write(event)
    journal.close()
    assert list(read_journal(tmp_path)) == [events[0], *events[15:]]
    assert journal.lost == 14


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DiskError, match="missing"):
        Journal(tmp_path / "missing")


def test_a_reader_sees_what_the_writer_has_written_so_far(tmp_path):
    journal = Journal(tmp_path)
    journal.write(EVENTS[0])
    assert list(read_journal(tmp_path)) == EVENTS[:1]
    journal.close()


STOPPED_IN_A_WRITE = """
import os, signal, sys
from pathlib import Path
from mptui.events import Warned
from mptui.runs.store.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.write(Warned(step=1, code="first", message=""))
write = os.write
def stopped(file, data):
    os.kill(os.getpid(), signal.SIGSTOP)  # all that is looked at before a write has been looked at
    return write(file, data)
os.write = stopped
journal.write(Warned(step=2, code="late", message=""))
os.write = write
sys.exit(journal.untouched())
"""


def test_a_process_stopped_in_a_write_leaves_the_journal_of_who_took_the_run_over(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", STOPPED_IN_A_WRITE, str(tmp_path)])
    _, status = os.waitpid(first.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    second = Journal(tmp_path)
    second.write(EVENTS[0])
    second.close()
    before = (tmp_path / NAME).read_bytes()
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0
    assert (tmp_path / NAME).read_bytes() == before
    assert [getattr(event, "code", None) for event in read_journal(tmp_path)] == ["first", "a"]


def test_a_write_after_the_end_reaches_no_file(tmp_path):
    journal = Journal(tmp_path)
    journal.close()
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    journal.write(EVENTS[0])
    journal.close()
    assert not journal.untouched()
    assert os.fstat(other).st_size == 0
    os.close(other)


def edited_in_place(path):
    path.write_bytes(path.read_bytes().replace(b"one", b"edited"))


def edited_and_renamed(path):
    fresh = path.with_name("fresh")
    fresh.write_bytes(path.read_bytes().replace(b"one", b"edited"))
    fresh.rename(path)


@pytest.mark.parametrize("edit", [edited_in_place, edited_and_renamed])
def test_a_journal_that_a_person_has_edited_gets_what_follows(tmp_path, edit):
    journal = Journal(tmp_path)
    journal.write(EVENTS[0])
    edit(tmp_path / NAME)
    journal.write(EVENTS[1])
    assert "another program has replaced or changed it" in str(journal.trouble)
    assert journal.retry()
    journal.write(EVENTS[2])
    journal.close()
    first, *rest = read_journal(tmp_path)
    assert isinstance(first, Warned)
    assert first.message == "edited"
    assert rest == EVENTS[1:]


def test_a_journal_that_was_removed_begins_anew(tmp_path):
    journal = Journal(tmp_path)
    journal.write(EVENTS[0])
    (tmp_path / NAME).unlink()
    journal.write(EVENTS[1])
    assert journal.retry()
    journal.close()
    assert list(read_journal(tmp_path)) == [EVENTS[1]]
    assert json.loads((tmp_path / NAME).read_text().splitlines()[0])["event"] == "journal"


def test_a_journal_that_another_owner_changed_is_left_to_it(tmp_path):
    journal = Journal(tmp_path, is_owner=lambda: False)
    journal.write(EVENTS[0])
    written(tmp_path, EVENTS[1:2])
    before = (tmp_path / NAME).read_bytes()
    journal.write(EVENTS[2])
    assert not journal.retry()
    journal.close()
    assert (tmp_path / NAME).read_bytes() == before


def test_an_older_journal_is_written_on_where_there_is_no_room_for_a_copy(tmp_path):
    path = written(tmp_path)
    with faulty_disk(tmp_path, Fault(0, "half", failing(errno.ENOSPC), only=["write"])):
        journal = Journal(tmp_path)
    journal.write(EVENTS[0])
    journal.close()
    assert list(read_journal(tmp_path)) == [*EVENTS, EVENTS[0]]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
