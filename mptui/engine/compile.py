"""Uses torch.compile if it pays off in this run; a run continues without it if it fails.

Compilation takes a minute or more before it saves any time. The remaining time of the run without it is
measured on its first steps; its cost and gain are those measured here before (`CompileCost`). The model is
compiled if the time saved exceeds the cost.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from traceback import walk_tb
from typing import Any

import torch

from mptui.config.base_tables import CompileMode
from mptui.data.core.batch import Batch
from mptui.engine.compile.cache import use_compile_cache
from mptui.engine.compile.cost import CompileCost
from mptui.engine.compile.graphs import is_of_graphs, leave_recording, prepare_thread
from mptui.engine.compile.in_place import compile_in_place
from mptui.engine.guards.oom_errors import is_out_of_memory
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.models.layers import has_synchronized_norm
from mptui.text import clean

PROBE_STEPS = 6
"""Eager steps timed before the choice, and compiled steps after it; the first of each is a warm-up."""

_ROOMS = ("torch._dynamo", "torch._inductor", "torch.cuda.graphs", "triton")

_CALLS = {False: 1, True: 3}
"""Calls after which compiled code is proven, without CUDA graphs and with them: torch compiles and warms up
in the first, records in the second, and replays from the third on."""

_WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes that use CUDA graphs -> what else they do, as modes of torch.compile."""

_LOSS = 1.05
"""Ratio of compiled to eager step time above which compilation is undone."""


class Compiler:
    """Compiles a model in place once it pays off.

    Args:
        model: The model to train; its state_dict's keys stay.
        mode: The configured mode.
        device: Device of the model.
        forced: Compile at once, whatever the run's length.
        steps: Optimizer steps ahead.
        warn: Called with (code, message) for decisions and failures.
        cost: Cost and gain of compiling this model; None: estimated.
        repeatable: Don't decide by measured time.
        ranks: The processes that train together: all compile, or none does.
        graphs: Use CUDA graphs in the modes that have them.

    Attributes:
        active: The model is compiled, or will be in the next forward pass.
        undecided: The choice waits for the times of eager steps.
        cost: Cost and gain of compiling the model.
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
        cost: CompileCost | None = None,
        repeatable: bool = False,
        ranks: Ranks = ALONE,
        graphs: bool = True,
    ) -> None:
        self._model = model
        self._mode = mode
        self._device = device
        self._steps = steps
        self._warn = warn
        self.cost = CompileCost(mode, device) if cost is None else cost
        self._ranks, self._graphs = ranks, graphs
        self._why_no_graphs = "are not used with several processes or memory.activation_checkpointing"
        self._eager: list[float] = []
        self._compiled: list[float] = []
        self._began: float | None = None
        self._calls: Counter[str] = Counter()
        self.active = self.undecided = False
        self._settled = False
        self._possible = mode != "off"
        if mode == "off":
            return
        if reason := next(filter(None, ranks.gather(_impossible(device, model))), None):
            self._possible = False
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
        """Whether CUDA graphs may replay the step: the next replay overwrites its outputs and gradients."""
        return self.active and self._graphs and self._graphs_in_mode

    @property
    def _graphs_in_mode(self) -> bool:
        return self._device.type == "cuda" and self._mode in _WITHOUT_GRAPHS

    @property
    def timing(self) -> bool:
        """Whether the next step must be timed."""
        probes = len(self._compiled)
        return self.undecided or bool(self._eager and self.has_run("training") and probes < PROBE_STEPS)

    def state_dict(self) -> dict[str, Any]:
        """Return `compiled`: whether the run is compiled; None if undecided or off."""
        return {"compiled": None if self.undecided or self._mode == "off" else self.active}

    def go_on(self, steps: int) -> None:
        """Continue with the same compiled code under other settings, `steps` steps ahead."""
        self._steps = steps + len(self._eager)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the decision of a checkpoint, unless this process has already decided."""
        decision = state_dict.get("compiled")
        if decision is None or self._settled or not self._possible:
            return
        self.undecided, self._settled = False, True
        if decision:
            self.start()

    def note_step(self, seconds: float) -> bool:
        """Record the time of a step while `timing`; returns True if the next step compiles the model.

        That of several processes is the longest.
        """
        seconds = max(self._ranks.gather(seconds))
        if self.has_run("training"):
            self._note_compiled(seconds)
            return False
        self._eager.append(seconds)
        if len(self._eager) < PROBE_STEPS:
            return False
        self.undecided, self._settled = False, True
        left = (self._steps - len(self._eager)) * median(self._eager[1:])
        cost, saved = self.cost, left * self.cost.gain
        if saved > cost.start_s:
            self.start()
            return True
        self._warn(
            "compile_skipped",
            f"not compiled: about {left:,.0f} s are left, and compiling would cost about "
            f"{cost.start_s:,.0f} s ({cost.known_from}) to save {saved:,.0f} s; --compile forces it",
        )
        return False

    def _note_compiled(self, seconds: float) -> None:
        """Cache the measured gain, and undo compilation if it made steps slower."""
        self._compiled.append(seconds)
        if len(self._compiled) < PROBE_STEPS:
            return
        ratio = median(self._compiled[1:]) / median(self._eager[1:])
        self.cost.note_gain(max(0.0, 1 - ratio))
        if ratio > _LOSS:
            self.undo()
            self._warn(
                "compile_undone", f"compiled steps take {ratio:.2f}x as long as eager ones: back to eager"
            )

    def start(self) -> None:
        """Compile the model in the next forward pass."""
        use_compile_cache(self._warn)
        mode: str = self._mode
        if self._graphs_in_mode and not self._graphs:
            mode = _WITHOUT_GRAPHS[mode]
            self._warn(
                "compile_graphs",
                f"speed.compile = {self._mode}: compiled without CUDA graphs, which {self._why_no_graphs}",
            )
        compile_in_place(self._model, mode)
        self.active = self._settled = True
        self._calls.clear()
        if self.static_shapes:
            prepare_thread()

    def begin(self) -> None:
        """Start timing the next step, which compiles."""
        self._began = time.perf_counter()

    def has_run(self, phase: str) -> bool:
        """Whether compiled code of `phase` (training or validating) has succeeded."""
        return self._calls[phase] > 0

    def is_proven(self, phase: str) -> bool:
        """Whether compiled code of `phase` has succeeded so often that an error is none of the compiler's."""
        return self._calls[phase] >= _CALLS[self.static_shapes]

    @property
    def on_probation(self) -> bool:
        """Whether the steps of a training are compiled, and not yet proven."""
        return self.active and not self.is_proven("training")

    def succeeded(self, phase: str) -> None:
        """Record that a step or a validation batch has succeeded."""
        self._calls[phase] += self.active

    def other_sizes(self) -> None:
        """Prepare for batches of another size, whose code is not proven; CUDA graphs leave their memory."""
        self._calls.clear()
        if self.static_shapes:
            torch._dynamo.reset()

    def end(self, *, ran: bool = True) -> None:
        """Record that a step has succeeded, and what it compiled, if compiled code `ran` in it."""
        if ran:
            self.succeeded("training")
        if self._began is not None and self.has_run("training"):
            self.cost.note_start(round(time.perf_counter() - self._began, 3))
        self._began = None

    def undo(self) -> None:
        """Run eagerly from the next forward pass on."""
        if self.active:
            self._model._compiled_call_impl = None
            torch._dynamo.reset()
        self.active = self.undecided = False
        self._began = None
        self._calls.clear()

    def gave_up_on(self, error: Exception, phase: str) -> bool:
        """Turn compilation off if `error` is the compiler's and compiled code of `phase` is not proven.

        CUDA graphs may be recorded again at any time: an error of theirs is always the compiler's. If they
        alone do not fit beside what an eager step needs, compiled code goes on without them.

        Args:
            error: The exception that was caught.
            phase: training or validating; each has its own compiled code.

        Returns:
            Whether compilation, or its graphs, was turned off.
        """
        if self.static_shapes:
            leave_recording(self._device)
            eager_fits = phase == "training" and bool(
                self._eager
            )  # in validation, smaller pieces cost nothing
            if eager_fits and self.on_probation and is_out_of_memory(error):
                self.undo()
                self._graphs, self._why_no_graphs = False, "need more memory than there is beside it"
                self.start()
                return True
        forgiven = not self.is_proven(phase) or (self.static_shapes and is_of_graphs(error))
        if not (self.active and forgiven and _from_the_compiler(error)):
            return False
        self.undo()
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._warn(
            "compile_failed", f"torch.compile failed, training continues without it: {clean(first_line, 300)}"
        )
        return True


