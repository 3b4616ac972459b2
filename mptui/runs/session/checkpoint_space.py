"""The room on the disk for the checkpoints of a run: whether they fit, and the wait for it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mptui.engine.checkpoint.disk_space import cant_save, need_space
from mptui.engine.checkpoint.files import checkpoints
from mptui.engine.job import Job
from mptui.engine.optim.freezing import frozen_at_last, frozen_parameters
from mptui.engine.optim.param_groups import hidden_matrices
from mptui.errors import DiskError
from mptui.events import Event, Paused, PhaseChanged, Recovered, Resumed
from mptui.models.layers import tensors_of
from mptui.models.zoo import parameter_count
from mptui.registry.optimizers import OPTIMIZERS


def check_space(folder: Path, job: Job) -> None:
    """Check that all checkpoints to keep, and the one being written, fit on the disk.

    Args:
        folder: Their folder in the run directory, which may not exist yet.
        job: The job to save.

    Raises:
        DiskError: They don't fit.
    """
    size = one = _checkpoint_bytes(job)
    try:
        there = sum(file.stat().st_size for path in checkpoints(folder) for file in path.iterdir())
        size = max(one, one * (_kept(job) + 1) - there)
        need_space(folder.parent, size)
    except OSError as error:
        raise cant_save(folder.parent, size, error) from error


@contextlib.contextmanager
def waiting_for_disk(
    error: DiskError,
    emit: Callable[[Event], None],
    warn: Callable[[str, str], None],
    *,
    step: int,
    phase: str,
) -> Iterator[None]:
    """Report that a run waits for its disk, and when it continues.

    Args:
        error: Why a checkpoint can't be written.
        emit: Receives the events.
        warn: Called with the code and the message of a warning.
        step: Current step of the run.
        phase: Its phase, to which it returns.
    """
    since = time.monotonic()
    warn("disk", f"{error.message}; the run waits: {error.hint}")
    emit(PhaseChanged(step=step, phase="paused", detail="waiting for the disk"))
    emit(Paused(step=step))
    yield
    waited = f"saved after waiting {time.monotonic() - since:.0f} s; no step is lost"
    emit(Recovered(step=step, problem="disk", action=waited))
    emit(Resumed(step=step))
    emit(PhaseChanged(step=step, phase=phase))


def _kept(job: Job) -> int:
    """Return how many checkpoints are kept, as far as the run is planned to write them.

    Of `keep = "all"` one is counted: each save looks for space, and the run waits where there is none.
    """
    keep, training, every = job.config.checkpoint.keep, job.config.training, job.config.checkpoint.every_steps
    if keep == "all":
        return 1
    steps = training.epochs * job.train_loader.steps(training.accumulate)
    steps = min(steps, training.max_steps or steps)
    return min(keep, training.epochs + (steps // every if every else 0) + 1)


def _checkpoint_bytes(job: Job) -> int:
    """Return the size of a checkpoint of `job`: weights, buffers, optimizer state, averaged weights."""
    training = job.config.training
    frozen = set(frozen_parameters(job.model, frozen_at_last(training)))
    weights = parameter_count(job.model) - sum(p.numel() for p in frozen)
    spec = OPTIMIZERS[training.optimizer]
    state = spec.state_of(weights, sum(p.numel() for p in hidden_matrices(job.model) - frozen))
    average = 4 * weights * (spec.averages or training.ema_decay is not None)
    whole: int = sum(t.numel() * t.element_size() for t in tensors_of(job.model).values())
    return state + average + whole
