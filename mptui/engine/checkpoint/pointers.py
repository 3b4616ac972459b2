"""Names (last, best) that point to a checkpoint, and what the newest lacks; imports no torch.

Each is a symbolic link beside the checkpoints, or on a disk without links a file with the checkpoint's name.
"""

import errno
import json
import os
import re
from pathlib import Path

from mptui.io.files import OddFileError, read_regular
from mptui.text import counted

CHECKPOINT = re.compile(r"step-\d{9,}(\.\d+)?")
"""The name of a checkpoint's folder."""

STATE = "state.json"
"""Name of the file of a checkpoint that has its step."""

_LARGEST = 256
_LARGEST_STATE = 64 << 20


def target_of(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that `folder/name` points to, which may not exist; None if there is no pointer.

    Raises:
        OSError: The pointer can't be read.
    """
    try:
        target = str((folder / name).readlink())
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.EINVAL:  # not a symbolic link
            raise
        try:
            target = read_regular(folder / name, _LARGEST, os.O_NOFOLLOW).decode().strip()
        except (OddFileError, IsADirectoryError, UnicodeDecodeError):
            return None
    if not CHECKPOINT.fullmatch(target):
        place, target = os.path.split(target)  # some copies make links absolute
        if not place or os.path.realpath(folder / place) != os.path.realpath(folder):
            return None
    return folder / target if CHECKPOINT.fullmatch(target) else None


def checkpoint_of(folder: Path, name: str) -> Path | None:
    """Return the folder of the checkpoint `folder/name`: a copy of a run may hold it under the name itself.

    Raises:
        OSError: The pointer can't be read.
    """
    place = folder / name
    return target_of(folder, name) or (place if place.is_dir() else None)


def checkpoint_name(step: int) -> str:
    """Return the name of the first checkpoint of a step."""
    return f"step-{step:09d}"


def place_of(name: str) -> tuple[int, int]:
    """Return the step in the name of a checkpoint, and its number (from 0) among those of the step."""
    step, _, again = name.removeprefix("step-").partition(".")
    return int(step), int(again or 0)


def step_of(checkpoint: Path) -> int | None:
    """Return the step of a checkpoint, from its state if its name is last or best; None if unreadable."""
    if CHECKPOINT.fullmatch(checkpoint.name):
        return place_of(checkpoint.name)[0]
    try:
        state = json.loads(read_regular(checkpoint / STATE, _LARGEST_STATE, os.O_NOFOLLOW))
    except (OSError, ValueError, RecursionError):
        return None
    step = state.get("step") if isinstance(state, dict) else None
    return step if type(step) is int and step >= 0 else None


def steps_lost(folder: Path, step: int) -> dict[str, int | None] | None:
    """Return what no checkpoint holds of a run that has trained to `step`; None if nothing is lost.

    Args:
        folder: The run's `checkpoints` folder.
        step: Optimizer steps that the run has taken.

    Returns:
        `steps`, the number of them, and `since`, the step of the newest checkpoint; None: there is none.
    """
    try:
        last = checkpoint_of(folder, "last")
        saved = None if last is None or not last.is_dir() else step_of(last)
    except OSError:
        saved = None
    lost = step - (saved or 0)
    return {"steps": lost, "since": saved} if lost > 0 else None


def lost_words(lost: dict[str, int | None] | None) -> str:
    """Describe `steps_lost`: "129 steps since the checkpoint of step 300 are lost"; "" if nothing is."""
    if not lost:
        return ""
    count, since = lost["steps"] or 0, lost["since"]
    steps = counted(count, "step")
    verb = "is" if count == 1 else "are"
    if since is None:
        return f"{steps} {verb} lost: no checkpoint was saved"
    return f"{steps} since the checkpoint of step {since:,} {verb} lost"
