"""A run directory: its name and its files."""

import json
import math
import re
import resource
import stat
from pathlib import Path

import pytest

from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.events import SCHEMA_VERSION
from mptui.io.own_files import mark_run
from mptui.runs.store import journal
from mptui.runs.store.directory import (
    CHANGES,
    CHOICES,
    CONFIG,
    ENVIRONMENT,
    SUMMARY,
    check_version,
    claim,
    create_run,
    find_run,
    list_runs,
    read_summary,
    started_of,
    status_of,
    write_json,
    write_text,
)
from mptui.runs.store.lock import owner_of

# -- names


def test_a_name_says_when_and_what(tmp_path):
    path = create_run(tmp_path / "runs", "fast", "resnet50", None)
    assert re.fullmatch(r"\d{8}-\d{6}-fast-resnet50", path.name)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_two_runs_of_one_second_have_two_names(tmp_path):
    names = {create_run(tmp_path, "fast", "unet", None).name for _ in range(20)}
    assert len(names) == 20


@pytest.mark.parametrize("profile", ["../evil", "my profile", "é\n", "/tmp/x.toml"])
def test_whatever_the_profile_is_called_the_run_stays_in_its_folder(tmp_path, profile):
    path = create_run(tmp_path, profile, "unet", None)
    assert path.parent == tmp_path
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", path.name)


def test_a_chosen_name_is_the_name(tmp_path):
    assert create_run(tmp_path, "fast", "unet", "baseline+2").name == "baseline+2"


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "-rf", "a b", "é", "a\n"])
def test_a_name_that_can_not_be_one_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="not a valid name"):
        create_run(tmp_path, "fast", "unet", name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_refused_with_its_limit(tmp_path):
    with pytest.raises(ConfigError, match="200 characters") as caught:
        create_run(tmp_path, "fast", "unet", "x" * 200)
    assert "at most 128" in caught.value.hint
    assert create_run(tmp_path, "fast", "unet", "x" * 128).name == "x" * 128


def test_a_taken_name_is_refused_and_resume_is_named(tmp_path):
    create_run(tmp_path, "fast", "unet", "baseline")
    with pytest.raises(ConfigError) as caught:
        create_run(tmp_path, "fast", "unet", "baseline")
    assert f"mptui resume {tmp_path / 'baseline'}" in caught.value.hint


def test_a_folder_that_can_not_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError) as caught:
        create_run(tmp_path / "file" / "runs", "fast", "unet", None)
    assert "--runs-dir" in caught.value.hint


