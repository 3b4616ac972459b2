"""What tests that need a GPU (`pytest -m gpu`) ask of it, and how they share it."""

import re
from collections.abc import Iterable

import pytest


def asked_for(marks: str) -> bool:
    """Whether an expression of marks (`-m`) selects tests that need a GPU, and none that don't."""
    return re.fullmatch(r"gpu( and .*)?", marks.strip()) is not None


def skip_what_it_lacks(parameters: Iterable[object]) -> None:
    """Skip a test whose number format the GPU has no Tensor Cores for: no run computes in it there."""
    import torch

    if (
        "bf16" in parameters
        and torch.cuda.is_available()
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        pytest.skip("this GPU has no bf16")
