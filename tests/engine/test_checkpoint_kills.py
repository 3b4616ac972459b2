"""A save that is killed or fails between any two operations leaves an undamaged checkpoint."""

import errno
import io
import math
import os
import shutil

import pytest
import torch

from mptui.engine.checkpoint.files import (
    checkpoints,
    keep_only,
    point,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from mptui.errors import DiskError
from tests.engine.checkpoints import same, snapshot
from tests.tools.faulty_disk import Fault, failing, faulty_disk


class Killed(BaseException):
    """Acts as a kill: no handler cleans up, and further file operations raise it again."""


def kill():
    raise Killed


def save(folder, step):
    path = write_checkpoint(folder, snapshot(step))
    point(folder, "last", path)
    keep_only(folder, 2)


def calls_of_a_save(folder):
    """Return the calls of a save, in order."""
    with faulty_disk(folder) as calls:
        save(folder, 3)
    return calls


def assert_sound(folder):
    """Assert that no checkpoint is damaged, `last` is complete, and the next save cleans up."""
    read, complaints = read_newest(folder)
    assert complaints == []
    same(read, snapshot(read.step))
    same(read_checkpoint(folder / "last"), snapshot(read_checkpoint(folder / "last").step))
    save(folder, 4)
    assert read_newest(folder)[0].step == 4
    assert {p.name for p in folder.iterdir()} == {"last", *(p.name for p in checkpoints(folder))}
    return read.step


@pytest.fixture
def ready(tmp_path):
    """Create folders with two checkpoints."""
    for step in (1, 2):
        save(tmp_path / "ready", step)
    return lambda name: shutil.copytree(tmp_path / "ready", tmp_path / str(name), symlinks=True)


BEFORE, AFTER = (pytest.param(when, marks=pytest.mark.slow) for when in ("before", "after"))
"""Halfway, too, all calls but writes are done: it leaves what a kill before the next call leaves."""


@pytest.mark.parametrize("when", [BEFORE, "half", AFTER])
def test_killed_at_any_call_of_a_save_a_whole_one_is_found(ready, when):
    calls = calls_of_a_save(ready("whole"))
    assert {"mkdir", "open", "write", "fsync", "rename", "symlink", "unlink", "rmdir"} <= set(calls)
    found = []
    for place in range(len(calls)):
        folder = ready(place)
        with pytest.raises(Killed), faulty_disk(folder, Fault(place, when, kill, count=math.inf)):
            save(folder, 3)
        found.append(assert_sound(folder))
    assert set(found) == {2, 3}
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("when", "error"),
    [
        pytest.param(when, error, marks=[pytest.mark.slow] * (not number == place == 1))
        for number, when in enumerate(["before", "half", "after"])
        for place, error in enumerate([errno.ENOSPC, errno.EIO, errno.EROFS])
    ],
)
def test_any_call_of_a_save_may_fail_and_the_older_one_is_whole(ready, when, error):
    calls = calls_of_a_save(ready("whole"))
    messages = []
    for place in range(len(calls)):
        folder = ready(place)
        with faulty_disk(folder, Fault(place, when, failing(error))):
            try:
                save(folder, 3)
            except DiskError as caught:
                messages.append(caught.message)
        assert_sound(folder)
    assert all(os.strerror(error).lower() in told and "are free" in told for told in messages)
    # cleanup may fail silently: it leaves files behind, which the next save removes
    assert len(messages) >= calls.index("symlink")


def test_saved_over_itself_a_kill_in_the_middle_leaves_nothing(tmp_path):
    """Negative control: overwriting in place, under the same kill."""

    def save_over(path, step):
        content = io.BytesIO()
        torch.save(snapshot(step).tensors, content)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(handle, content.getvalue())
        os.close(handle)

    path = tmp_path / "last.pt"
    save_over(path, 1)
    with pytest.raises(Killed), faulty_disk(tmp_path, Fault(0, "half", kill, only=["write"])):
        save_over(path, 2)
    with pytest.raises((RuntimeError, EOFError, OSError)):
        torch.load(path, weights_only=True)
