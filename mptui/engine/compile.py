"""Uses torch.compile where it pays off in this run; a run continues without it if it fails."""

import atexit
import hashlib
import json
import logging
import os
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from traceback import walk_tb
from typing import Any

import torch

from mptui.config.schema import CompileMode, RunConfig
from mptui.data.batch import Batch
from mptui.engine.micro_batches import is_out_of_memory
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.io.cache import cache_folder, load_json, save_json
from mptui.models.layers import has_synchronized_norm
from mptui.text import clean
from mptui.torch_private import (
    GRAPH_TREES,
    compile_calls,
    default_cache_dir,
    inductor_config,
    leave_pool_of_recording,
    move_precompiled_headers,
    prepare_thread,
)

# On-disk cache of benchmark results, keyed by device, software and model shape
# -----------------------------------------------------------------------------

MOST = 500
"""Maximum number of entries in the cache; the oldest are removed first."""


class CachedResult:
    """One entry of the cache.

    Args:
        kind: Kind of measurement; part of the file's name.
        facts: The key: everything that the results depend on, JSON-ready.
    """

    def __init__(self, kind: str, facts: Mapping[str, object]) -> None:
        self._facts = dict(facts)
        text = json.dumps(self._facts, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        self._path = cache_folder() / "measured" / f"{kind}-{digest}.json"

    def load(self) -> dict[str, Any]:
        """Return the cached value; empty if there is none."""
        document = load_json(self._path)
        if not isinstance(document, dict) or document.get("facts") != self._facts:
            return {}
        value = document.get("value")
        return value if isinstance(value, dict) else {}

    def save(self, value: Mapping[str, object]) -> None:
        """Store `value` (JSON-ready) for later runs; a cache that can't be written is ignored."""
        save_json(self._path, {"facts": self._facts, "value": dict(value)})
        with suppress(OSError):
            files = sorted(self._path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[:-MOST]:
                old.unlink(missing_ok=True)


def facts_of(config: RunConfig, device_name: str, num_classes: int) -> dict[str, object]:
    """Return the part of the key that all measurements share: device, software and shape."""
    frozen = {} if config.training.freeze is None else {"freeze": config.training.freeze}
    checkpointed = config.memory.activation_checkpointing
    return {
        **frozen,
        **({"activation_checkpointing": True} if checkpointed else {}),
        "device": device_name,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "model": config.model.model_dump(exclude={"weights"}),
        "fp32_layers": list(config.precision.fp32_layers),
        "matmul": config.precision.matmul,
        "classes": num_classes,
        "side": config.data.image_size,
        "bands": config.data.channels,
        "batch_size": config.training.batch_size,
        "optimizer": config.training.optimizer,
    }


# On-disk cache of compiled code: a private folder of the user, which no configuration file can set
# -------------------------------------------------------------------------------------------------
# Inductor caches pickles and machine code, so that anyone who can write there can run code as the user. Its
# default is a guessable name in /tmp.

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
LIMIT_BYTES = 4 << 30
"""Size limit of the cache; beyond it the least recently used files are removed, down to three quarters."""


def use_compile_cache(warn: Callable[[str, str], None], folder: Path | None = None) -> Path:
    """Cache compiled code in `folder` (default: in the user's cache folder); returns the folder in use.

    A folder set in the environment (`TORCHINDUCTOR_CACHE_DIR`) is the user's choice and takes precedence. If
    the cache folder is writable by others, or can't be written, a temporary one of this process is used.

    Args:
        warn: Called with (code, message) if nothing can be cached.
        folder: The cache folder.
    """
    named = os.environ.get(VARIABLE)
    if named is not None and named != default_cache_dir():  # set by torch itself on import
        return Path(named)
    folder = cache_folder() / "compiled" if folder is None else folder
    fault = _make_private(folder)
    if fault is None:
        prune(folder)
    else:
        warn("compile_cache", f"compiled code is not cached for later runs: {fault}")
        folder = Path(tempfile.mkdtemp(prefix="mptui-compiled-"))  # 0700
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[VARIABLE] = str(folder)
    _move_headers(folder)
    return folder


def _make_private(folder: Path) -> str | None:
    """Create `folder` for its owner alone; returns the reason if others could write there, else None."""
    if not folder.is_absolute():
        return f"{folder} is not an absolute path"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        own = folder.lstat()
        if not stat.S_ISDIR(own.st_mode):
            return f"{folder} is not a folder"
        if own.st_uid != os.geteuid():
            return f"{folder} belongs to another user"
        folder.chmod(0o700)
        for parent in folder.resolve().parents:
            status = parent.stat()
            open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
            if status.st_uid not in {0, os.geteuid()} or open_to_all:
                return f"{parent} is writable by other users"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


def _move_headers(folder: Path) -> None:
    """Move the cache of precompiled headers there too: it ignores the variable."""
    if not move_precompiled_headers(str(folder / "precompiled_headers")):
        inductor_config().cpp_cache_precompile_headers = False


def prune(folder: Path, limit: int = LIMIT_BYTES) -> None:
    """Remove the least recently used files if the cache exceeds `limit` bytes.

    Inductor recompiles what is missing, so that each file can be removed independently.
    """
    files: list[tuple[float, int, Path]] = []
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            with suppress(OSError):  # another process may prune as well
                status = path.lstat()
                files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return
    for _, size, path in sorted(files):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total <= limit * 3 // 4:
            return


# What compiling costs and gains: as measured here, and estimated until then
# --------------------------------------------------------------------------

AGAIN = 0.15
"""Maximum cost of a start with cached code, as a share of a cold start (benchmarks/compiling.py)."""

# Gain before any is measured: of a ResNet-50 on two CPU cores and, for a GPU, the low end of the published
# range of Inductor on AMP training. Only the order of magnitude matters.
_GAIN = {"cpu": 0.12, "gpu": 0.25}


class CompileCost:
    """Cost and gain of compiling one network; what is measured is cached for later runs.

    Args:
        mode: The configured mode.
        device: Device of the network.
        own: Cache of the figures of this network; None: not cached.
        any_network: Cache of the cost of the last network that was compiled anew on this device in this
            mode: the best estimate for one that was never compiled here.
        ranks: The processes that decide together, by the caches of the first.
    """

    def __init__(
        self,
        mode: CompileMode,
        device: torch.device,
        own: CachedResult | None = None,
        any_network: CachedResult | None = None,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self._own = own
        self._any_network = any_network
        self._guess_s = estimated_start_s(device.type, mode)
        self._guessed_gain = _GAIN["cpu" if device.type == "cpu" else "gpu"]
        self._known, self._elsewhere = ranks.broadcast((_loaded(own), _loaded(any_network)))

    @property
    def start_s(self) -> float:
        """Expected seconds of the first compiled step."""
        return self._start[0]

    @property
    def known_from(self) -> str:
        """What `start_s` is known from, in words."""
        return self._start[1]

    @property
    def _start(self) -> tuple[float, str]:
        if (again := _seconds(self._known, "again_s")) is not None:
            return again, "the last time"
        if (first := _seconds(self._known, "first_s")) is not None:
            return AGAIN * first, "by the first time"
        if (other := _seconds(self._elsewhere, "first_s")) is not None:
            return other, "as the last network"
        return self._guess_s, "by estimate"

    @property
    def gain(self) -> float:
        """Share of a step's time that compiled code saves."""
        gain = _seconds(self._known, "gain")
        return self._guessed_gain if gain is None else gain

    def note_start(self, seconds: float) -> None:
        """Cache the seconds of a first compiled step."""
        if "first_s" in self._known:
            self._keep(again_s=seconds)
            return
        self._keep(first_s=seconds)
        if self._any_network is not None:
            self._any_network.save({"first_s": seconds})

    def note_gain(self, gain: float) -> None:
        """Cache the share of a step's time that compiled code saved."""
        self._keep(gain=gain)

    def _keep(self, **figures: float) -> None:
        self._known.update(figures)
        if self._own is not None:
            self._own.save(self._known)


def _loaded(cached: CachedResult | None) -> dict[str, Any]:
    return {} if cached is None else cached.load()


def _seconds(known: dict[str, Any], name: str) -> float | None:
    """Return a cached figure; None if it is missing or invalid."""
    value = known.get(name)
    return float(value) if isinstance(value, (int, float)) and value >= 0 else None


# Uses torch.compile if it pays off in this run; a run continues without it if it fails
# -------------------------------------------------------------------------------------
# Compilation takes a minute or more before it saves any time. The remaining time of the run without it is
# measured on its first steps; its cost and gain are those measured here before (`CompileCost`). The model
# is compiled if the time saved exceeds the cost.

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
        self._ranks = ranks
        self._graphs = graphs
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

    def resume(self, steps: int) -> None:
        """Continue with the same compiled code under other settings, `steps` steps ahead."""
        self._steps = steps + len(self._eager)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the decision of a checkpoint, unless this process has already decided."""
        decision = state_dict.get("compiled")
        is_open = self._possible and not self._settled
        if decision is None or not is_open:
            return
        self.undecided = False
        self._settled = True
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
        self.undecided = False
        self._settled = True
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
        """Start timing the next step, which compiles; the thread may not be the one that asked for it."""
        if self.static_shapes:
            prepare_thread()
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
            torch.compiler.reset()

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
            torch.compiler.reset()
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
            # in validation, smaller pieces cost nothing
            eager_fits = phase == "training" and bool(self._eager) and self.on_probation
            if eager_fits and is_out_of_memory(error):
                self.undo()
                self._graphs = False
                self._why_no_graphs = "need more memory than there is beside it"
                self.start()
                return True
        forgiven = not self.is_proven(phase) or (self.static_shapes and is_of_graphs(error))
        is_to_blame = self.active and forgiven and _from_the_compiler(error)
        if not is_to_blame:
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


def outputs_of(network: Callable[..., torch.Tensor], batch: Batch, *, model: torch.nn.Module) -> torch.Tensor:
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


# CUDA graphs, as torch records them (`torch._inductor.cudagraph_trees`): their threads, and their errors
# -------------------------------------------------------------------------------------------------------
# torch has no way back from a recording that fails (`torch.cuda.graph` ends it without `finally`, to 2.14
# at least): the thread stays on the stream of the recording, the allocator believes that the recording goes
# on, so that `empty_cache` fails, and the generator of random numbers refuses to draw.

_RECORDS = "record_function"
"""The function of the trees through which each recording goes."""

_OVERWRITTEN = "CUDAGraphs that has been overwritten"
"""In the message of torch where a tensor in a graph's memory is read too late."""


def is_of_graphs(error: BaseException) -> bool:
    """Whether `error` was raised while a graph was recorded, or by a tensor that a graph has overwritten."""
    return _OVERWRITTEN in str(error) or any(
        frame.f_code.co_name == _RECORDS and frame.f_globals.get("__name__") == GRAPH_TREES
        for frame, _ in walk_tb(error.__traceback__)
    )


def leave_recording(device: torch.device) -> None:
    """Put stream, allocator and generator right after an error, which may have ended a recording halfway."""
    if device.type != "cuda":
        return
    index = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.set_stream(torch.cuda.default_stream(device))
    with suppress(RuntimeError):  # an error that is still on its way from the device will come again
        torch.cuda.synchronize(device)  # with the stream of the warm-up, which may still write to buffers
    if not leave_pool_of_recording(index):
        return
    generator, usable = torch.cuda.default_generators[index], torch.Generator(device)
    usable.set_state(generator.get_state())
    generator.graphsafe_set_state(usable)


# Compiles a network in place, with all its code in one graph and no tables of autotuning on the terminal
# -------------------------------------------------------------------------------------------------------


def compile_in_place(model: torch.nn.Module, mode: str) -> None:
    """Compile `model` in its next call, as `model.compile(mode=mode)` does; one of its own is left to it.

    torch before 2.14 does not trace the calls of its own classes: a network that is an `nn.Sequential` would
    run eagerly, or in as many graphs as it has parts, without a warning.
    """
    _quiet()
    named = None if mode == "default" else mode
    is_torchs = type(model).forward.__module__.startswith("torch.nn.")
    if is_torchs and getattr(model.compile, "__func__", None) is torch.nn.Module.compile:
        compile_calls(model, named)
    else:
        model.compile(mode=named)


def _quiet() -> None:
    """Keep what Inductor prints while it autotunes off the terminal, unless torch's variables ask for it."""
    config = inductor_config()
    if "TORCHINDUCTOR_AUTOTUNE_NUM_CHOICES_DISPLAYED" not in os.environ:
        config.autotune_num_choices_displayed = 0
    if "TORCHINDUCTOR_MAX_AUTOTUNE_REPORT_CHOICES_STATS" not in os.environ:
        config.max_autotune_report_choices_stats = False
    if "TORCH_LOGS" not in os.environ:  # candidates that a GPU can't run are left out, which is no error
        logging.getLogger("torch._inductor.select_algorithm").setLevel(logging.CRITICAL)


# Estimated time of the first step that compiles a network, for as long as none was measured
# ------------------------------------------------------------------------------------------

_ON_A_GPU = {"default": 60.0, "reduce-overhead": 60.0, "max-autotune": 300.0}
_ON_A_CPU = 110.0


def estimated_start_s(kind: str, mode: str) -> float:
    """Estimate the seconds of a first step without cached code; 0 for the mode off.

    Those of a ResNet-50, on two CPU cores or beside a GPU. At 224 px in bf16 one was still being autotuned
    after 165 s on an H200 with 16 CPU cores (torch 2.11). Only the order of magnitude matters.

    Args:
        kind: Kind of device: "cpu" or a GPU's.
        mode: Mode of torch.compile.
    """
    if mode == "off":
        return 0.0
    return _ON_A_CPU if kind == "cpu" else _ON_A_GPU[mode]
