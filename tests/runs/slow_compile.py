"""`mptui` with a torch.compile that lasts as long as the file named by SLOW_COMPILE exists."""

import os
import time
from pathlib import Path

import torch

from mptui.cli.main import main
from mptui.engine import compile


def compile_slowly(model: torch.nn.Module, **_: object) -> None:
    """Make each forward of the model wait while the file exists, and run it uncompiled."""
    waits = Path(os.environ["SLOW_COMPILE"])

    def compiled(*inputs: torch.Tensor) -> torch.Tensor:
        while waits.exists():
            time.sleep(0.01)
        outputs: torch.Tensor = model.forward(*inputs)
        return outputs

    model._compiled_call_impl = compiled


def run() -> None:
    """Run `mptui`."""
    torch.nn.Module.compile = compile_slowly  # type: ignore[method-assign, assignment]
    compile.use_compile_cache = lambda _: None  # type: ignore[assignment, misc] # imports the compiler
    main()
