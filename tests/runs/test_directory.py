"""A run's directory: its name, what is written into it, and who owns it."""

import json
import math
import os
import re
import stat
import subprocess
import sys
import time
from typing import Any

import pytest

from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.events import SCHEMA_VERSION
from mptui.runs import directory, journal
from mptui.runs.directory import (
    CHOICES,
    CONFIG,
    ENVIRONMENT,
    LOST_AFTER_S,
    SUMMARY,
    check_version,
    claim,
    create_run,
    find_run,
    holder_of,
    keep_claim,
    list_runs,
    owner_of,
    read_summary,
    release,
    status_of,
    write_json,
    write_text,
)

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


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "-rf", "a b", "é", "x" * 200, "a\n"])
def test_a_name_that_can_not_be_one_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="not a name for a run"):
        create_run(tmp_path, "fast", "unet", name)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_name_is_refused_and_resume_is_named(tmp_path):
    create_run(tmp_path, "fast", "unet", "baseline")
    with pytest.raises(ConfigError) as caught:
        create_run(tmp_path, "fast", "unet", "baseline")
    assert "mptui resume baseline" in caught.value.hint


def test_a_folder_that_can_not_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError) as caught:
        create_run(tmp_path / "file" / "runs", "fast", "unet", None)
    assert "--runs-dir" in caught.value.hint


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
    assert find_run(runs / "elsewhere", "20260101-fast").resolve() == first


@pytest.mark.parametrize(("run", "says"), [("20260102", "2 runs begin so"), ("notes", "no such run")])
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


@pytest.mark.parametrize("content", [None, "", "{", "[]", "\xff"])
def test_a_summary_that_can_not_be_read_is_empty(tmp_path, content):
    if content is not None:
        (tmp_path / SUMMARY).write_bytes(content.encode("latin-1"))
    assert read_summary(tmp_path) == {}


# -- who owns it


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
    release(tmp_path)
    assert elsewhere.exists()


def test_a_run_that_another_machine_has_long_not_touched_is_taken_over(tmp_path, elsewhere):
    gone = time.time() - LOST_AFTER_S - 60
    os.utime(elsewhere, (gone, gone))
    assert status_of(tmp_path)["status"] == "crashed"
    claim(tmp_path)
    assert owner_of(tmp_path) == os.getpid()


def test_the_owner_touches_its_lock_so_that_other_machines_see_it_live(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "BEAT_S", 3600)
    claim(tmp_path)
    lock = tmp_path / "lock.json"
    os.utime(lock, (1, 1))
    keep_claim(tmp_path)
    touched = lock.stat().st_mtime
    assert time.time() - touched < LOST_AFTER_S / 2
    keep_claim(tmp_path)
    assert lock.stat().st_mtime == touched  # once in a while is enough


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


def test_only_the_owner_gives_a_run_up(tmp_path, other_owner):
    release(tmp_path)
    assert owner_of(tmp_path) == other_owner.pid


def test_a_process_may_claim_again_and_release(tmp_path):
    claim(tmp_path)
    claim(tmp_path)
    release(tmp_path)
    assert owner_of(tmp_path) is None
    release(tmp_path)


@pytest.fixture
def versions(tmp_path):
    """A run whose files tell their versions; returns what writes one of them anew with another."""

    def write(name, version):
        if name == CONFIG:
            text = f"version = {version}\n[training]\nlr = 0.1\n"
        else:
            text = json.dumps({"event": "journal", "version": version}) + "\n"
        (tmp_path / name).write_text(text)

    for name in VERSIONED:
        write(name, 1)
    return write


VERSIONED = [CONFIG, SUMMARY, ENVIRONMENT, CHOICES, journal.NAME]


@pytest.mark.parametrize("name", VERSIONED)
def test_each_file_of_a_newer_version_is_refused_and_named(tmp_path, versions, name):
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
    write_json(tmp_path / SUMMARY, {"status": "running"})
    assert status_of(tmp_path)["status"] == "crashed"
    claim(tmp_path)
    assert status_of(tmp_path)["status"] == "running"


def test_a_run_that_another_machine_took_over_is_noticed_by_its_first_owner(tmp_path):
    claim(tmp_path)
    keep_claim(tmp_path)
    lock = tmp_path / "lock.json"
    theirs = {**json.loads(lock.read_text()), "pid": 7, "boot": "another", "host": "node7"}
    write_json(lock, theirs)
    with pytest.raises(RunDirectoryError, match=r"process 7 on node7 has taken this run over"):
        keep_claim(tmp_path)
    release(tmp_path)
    assert lock.exists()


def test_a_clock_that_is_set_makes_no_lock_stale(tmp_path, other_owner, monkeypatch):
    monkeypatch.setattr("psutil.boot_time", lambda: 12345.0)  # from which psutil counts in seconds
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 12345.0, raising=False)
    assert owner_of(tmp_path) == other_owner.pid
