"""Fixtures of the tests of benchmarks."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    """The sides set torch's global switches, since their processes end with them."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    precision = torch.get_float32_matmul_precision()
    yield
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before
    torch.set_float32_matmul_precision(precision)
