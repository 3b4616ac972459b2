"""Resumes a run: checks its settings and restores the newest checkpoint."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from mptui.config.dump import values_of
from mptui.config.merge import resolve
from mptui.config.resume import check_resume
from mptui.config.schema import RunConfig
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import never_saved, read_newest
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError
from mptui.io.atomic import Guard
from mptui.runs.store.directory import CHECKPOINTS, CONFIG


def settings_before(run: Path, now: RunConfig) -> RunConfig | None:
    """Return the previous settings of a run, checked against those of `now`.

    Returns:
        None if the run has no checkpoint, so that it starts from the beginning, or no readable `run.toml`.

    Raises:
        ConfigError: The new settings can't apply to this run.
    """
    if never_saved(run / CHECKPOINTS):
        return None
    before = None
    with contextlib.suppress(ConfigError):
        before = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    if before is not None:
        check_resume(before, now)
    return before


def take_up(
    trainer: Trainer,
    run: Path,
    before: RunConfig | None,
    warn: Callable[[str, str], None],
    guard: Guard = contextlib.nullcontext,
) -> int:
    """Set `trainer` to the newest whole checkpoint of `run`; to the start where it was killed before any.

    Args:
        trainer: Stands at its start.
        run: The run's directory.
        before: What `settings_before` returned.
        warn: Told (code, message) of checkpoints that can't be used.
        guard: Entered around each change of a name in the run's directory.

    Returns:
        The step it goes on from.

    Raises:
        ConfigError: The checkpoint does not fit what is asked for now.
        RunDirectoryError: All of them are damaged, or of a newer version.
        DiskError: The newest can't be read now.
    """
    folder = run / CHECKPOINTS
    if never_saved(folder):
        warn("never_saved", "this run has no checkpoint yet: it starts from the beginning")
        return 0
    snapshot, complaints = read_newest(folder, guard)
    for complaint in complaints:
        warn("damaged_checkpoint", complaint)
    if before is not None:  # a checkpoint of an earlier version does not tell its settings
        snapshot.state.setdefault("settings", values_of(before))
    snapshots.restore(trainer.state, snapshot)
    trainer.context.saver.go_on_from(snapshot.step)
    return snapshot.step
