"""A training step in one precision, measured: its operations, the error of each module, and remedies."""

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from mptui.data.batch import Batch
from mptui.engine.guards.nan_localizer import LOSS, FirstNonFinite
from mptui.engine.job import Job
from mptui.engine.micro_batches import is_memory_full
from mptui.engine.numerics import Probe
from mptui.engine.optim.optimizers import FrozenLayers, frozen_at_last
from mptui.engine.precision import DTYPES, apply_fp32_layers, as_fp32
from mptui.engine.progress import StepSeeds
from mptui.engine.spectrum import PartStatistics, WatchedOperations
from mptui.errors import DataError
from mptui.lab.measure.first_difference import RecordedOperation, RecordedOperations, relative_error
from mptui.models.layers import recomputing
from mptui.registry import own_code
from mptui.registry.own_code import defining_line, failing_line, running_line
from mptui.text import clean, dtype_name
from mptui.torch_private import floats_in, has_kernel, tensors_in, tree_map

# Tries a remedy for operations outside of layers: lines of the person's code that compute in fp32
# ------------------------------------------------------------------------------------------------


class LinesInFp32(TorchFunctionMode):
    """Runs the operations of some lines outside autocast, on float32 inputs.

    Args:
        lines: The lines, as `running_line` gives them.
        device: The device of the passes.
    """

    def __init__(self, lines: Collection[str], device: torch.device) -> None:
        super().__init__()
        self._lines = lines
        self._device = device

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - a function of torch
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever it gives
        if running_line() not in self._lines:
            return func(*args, **(kwargs or {}))
        with torch.autocast(self._device.type, enabled=False):
            return func(*tree_map(as_fp32, args), **tree_map(as_fp32, kwargs or {}))


# Finds the modules that lose most in 16 bits: each is computed in fp32 too, from the same inputs
# -----------------------------------------------------------------------------------------------

_TIMES_SPACING = 5.0
"""Error of a module's outputs that is suspicious, as a multiple of the format's relative spacing."""
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
"""Modules without operations of their own."""


@dataclass(slots=True)
class _Call:
    """A call of a module: its inputs, the generators' state, and what the modules that it called gave."""

    inputs: Any
    random: list[torch.Tensor]
    given: list[Any] = field(default_factory=list)


