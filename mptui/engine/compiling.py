"""torch.compile where it repays itself in this run, and a run that goes on without it where it fails.

Compiling costs a minute or more before it saves its first second. How long the run would last without it is
measured on its own first steps; then the choice is arithmetic.
"""

import shutil
import time
from collections.abc import Callable
from statistics import median

import torch

from mptui.config.schema import CompileMode
from mptui.text import clean

PROBE_STEPS = 6
"""Eager steps that are timed before the choice; the first of them warms up."""

# What compiling costs and gains: a ResNet-50's cold start and step on two CPU cores and, for a GPU, the
# published range of Inductor on AMP training, taken low. Only the order of magnitude matters to the choice.
_COST_S = {"cpu": 110.0, "default": 60.0, "reduce-overhead": 60.0, "max-autotune": 120.0}
_GAIN = {"cpu": 0.12, "gpu": 0.25}


class Compiler:
    """Compiles a model in place, at the moment it is worth it.

    Args:
        model: What is trained; `model.compile` keeps its state_dict's keys.
        mode: The configured mode.
        device: What it runs on.
        forced: Compile at once, whatever the run's length.
        steps: Optimizer steps that lie ahead.
        warn: Told (code, message) what was decided and what failed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        mode: CompileMode,
        device: torch.device,
        *,
        forced: bool,
        steps: int,
        warn: Callable[[str, str], None],
    ) -> None:
        self._model = model
        self._mode = mode
        self._device = device
        self._steps = steps
        self._warn = warn
        self._times: list[float] = []
        self.active = False
        self.proven = False
        self.undecided = False
        if mode == "off":
            return
        if (reason := _impossible(device)) is not None:
            warn("compile_impossible", f"not compiled: {reason}")
        elif forced:
            self.start()
        else:
            self.undecided = True

    @property
    def static_shapes(self) -> bool:
        """Whether CUDA graphs may replay the step: gradients must then keep their addresses."""
        return (
            self.active and self._device.type == "cuda" and self._mode in {"reduce-overhead", "max-autotune"}
        )

    def note_step(self, seconds: float) -> bool:
        """Time of an eager step; returns True when the model was compiled just now."""
        self._times.append(seconds)
        if len(self._times) < PROBE_STEPS:
            return False
        self.undecided = False
        left = (self._steps - len(self._times)) * median(self._times[1:])
        cpu = self._device.type == "cpu"
        cost = _COST_S["cpu" if cpu else self._mode]
        saved = left * _GAIN["cpu" if cpu else "gpu"]
        if saved > cost:
            self.start()
            return True
        self._warn(
            "compile_skipped",
            f"not compiled: about {left:,.0f} s are left, and compiling would cost about {cost:,.0f} s "
            f"to save {saved:,.0f} s; --compile forces it",
        )
        return False

    def start(self) -> None:
        """Compile from the next forward on."""
        self._model.compile(mode=None if self._mode == "default" else self._mode)
        self.active = True

    def undo(self) -> None:
        """Run eagerly from the next forward on."""
        if self.active:
            self._model._compiled_call_impl = None
            torch._dynamo.reset()
        self.active = self.undecided = False

    def gave_up_on(self, error: Exception) -> bool:
        """Whether `error` is torch.compile's own, before its first step was through; then it is off."""
        if not self.active or self.proven or not _from_the_compiler(error):
            return False
        self.undo()
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._warn("compile_failed", f"torch.compile failed, going on without it: {clean(first_line, 300)}")
        return True


def _from_the_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


def _impossible(device: torch.device) -> str | None:
    if device.type == "mps":
        return "torch.compile is not ready for MPS"
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "there is no C++ compiler (install g++)"
    return None


class Stopwatch:
    """Host seconds since it was made, the device's work included: for the few steps that are probed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._synchronize()
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Seconds so far, once the device is idle."""
        self._synchronize()
        return time.perf_counter() - self._start

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize()
