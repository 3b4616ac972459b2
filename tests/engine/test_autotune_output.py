"""What torch's autotuning prints beside the lines of a run."""

import pytest
import torch
from torch._inductor import config

from mptui.engine.compile import Compiler
from tests.engine.small import CPU


@pytest.mark.slow
def test_its_tables_are_not_among_the_lines_of_a_run(capfd):
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    # the choices that a CPU has; a GPU has some by default
    with config.patch(freezing=True, max_autotune_gemm_backends="CPP,ATEN", force_disable_caches=True):
        Compiler(network, "max-autotune", CPU, forced=True, steps=10, warn=print)
        with torch.no_grad():
            network.eval()(torch.randn(32, 64))
    assert "autotune" not in capfd.readouterr().err.lower()
