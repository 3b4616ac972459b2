"""Detects out-of-memory errors and releases cached memory."""

import errno
import gc
import re

import torch
import torch.distributed as dist

_FULL = re.compile(
    "out of memory|can't allocate memory"
    "|ALLOC(ATION)?_FAILED"  # of cuBLAS, cuDNN, cuFFT, cuSOLVER, cuSPARSE and their likes of ROCm
    "|OUT_OF_(DEVICE|HOST)_MEMORY"  # of Level Zero, below XPU
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
