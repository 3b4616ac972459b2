"""What a worker process does: reads samples into memory that it shares with the trainer. Imports no torch."""

import errno
import mmap
import os
import pickle
import queue
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.data.rng import RandomStream, reading, uniforms
from mptui.data.transforms import DRAWS, Geometry, cut_image, cut_mask, resized, views
from mptui.data.types import (
    IGNORE,
    RGB,
    BadSampleError,
    Mask,
    PixelFormat,
    Pixels,
    SampleRequest,
    check_class,
    tried_again,
)
from mptui.errors import DiskError
from mptui.registry.own_code import fault_of

# Shared memory that workers write and the trainer reads: an anonymous file, freed with its last process
# ------------------------------------------------------------------------------------------------------
# It is not in /dev/shm, which is small in containers and keeps the files of a killed process. Workers write
# with `pwrite` through the inherited descriptor, so the file can grow without notifying them.


class Arena:
    """A growing anonymous file, mapped into this process."""

    def __init__(self) -> None:
        self.fd = anonymous_file()
        self._map: mmap.mmap | None = None

    def reserve(self, size: int) -> None:
        """Grow to at least `size` bytes; earlier views stay valid. Untouched bytes take no memory.

        Raises:
            DiskError: It exceeds the limit of file sizes, or the memory is full.
        """
        if self._map is None or len(self._map) < size:
            extend(self.fd, size)
            self._map = mmap.mmap(self.fd, size)

    def pixels(self, at: int, count: int, side: int, form: PixelFormat = RGB) -> Pixels:
        """Return a view of `count` square images that begin at byte `at`."""
        return self._view(np.dtype(form.dtype), at, (count, side, side, form.bands))

    def slots(self, at: int, count: int, slot_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a view of `count` slots of `slot_bytes` bytes that begin at byte `at`."""
        return self._view(np.dtype(np.uint8), at, (count, slot_bytes))

    def masks(self, at: int, count: int, side: int) -> Mask:
        """Return a view of `count` square masks that begin at byte `at`."""
        return self._view(np.dtype(np.int16), at, (count, side, side))

    def _view(self, dtype: np.dtype, at: int, shape: tuple[int, ...]) -> npt.NDArray:  # type: ignore[type-arg]
        assert self._map is not None, "reserve first"
        return np.ndarray(shape, dtype, buffer=self._map, offset=at)

    def bytes(self) -> npt.NDArray[np.uint8]:
        """Return a view of all mapped bytes."""
        assert self._map is not None, "reserve first"
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Close the descriptor; the mapping exists as long as its last view."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        self._map = None


def write_at(fd: int, array: npt.NDArray[Any], at: int) -> None:
    """Write the bytes of an array at an offset of a file.

    Raises:
        OSError: There is not enough space.
    """
    if os.pwrite(fd, array.data, at) < array.nbytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def extend(fd: int, size: int) -> None:
    """Extend an anonymous file to `size` bytes; untouched bytes take no memory.

    Raises:
        DiskError: It exceeds the limit of file sizes, or the memory is full.
    """
    try:
        os.ftruncate(fd, size)
    except OSError as error:
        limit = error.errno == errno.EFBIG
        raise DiskError(
            f"no space for {size:,} bytes of shared memory: {(error.strerror or str(error)).lower()}",
            hint="raise the limit of file sizes (ulimit -f), or use a smaller training.batch_size"
            if limit
            else "free memory, or use a smaller training.batch_size or fewer --workers",
        ) from error


def anonymous_file() -> int:
    """Open an anonymous file, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mptui-data")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# The worker process: reads samples, cuts views and writes them to shared memory
# ------------------------------------------------------------------------------
# Imports neither torch nor the rest of the program, so that a worker starts in a fraction of a second and
# uses few megabytes; only a transform of views needs torch. A run without workers calls the same `perform`.

_SCHEDULER = Path("/proc/thread-self/schedstat")
"""Nanoseconds of the thread on a CPU and in wait for one, and its turns (Linux: sched-stats)."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Samples to read, and their offsets in the arena."""

    id: int
    requests: tuple[SampleRequest, ...]
    indices: tuple[int, ...]
    seed: int
    epoch: int
    geometry: Geometry
    classes: int
    pixels_offset: int
    """Offset of the first image in the arena in bytes; the others follow it."""
    masks_offset: int | None = None
    """The same for masks; None: the samples have labels."""
    whole_bytes: int = 0
    """Bytes reserved for each image, to write the whole resized one; 0: a view is written."""
    whole_mask_bytes: int = 0
    """The same for its mask."""
    transforms: tuple[str, ...] = ()
    """What changes the pixels of each view, in this order: transforms with `make`."""
    folder: str = ""
    """Where the person's own ones of them are imported from."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """A sample of a task that can't be used, by its row."""

    row: int
    name: str
    reason: str


@dataclass(slots=True)
class Answer:
    """Result of a task: a label and a count of valid items per sample, both 0 if it failed."""

    labels: list[int] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)
    failures: list[ReadFailure] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Width and height of each whole image."""
    seconds: float = 0.0
    """Duration of the task in seconds; 0: unknown."""
    computing_s: float = 0.0
    """Seconds of it in which the process computed, or was ready to and waited for a CPU."""
    error: str | None = None
    """Traceback of an unexpected exception."""
    fault: tuple[str, str] | None = None
    """Message and hint if it is one of the person's own code."""


