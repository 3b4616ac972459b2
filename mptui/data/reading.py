"""Prefetches the batches of a pass in workers: bad samples are replaced, dead workers named."""

import contextlib
import os
import pickle
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType

import numpy as np
import numpy.typing as npt

from mptui.data.rng import replacement
from mptui.data.transforms import Geometry, most_pixels
from mptui.data.types import Mask, PixelFormat, Pixels, Problem, SampleFormat, Split, machine_fault
from mptui.data.worker import Answer, Arena, ReadFailure, ReadTask, perform
from mptui.errors import DataError, OwnCodeError
from mptui.processes.start import start

# A pool of worker processes: starts them, assigns tasks, replaces dead ones
# --------------------------------------------------------------------------
# In place of torch's `DataLoader`, which reads as fast; both were measured with the same decoder and crops
# (`benchmarks.workers`: two cores, 1,000 photos, `forkserver` with torch loaded once; forks of the trainer
# are no choice beside its threads and CUDA). Its first batch comes 5 times as late, its workers take 7
# times the memory, and a pass that is left in its middle, as by a rollback, costs 7 times as long before
# the next one begins. A worker that dies ends its pass without a name of the file, and in a container, whose
# /dev/shm has 64 MiB, 8 batches of 64 crops that wait for a slow step end the run.
#
# Workers are fresh interpreters: not forks of the trainer, whose threads and CUDA context don't survive a
# fork, and not children of `multiprocessing`, which would import the trainer's main module and torch. A
# worker answers its tasks in order, so the unfinished tasks of a dead worker are known exactly.

