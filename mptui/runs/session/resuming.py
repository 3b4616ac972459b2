"""Resumes a run: checks its settings and restores the newest checkpoint."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from mptui.config.dump import values_of
from mptui.config.keys import UNSET
from mptui.config.merge import resolve
from mptui.config.resume import changed, check_resume
from mptui.config.schema import RunConfig
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import never_saved, read_newest
from mptui.engine.checkpoint.upkeep import adopt
from mptui.engine.epochs import EPOCHS, MAX_STEPS, PATIENCE, ended_by
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError, RunDirectoryError
from mptui.io.atomic import Guard
from mptui.runs.store.directory import CHECKPOINTS, CONFIG
from mptui.text import some

_LONGER = {
    EPOCHS: "set more with --epochs; to begin at an earlier step: mptui resume RUN --fork --at STEP",
    MAX_STEPS: f"set more, or no limit: --set {MAX_STEPS}={UNSET}",
    PATIENCE: f"set more, or no limit: --set {PATIENCE}={UNSET}",
}
"""Setting that ends a run -> how it goes on."""


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


def has_checkpoint(run: Path, guard: Guard) -> bool:
    """Whether a resume goes on from a checkpoint; adopts those that a copy of the run brought as folders.

    Raises:
        RunDirectoryError: Such a folder is not an intact checkpoint.
        DiskError: The checkpoints can't be read now.
    """
    adopt(run / CHECKPOINTS, guard)
    return not never_saved(run / CHECKPOINTS)


def check_length(
    trainer: Trainer, before: RunConfig | None, planned: RunConfig, warn: Callable[[str, str], None]
) -> bool:
    """Check that a resumed run can have the length that is asked for.

    Args:
        trainer: The trainer, restored.
        before: Result of `settings_before`.
        planned: The settings before those that are "auto" were decided.
        warn: Called with (code, message) if other settings are asked for, and nothing is left to train.

    Returns:
        Whether the settings apply: not if nothing is left to train, so that the run would not be repeated by
        them.

    Raises:
        ConfigError: Another length is asked for than before, and a setting holds the run where it is.
    """
    now, ended = trainer.context.job.config, ended_by(trainer.context)
    if before is None:
        return True
    had, asked = values_of(before), values_of(now)
    lengths = [key for key in (EPOCHS, MAX_STEPS, PATIENCE) if had[key] != asked[key]]
    if ended is None:
        _check_max_steps(trainer, before, lengths)
        return True
    key, reached = ended
    holds = f"{key} = {asked[key]}, and {reached}"
    if lengths:
        words = ", ".join(f"{each} = {asked[each]}" for each in lengths if each != key)
        raise ConfigError(f"{words and words + ': '}nothing is left to train: {holds}", hint=_LONGER[key])
    decided = {key for key, value in values_of(planned).items() if value == "auto"}
    if others := sorted(changed(had, asked) - decided):
        warn("nothing_left", f"nothing is left to train ({holds}): {some(others)} stay as they were")
    return False


def _check_max_steps(trainer: Trainer, before: RunConfig, lengths: list[str]) -> None:
    """Refuse more epochs of a run that `training.max_steps` ends before.

    Raises:
        ConfigError: They would never be trained.
    """
    training, steps_per_epoch = trainer.context.job.config.training, trainer.context.parts.steps_per_epoch
    limit, had = training.max_steps, before.training.epochs
    if lengths == [EPOCHS] and limit is not None and had < training.epochs and limit <= had * steps_per_epoch:
        raise ConfigError(
            f"{EPOCHS} = {training.epochs}: {MAX_STEPS} = {limit} ends this run in epoch "
            f"{-(-limit // steps_per_epoch)}",
            hint=_LONGER[MAX_STEPS],
        )


def take_up(
    trainer: Trainer,
    run: Path,
    before: RunConfig | None,
    warn: Callable[[str, str], None],
    guard: Guard = contextlib.nullcontext,
) -> int:
    """Restore `trainer` from the newest complete checkpoint of `run`; without any, it starts from step 0.

    Args:
        trainer: A new trainer.
        run: The run directory.
        before: Result of `settings_before`.
        warn: Called with (code, message) for each unusable checkpoint.
        guard: Context around each change of a name in the run directory.

    Returns:
        The step to continue from.

    Raises:
        ConfigError: The checkpoint does not fit the new settings.
        RunDirectoryError: All checkpoints are damaged, or of a newer version.
        DiskError: The newest checkpoint can't be read now.
    """
    folder, ranks = run / CHECKPOINTS, trainer.context.ranks
    if ranks.broadcast(never_saved(folder)):
        warn("never_saved", "this run has no checkpoint yet: it starts from the beginning")
        return 0
    if not ranks.is_first:
        ranks.meet()  # rank 0 has set damaged ones aside
    snapshot, complaints = read_newest(folder, guard)
    if ranks.is_first:
        ranks.meet()
    if len(set(ranks.gather(snapshot.step))) > 1:
        raise RunDirectoryError(
            f"{folder}: the processes of this run find different checkpoints",
            hint="put the run directory on a file system that all nodes share: --runs-dir",
        )
    for complaint in complaints:
        warn("damaged_checkpoint", complaint)
    if snapshot.ignored:
        warn("ignored_files", f"not of the checkpoint, ignored: {', '.join(snapshot.ignored)}")
    if before is not None:  # checkpoints of earlier versions have no settings
        snapshot.state.setdefault("settings", values_of(before))
    snapshots.restore(trainer.state, snapshot)
    trainer.context.saver.go_on_from(snapshot.step)
    return snapshot.step