def _from_the_compiler(error: Exception) -> bool:
    """Whether `error` is of the compiler's types or was raised in its code, except out of memory."""
    if type(error).__module__.startswith(_ROOMS):
        return True
    raised_in = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)][-1:]
    from_its_code = any(name.startswith(_ROOMS) for name in raised_in) or is_of_graphs(error)
    return from_its_code and not is_out_of_memory(error)


def _impossible(device: torch.device, model: torch.nn.Module) -> str | None:
    if has_synchronized_norm(model):
        return "torch can't compile synchronized BatchNorm, at which each of its graphs would end"
    if device.type == "mps":
        return "torch.compile doesn't support MPS yet"
    if device.type == "cpu" and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "there is no C++ compiler (install g++)"
    return None


def outputs_of(network: torch.nn.Module, batch: Batch, *, model: torch.nn.Module) -> torch.Tensor:
    """Return the outputs of a network, which may be compiled, for a batch.

    Each number of rows would be compiled separately, so a short last batch is computed eagerly.

    Args:
        network: What is called: `model`, or what wraps it.
        batch: The batch.
        model: The network whose code is compiled.
    """
    outputs: torch.Tensor
    if batch.is_whole:
        outputs = network(*batch.inputs)
    else:
        with eagerly(model):
            outputs = network(*batch.inputs)
    return outputs


@contextmanager
def eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Run `model` without its compiled code, which calls no hooks and is recompiled for other shapes."""
    compiled, model._compiled_call_impl = model._compiled_call_impl, None
    try:
        yield
    finally:
        model._compiled_call_impl = compiled


class Stopwatch:
    """Measures host seconds, with the device's work; it syncs, so it is used for few steps only."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._synchronize()
        self._start = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds since creation, once the device is idle."""
        self._synchronize()
        return time.perf_counter() - self._start

    def _synchronize(self) -> None:
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize()