def perform(task: ReadTask, fd: int, is_cancelled: Callable[[], bool]) -> Answer:
    """Read the samples of `task` and write them to the arena's file `fd`, until `is_cancelled()` is true."""
    answer, started, computed = Answer(), time.perf_counter(), _computing_s()
    draws_BD = uniforms(RandomStream.GEOMETRY, task.seed, task.epoch, np.array(task.indices), count=DRAWS)
    for row, request in enumerate(task.requests):
        if is_cancelled():
            break
        size = (0, 0)
        try:
            draws_1D = draws_BD[row : row + 1]
            with reading(task.seed, task.epoch, task.indices[row]):
                if task.whole_bytes:
                    label, valid, size = tried_again(partial(_write_whole, task, row, request, fd))
                else:
                    label, valid = tried_again(partial(_write_view, task, row, request, draws_1D, fd=fd))
        except BadSampleError as error:
            answer.failures.append(ReadFailure(row, error.name, error.reason))
            label, valid = 0, 0
        if task.whole_bytes:
            answer.sizes.append(size)
        answer.labels.append(label)
        answer.valid.append(valid)
    answer.seconds = time.perf_counter() - started
    answer.computing_s = _computing_s() - computed
    return answer


def _computing_s() -> float:
    """Return the seconds in which this thread has computed, or was ready to and waited for a CPU.

    The rest of its time it waited for something else, such as a disk. Where the system doesn't tell the wait
    for a CPU, it is left out.
    """
    waited_ns = 0
    with suppress(OSError, ValueError, IndexError):
        waited_ns = int(_SCHEDULER.read_text().split()[1])
    return time.thread_time() + waited_ns / 1e9


def _write_view(
    task: ReadTask, row: int, request: SampleRequest, draws_1D: npt.NDArray[np.float64], *, fd: int
) -> tuple[int, int]:
    """Read one sample and write its view; return the label and the number of valid items."""
    geometry = task.geometry
    sample = resized(request.read(geometry.resize), geometry.resize, geometry.interpolation)
    height, width = sample.image_HWC.shape[:2]
    boxes_14, flips_13 = views(geometry, draws_1D, np.array([float(width)]), np.array([float(height)]))
    pixels = cut_image(
        sample.image_HWC, boxes_14[0], flips_13[0], geometry.side, interpolation=geometry.interpolation
    )
    mask = None
    if task.masks_offset is not None:
        assert sample.mask_HW is not None, "a segmentation sample has a mask"
        mask = cut_mask(sample.mask_HW, boxes_14[0], flips_13[0], geometry.side)
    if task.transforms:
        pixels, mask = _transformed(task, row, request, pixels, mask=mask)
    write_at(fd, pixels, task.pixels_offset + row * pixels.nbytes)
    if task.masks_offset is None or mask is None:
        check_class(request.name, sample.label, "label", task.classes)
        return sample.label, 1
    return 0, _write_mask(task, request, mask, task.masks_offset + row * mask.nbytes, fd=fd)