_DEATHS_BY_ONE_TASK = 3
_LOOK_S = 0.2
_FADING = 0.98
"""Decay of earlier measurements with each new one, so that about the last fifty count."""
_PATIENCE_S = 10.0
"""Seconds that a worker may take to finish a cancelled sample."""
_NAMES_SHOWN = 5
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Pool:
    """Worker processes and the arena they write to; without workers, the caller's thread does the work.

    Used by one thread at a time. Processes start with the first task.

    Args:
        workers: Number of processes; 0: none.
        check_stop: Called several times per second while waiting for answers; may raise.
        shared: Descriptors that requests read from; processes inherit them with the same numbers.
    """

    def __init__(
        self,
        workers: int,
        check_stop: Callable[[], None] = lambda: None,
        shared: tuple[int, ...] = (),
    ) -> None:
        self.arena = Arena()
        self.size = workers
        self._shared = shared
        self._check_stop = check_stop
        self._workers: list[_Worker] = []
        self._inline: deque[ReadTask] = deque()
        self._last_id = self._cancelled = 0
        self._deaths: Counter[int] = Counter()
        self._read = self._read_s = self._computing_s = 0.0

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.pid for worker in self._workers]

    @property
    def reading(self) -> list[str]:
        """Name of the first sample of each worker's current task."""
        oldest = [next(iter(worker.tasks.copy()), None) for worker in self._workers.copy()]
        return [task.requests[0].name for task in oldest if task is not None]

    def note_read(self, samples: int, seconds: float, computing_s: float) -> None:
        """Record that a process has read `samples` in `seconds`, and computed in `computing_s` of them."""
        self._read = self._read * _FADING + samples
        self._read_s = self._read_s * _FADING + seconds
        self._computing_s = self._computing_s * _FADING + computing_s

    @property
    def unthrottled_rate(self) -> float | None:
        """Samples per second that the workers can read if nothing blocks; None before the first."""
        return self._read / self._read_s * max(1, self.size) if self._read_s else None

    @property
    def computing_share(self) -> float | None:
        """Share of the reading time in which the workers computed or waited for a CPU; None before any."""
        return min(1.0, self._computing_s / self._read_s) if self._read_s else None

    def next_id(self) -> int:
        """Return the id of the next task; ids increase."""
        self._last_id += 1
        return self._last_id

    def submit(self, task: ReadTask) -> None:
        """Assign `task` to the worker with the fewest samples left."""
        if self.size == 0:
            self._inline.append(task)
            return
        while len(self._workers) < self.size:
            self._workers.append(_Worker(self.arena.fd, self._shared))
        min(self._workers, key=lambda worker: worker.load).send(task)

    def collect(self, *, block: bool) -> list[tuple[ReadTask, Answer]]:
        """Collect the answers that have arrived.

        Args:
            block: Wait for an answer; the list is still empty if a worker died.

        Raises:
            DataError: A task has killed its worker several times.
            OwnCodeError: The person's own data set raised an exception.
            RuntimeError: A worker raised an unexpected exception.
        """
        if block:
            self._check_stop()
        if self._inline and block:
            task = self._inline.popleft()
            return [(task, perform(task, self.arena.fd, lambda: False))]
        if not self._workers:
            return []
        ready = self._ready(block)
        answers = []
        for worker in self._workers.copy():
            if worker.connection in ready:
                try:
                    answers.append(worker.receive())
                except (EOFError, OSError):
                    self._replace(worker)
        wanted = [(task, answer) for task, answer in answers if task.id > self._cancelled]
        for _, answer in wanted:
            if answer.error is not None:
                bug = RuntimeError(f"a data worker failed\n{answer.error}")
                if answer.fault is not None:
                    raise OwnCodeError(answer.fault[0], hint=answer.fault[1]) from bug
                raise bug
        return wanted

    def _ready(self, block: bool) -> set[object]:
        """Return the readable connections; with `block`, wait for one."""
        connections = [worker.connection for worker in self._workers]
        while not (ready := wait(connections, timeout=_LOOK_S if block else 0)) and block:
            self._check_stop()
        return set(ready)

    def cancel(self) -> None:
        """Cancel all tasks; after the return, no worker writes to the arena.

        A worker that hangs in a read is killed, and replaced with the next task.
        """
        self._inline.clear()
        self._cancelled = self._last_id
        for worker in self._workers:
            worker.cancel()
        until = time.monotonic() + _PATIENCE_S
        while (busy := [worker for worker in self._workers if worker.load]) and time.monotonic() < until:
            if wait([worker.connection for worker in busy], timeout=_LOOK_S):
                self.collect(block=False)
        for worker in busy:
            worker.end()
            self._workers.remove(worker)

    def close(self) -> None:
        """End the processes and free the arena. The pool can't be used afterwards."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._inline.clear()
        self.arena.close()

    def _replace(self, dead: "_Worker") -> None:
        """Assign the unfinished tasks of `dead` to other workers; without any, the next task starts one."""
        self._workers.remove(dead)  # first: a worker without a pipe must not be waited for
        status = dead.end()
        left = [task for task in dead.tasks if task.id > self._cancelled]
        if left:
            self._blame(left[0], status)
        for task in left:
            self.submit(task)

    def _blame(self, task: ReadTask, status: int) -> None:
        """Count a worker's death for its current task; fail if a task repeatedly kills its worker."""
        self._deaths[task.id] += 1
        if self._deaths[task.id] < _DEATHS_BY_ONE_TASK:
            return
        names = [request.name for request in task.requests]
        more = ["…"] if len(names) > _NAMES_SHOWN else []
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        raise DataError(
            f"data workers died {_DEATHS_BY_ONE_TASK} times ({how}) while reading: "
            + ", ".join(names[:_NAMES_SHOWN] + more),
            hint="check these files and the free memory; with --workers 0, the run decodes them itself",
        )


