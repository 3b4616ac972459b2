"""A checkpoint that is temporarily unreadable is left unchanged."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch

from mptui.engine.checkpoint.files import never_saved, read_newest
from mptui.errors import DiskError
from tests.engine.checkpoints import names_of, same, snapshot

PASSING = [errno.EIO, errno.EMFILE, errno.ESTALE, errno.EACCES, errno.ENOMEM, errno.ETIMEDOUT]


@pytest.mark.parametrize("error", PASSING, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("call", "file"),
    [("open", "model.safetensors"), ("readv", "model.safetensors"), ("open", "manifest.json")],
)
def test_what_can_not_be_read_for_a_while_is_left_as_it_is(tmp_path, two, monkeypatch, error, call, file):
    before, whole, opened = names_of(tmp_path), os.open, []

    def opens(path, *arguments, **options):
        if os.fspath(path).endswith(file):
            if call == "open":
                raise OSError(error, os.strerror(error))
            opened.append(path)
        return whole(path, *arguments, **options)

    def reads(*_):
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opens)
        if call == "readv":
            patch.setattr(os, "readv", reads)
        with pytest.raises(DiskError, match=os.strerror(error)) as caught:
            read_newest(tmp_path)
    assert "nothing was changed" in caught.value.hint
    assert names_of(tmp_path) == before
    same(read_newest(tmp_path)[0], snapshot(2))


def test_a_process_without_a_free_descriptor_damages_nothing(tmp_path, two):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = names_of(tmp_path)
    used = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    for room in range(6):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, hard))
        try:
            read_newest(tmp_path)
        except DiskError:
            pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert names_of(tmp_path) == before


def test_memory_that_runs_out_damages_nothing(tmp_path, two, monkeypatch):
    def empty(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    before = names_of(tmp_path)
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(DiskError, match="Cannot allocate memory"):
        read_newest(tmp_path)
    assert names_of(tmp_path) == before


def test_a_folder_that_can_not_be_listed_is_no_run_that_was_never_saved(tmp_path, two, monkeypatch):
    def lists(_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", lists)
        for asks in (never_saved, read_newest):
            with pytest.raises(DiskError, match="Stale file handle"):
                asks(tmp_path)
    assert not never_saved(tmp_path)
