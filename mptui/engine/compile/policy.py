"""torch.compile where it repays itself in this run; a run continues without it where it fails.

Compiling costs a minute or more before it saves its first second. How long the run would last without it is
measured on its own first steps; what compiling costs and gains is known from the last time that this model
was compiled here, and estimated before. Then the choice is arithmetic.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from mptui.config.schema import CompileMode
from mptui.engine.autotune.result_cache import CachedResult
from mptui.engine.compile.cache import use_compile_cache
from mptui.engine.guards.oom_errors import is_out_of_memory
from mptui.text import clean

PROBE_STEPS = 6
"""Eager steps that are timed before the choice, and compiled ones after it; the first of them warms up."""

AGAIN = 0.15
"""What a start with the code of an earlier one costs of the first, at most (benchmarks/compiling.py)."""

_ROOMS = ("torch._dynamo", "torch._inductor", "triton")

_LOSS = 1.05
"""Compiled steps that take so much longer than eager ones are given up."""

# What compiling costs and gains where nothing is known: a ResNet-50's cold start and step on two CPU cores
# and, for a GPU, the published range of Inductor on AMP training, taken low. Only the order of magnitude
# matters to the choice.
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
        warn: Called with (code, message) for what was decided and what failed.
        kept: What compiling this model cost and gained here before; None: nobody knows, nor will.
        repeatable: Nothing may be decided by the clock.

    Attributes:
        active: The model is compiled, or will be in the next forward pass.
        proven: A step was taken with its compiled code.
        undecided: It waits for the times of eager steps.
        proven_in_validation: A batch was measured with the code compiled for that.
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
        kept: CachedResult | None = None,
        repeatable: bool = False,
    ) -> None:
        self._model = model
        self._mode = mode
        self._device = device
        self._steps = steps
        self._warn = warn
        self._kept = kept
        self._known = kept.load() if kept is not None else {}
        self._eager: list[float] = []
        self._compiled: list[float] = []
        self._began: float | None = None
        self.active = self.proven = self.undecided = self.proven_in_validation = False
        self._settled = False
        if mode == "off":
            return
        if (reason := _impossible(device)) is not None:
            warn("compile_impossible", f"not compiled: {reason}")
        elif forced:
            self.start()
        elif repeatable:
            warn(
                "compile_skipped",
                "not compiled: a deterministic run doesn't decide by measured time; --compile forces it",
            )
        else:
            self.undecided = True

    @property
    def static_shapes(self) -> bool:
        """Whether CUDA graphs may replay the step: gradients must then keep their addresses."""
        return (
            self.active and self._device.type == "cuda" and self._mode in {"reduce-overhead", "max-autotune"}
        )

    @property
    def timing(self) -> bool:
        """Whether the time of the next step is of interest."""
        return self.undecided or bool(self._eager and self.proven and len(self._compiled) < PROBE_STEPS)

    @property
    def expected_s(self) -> float | None:
        """Seconds until the first compiled step is through, judged by the last time; None: the first time."""
        if (again := _seconds(self._known, "again_s")) is not None:
            return again
        first = _seconds(self._known, "first_s")
        return None if first is None else AGAIN * first

    def state_dict(self) -> dict[str, Any]:
        """`compiled`: whether the run is compiled; None: that is not decided."""
        return {"compiled": None if self.undecided or self._mode == "off" else self.active}

    def go_on(self, steps: int) -> None:
        """Continue with the same code under other settings and `steps` steps ahead."""
        self._steps = steps + len(self._eager)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on as the run that made a checkpoint had decided, unless this one has by itself."""
        decision = state_dict.get("compiled")
        if decision is None or self._settled or self._mode == "off" or _impossible(self._device) is not None:
            return
        self.undecided, self._settled = False, True
        if decision:
            self.start()

    def note_step(self, seconds: float) -> bool:
        """Time of a step while `timing`; returns True when the model is to be compiled in the next one."""
        if self.proven:
            self._note_compiled(seconds)
            return False
        self._eager.append(seconds)
        if len(self._eager) < PROBE_STEPS:
            return False
        self.undecided, self._settled = False, True
        left = (self._steps - len(self._eager)) * median(self._eager[1:])
        cpu = self._device.type == "cpu"
        cost = self.expected_s or _COST_S["cpu" if cpu else self._mode]
        gain = _seconds(self._known, "gain")
        saved = left * (_GAIN["cpu" if cpu else "gpu"] if gain is None else gain)
        if saved > cost:
            self.start()
            return True
        self._warn(
            "compile_skipped",
            f"not compiled: about {left:,.0f} s are left, and compiling would cost about {cost:,.0f} s "
            f"to save {saved:,.0f} s; --compile forces it",
        )
        return False

    def _note_compiled(self, seconds: float) -> None:
        """Keep what compiling gained, and give it up where it lost."""
        self._compiled.append(seconds)
        if len(self._compiled) < PROBE_STEPS:
            return
        ratio = median(self._compiled[1:]) / median(self._eager[1:])
        self._keep(gain=max(0.0, 1 - ratio))
        if ratio > _LOSS:
            self.undo()
            self._warn(
                "compile_undone", f"compiled steps take {ratio:.2f}x as long as eager ones: back to eager"
            )

    def start(self) -> None:
        """Compile from the next forward on."""
        use_compile_cache(self._warn)
        self._model.compile(mode=None if self._mode == "default" else self._mode)
        self.active = self._settled = True

    def begin(self) -> None:
        """The next step compiles: its time counts from now."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """A step is through; with it, what it compiled."""
        self.proven = self.active
        if self._began is not None and self.active:
            seconds = round(time.perf_counter() - self._began, 3)
            self._keep(**{"again_s" if "first_s" in self._known else "first_s": seconds})
        self._began = None

    def _keep(self, **figures: float) -> None:
        self._known.update(figures)
        if self._kept is not None:
            self._kept.save(self._known)

    def undo(self) -> None:
        """Run eagerly from the next forward on."""
        if self.active:
            self._model._compiled_call_impl = None
            torch._dynamo.reset()
        self.active = self.undecided = False

    def gave_up_on(self, error: Exception, phase: str) -> bool:
        """Whether `error` is torch.compile's own, before its code for a phase has worked; then it is off.

        Args:
            error: What was caught.
            phase: training or validating: each has code of its own.
        """
        proven = self.proven if phase == "training" else self.proven_in_validation
        if not self.active or proven or not _from_the_compiler(error):
            return False
        self.undo()
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._warn(
            "compile_failed", f"torch.compile failed, training continues without it: {clean(first_line, 300)}"
        )
        return True


def _seconds(known: dict[str, Any], name: str) -> float | None:
    """A kept figure; None for anything that is none."""
    value = known.get(name)
    return float(value) if isinstance(value, (int, float)) and value >= 0 else None


def _from_the_compiler(error: Exception) -> bool:
    """Whether it is of a kind of its own, or any other that was raised in its code, memory apart."""
    if type(error).__module__.startswith(_ROOMS):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return raised_in.startswith(_ROOMS) and not is_out_of_memory(error)


def _impossible(device: torch.device) -> str | None:
    if device.type == "mps":
        return "torch.compile doesn't support MPS yet"
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "there is no C++ compiler (install g++)"
    return None


@contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Run `model` without its compiled code, which calls no hooks and is made anew for other sizes."""
    compiled, model._compiled_call_impl = model._compiled_call_impl, None
    try:
        yield
    finally:
        model._compiled_call_impl = compiled


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
