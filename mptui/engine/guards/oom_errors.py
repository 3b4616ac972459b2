"""Detects out-of-memory errors and releases cached memory."""

import errno
import gc

import torch

_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_NOT_SUPPORTED",  # cuDNN's error if its workspace does not fit
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that device or host memory is full. A device-side assert does not."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)


def is_too_few_for_norm(error: BaseException) -> bool:
    """Whether BatchNorm got one value per channel: a micro-batch of one sample with a 1x1 feature map."""
    return isinstance(error, ValueError) and "more than 1 value per channel" in str(error)


def is_host_full(error: BaseException | None) -> bool:
    """Whether host memory is full, in this process or in a loader worker."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or "MemoryError" in str(error)


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