def test_a_run_that_a_full_disk_has_no_room_for_takes_no_name(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(DiskError):
            create_run(tmp_path, "fast", "unet", "baseline")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert create_run(tmp_path, "fast", "unet", "baseline").name == "baseline"


# -- finding


@pytest.fixture
def runs(tmp_path):
    for name in ("20260101-fast", "20260102-fast", "20260102-stable"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).write_text("")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_runs_are_listed_by_time_and_other_folders_left_out(runs):
    assert [p.name for p in list_runs(runs)] == ["20260101-fast", "20260102-fast", "20260102-stable"]
    assert list_runs(runs / "missing") == []


def test_a_run_is_found_by_name_by_start_and_by_path(runs, monkeypatch):
    first = runs / "20260101-fast"
    assert find_run(runs, "20260101-fast") == first
    assert find_run(runs, "20260101") == first
    assert find_run(runs / "elsewhere", str(first)) == first
    monkeypatch.chdir(runs)
    assert find_run(runs / "elsewhere", "./20260101-fast").resolve() == first
    assert find_run(Path(), "20260101-fast") == first  # absolute: it is told to a person as a path


def test_a_word_is_a_name_in_the_folder_of_the_runs_and_never_a_path(runs, monkeypatch):
    other = runs / "other"
    other.mkdir()
    monkeypatch.chdir(runs)
    with pytest.raises(RunDirectoryError, match="in the current folder") as caught:
        find_run(other, "20260101-fast")
    assert caught.value.hint == "name it as a path: ./20260101-fast"
    (other / "20260101-fast").mkdir()
    (other / "20260101-fast" / CONFIG).write_text("")
    assert find_run(other, "20260101-fast") == other / "20260101-fast"


@pytest.mark.parametrize(("run", "says"), [("20260102", "2 runs start with this"), ("notes", "no such run")])
def test_a_run_that_is_none_or_many_is_told(runs, run, says):
    with pytest.raises(RunDirectoryError, match=says):
        find_run(runs, run)


# -- files


def test_a_file_is_replaced_whole_and_for_its_owner_alone(tmp_path):
    path = tmp_path / SUMMARY
    for content in ("old", "new"):
        write_text(path, content)
        assert path.read_text() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_can_not_be_replaced_stays(tmp_path):
    path = tmp_path / SUMMARY
    (path / "in the way").mkdir(parents=True)
    with pytest.raises(DiskError, match=SUMMARY):
        write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == [SUMMARY]


def test_json_names_what_is_not_finite(tmp_path):
    write_json(tmp_path / SUMMARY, {"loss": math.nan})
    assert json.loads((tmp_path / SUMMARY).read_text()) == {"loss": "nan"}


def test_a_start_that_no_clock_can_tell_is_that_of_the_folder(tmp_path):
    assert started_of(tmp_path, {"started": 10**400}) == tmp_path.stat().st_mtime


@pytest.mark.parametrize("content", [None, "", "{", "[]", "\xff"])
def test_a_summary_that_can_not_be_read_is_empty(tmp_path, content):
    if content is not None:
        (tmp_path / SUMMARY).write_bytes(content.encode("latin-1"))
    assert read_summary(tmp_path) == {}


@pytest.fixture
def versions(tmp_path):
    """A run whose files have versions; returns a function that rewrites one with another version."""

    def write(name, version):
        if name == CONFIG:
            text = f"version = {version}\n[training]\nlr = 0.1\n"
        else:
            text = json.dumps({"event": "journal", "version": version}) + "\n"
        (tmp_path / name).write_text(text)

    for name in VERSIONED:
        write(name, 1)
    return write


VERSIONED = [CONFIG, SUMMARY, ENVIRONMENT, CHOICES, CHANGES, journal.NAME]


@pytest.mark.parametrize("name", VERSIONED)
def test_each_file_of_a_newer_version_is_refused_and_named(tmp_path, versions, name):
    mark_run(tmp_path)
    check_version(tmp_path)
    versions(name, 99)
    with pytest.raises(RunDirectoryError, match=rf"{re.escape(name)}: written by a newer mptui \(version 99"):
        claim(tmp_path)
    assert owner_of(tmp_path) is None


@pytest.mark.parametrize("name", VERSIONED)
@pytest.mark.parametrize(
    "content", [b"", b"[", b"[]", b"version = 'x'", b'{"event":"journal","version":{}}', None]
)
def test_a_file_that_tells_no_version_is_of_the_first(tmp_path, versions, name, content):
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    check_version(tmp_path)


def test_a_journal_tells_its_version_once(tmp_path):
    for _ in range(2):
        journal.Journal(tmp_path).close()
    assert journal.version_of(tmp_path) == SCHEMA_VERSION
    assert (tmp_path / journal.NAME).read_bytes().count(b"\n") == 1


@pytest.mark.parametrize("status", ["completed", "stopped", "diverged"])
def test_a_run_that_ended_is_as_it_ended(tmp_path, status):
    write_json(tmp_path / SUMMARY, {"status": status, "directory": "/moved/since"})
    assert status_of(tmp_path) == {"run": tmp_path.name, "status": status, "directory": str(tmp_path)}


def test_a_run_that_says_running_without_a_process_has_crashed(tmp_path):
    mark_run(tmp_path)
    write_json(tmp_path / SUMMARY, {"status": "running"})
    assert status_of(tmp_path)["status"] == "crashed"
    claim(tmp_path)
    assert status_of(tmp_path)["status"] == "running"
