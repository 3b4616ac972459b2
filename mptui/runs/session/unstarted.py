"""Removes the directory of a run that failed before it started."""

import os
import shutil
from pathlib import Path

from mptui.runs.store.bad_samples import NAME as BAD_SAMPLES
from mptui.runs.store.directory import CHECKPOINTS, read_summary


def discard_unstarted(run: Path) -> None:
    """Remove the directory of a new run that never started because of its arguments.

    A run that has started, or has found unusable files, keeps its directory.
    """
    started = read_summary(run).get("model") is not None
    if not started and not any(os.path.lexists(run / name) for name in (CHECKPOINTS, BAD_SAMPLES)):
        shutil.rmtree(run, ignore_errors=True)
