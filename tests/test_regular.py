"""Only regular files are opened: nothing waits for a FIFO or reads an endless device."""

import os
import socket

import pytest

from mptui.config.documents import read_document
from mptui.config.profiles import list_profiles
from mptui.errors import ConfigError, RunDirectoryError
from mptui.io.cache import load_arrays, load_json
from mptui.io.files import OddFileError, open_regular, read_regular
from mptui.runs.listing.rows import compare
from mptui.runs.store.directory import check_version, read_summary, status_of
from mptui.runs.store.files import BadSampleList
from mptui.runs.store.index import read_index
from mptui.runs.store.journal import read_journal
from mptui.runs.store.lock import holder_of
from tests.odd_files import put

ENDLESS = ("fifo", "zero")


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind, flags):
    put(tmp_path / "file", kind, tmp_path)
    with pytest.raises(OddFileError, match="not a regular file"):
        open_regular(tmp_path / "file", flags)


def test_a_socket_and_a_folder_are_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OddFileError):
            open_regular(tmp_path / "socket")
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_link_is_followed_unless_it_may_not_be(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 4) == b"text"
    with pytest.raises(OddFileError, match="not a regular file"):
        read_regular(tmp_path / "link", 4, os.O_NOFOLLOW)


def test_a_larger_file_than_there_may_be_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 5)
    assert read_regular(tmp_path / "file", 5) == b"x" * 5
    with pytest.raises(OddFileError, match="larger than 4 bytes"):
        read_regular(tmp_path / "file", 4)


def test_a_refused_file_leaves_no_descriptor(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    before = len(list(os.scandir("/proc/self/fd")))
    for _ in range(3):
        with pytest.raises(OddFileError):
            open_regular(tmp_path / "fifo")
    assert len(list(os.scandir("/proc/self/fd"))) == before


# -- readers


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_run_of_such_files_is_read_as_one_without_them(tmp_path, kind):
    for name in ("run.toml", "summary.json", "events.jsonl", "index.json", "lock.json", "choices.json"):
        put(tmp_path / name, kind, tmp_path)
    for name in ("environment.json", "bad_samples.json"):
        put(tmp_path / name, kind, tmp_path)
    assert read_summary(tmp_path) == {}
    assert status_of(tmp_path)["status"] == "crashed"
    assert holder_of(tmp_path) is None
    assert list(read_journal(tmp_path)) == []
    assert read_index(tmp_path)[1] == 0
    assert load_json(tmp_path / "choices.json") is None
    check_version(tmp_path)
    BadSampleList(tmp_path)
    with pytest.raises(RunDirectoryError, match="not a regular file"):
        compare([tmp_path, tmp_path])


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_profile_of_such_a_kind_is_told(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    path = tmp_path / "profiles" / "mine.toml"
    put(path, kind, tmp_path)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_document(path)
    assert "faulty" in {info.name: info.description for info in list_profiles({})}["mine"]


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_cache_of_such_a_kind_is_none(tmp_path, kind):
    put(tmp_path / "scan.npz", kind, tmp_path)
    assert load_arrays(tmp_path / "scan.npz") == {}
    assert load_json(tmp_path / "scan.npz") is None
