"""Batches in pieces, each sample counted once; which errors are of memory."""

import errno
import gc
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
import torch.distributed as dist

from mptui.data.batch import Batch, Window

# Splits batches into micro-batches
# ---------------------------------

Recovery = Callable[[], None]
"""Prepares a retry of a failed operation; called after the `except` block."""


class MicroBatches:
    """Limits on the size of a micro-batch.

    Attributes:
        limits: Maximum samples per micro-batch by phase (training, validating); None: a whole batch.
    """

    def __init__(self) -> None:
        self.limits: dict[str, int | None] = {"training": None, "validating": None}

    def split(self, batch: Batch) -> Sequence[Batch]:
        """Split a training batch into micro-batches within the limit, of equal size up to one sample.

        A single sample, of an odd batch in pairs, is computed beside its neighbour, which doesn't count then:
        BatchNorm can't be trained on one value.
        """
        limit, rows = self.limits["training"], batch.size
        if limit is None or rows <= limit:
            return (batch,)
        count = -(-rows // limit)
        bounds = [rows * number // count for number in range(count + 1)]
        return [rows_of(batch, first, last, rows=min(limit, 2)) for first, last in pairwise(bounds)]

    def are_several(self, window: Window) -> bool:
        """Whether a window has several micro-batches, whose gradients add up."""
        limit = self.limits["training"]
        return window.batches > 1 or (limit is not None and window.size > limit)

    def of(self, window: Window) -> Iterator[tuple[Batch, bool]]:
        """Yield the micro-batches of a window, and whether each is the last."""
        for number, batch in enumerate(window, start=1):
            *pieces, last = self.split(batch)
            for piece in pieces:
                yield piece, False
            yield last, number == window.batches


def rows_of(batch: Batch, first: int, last: int, *, rows: int = 1) -> Batch:
    """Return the rows from `first` up to `last` of a batch, and as many of the next as make `rows`.

    `valid` is exact for labels. For masks it stays that of the whole batch: the exact count is only on the
    device, and losses use the window's.
    """
    size = max(0, min(last, batch.size) - first)
    piece = batch.rows(
        slice(first, max(last, first + rows)),
        size=size,
        valid=size if batch.valid == batch.size else batch.valid,
    )
    piece.sample_indices = batch.sample_indices[first:last]
    return piece


def in_pieces(
    batch: Batch,
    compute: Callable[[Batch], None],
    *,
    limit: Callable[[], int | None],
    recovery_for: Callable[[Exception, int], Recovery | None],
) -> None:
    """Call `compute` with an inference batch, or with its micro-batches if it does not fit.

    Args:
        batch: The batch.
        compute: Adds nothing if it raises.
        limit: Returns the maximum samples per micro-batch; None: a whole batch.
        recovery_for: Returns what to do before a retry after an error with a batch of so many samples; None:
            raise the error.
    """
    done, rows = 0, batch.images_BCHW.shape[0]
    while done < rows:
        size = limit() or rows
        piece = batch if size >= rows else rows_of(batch, done, done + size)
        recover = None
        try:
            if piece.size:
                compute(piece)
        except Exception as error:
            recover = recovery_for(error, rows)
            if recover is None:
                raise
        if recover is None:
            done += size
        else:  # outside the except block, since the traceback holds the tensors of all frames
            recover()


# Detects out-of-memory errors and releases cached memory
# -------------------------------------------------------

_FULL = re.compile(
    "out of memory|can't allocate memory"
    "|ALLOC(ATION)?_FAILED"  # of cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE and their likes of ROCm
    "|OUT_OF_(DEVICE|HOST)_MEMORY"  # of Level Zero, below XPU
    "|could not create a (primitive(?! descriptor)|memory object)"  # of oneDNN, which names no cause
)
_PERHAPS_FULL = re.compile(
    # of a convolution, after torch has tried all plans, and caught what its own allocator raised
    "unable to find an engine to execute this computation"
    "|CUBLAS_STATUS_NOT_INITIALIZED"  # its handle has no memory; or the context is broken
)
_IN_A_WORKER = re.compile(r"\bMemoryError")  # in the traceback of a worker; OutOfMemoryError is a device's
_NEARLY = 0.1
"""Share of a device's memory below which an error that has other causes, too, is taken for one of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that device or host memory is full.

    A device-side assert does not, nor an operation that cuDNN does not support (CUDNN_STATUS_NOT_SUPPORTED).
    What a communicator raises (NCCL) is no matter of the batch: it can't be used again.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, dist.DistError):
        return False
    words = str(error)
    return bool(_FULL.search(words)) or (bool(_PERHAPS_FULL.search(words)) and _is_nearly_full())


def _is_nearly_full() -> bool:
    """Whether the current CUDA device has little memory left for this process.

    A smaller batch leaves more, so that an error with another cause shows itself after at most a few.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # the context is broken
        return False
    reserved = torch.cuda.memory_reserved()
    of_budget = torch.cuda.get_per_process_memory_fraction() * total - reserved
    unused = reserved - torch.cuda.memory_allocated()
    return min(free, of_budget) + unused < _NEARLY * total


def is_too_few_for_norm(error: BaseException) -> bool:
    """Whether BatchNorm got one value per channel: a micro-batch of one sample with a 1x1 feature map."""
    return isinstance(error, ValueError) and "more than 1 value per channel" in str(error)


def is_host_full(error: BaseException | None) -> bool:
    """Whether host memory is full, in this process or in a loader worker."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or bool(_IN_A_WORKER.search(str(error)))


def is_memory_full(error: BaseException) -> bool:
    """Whether the memory of the device or of the host is full."""
    return is_out_of_memory(error) or is_host_full(error)


def release(device: torch.device) -> None:
    """Free unreferenced objects and the device's cached memory."""
    gc.collect()
    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def forget_peak(device: torch.device) -> None:
    """Reset the peak memory statistics, so that trials don't count as the run's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
