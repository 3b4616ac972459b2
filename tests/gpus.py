"""What tests that need a GPU (`pytest -m gpu`) ask of it, and how they share it."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

_NEED = re.compile(r"mark\.gpu|tests\.gpus")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", GPU]
"""Devices of a test that a CPU runs in a moment, too."""
SLOW_CPU = [pytest.param("cpu", marks=pytest.mark.slow), GPU]
"""Devices of a test that takes a CPU seconds."""


def asked_for(marks: str) -> bool:
    """Whether an expression of marks (`-m`) selects tests that need a GPU, and none that don't."""
    return re.fullmatch(r"gpu( and .*)?", marks.strip()) is not None


def are_tested_in(path: Path) -> bool:
    """Whether a file, or a file of a folder, may have tests that need a GPU."""
    files = path.rglob("test_*.py") if path.is_dir() else [path]
    return any(_NEED.search(file.read_text("utf-8")) for file in files)


def skip_what_it_lacks(parameters: Iterable[object], gpus: int = 1) -> None:
    """Skip a test without as many GPUs, or with a number format that the GPU does not compute in.

    Tests are skipped here alone, as they run: NVML and CUDA, once asked, are of no use in a fork, as which
    programs start.
    """
    import torch

    if torch.cuda.device_count() < gpus:
        pytest.skip("there is no GPU" if gpus == 1 else f"there are fewer than {gpus} GPUs")
    if "bf16" in parameters and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bf16")