class _Worker:
    """One process, its pipe, and its unanswered tasks, oldest first."""

    def __init__(self, arena_fd: int, shared: tuple[int, ...]) -> None:
        self.connection, theirs = Pipe()
        self.tasks: deque[ReadTask] = deque()
        self._process = _started(theirs, arena_fd, shared)
        theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def load(self) -> int:
        """Number of unread samples."""
        return sum(len(task.requests) for task in self.tasks)

    def send(self, task: ReadTask) -> None:
        self.tasks.append(task)
        self._send_bytes(pickle.dumps(task))

    def cancel(self) -> None:
        if self.tasks:
            self._send_bytes(b"")

    def receive(self) -> tuple[ReadTask, Answer]:
        answer = self.connection.recv()
        return self.tasks.popleft(), answer

    def end(self) -> int:
        """End the process and return its exit status."""
        self.connection.close()
        # A worker exits when its pipe closes, unless it hangs in a read from a dead disk.
        self._process.kill()
        try:
            return self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:  # hangs in the kernel, in a read from a dead disk
            return -signal.SIGKILL

    def _send_bytes(self, message: bytes) -> None:
        # `collect` detects a dead worker and reassigns its tasks.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(message)


def _started(connection: Connection, arena_fd: int, shared: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    descriptors = (connection.fileno(), arena_fd)
    environ = {**os.environ, **_ONE_THREAD}
    call = "mptui.data.worker:main"
    return start(call, *map(str, descriptors), env=environ, pass_fds=(*descriptors, *shared))


# Prefetches the batches of one pass over a split into slots of shared memory
# ---------------------------------------------------------------------------
# Imports no torch. Shapes: B samples, H and W pixels.

_SMALLEST_TASK = 8
_READ_AHEAD_BYTES = 1 << 30
_PAGE = 4096
_PROBLEMS_SHOWN = 10


@dataclass(slots=True)
class HostBatch:
    """A batch in its slot, which is reused after the release."""

    first: int
    """Position in the order of the epoch."""
    indices: npt.NDArray[np.int64]
    slot: int
    pixels_BHWC: Pixels
    masks_BHW: Mask | None
    labels: npt.NDArray[np.int64]
    valid_counts: npt.NDArray[np.int64]
    missing: int
    whole: "WholeRows | None" = None
    """Whole images, if the workers cut no views."""

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.indices)

    def valid(self, first: int = 0) -> int:
        """Return the number of valid items from row `first` on: samples with labels, or pixels of masks."""
        return int(self.valid_counts[first:].sum())


@dataclass(slots=True)
class WholeRows:
    """The whole images of a batch, in slots of equal size; the rest of a slot is undefined."""

    images_BX: npt.NDArray[np.uint8]
    masks_BX: npt.NDArray[np.uint8] | None
    """Masks, as the bytes of int16."""
    sizes_B2: npt.NDArray[np.int64]
    """Width and height of each image."""


class BadSamples:
    """Collects the samples that could not be read, and fails above a budget.

    Args:
        split_size: Number of samples.
        budget: The share of them that may be bad; at least one sample, unless it is 0.
        on_bad: Called once for each bad sample.
    """

    def __init__(self, split_size: int, budget: float, on_bad: Callable[[Problem], None] | None) -> None:
        self._split_size = split_size
        self._allowed = min(max(1, int(budget * split_size)), split_size - 1) if budget > 0 else 0
        self._on_bad = on_bad
        self._known: dict[int, Problem] = {}
        self._new: dict[int, Problem] = {}

    @property
    def problems(self) -> list[Problem]:
        """The bad samples found so far."""
        return list(self._known.values())

    def record(self, index: int, failure: ReadFailure) -> None:
        """Record that sample `index` is bad.

        Raises:
            DataError: More samples are bad than the budget allows, or the machine is the cause.
        """
        if (fault := machine_fault(failure.name, failure.reason)) is not None:
            raise fault
        if index in self._known:
            return
        self._new[index] = Problem(failure.name, failure.reason)
        self._add(index, self._new[index])
        self.check()

    def take_new(self) -> dict[int, Problem]:
        """Return the samples found since the last call, by index."""
        new, self._new = self._new, {}
        return new

    def add_of_others(self, found: Mapping[int, Problem]) -> None:
        """Add samples that other processes of the run have found."""
        for index, problem in found.items():
            if index not in self._known:
                self._add(index, problem)

    def check(self) -> None:
        """Check the number of bad samples against the budget.

        Raises:
            DataError: It allows fewer.
        """
        if len(self._known) > self._allowed:
            raise self._too_many()

    def _add(self, index: int, problem: Problem) -> None:
        self._known[index] = problem
        if self._on_bad is not None:
            self._on_bad(problem)

    def _too_many(self) -> DataError:
        shown = [f"{problem.path}: {problem.reason}" for problem in self.problems[:_PROBLEMS_SHOWN]]
        count = f"{len(self.problems)} of {self._split_size} samples can't be used"
        return DataError(
            "\n".join([f"{count}, data.bad_sample_budget allows {self._allowed}", *shown]),
            hint="repair or remove these files, or raise data.bad_sample_budget",
        )


