"""`mptui stop` ends no process that is not the run's, whatever its lock or its socket names."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mptui.io.own_files import mark_run
from mptui.runs.remote import control as remote_control
from mptui.runs.store.directory import claim
from mptui.runs.store.lock import NAME as LOCK
from mptui.runs.store.lock import PRIVATE, is_open_in
from tests.program import run_to_end


@pytest.fixture
def bystander():
    """A process that has nothing to do with any run."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


@pytest.mark.program
def test_a_process_that_a_lock_names_is_not_the_run_s_by_that(tmp_path, bystander):
    run = tmp_path / "run"
    run.mkdir()
    mark_run(run)
    (run / "run.toml").write_text("version = 1\n")
    started = float(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    lock = {"pid": bystander.pid, "started": started, "boot": boot, "host": platform.node()}
    (run / LOCK).write_text(json.dumps({**lock, "namespace": str(Path("/proc/self/ns/pid").readlink())}))
    ended = run_to_end("stop", run)
    assert ended.returncode == 6, ended.stderr
    assert "no file of this run open" in ended.stderr
    assert bystander.poll() is None


def test_a_link_to_the_socket_of_another_run_is_not_followed(tmp_path, monkeypatch):
    mine, other = tmp_path / "mine", tmp_path / "other"
    for run in (mine, other):
        run.mkdir()
    held = claim(mine)
    control = remote_control.listen(mine)
    try:
        (other / remote_control.NAME).symlink_to(control.path)
        remote_control.connect(mine, 5).close()
        with pytest.raises(PermissionError, match="another run"):
            remote_control.connect(other, 5)
    finally:
        control.remove()
        held.release()


def test_who_only_reads_a_run_is_not_its_owner(tmp_path):
    held = claim(tmp_path)
    (tmp_path / "events.jsonl").write_text("{}\n")
    files = [(tmp_path / name).open() for name in (PRIVATE, "events.jsonl")]
    reader = subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"],
        stdin=subprocess.PIPE,
        pass_fds=[file.fileno() for file in files],
    )
    try:
        assert is_open_in(tmp_path, os.getpid())
        assert not is_open_in(tmp_path, reader.pid)
    finally:
        reader.communicate()
        held.release()
        for file in files:
            file.close()
