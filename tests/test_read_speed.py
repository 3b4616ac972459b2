import os
import sys

import pytest

from mptui.io import read_speed
from mptui.io.read_speed import measure_read_speed


def written(path, size):
    with path.open("wb") as file:
        file.write(os.urandom(size))
        file.flush()
        os.fdatasync(file.fileno())  # only written pages can be dropped; fsync does nothing in tests


def test_all_files_of_a_folder_are_read(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    sizes = (1, 5000, 0, 9 << 20)
    for number, size in enumerate(sizes):
        written(tmp_path / f"a/b/{number}", size)
    os.mkfifo(tmp_path / "a/pipe")  # opening it would wait for ever
    (tmp_path / "a/gone").symlink_to("nowhere")

    speed = measure_read_speed(tmp_path)

    assert speed is not None
    assert (speed.bytes_read, speed.files) == (sum(sizes), 3)
    assert speed.bytes_per_second == speed.bytes_read / speed.seconds


def test_of_large_files_parts_are_read_up_to_the_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(read_speed, "MOST_BYTES", 9 << 20)
    written(tmp_path / "shard", 30 << 20)
    speed = measure_read_speed(tmp_path / "shard")
    assert speed is not None
    assert (speed.bytes_read, speed.files) == (8 << 20, 1)


def test_nothing_is_read_after_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr(read_speed, "MOST_SECONDS", -1.0)
    written(tmp_path / "file", 10)
    assert measure_read_speed(tmp_path) is None


def test_nothing_to_read_is_no_speed(tmp_path):
    assert measure_read_speed(tmp_path) is None
    assert measure_read_speed(tmp_path / "gone") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is in memory")
def test_what_stays_in_memory_is_told(tmp_path, monkeypatch):
    written(tmp_path / "file", 8 << 20)
    dropped = measure_read_speed(tmp_path)
    assert dropped is not None
    if dropped.cached is None:
        pytest.skip("this file system doesn't tell")
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: None)
    kept = measure_read_speed(tmp_path)
    assert kept is not None
    assert kept.cached == 1.0
    assert dropped.cached < 1.0