@dataclass(frozen=True, slots=True)
class SampleSource:
    """The split and the reading settings shared by all its passes."""

    split: Split
    pool: Pool
    bad: BadSamples
    format: SampleFormat
    geometry: Geometry
    seed: int
    whole: bool = False
    """Read whole resized images instead of views."""
    transforms: tuple[str, ...] = ()
    """What changes the pixels of views; see `ReadTask`."""
    folder: str = ""
    """Where the person's own ones of these are imported from."""

    @property
    def pixels(self) -> PixelFormat:
        """The format of the images."""
        return self.format.pixels

    @property
    def masks(self) -> bool:
        """Whether each sample has a mask."""
        return self.format.has_masks

    @property
    def slot_bytes(self) -> int:
        """Distance between two images of a batch in bytes."""
        if self.whole:
            return self.pixels.nbytes * most_pixels(self.geometry.resize)
        return self.pixels.nbytes * self.geometry.side**2

    @property
    def mask_slot_bytes(self) -> int:
        """Distance between two masks of a batch in bytes."""
        if not self.masks:
            return 0
        return 2 * (most_pixels(self.geometry.resize) if self.whole else self.geometry.side**2)


class Prefetcher:
    """Prefetches the batches of one pass.

    Args:
        source: The source of the samples.
        epoch: Selects the random numbers.
        indices: Indices of the samples, in the order of the epoch; of repeated ones, draws as in
            `EpochOrder.of`.
        batches: The positions of each batch in that order.
        ahead: Number of batches to prefetch, if memory allows.
        held: Largest number of batches that are taken and not yet released.
    """

    def __init__(
        self,
        source: SampleSource,
        *,
        epoch: int,
        indices: npt.NDArray[np.int64],
        batches: Sequence[Sequence[int]],
        ahead: int,
        held: int,
    ) -> None:
        self._source = source
        self._epoch = epoch
        self._indices = indices
        self._batches = batches
        self._cursor = 0
        batch_size = max(map(len, batches), default=1)
        self._masks_offset = _aligned(batch_size * source.slot_bytes, 64)
        self._slot_size = _aligned(self._masks_offset + batch_size * source.mask_slot_bytes, _PAGE)
        slots = held + max(1, min(ahead, _READ_AHEAD_BYTES // self._slot_size))
        source.pool.arena.reserve(slots * self._slot_size)
        self._free = deque(range(slots))
        self._coming: deque[HostBatch] = deque()
        self._parts: dict[int, tuple[HostBatch, int, int]] = {}
        """ReadTask id -> its batch, its first row there, and the number of earlier attempts."""

    def take(self, count: int) -> list[HostBatch]:
        """Wait for the next `count` batches, and return them; fewer at the end.

        Raises:
            DataError: Too many samples are bad, or workers keep dying.
        """
        taken: list[HostBatch] = []
        while len(taken) < count and self._fill():
            batch = self._coming.popleft()
            while batch.missing:
                self._absorb(block=True)
            taken.append(batch)
        return taken

    def next_ready(self) -> HostBatch | None:
        """Return the next batch if it is complete, else None."""
        self._absorb(block=False)
        return self._coming[0] if self._coming and not self._coming[0].missing else None

    def release(self, batches: list[HostBatch]) -> None:
        """Free the slots of taken batches."""
        self._free.extend(batch.slot for batch in batches)

    def close(self) -> None:
        """Cancel prefetching."""
        self._source.pool.cancel()
        self._coming.clear()

    def _fill(self) -> bool:
        """Start reading into all free slots; return whether a batch is on its way."""
        while self._free and self._cursor < len(self._batches):
            self._start(self._free.popleft())
        return bool(self._coming)

    def _start(self, slot: int) -> None:
        places = self._batches[self._cursor]
        indices = self._indices[np.array(places)]
        self._cursor += 1
        count, side, arena = len(indices), self._source.geometry.side, self._source.pool.arena
        at = slot * self._slot_size
        batch = HostBatch(
            first=places[0],
            indices=indices,
            slot=slot,
            pixels_BHWC=arena.pixels(at, count, side, self._source.pixels),
            masks_BHW=arena.masks(at + self._masks_offset, count, side) if self._source.masks else None,
            labels=np.zeros(count, np.int64),
            valid_counts=np.zeros(count, np.int64),
            missing=count,
        )
        if self._source.whole:
            batch.whole = self._whole_rows(at, count)
        self._coming.append(batch)
        # All workers share each batch, so that the first is complete soon.
        step = max(_SMALLEST_TASK, -(-count // max(1, self._source.pool.size)))
        for row in range(0, count, step):
            self._read(batch, row, indices[row : row + step].tolist(), attempt=0)

    def _whole_rows(self, at: int, count: int) -> WholeRows:
        source, arena = self._source, self._source.pool.arena
        masks_BX = (
            arena.slots(at + self._masks_offset, count, source.mask_slot_bytes) if source.masks else None
        )
        sizes_B2 = np.zeros((count, 2), np.int64)
        return WholeRows(arena.slots(at, count, source.slot_bytes), masks_BX, sizes_B2)

    def _read(self, batch: HostBatch, row: int, indices: list[int], attempt: int) -> None:
        source, at = self._source, batch.slot * self._slot_size
        task = ReadTask(
            id=source.pool.next_id(),
            requests=tuple(source.split.request(index % len(source.split)) for index in indices),
            indices=tuple(indices),
            seed=source.seed,
            epoch=self._epoch,
            geometry=source.geometry,
            classes=source.format.num_classes,
            pixels_offset=at + row * source.slot_bytes,
            masks_offset=at + self._masks_offset + row * source.mask_slot_bytes if source.masks else None,
            whole_bytes=source.slot_bytes if source.whole else 0,
            whole_mask_bytes=source.mask_slot_bytes if source.whole else 0,
            transforms=source.transforms,
            folder=source.folder,
        )
        self._parts[task.id] = (batch, row, attempt)
        source.pool.submit(task)

    def _absorb(self, *, block: bool) -> None:
        for task, answer in self._source.pool.collect(block=block):
            if answer.seconds:
                self._source.pool.note_read(len(task.indices), answer.seconds, answer.computing_s)
            batch, row, attempt = self._parts.pop(task.id)
            rows = slice(row, row + len(task.indices))
            batch.labels[rows] = answer.labels
            batch.valid_counts[rows] = answer.valid
            if batch.whole is not None:
                batch.whole.sizes_B2[rows] = answer.sizes
            batch.missing -= len(task.indices) - len(answer.failures)
            self._replace_failed(batch, row, attempt, task, answer=answer)

    def _replace_failed(
        self, batch: HostBatch, row: int, attempt: int, task: ReadTask, *, answer: Answer
    ) -> None:
        source = self._source
        for failure in answer.failures:
            index, place = task.indices[failure.row], row + failure.row
            source.bad.record(index % len(source.split), failure)
            other = replacement(source.seed, self._epoch, index, attempt, count=len(source.split))
            batch.indices[place] = other
            self._read(batch, place, [other], attempt + 1)


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to
