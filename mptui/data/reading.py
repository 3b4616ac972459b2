"""Prefetches the batches of one pass over a split into slots of shared memory.

Imports no torch. Shapes: B samples, H and W pixels.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mptui.data.core.read_errors import machine_fault
from mptui.data.core.rng import replacement
from mptui.data.core.types import RGB, Mask, PixelFormat, Pixels, Problem, Split
from mptui.data.loading.worker import Answer, ReadFailure, ReadTask
from mptui.data.loading.worker_pool import Pool
from mptui.data.transforms.crop import Geometry
from mptui.data.transforms.resize import most_pixels
from mptui.errors import DataError

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

    @property
    def has_new(self) -> bool:
        """Whether samples were found that `take_new` has not returned yet."""
        return bool(self._new)

    def take_new(self) -> dict[int, Problem]:
        """Return the samples found since the last call, by index."""
        new, self._new = self._new, {}
        return new

    def hear(self, found: Mapping[int, Problem]) -> None:
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
            hint="Repair or remove these files, or raise data.bad_sample_budget.",
        )


@dataclass(frozen=True, slots=True)
class SampleSource:
    """The split and the reading settings shared by all its passes."""

    split: Split
    pool: Pool
    bad: BadSamples
    geometry: Geometry
    masks: bool
    classes: int
    seed: int
    whole: bool = False
    """Read whole resized images instead of views."""
    pixels: PixelFormat = RGB
    """The format of the images."""

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
        self._source, self._epoch = source, epoch
        self._indices, self._batches = indices, batches
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
        while len(taken) < count and (self._fill() or self._coming):
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
        """Start reading into all free slots; return whether a batch was started."""
        started = False
        while self._free and self._cursor < len(self._batches):
            self._start(self._free.popleft())
            started = True
        return started

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
            classes=source.classes,
            pixels_offset=at + row * source.slot_bytes,
            masks_offset=at + self._masks_offset + row * source.mask_slot_bytes if source.masks else None,
            whole_bytes=source.slot_bytes if source.whole else 0,
            whole_mask_bytes=source.mask_slot_bytes if source.whole else 0,
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
            self._replace_failed(batch, row, attempt, task, answer)

    def _replace_failed(
        self, batch: HostBatch, row: int, attempt: int, task: ReadTask, answer: Answer
    ) -> None:
        source = self._source
        for failure in answer.failures:
            index, place = task.indices[failure.row], row + failure.row
            source.bad.record(index % len(source.split), failure)
            other = replacement(source.seed, self._epoch, index, attempt, len(source.split))
            batch.indices[place] = other
            self._read(batch, place, [other], attempt + 1)


def _aligned(size: int, to: int) -> int:
    return -(-size // to) * to
