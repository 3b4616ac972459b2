"""What tests that need a GPU (`pytest -m gpu`) ask of it, and how they share it."""

import re
from collections.abc import Iterable

import pytest

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = ["cpu", GPU]
"""Devices of a test that a CPU runs in a moment, too."""
SLOW_CPU = [pytest.param("cpu", marks=pytest.mark.slow), GPU]
"""Devices of a test that takes a CPU seconds."""


def asked_for(marks: str) -> bool:
    """Whether an expression of marks (`-m`) selects tests that need a GPU, and none that don't."""
    return re.fullmatch(r"gpu( and .*)?", marks.strip()) is not None


def skip_what_it_lacks(parameters: Iterable[object]) -> None:
    """Skip a test without a GPU, or with a number format that the GPU does not compute in."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    if "bf16" in parameters and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bf16")
