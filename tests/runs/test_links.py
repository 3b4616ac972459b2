"""A run directory from an untrusted source: its symbolic links are not followed."""

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from mptui.errors import RunDirectoryError
from mptui.io.own_files import mark_run
from mptui.runs.remote import control
from mptui.runs.store.directory import claim
from tests.odd_files import KINDS, put
from tests.program import run_to_end

FILES = (
    *("run.toml", "environment.json", "events.jsonl", "summary.json", "index.json", "lock.json"),
    *(
        "choices.json",
        "changes.json",
        "bad_samples.json",
        "console.log",
        "stacks.txt",
        "traceback.txt",
        "checkpoints",
        "predictions",
        "samples",
        "tensorboard",
    ),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_a_run_with_a_link_or_a_special_file_in_it_is_not_owned(tmp_path, name, kind):
    run, target = tmp_path / "run", tmp_path / "target"
    run.mkdir()
    if name in FILES[-4:]:
        target.mkdir()
        (target / ".mine.partial").mkdir()
    else:
        target.write_text("mine")
    put(run / name, kind, target)
    with pytest.raises(RunDirectoryError, match="a link or a special file") as caught:
        claim(run)
    assert str(run / name) in caught.value.message
    assert [path.name for path in run.iterdir()] == [name]
    assert (target / ".mine.partial").is_dir() if name in FILES[-4:] else target.read_text() == "mine"


def test_what_a_person_keeps_beside_the_run_s_files_is_no_fault(tmp_path):
    (tmp_path / "data").symlink_to("/")
    (tmp_path / "control.sock").symlink_to("/nowhere")
    (tmp_path / "notes.md").write_text("")
    mark_run(tmp_path)
    claim(tmp_path).release()


# -- the socket's folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A run whose path is too long for a socket, and the socket's alternative place."""
    run = tmp_path / ("x" * 100)
    run.mkdir()
    with tempfile.TemporaryDirectory(prefix="t") as base:  # short: it contains sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", base)
        monkeypatch.setattr(tempfile, "gettempdir", lambda: base)
        yield run, Path(base)


def folders(base):
    return sorted(base.iterdir())


def listen_and_die():
    """Listen for a run, and be killed, in a fork."""
    _kept = control.listen(Path(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.program
def test_the_socket_s_folder_of_a_process_that_was_killed_goes(place, monkeypatch):
    run, base = place
    run_to_end(run, call=f"{__name__}:listen_and_die")
    (left,) = folders(base)
    living = control.listen(run)  # its predecessor may be about to listen
    assert len(folders(base)) == 2
    monkeypatch.setattr(control, "_YOUNG_S", 0.0)
    other = control.listen(run)
    assert len(folders(base)) == 2
    assert left not in folders(base)
    for each in (living, other):
        each.remove()
    assert folders(base) == []


def test_a_folder_that_holds_anything_else_stays(place, monkeypatch):
    run, base = place
    monkeypatch.setattr(control, "_YOUNG_S", 0.0)
    file, full, link = (base / name for name in ("mptui-file", "mptui-full", "mptui-link"))
    for folder in (file, full):
        folder.mkdir()
    (file / control.NAME).write_text("")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(full / control.NAME))
    (full / "more").write_text("")
    link.symlink_to(full)
    control.listen(run).remove()
    assert folders(base) == [file, full, link]
    assert len(list(full.iterdir())) == 2
