"""A journal that was cut anywhere is read to its last whole line, and written on from there."""

import json
import resource
import stat
import threading

import pytest

from mptui.errors import DiskError
from mptui.events import CheckpointSaved, Warned
from mptui.runs.journal import NAME, Journal, read_journal

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
    lines = written(tmp_path).read_text().splitlines()
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
        complete = EVENTS[: sum(end <= length for end in ends)]
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


def test_a_full_disk_is_told_and_what_fitted_is_whole(tmp_path):
    journal = Journal(tmp_path)
    for _ in range(5):
        journal.write(EVENTS[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    room = (tmp_path / NAME).stat().st_size + 20
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        for _ in range(2):  # some bytes fit, then none
            with pytest.raises(DiskError, match=NAME):
                journal.write(EVENTS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.write(EVENTS[1])  # there is room again
    journal.close()
    assert list(read_journal(tmp_path)) == [EVENTS[0]] * 5 + [EVENTS[1]]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DiskError, match="missing"):
        Journal(tmp_path / "missing")


def test_a_reader_sees_what_the_writer_has_written_so_far(tmp_path):
    journal = Journal(tmp_path)
    journal.write(EVENTS[0])
    assert list(read_journal(tmp_path)) == EVENTS[:1]
    journal.close()
