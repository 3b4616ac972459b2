"""What to do about a file that can't be written depends on the cause."""

import errno
import os
import re

import pytest

from mptui.engine.checkpoint.files import cant_save, need_space
from mptui.io.written_files import disk_hint


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "writable"),
        (errno.EACCES, "permissions"),
        (errno.EIO, "connection"),
        (errno.ESTALE, "mount"),
        (errno.ENAMETOOLONG, "check the disk and the path"),
    ],
    ids=lambda value: errno.errorcode.get(value, ""),
)
def test_space_is_to_be_freed_only_where_it_lacks(tmp_path, number, says):
    error = OSError(number, os.strerror(number))
    for hint in (
        disk_hint(error, tmp_path / "file"),
        cant_save(tmp_path, 0, error).hint,
    ):
        assert says in hint
        assert ("free disk space" in hint) == (number in {errno.ENOSPC, errno.EDQUOT})
        assert "--runs-dir" not in hint, "a run that has begun can't be elsewhere"
    assert disk_hint(error, tmp_path, "choose another folder").endswith("choose another folder")


def test_a_failed_save_says_the_cause_first_its_size_and_which_checkpoints_there_are(tmp_path):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    first = cant_save(tmp_path, 49_000_000, error)
    assert re.fullmatch(
        rf"cannot save: no space left on device; 47 MiB are needed and [\d.]+ [MG]iB are free: {tmp_path}",
        first.message,
    )
    assert first.hint == "free disk space"
    (tmp_path / "step-000000010").mkdir()
    assert cant_save(tmp_path, 0, error).hint == "free disk space; the checkpoints before it are intact"


def test_a_disk_without_inodes_is_told_from_a_full_one(tmp_path, monkeypatch):
    real = os.statvfs(tmp_path)
    none_free = os.statvfs_result((*real[:5], 1000, 0, 0, *real[8:]))
    monkeypatch.setattr(os, "statvfs", lambda path: none_free)
    with pytest.raises(OSError, match="No space left") as caught:
        need_space(tmp_path, 0)
    assert "no inodes are free" in disk_hint(caught.value, tmp_path, "choose another folder")