class LocalErrors:
    """Measures how far each module's own operations are from fp32, with whatever its inputs are.

    Unlike outputs of two trials, those of a module after a sick one do not differ, and a module that calls
    others is given what they gave in 16 bits.

    Args:
        device: The device of the passes.

    Attributes:
        errors: Name -> largest error of its outputs, relative to their norm; in the order of their first end.
    """

    def __init__(self, device: torch.device) -> None:
        self.errors: dict[str, float] = {}
        self._device = device
        self._calls: list[_Call] = []
        self._again: list[Any] | None = None
        """What called modules are to give, while a module is computed again."""
        self._depth = 0

    @contextmanager
    def watching(self, model: torch.nn.Module) -> Iterator[None]:
        """Measure the passes inside this context."""
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name:
                    before = module.register_forward_pre_hook(self._begin, with_kwargs=True)
                    stack.callback(before.remove)
                    stack.callback(module.register_forward_hook(self._end_of(name)).remove)
            yield

    def suspects(self, precision: str) -> list[str]:
        """Return the modules whose own operations lose too much in `precision`, worst first."""
        least = _TIMES_SPACING * torch.finfo(DTYPES[precision]).eps
        found = [name for name, error in self.errors.items() if error > least]
        return sorted(found, key=lambda name: -self.errors[name])

    def _begin(self, module: torch.nn.Module, inputs: Any, named: Any) -> None:  # noqa: ANN401 - any inputs
        if recomputing():  # forward: it ends early, without leaving all modules that it enters
            return
        if self._again is not None:
            self._depth += 1
            return
        self._calls.append(_Call(tree_map(_own_fp32, (inputs, named)), self._random_state()))

    def _end_of(self, name: str) -> Any:  # noqa: ANN401 - a hook
        def end(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:  # noqa: ANN401 - any outputs
            if recomputing():
                return None
            if self._again is not None:
                self._depth -= 1
                return self._again.pop(0) if not self._depth and self._again else None
            call = self._calls.pop()
            if self._calls:
                self._calls[-1].given.append(tree_map(_own_fp32, outputs))
            if not isinstance(module, _CONTAINERS):
                self._measure(name, _floats(outputs), self._computed(module, call))
            return None

        return end

    def _measure(self, name: str, found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        if [each.shape for each in expected] == [each.shape for each in found]:
            errors = [relative_error(a, b) for a, b in zip(found, expected, strict=True)]
            self.errors[name] = max([self.errors.get(name, 0.0), *errors])

    def _computed(self, module: torch.nn.Module, call: _Call) -> list[torch.Tensor]:
        """Compute a module again in fp32; nothing if it can't be."""
        now = self._random_state()
        self._set_random_state(call.random)
        self._again = call.given
        self._depth = 0
        try:
            with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
                inputs, named = call.inputs
                return _floats(module.forward(*inputs, **named))
        except Exception:  # noqa: BLE001 - a person's module that asks for other dtypes
            return []
        finally:
            self._again = None
            self._set_random_state(now)

    def _random_state(self) -> list[torch.Tensor]:
        own = [] if self._device.type == "cpu" else [self._on_device().get_rng_state(self._device)]
        return [torch.get_rng_state(), *own]

    def _set_random_state(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        for state in states[1:]:
            self._on_device().set_rng_state(state, self._device)

    def _on_device(self) -> Any:  # noqa: ANN401 - a module of torch
        return torch.get_device_module(self._device)


def _own_fp32(value: Any) -> Any:  # noqa: ANN401 - whatever a module takes
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().to(torch.float32, copy=True) if is_float else value


def _floats(values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - whatever a module gives
    return [each.detach().float() for each in floats_in(values)]


# Finds operations of the person's network that don't follow autocast, with their lines
# -------------------------------------------------------------------------------------
# Four kinds: operations that raise an error under autocast only; casts that the network does itself;
# products in another dtype than autocast's, or anything in float64; and operations for which autocast has
# no rule, such as a `torch.autograd.Function` without `torch.amp.custom_fwd`. Lines of torch, of other
# packages and of mptui are never named, only the person's line that calls them.

Kind = Literal["refuses", "cast", "dtype", "no rule"]
Found = dict[tuple[str, Kind, str], None]
"""Line of the person's code, kind, and what it does there; in the order of the first."""

_CASTS = ("to", "float", "half", "bfloat16", "double", "type", "type_as")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution")
"""Operations that autocast computes in 16 bits on every device, as torch's kernels call them."""
_TORCHS = ("aten", "prim", "prims", "quantized", "mkldnn", "mkldnn_prepacked", "c10d", "_c10d_functional")
"""Namespaces of torch's operators, for which torch knows what autocast does."""


@dataclass(frozen=True, slots=True)
class OperationFinding:
    """An operation that doesn't follow autocast.

    `line` is the person's, `net.py:16 in forward: return x.half()`; `precisions` are those in which it was
    seen.
    """

    line: str
    kind: Kind
    what: str
    precisions: tuple[str, ...]


class OperationCheck(WatchedOperations):  # type: ignore[no-untyped-call]
    """Watches passes in one precision; `found` has what doesn't follow autocast.

    Args:
        precision: bf16 or fp16.
        device: The device of the passes.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        super().__init__()
        self._dtype = DTYPES[precision]
        self._device = device
        self.found: Found = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the operations inside this context."""
        with _Casts(self.found), self:
            yield

    def refused(self, error: Exception) -> str:
        """Note an error of the person's code, and return it with its line; "" if it isn't of their code."""
        line = failing_line(error)
        words = str(error).strip().splitlines() or [""]
        told = clean(f"{type(error).__name__}: {words[0]}".removesuffix(": "), 300)
        self._note(line, "refuses", told)
        return f"{line.partition(' in ')[0]}: {told}" if line else ""

    def functions_of(self, loss: torch.Tensor) -> None:
        """Note autograd functions in the graph of `loss` that lack `custom_fwd` or `custom_bwd`."""
        seen, nodes = set(), [loss.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
            function = getattr(node, "_forward_cls", None)
            if function is not None and (lacks := _lacking(function)):
                what = f"{function.__name__} lacks {' and '.join(lacks)}: its backward runs without autocast"
                self._note(defining_line(inspect.unwrap(function.forward).__code__), "no rule", what)

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace not in _TORCHS:
            self._custom(func, args)
        result = func(*args, **kwargs)
        dtype = result.dtype if isinstance(result, torch.Tensor) else None
        name = func.overloadpacket.__name__
        is_by_itself = dtype == torch.float64 and name != "_to_copy"
        is_product = name in _PRODUCTS and dtype != self._dtype
        if is_by_itself and set(_float_dtypes(args)) - {dtype}:
            self._note(running_line(), "dtype", f"{name} computes in float64")
        elif is_product and dtype is not None:
            wanted = f"where autocast would use {dtype_name(self._dtype)}"
            self._note(running_line(), "dtype", f"{name} computes in {dtype_name(dtype)}, {wanted}")
        return result

    def _custom(self, func: Any, args: Any) -> None:  # noqa: ANN401 - an operator
        key = f"Autocast{self._device.type.upper()}"
        if has_kernel(func, key):
            return
        if dtypes := set(_float_dtypes(args)):
            mixed = ", and gets mixed dtypes" if len(dtypes) > 1 else ""
            what = f"{func.name()} has no autocast rule (torch.library.register_autocast){mixed}"
            self._note(running_line(), "no rule", what)

    def _note(self, line: str, kind: Kind, what: str) -> None:
        if line:
            self.found.setdefault((line, kind, what))


class _Casts(TorchFunctionMode):
    """Notes the casts between floating dtypes that the person's code does itself; autocast's aren't seen."""

    def __init__(self, found: Found) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - a function of torch
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever it gives
        result = func(*args, **(kwargs or {}))
        is_cast = getattr(func, "__name__", "") in _CASTS and args
        if is_cast and isinstance(result, torch.Tensor):
            before, after = args[0].dtype, result.dtype
            is_other_float = before != after and before.is_floating_point and after.is_floating_point
            if is_other_float and (line := running_line()):
                self._found.setdefault((line, "cast", f"casts to {dtype_name(after)} by itself"))
        return result


def merged(found: dict[str, Found]) -> list[OperationFinding]:
    """Return one finding for each line and fault, with the precisions that have it; refusals come first."""
    by_fault: dict[tuple[str, Kind, str], list[tuple[str, str]]] = {}
    for precision, each in found.items():
        for line, kind, what in each:
            same = "" if kind == "refuses" else what  # its words name the dtypes
            by_fault.setdefault((line, kind, same), []).append((precision, what))
    findings = [
        OperationFinding(line, kind, seen[0][1], tuple(precision for precision, _ in seen))
        for (line, kind, _), seen in by_fault.items()
    ]
    return sorted(findings, key=lambda finding: finding.kind != "refuses")


def _lacking(function: Any) -> list[str]:  # noqa: ANN401 - a class with forward and backward
    """Return those of torch.amp's two decorators that an autograd function lacks."""
    parts = {"torch.amp.custom_fwd": function.forward, "torch.amp.custom_bwd": function.backward}
    return [name for name, part in parts.items() if part.__globals__["__name__"] != "torch.amp.autocast_mode"]


def _float_dtypes(values: Any) -> list[torch.dtype]:  # noqa: ANN401 - a tree of tensors
    return [tensor.dtype for tensor in floats_in(values)]


# Runs a few batches through a network in one precision: losses, outputs, and gradients by layer
# ----------------------------------------------------------------------------------------------
# Weights and buffers (BatchNorm's statistics) are restored afterwards. The network runs eagerly, with the
# same random numbers in every trial.

Change = Callable[[torch.Tensor], torch.Tensor]
"""A change of images and weights."""

_SHAKEN = 2.0**-21


@dataclass(slots=True)
class PrecisionTrial:
    """The result of a trial; gradients are unscaled."""

    precision: str
    loss: float
    outputs: torch.Tensor
    """Outputs of all batches: float32, flat, on the device."""
    gradients: dict[str, torch.Tensor]
    """Layer -> gradients of its weights: float32, flat, summed over the batches."""
    scale: float | None
    seen: list[PartStatistics]
    first_bad: str
    """The layer of the first operation whose result was not finite, or that raised an error; "" if none."""
    operation: str = ""
    """That operation, and what it made of which values."""
    refused: str = ""
    """Line and error of the person's code that doesn't compute in this precision; the rest is empty then."""
    operations: Found = field(default_factory=dict)
    """What of the person's network doesn't follow autocast."""

    @property
    def finite(self) -> bool:
        """Whether the loss and all gradients are finite."""
        return math.isfinite(self.loss) and all(bool(g.isfinite().all()) for g in self.gradients.values())


class TrialSetup:
    """A network and the batches of its trials.

    Args:
        job: Network, task and device.
        batches: Batches on the device.
    """

    def __init__(self, job: Job, batches: Sequence[Batch]) -> None:
        self.job = job
        self.batches = batches
        self.model = job.model
        self._saved = [(t, t.detach().clone()) for t in (*self.model.parameters(), *self.model.buffers())]
        self._seeds = StepSeeds(job.config.training.seed, job.device)

    def run(
        self,
        precision: str,
        *,
        scale: float | None = None,
        fp32_layers: Sequence[str] = (),
        fp32_lines: Sequence[str] = (),
        look: bool = False,
    ) -> PrecisionTrial:
        """Run one precision.

        Args:
            precision: fp32, bf16 or fp16.
            scale: Loss scale.
            fp32_layers: Layers that compute in fp32.
            fp32_lines: Lines of the person's code that do.
            look: Also record the numerics of each layer.
        """
        with self._set_up(fp32_layers), self._lines_in_fp32(fp32_lines):
            if look:
                counter = Probe(self.model, self.job.device)
                with counter.hooks():
                    trial = self._run(precision, scale)
                counter.add_weights()
                trial.seen = counter.seen(counter.rows.cpu())
            else:
                trial = self._run(precision, scale)
            trial.gradients = self._gradients(scale or 1.0)
        if trial.first_bad and not trial.refused:
            self._name_origin(trial, fp32_layers)
        return trial

    def run_scaled(
        self,
        scale: float,
        fp32_layers: Sequence[str],
        check_stop: Callable[[], None],
        fp32_lines: Sequence[str] = (),
    ) -> PrecisionTrial:
        """Run fp16 with the loss scale that a scaler would reach, `scale` or less."""
        scaler = self.job.config.precision.grad_scaler
        while True:
            check_stop()
            trial = self.run("fp16", scale=scale, fp32_layers=fp32_layers, fp32_lines=fp32_lines)
            lower = scale * scaler.backoff_factor
            is_certain = trial.finite or trial.first_bad or trial.refused
            if is_certain or lower < scaler.min_scale:
                return trial
            scale = lower

    def local_errors(self, precision: str, fp32_layers: Sequence[str]) -> LocalErrors:
        """Return how far each module is from fp32 with its inputs in `precision`."""
        local = LocalErrors(self.job.device)
        with self._set_up(fp32_layers), local.watching(self.model), torch.no_grad():
            for number, batch in enumerate(self.batches):
                self._seeds.set(0, number)
                with self._autocast(precision):
                    self.model.forward(*batch.inputs)
        return local

    def operations(
        self,
        precision: str,
        scale: float | None,
        number: int,
        *,
        fp32_layers: Sequence[str] = (),
        fp32_lines: Sequence[str] = (),
        change: Change | None = None,
    ) -> list[RecordedOperation]:
        """Record the operations of a step of one batch.

        Args:
            precision: fp32, bf16 or fp16.
            scale: Loss scale.
            number: Of the batch, from 0.
            fp32_layers: Layers that compute in fp32.
            fp32_lines: Lines of the person's code that do.
            change: Changes images and weights first.
        """
        recorded, batch = RecordedOperations(), self.batches[number]
        changed = nullcontext() if change is None else self._with_changed(change)
        with self._set_up(fp32_layers), changed, recorded.layers_of(self.model):
            self._seeds.set(0, number)
            with self._autocast(precision), self._lines_in_fp32(fp32_lines), recorded:
                outputs = self.model.forward(*batch.inputs)
                recorded.layer = LOSS
                loss = self.job.task.loss(outputs, batch, batch.valid, batch.size)
            recorded.where = "backward"
            recorded.layer = LOSS
            with recorded:
                torch.autograd.backward(loss * (scale or 1.0))
        return recorded.operations

    def _lines_in_fp32(self, lines: Sequence[str]) -> AbstractContextManager[object]:
        return LinesInFp32(lines, self.job.device) if lines else nullcontext()

    @contextmanager
    def _set_up(self, fp32_layers: Sequence[str]) -> Iterator[None]:
        """Let layers compute in fp32, and put everything back afterwards."""
        regions = apply_fp32_layers(self.model, fp32_layers, self.job.device)
        frozen = FrozenLayers(self.model, frozen_at_last(self.job.config.training))
        try:
            yield
        finally:
            frozen.thaw()
            for region in regions:
                region.remove()
            self.model.zero_grad(set_to_none=True)
            self._put_back()

    def _name_origin(self, trial: PrecisionTrial, fp32_layers: Sequence[str]) -> None:
        """Name the first operation with a non-finite result in place of the module that it came out of."""
        found = FirstNonFinite()
        with self._set_up(fp32_layers), found.layers_of(self.model), torch.no_grad():
            for number, batch in enumerate(self.batches):
                self._seeds.set(0, number)
                with self._autocast(trial.precision), found:
                    outputs = self.model.forward(*batch.inputs)
                    found.layer = LOSS
                    self.job.task.loss(outputs, batch, batch.valid, batch.size)
                if found.origin is not None:
                    break
        if found.origin is not None:
            trial.first_bad = found.origin.layer or trial.first_bad
            trial.operation = f"{found.origin.operation}: {found.origin.detail}"

    def _autocast(self, precision: str) -> torch.autocast:
        dtype = DTYPES.get(precision)
        return torch.autocast(self.job.device.type, dtype=dtype, enabled=dtype is not None)

    def rounded(self, precision: str) -> PrecisionTrial:
        """Run fp32 on images and weights rounded to `precision`, the unavoidable error of a 16-bit run.

        If rounding alone changes the gradients this much, the network is so sensitive on these batches that
        the precision isn't at fault.
        """
        return self._changed(rounding_to(precision))

    def shaken(self) -> PrecisionTrial:
        """Run fp32 on images and weights that differ by some of its own roundings.

        A gradient that this turns is nothing but rounding: in exact numbers it is zero, as that of the scale
        of a BatchNorm before another.
        """
        return self._changed(lambda values: values * (1 + _SHAKEN))

    def _changed(self, change: Change) -> PrecisionTrial:
        """Run fp32 on changed images and weights."""
        with self._with_changed(change):
            return self.run("fp32")

    @contextmanager
    def _with_changed(self, change: Change) -> Iterator[None]:
        """Change images and weights; a run puts the weights back."""
        images = [batch.images_BCHW for batch in self.batches]
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(change(weight))
        for batch in self.batches:
            batch.images_BCHW = change(batch.images_BCHW)
        try:
            yield
        finally:
            for batch, before in zip(self.batches, images, strict=True):
                batch.images_BCHW = before

    def _run(self, precision: str, scale: float | None) -> PrecisionTrial:
        if precision not in DTYPES or not own_code.allowed():
            return self._passes(precision, scale, None)
        check = OperationCheck(precision, self.job.device)
        try:
            with check.layers_of(self.model):
                trial = self._passes(precision, scale, check)
        except Exception as error:
            refused = check.refused(error)
            if not refused or is_memory_full(error):
                raise
            nothing = torch.empty(0, device=self.job.device)
            trial = PrecisionTrial(precision, math.nan, nothing, {}, scale, [], check.layer, refused=refused)
        trial.operations = check.found
        return trial

    def _passes(self, precision: str, scale: float | None, check: OperationCheck | None) -> PrecisionTrial:
        losses, outputs_of = [], []
        watching = nullcontext if check is None else check.watching
        with _first_bad(self.model) as bad:
            for number, batch in enumerate(self.batches):
                self._seeds.set(0, number)
                with self._autocast(precision):
                    with watching():
                        outputs = self.model.forward(*batch.inputs)
                    loss = self.job.task.loss(outputs, batch, batch.valid, batch.size)
                if check is not None:
                    check.functions_of(loss)
                with watching():
                    torch.autograd.backward(loss * (scale or 1.0))
                losses.append(float(loss.detach()))
                outputs_of.append(outputs.detach().float().flatten())
        mean = sum(losses) / len(losses)
        if not bad and not math.isfinite(mean):
            bad.append(LOSS)
        first_bad = bad[0] if bad else ""
        return PrecisionTrial(precision, mean, torch.cat(outputs_of), {}, scale, [], first_bad)

    def _gradients(self, scale: float) -> dict[str, torch.Tensor]:
        gradients = {}
        for name, module in self.model.named_modules():
            own = [p.grad.float().flatten() for p in module.parameters(recurse=False) if p.grad is not None]
            if own:
                gradients[name] = torch.cat(own) / scale
        return gradients

    @torch.no_grad()
    def _put_back(self) -> None:
        for tensor, saved in self._saved:
            tensor.copy_(saved)


@contextmanager
def _first_bad(model: torch.nn.Module) -> Iterator[list[str]]:
    """Record the modules whose outputs are not finite, in order."""
    bad: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def check(_module: torch.nn.Module, _inputs: object, outputs: object, name: str = name) -> None:
            if any(not bool(value.isfinite().all()) for value in tensors_in(outputs)):
                bad.append(name)

        handles.append(module.register_forward_hook(check))
    try:
        yield bad
    finally:
        for handle in handles:
            handle.remove()


def first_batches(job: Job, count: int) -> list[Batch]:
    """Return copies of the first batches of a run, and close its loaders.

    Raises:
        DataError: No batch has anything to learn.
    """
    taken: list[Batch] = []
    try:
        for window in job.train_loader.windows(0, 1):
            taken += [own_batch(batch) for batch in window if batch.valid]
            if len(taken) >= count:
                break
    finally:
        job.train_loader.close()
        job.val_loader.close()
    if not taken:
        raise DataError(
            "no batch has anything to learn: all that it shows is ignored", hint="check data.ignore_index"
        )
    return taken[:count]


def own_batch(batch: Batch) -> Batch:
    """Copy a batch, so that it stays valid when the next one is read."""
    return replace(batch, images_BCHW=batch.images_BCHW.clone(), targets=batch.targets.clone())


def rounding_to(precision: str) -> Change:
    """Return the rounding of values to a 16-bit precision."""
    return partial(_rounded, dtype=DTYPES[precision])


def moving_by(share: float) -> Change:
    """Return a change of each value by this share of it, up or down at random and the same each time."""

    def moved(values: torch.Tensor) -> torch.Tensor:
        chance = torch.Generator(values.device).manual_seed(0)
        ups = torch.empty_like(values).bernoulli_(0.5, generator=chance)
        return values * (1 + share * (2 * ups - 1))

    return moved


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to a format; what is beyond its range stays."""
    rounded = values.to(dtype).to(values.dtype)
    return torch.where(rounded.isfinite(), rounded, values)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine similarity of two gradients; 1 if both are zero, NaN if one is not finite."""
    one, other = one.double(), other.double()
    norms = float(one.norm() * other.norm())
    if norms == 0:
        return 1.0 if float(one.norm()) == float(other.norm()) else 0.0
    return float(one @ other) / norms
