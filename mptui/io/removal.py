"""Removes what the program has written, and nothing else.

All that is removed or moved out of the way in a run's folder goes through here, beside a file that the same
call has just made: a checkpoint is what its manifest names, a partial file has a name of `partial_path`, and
no link is followed. What else lies in a removed folder is kept, under a name that tells it.
"""

import contextlib
import os
import shutil
from itertools import chain, count
from pathlib import Path

from mptui.io.atomic import Guard, is_partial, partial_path
from mptui.io.marker import checkpoint_files


def remove_checkpoint(path: Path, guard: Guard = contextlib.nullcontext) -> bool:
    """Remove the files of a checkpoint and its folder; other files in it move to `step-000000100.others`.

    The folder is first renamed to a name of this process: so no checkpoint is ever partly removed under its
    own name, and a process stopped in between removes nothing of another one.

    Returns:
        False if the folder is no checkpoint: it is as it was.

    Raises:
        OSError: It can't be renamed.
    """
    if not (own := checkpoint_files(path)):
        return False
    if others := sorted({*os.listdir(path)} - own):
        kept = _unused(path.with_name(f"{path.name}.others"))
        with guard():
            os.mkdir(kept, 0o700)
        for name in others:
            with guard():
                os.rename(path / name, kept / name)
    aside = partial_path(path.with_name("removed"))
    with guard():
        os.rename(path, aside)
    remove_partial(aside)
    return True


def remove_partial(path: Path) -> None:
    """Remove what a process that was killed has left half-written, by its name of `partial_path`.

    Errors are ignored.
    """
    if not is_partial(path.name):
        return
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def set_aside(path: Path, name: str, guard: Guard = contextlib.nullcontext) -> Path:
    """Rename `path` to an unused name beside it, `name` or `name-2`; nothing is replaced.

    Raises:
        OSError: It can't be renamed.
    """
    other = _unused(path.with_name(name))
    with guard():
        os.rename(path, other)
    return other


def _unused(path: Path) -> Path:
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not os.path.lexists(each))