def _transformed(
    task: ReadTask, row: int, request: SampleRequest, pixels_HWC: Pixels, *, mask: Mask | None
) -> tuple[Pixels, Mask | None]:
    """Return a view, and its mask if it has one, after the transforms of the task."""
    from mptui.data.view_transforms import transformed  # imports torch, which takes seconds

    if mask is not None:
        check_class(request.name, int(mask.max()), "mask value", task.classes)
    position = (task.seed, task.epoch, task.indices[row])
    return transformed(pixels_HWC, mask, task.transforms, position, folder=task.folder, classes=task.classes)


def _write_whole(
    task: ReadTask, row: int, request: SampleRequest, fd: int
) -> tuple[int, int, tuple[int, int]]:
    """Read one sample and write all of it; return label, number of valid items, width and height."""
    geometry = task.geometry
    sample = resized(request.read(geometry.resize), geometry.resize, geometry.interpolation)
    height, width = sample.image_HWC.shape[:2]
    write_at(fd, np.ascontiguousarray(sample.image_HWC), task.pixels_offset + row * task.whole_bytes)
    if task.masks_offset is None:
        check_class(request.name, sample.label, "label", task.classes)
        return sample.label, 1, (width, height)
    assert sample.mask_HW is not None, "a segmentation sample has a mask"
    mask_at = task.masks_offset + row * task.whole_mask_bytes
    valid = _write_mask(task, request, sample.mask_HW, mask_at, fd=fd)
    return 0, valid, (width, height)


def _write_mask(task: ReadTask, request: SampleRequest, mask_HW: Mask, at: int, *, fd: int) -> int:
    """Write a mask; return the number of its valid pixels."""
    check_class(request.name, int(mask_HW.max()), "mask value", task.classes)
    write_at(fd, np.ascontiguousarray(mask_HW), at)
    return int(np.count_nonzero(mask_HW != IGNORE))


class _TaskReceiver:
    """Receives the messages of the trainer in a thread, so that a send never waits for decoding.

    A message is a pickled `ReadTask`; an empty one cancels all earlier tasks. When the pipe closes, the
    trainer has ended, and this process exits at once.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
        self._cancelled = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        number = 0
        while True:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                os._exit(0)
            if message:
                number += 1
                self._messages.put((number, message))
            else:
                self._cancelled = number

    def answer_next(self, fd: int) -> Answer:
        number, message = self._messages.get()
        try:
            return perform(pickle.loads(message), fd, lambda: number <= self._cancelled)  # noqa: S301 - own parent
        except Exception as error:  # noqa: BLE001 - sent to the trainer, which raises it
            fault = fault_of(error)
            return Answer(error=traceback.format_exc(), fault=(fault.message, fault.hint) if fault else None)


def main() -> None:
    """Serve the trainer that started this process; `argv` has the descriptors of pipe and arena."""
    # The trainer handles stop signals: it finishes its step first, and needs data for that. SLURM sends them
    # to all processes of a job step.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    connection, fd = Connection(int(sys.argv[1])), int(sys.argv[2])
    receiver, is_first = _TaskReceiver(connection), True
    while True:
        answer = receiver.answer_next(fd)
        if is_first:  # it has imported decoders, and a person's own code: no speed of reading
            answer.seconds, is_first = 0.0, False
        try:
            connection.send(answer)
        except OSError:
            os._exit(0)
