"""`mptui` where torch.compile takes as long as the file that SLOW_COMPILE names is there."""

import os
import time
from pathlib import Path

import torch

from mptui.cli.main import main


def compile_slowly(model: torch.nn.Module, **_: object) -> None:
    """What compiles in its first forward, and then runs the model as it is."""
    waits = Path(os.environ["SLOW_COMPILE"])

    def compiled(*inputs: torch.Tensor) -> torch.Tensor:
        while waits.exists():
            time.sleep(0.01)
        outputs: torch.Tensor = model.forward(*inputs)
        return outputs

    model._compiled_call_impl = compiled


def run() -> None:
    """Be `mptui`."""
    torch.nn.Module.compile = compile_slowly  # type: ignore[method-assign, assignment]
    main()
