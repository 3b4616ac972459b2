"""Runs a training step over tensors without storage, with the memory of autograd's engine."""

import gc
import heapq
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate, count, groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import override

from mptui.data.batch import Batch
from mptui.models.layers import Forward, WrappedForward
from mptui.tasks.base import Task
from mptui.torch_private import (
    CUDNN_RNN,
    LOCAL_SCALAR,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OperatorMode,
    OpOverload,
    tensors_in,
    tree_map_only,
    unset_fake_temporarily,
    uses_of_storage,
)

# Runs a backward pass over tensors without storage, with the memory of autograd's engine
# ---------------------------------------------------------------------------------------
# The engine refuses fake tensors that are said to be on a CUDA device where there is none. So the nodes of
# the graph are called here, in its order, and what it frees is freed at the same moments (engine.cpp and
# input_buffer.cpp in torch/csrc/autograd). Blocks are checkpointed as by torch.utils.checkpoint without
# reentry: of each block the inputs are kept, and its other tensors computed again when the first is used.

_Node = Any  # of autograd's graph: torch has no type for all that they have
_FIRST = -(1 << 63)
"""Priority of nodes that add to a gradient: the engine runs them before all others."""
_OWN = 2
"""References to a storage that only one tensor has: the tensor's, and that of the Python object."""


class Tape:
    """The tensors that autograd saves in a forward pass, each until the backward pass has used it.

    Use it as a context around the forward pass; `backward` runs outside of it.

    Args:
        autocast: Returns the context of the forward pass, to compute a checkpointed block again.
    """

    def __init__(self, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        self._autocast = autocast
        self._used: list[_Saved] = []
        self._hooks = ExitStack()

    def __enter__(self) -> "Tape":
        self._hooks.enter_context(saved_tensors_hooks(_Saved, self._unpack))
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.close()

    def _unpack(self, saved: "_Saved") -> torch.Tensor:
        self._used.append(saved)
        tensor = saved.tensor
        assert tensor is not None, "a graph is used once"
        return tensor

    def checkpointed(self, forward: Forward) -> Forward:
        """Return `forward` of a block with only its inputs saved, for `WrappedForward`."""

        def keep_inputs(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the block takes and gives
            return _Checkpoint(forward, inputs, named, self._autocast).run()

        return keep_inputs

    def backward(self, loss: torch.Tensor, accumulated: Callable[[torch.Tensor], None]) -> None:
        """Add the gradients of `loss` (0-dim) to those of the parameters.

        `accumulated` is called with each gradient once its parameter has it.
        """
        root: _Node = loss.grad_fn
        waits = _dependencies(root)
        born = count()
        ready = [(_priority(root), next(born), root)]
        inputs: dict[_Node, list[torch.Tensor | None]] = {root: [torch.ones_like(loss)]}
        with torch.no_grad():
            while ready:
                node = heapq.heappop(ready)[2]
                gradients = inputs.pop(node)
                if hasattr(node, "variable"):
                    _accumulate(node.variable, gradients.pop(), accumulated)
                    continue
                outputs = self._call(node, gradients)
                for (follower, slot), output in zip(node.next_functions, outputs, strict=True):
                    if follower is None:
                        continue
                    metadata = follower._input_metadata
                    buffer = inputs.setdefault(follower, [None] * len(metadata))
                    if output is not None:
                        _add(buffer, slot, _valid(output, metadata[slot]))
                    waits[follower] -= 1
                    if not waits[follower]:
                        heapq.heappush(ready, (_priority(follower), next(born), follower))
                outputs.clear()
                output = None

    def _call(self, node: _Node, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        outputs = node(*gradients) if callable(node) else node.apply(*gradients)
        gradients.clear()
        for saved in self._used:
            saved.tensor = None
        self._used.clear()
        return list(outputs) if isinstance(outputs, tuple) else [outputs]


class _Saved:
    """A tensor that a node saves; None once it is used."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor


class _EnoughError(Exception):
    """All saved tensors of a block have been computed again."""


class _Checkpoint:
    """A pass through a checkpointed block."""

    def __init__(
        self,
        forward: Forward,
        inputs: tuple[Any, ...],
        named: dict[str, Any],
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._forward = forward
        self._inputs = inputs
        self._named = named
        self._autocast = autocast
        self._saved = 0
        self._again: dict[int, torch.Tensor] | None = None

    def run(self) -> Any:  # noqa: ANN401 - what the block gives
        with saved_tensors_hooks(self._number, self._take):
            return self._forward(*self._inputs, **self._named)

    def _number(self, _: torch.Tensor) -> int:
        self._saved += 1
        return self._saved - 1

    def _take(self, number: int) -> torch.Tensor:
        if self._again is None:
            self._again = {}
            self._compute(self._again)
        tensor = self._again.pop(number)
        if not self._again:  # else the graph would keep them, through its hooks
            self._inputs = ()
            self._named = {}
        return tensor

    def _compute(self, again: dict[int, torch.Tensor]) -> None:
        def keep(tensor: torch.Tensor) -> int:
            again[len(again)] = tensor.detach()
            if len(again) == self._saved:
                raise _EnoughError
            return len(again) - 1

        def apart(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().requires_grad_(tensor.requires_grad)

        inputs, named = tree_map_only(torch.Tensor, apart, (self._inputs, self._named))
        try:
            with torch.enable_grad(), self._autocast(), saved_tensors_hooks(keep, again.__getitem__):
                self._forward(*inputs, **named)
        except _EnoughError:
            pass


def _priority(node: _Node) -> int:
    return _FIRST if hasattr(node, "variable") else -int(node._sequence_nr())


def _dependencies(root: _Node) -> Counter[_Node]:
    """Return how often each node of a graph follows another one."""
    waits: Counter[_Node] = Counter()
    seen, left = {root}, [root]
    while left:
        for follower, _ in left.pop().next_functions:
            if follower is None:
                continue
            waits[follower] += 1
            if follower not in seen:
                seen.add(follower)
                left.append(follower)
    return waits


def _valid(gradient: torch.Tensor, metadata: Any) -> torch.Tensor:  # noqa: ANN401 - torch has no type for it
    """Return a gradient of the shape and type of its tensor, which may have been broadcast or cast."""
    if list(gradient.shape) != list(metadata.shape):
        gradient = gradient.sum_to_size(metadata.shape)
    return gradient if gradient.dtype == metadata.dtype else gradient.to(metadata.dtype)


def _add(buffer: list[torch.Tensor | None], slot: int, gradient: torch.Tensor) -> None:
    """Add a gradient to those that a node gets, in place where nothing else has the memory."""
    before = buffer[slot]
    if before is None:
        buffer[slot] = gradient
    elif uses_of_storage(before) == _OWN:
        before.add_(gradient)
    else:
        buffer[slot] = before + gradient


def _accumulate(
    variable: torch.Tensor, gradient: torch.Tensor | None, accumulated: Callable[[torch.Tensor], None]
) -> None:
    if gradient is None:
        return
    if variable.grad is not None:
        variable.grad.add_(gradient)
        return
    if gradient.stride() != variable.stride():
        gradient = torch.empty_like(variable).copy_(gradient)
    variable.grad = gradient.detach()
    accumulated(variable.grad)


# Logs which storages a piece of code allocates, and when each is freed
# ---------------------------------------------------------------------
# A storage is the memory that tensors share, such as a tensor and its views: bytes are counted once. The
# log works the same on tensors with and without storage (torch's FakeTensorMode), so that one is checked by
# the other. torch's `torch.distributed._tools.mem_tracker` watches storages by the same means.


@dataclass(slots=True)
class Allocation:
    """A storage: its bytes, what it is for, and the submodule that made it ("": none)."""

    size: int
    use: str
    module: str


class AllocationLog(OperatorMode):  # type: ignore[no-untyped-call] # torch's modes have no types
    """Logs the storages of the tensors that operations return, in the order of their births and deaths.

    Attributes:
        use: What new storages are for.
        module: The submodule that makes them.
        allocations: All so far, in the order of birth.
        events: Number of each allocation at its birth, and its complement (`~number`) at its death.
    """

    def __init__(self) -> None:
        super().__init__()
        self.use = self.module = ""
        self.allocations: list[Allocation] = []
        self.events: list[int] = []
        self._closed = False
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs = func(*args, **kwargs)
        for output in tensors_in(outputs):
            if not self._is_known(output, args, kwargs):
                self.note(output)
        return outputs

    def _is_known(self, output: torch.Tensor, *inputs: Any) -> bool:  # noqa: ANN401 - as of any operation
        """Whether a storage is logged, or was there before the log: an input has it, too."""
        pointer = output.untyped_storage()._cdata
        return pointer in self._alive or any(
            each.untyped_storage()._cdata == pointer for each in tensors_in(inputs)
        )

    def note(self, tensor: torch.Tensor, use: str | None = None) -> None:
        """Log the storage of `tensor` if it is new; with `use`, say what it is for."""
        storage = tensor.untyped_storage()
        pointer = storage._cdata
        found = self._alive.get(pointer)
        if found is None:
            number = len(self.allocations)
            self.allocations.append(Allocation(storage.nbytes(), use or self.use, self.module))
            self.events.append(number)
            # the Python object of a storage lives as long as the storage itself
            self._alive[pointer] = number, weakref.ref(storage, lambda _: self._free(pointer))
        elif use is not None:
            self.allocations[found[0]].use = use

    def peak(self) -> int:
        """Return the most bytes alive at one moment."""
        signed = (
            -self.allocations[~event].size if event < 0 else self.allocations[event].size
            for event in self.events
        )
        return max(accumulate(signed), default=0)

    def _free(self, pointer: int) -> None:
        number, _ = self._alive.pop(pointer)
        if not self._closed:
            self.events.append(~number)

    def close(self) -> None:
        """Log no further deaths: what is alive stays so."""
        self._closed = True

    @contextmanager
    def on(self, use: str) -> Iterator[None]:
        """Say what the storages made in this context are for."""
        before, self.use = self.use, use
        try:
            yield
        finally:
            self.use = before


# The workspace that a recurrent layer keeps for its backward pass: torch's fake tensors leave it empty
# -----------------------------------------------------------------------------------------------------

_FLOAT = 4
_GATES = 4
"""Gates of an LSTM, the only recurrent layer that torch gives to oneDNN."""

_CUDNN_VALUES = {0: 1, 1: 1, 2: 6, 3: 5}
"""Mode of cuDNN (ReLU, tanh, LSTM, GRU) -> values that each unit keeps of a step; estimated."""


def with_workspace(func: Any, args: Any, outputs: Any) -> Any:  # noqa: ANN401 - of any operation
    """Return the outputs of an operation on fake tensors, with a workspace of its real size."""
    if func not in _SIZES:
        return outputs
    place, size_of = _SIZES[func]
    made = list(outputs)
    made[place] = made[place].new_empty(size_of(args), dtype=torch.uint8)
    return tuple(made)


def _onednn_bytes(args: Any) -> int:  # noqa: ANN401 - those of mkldnn_rnn_layer
    """Return the bytes of oneDNN's workspace of one layer in one direction.

    It has the gates of each step, and the states with their gradients between all steps and at the ends:
    of the layer's inputs in rows of the larger of both sizes (oneDNN, src/cpu/rnn/rnn_utils.cpp).
    oneDNN 3.7 keeps ten such rows of a sample between two steps, 3.12 six: measured.
    """
    input_TBI, hidden, is_training = args[0], args[10], args[15]
    if not is_training:
        return 0
    T, B, inputs = input_TBI.shape
    rows = 6 if _onednn_version() >= (3, 12) else 10
    between = (T + 1) * (rows * max(inputs, hidden) + 5 * hidden)
    return int(_FLOAT * B * (T * _GATES * hidden + between))


@cache
def _onednn_version() -> tuple[int, ...]:
    """Return the major and minor version of the oneDNN that torch was built with; (0,) if it has none."""
    named = re.search(r"MKL-DNN v(\d+)\.(\d+)", torch.__config__.show())
    return tuple(map(int, named.groups())) if named else (0,)


def _cudnn_bytes(args: Any) -> int:  # noqa: ANN401 - those of _cudnn_rnn
    """Return the bytes of cuDNN's reserve space, which keeps the gates and cells of each step."""
    input_TBI, mode, hidden, layers, is_training, is_bidirectional = (
        args[place] for place in (0, 6, 7, 9, 12, 13)
    )
    if not is_training:
        return 0
    rows = input_TBI.shape[:-1].numel()
    return int(
        rows * hidden * _CUDNN_VALUES[mode] * layers * (1 + is_bidirectional) * input_TBI.element_size()
    )


_SIZES: dict[Any, tuple[int, Callable[[Any], int]]] = {
    torch.ops.aten.mkldnn_rnn_layer.default: (3, _onednn_bytes),
    CUDNN_RNN.default: (3, _cudnn_bytes),
}
"""Operation -> place of the workspace in its outputs, and its bytes."""


# Counts the memory of a training step, moment by moment, on tensors without storage
# ----------------------------------------------------------------------------------
# A step is traced at two batch sizes (torch's FakeTensorMode). It makes the same tensors in the same order
# at each, and their sizes are affine in the batch, so that the two give every moment of a step of any batch
# size: its peak is exact, not extrapolated (of one sample, some copies are not made). Nothing is allocated,
# and the device need not exist.

Bytes = npt.NDArray[np.int64]

SIZES = 2, 4
"""Batch sizes of the two traces; BatchNorm needs at least 2 samples in training."""

_INTEGERS = {torch.int32, torch.int64}
_SMALL = 4096
"""Elements up to which values are known."""
_OF_NUMBERS = {
    torch.ops.aten.arange.default,
    torch.ops.aten.arange.start,
    torch.ops.aten.arange.start_step,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.linspace.default,
}
"""Operations that make tensors of numbers."""


class UncountableError(Exception):
    """The memory of a network can't be counted: it does not run on tensors without values."""


@dataclass(frozen=True, eq=False)
class StepMemory:
    """The storages of a step, with their births and deaths, for any batch size.

    Attributes:
        fixed: Bytes of each storage that do not depend on the batch.
        each: Bytes of each storage for each sample.
        uses: What each is for.
        modules: The submodule that made each.
        events: As of `AllocationLog`.
    """

    fixed: Bytes
    each: Bytes
    uses: list[str]
    modules: list[str]
    events: Bytes

    @classmethod
    def from_logs(cls, few: AllocationLog, many: AllocationLog) -> "StepMemory":
        """Combine the logs of a step with the numbers of samples of `SIZES`.

        Raises:
            UncountableError: They are not the same step.
        """
        events = _ordered(few.events)
        if events != _ordered(many.events):
            raise UncountableError
        at_few, at_many = (
            np.array([one.size for one in log.allocations], dtype=np.int64) for log in (few, many)
        )
        each = (at_many - at_few) // (SIZES[1] - SIZES[0])
        return cls(
            fixed=at_few - each * SIZES[0],
            each=each,
            uses=[one.use for one in few.allocations],
            modules=[one.module for one in few.allocations],
            events=np.array(events, dtype=np.int64),
        )

    def then(self, use: str, size: int) -> "StepMemory":
        """Return this step with one more storage at its end."""
        return StepMemory(
            fixed=np.append(self.fixed, size),
            each=np.append(self.each, 0),
            uses=[*self.uses, use],
            modules=[*self.modules, ""],
            events=np.append(self.events, len(self.fixed)),
        )

    @cached_property
    def _moments(self) -> tuple[Bytes, Bytes]:
        """Bytes alive after each event: the fixed part, and the part of each sample."""
        numbers = np.where(self.events < 0, ~self.events, self.events)
        signs = np.where(self.events < 0, -1, 1)
        return np.cumsum(signs * self.fixed[numbers]), np.cumsum(signs * self.each[numbers])

    def _peak_at(self, batch: int) -> int:
        fixed, each = self._moments
        return int(np.argmax(fixed + each * batch))

    def peak(self, batch: int) -> int:
        """Return the most bytes alive at one moment of a step."""
        fixed, each = self._moments
        at = self._peak_at(batch)
        return int(fixed[at] + each[at] * batch)

    def per_sample(self, batch: int) -> int:
        """Return the bytes of each sample at the peak."""
        return int(self._moments[1][self._peak_at(batch)])

    def largest_batch(self, free: int, more: float) -> int:
        """Return the largest batch whose peak, with `more` bytes for each sample, is within `free` bytes."""
        fixed, each = self._moments
        room = free - fixed
        return max(0, int(np.min(np.floor(room / (each + more))))) if bool((room >= 0).all()) else 0

    def at_peak(self, batch: int) -> dict[tuple[str, str], int]:
        """Return the bytes alive at the peak, by use and submodule."""
        events = self.events[: self._peak_at(batch) + 1]
        found: dict[tuple[str, str], int] = defaultdict(int)
        for number in np.setdiff1d(events[events >= 0], ~events[events < 0]):
            found[self.uses[number], self.modules[number]] += int(
                self.fixed[number] + self.each[number] * batch
            )
        return dict(found)

    def largest(self, use: str) -> int:
        """Return the bytes of each sample in the largest storage of a use."""
        return max((int(each) for each, of in zip(self.each, self.uses, strict=True) if of == use), default=0)


def _ordered(events: list[int]) -> list[int]:
    """Return events with the deaths between two births in one order: a cache frees its tensors in any."""
    found: list[int] = []
    for is_death, run in groupby(events, key=lambda event: event < 0):
        alike = list(run)
        found += sorted(alike) if is_death else alike
    return found


class NoStorage(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without storage. It asks once whether there is a GPU; torch asks at each operation."""

    def __init__(self) -> None:
        # the fallback of an operation without shapes would allocate its inputs
        super().__init__(allow_fallback_kernels=False)

    @cached_property
    @override
    def avoid_device_init(self) -> bool:
        return super().avoid_device_init


@contextmanager
def no_storage(mode: NoStorage | None = None) -> Iterator[None]:
    """Make tensors without storage; for values read of them see `NoValues`. `mode`: of earlier such tensors.

    Raises:
        UncountableError: torch can't run it so: a number of layers or channels is computed from tensors, the
            shapes of an operation's results are not known, or the layers do not fit one another.
    """
    with mode or NoStorage(), NoValues():
        try:
            yield
        except RuntimeError as error:
            raise UncountableError from error


@contextmanager
def steady_deaths() -> Iterator[None]:
    """Let no garbage collection decide when a storage is freed."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def autocast_as_there(device: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast as on a device of this type, also where there is none: `torch.autocast` would turn itself off.

    None: no autocast.
    """
    if dtype is None:
        yield
        return
    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])


class StepTracer:
    """Traces steps of a network on tensors without storage.

    Args:
        network: In training mode.
        log: Where its storages go.
        autocast: Returns the context of a forward pass.
        checkpointed: Blocks of which only the inputs are kept.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        log: AllocationLog,
        autocast: Callable[[], AbstractContextManager[Any]],
        checkpointed: list[torch.nn.Module],
    ) -> None:
        self._network = network
        self._log = log
        self._autocast = autocast
        self._tape = Tape(autocast)
        self._entered: list[str] = []
        self._removable: list[RemovableHandle | WrappedForward] = []
        for name, module in network.named_modules():
            self._removable += [
                module.register_forward_pre_hook(partial(self._enter, name)),
                module.register_forward_hook(self._leave, always_call=True),
            ]
        self._removable += [WrappedForward(block, self._tape.checkpointed) for block in checkpointed]

    def run(self, batch: Batch, task: Task) -> None:
        """Pass `batch` forward and backward. Outputs and loss are alive to the end, as in `Trainer._step`."""
        log = self._log
        with log:
            with log.on("activations"), self._autocast(), self._tape:
                outputs = self._network(*batch.inputs)
                loss = task.loss(outputs, batch, batch.valid, batch.size)
            with log.on("temporary"):
                self._tape.backward(loss, lambda gradient: log.note(gradient, "gradients"))
        log.close()
        del outputs

    def close(self) -> None:
        """Leave the network as it was."""
        for each in self._removable:
            each.remove()

    def _enter(self, name: str, _module: torch.nn.Module, _inputs: Any) -> None:  # noqa: ANN401 - a hook
        self._entered.append(self._log.module)
        self._log.module = name

    def _leave(self, _module: torch.nn.Module, _inputs: Any, _outputs: Any) -> None:  # noqa: ANN401 - a hook
        self._log.module = self._entered.pop()


class NoValues(OperatorMode):  # type: ignore[no-untyped-call]
    """Leaves out operations that only write into tensors, and answers code that reads a value of one.

    Known are small tensors that are computed from numbers alone, such as rates and widths of layers. Of
    others, a float is 1, since optimizers divide by it, and a condition False, since weights are drawn again
    while one is out of range. An integer may be a number of layers or channels, so that none is made up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not func._schema.returns:  # it writes into tensors, as fused optimizers do
            return None
        if _is_in_place(func):
            self._forget(args[0])
            return args[0]
        if func is LOCAL_SCALAR.default:
            return self._value(args[0])
        outputs = with_workspace(func, args, func(*args, **kwargs))
        if self._known or func in _OF_NUMBERS:
            self._learn(func, args, kwargs, outputs)
        return outputs

    def _value(self, tensor: torch.Tensor) -> bool | int | float:
        if (known := self._known.get(tensor)) is not None:
            with unset_fake_temporarily():
                return known.item()
        if tensor.dtype in _INTEGERS:
            raise DynamicOutputShapeException(LOCAL_SCALAR.default)
        return False if tensor.dtype is torch.bool else 1.0

    def _learn(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:  # noqa: ANN401 - an operation
        """Compute small results for real, if they follow from numbers and known values."""
        inputs, made = tensors_in((args, kwargs)), tensors_in(outputs)
        are_known = all(each in self._known or not isinstance(each, FakeTensor) for each in inputs)
        follows = are_known and (inputs or func in _OF_NUMBERS)
        if not follows or torch.Tag.nondeterministic_seeded in func.tags:
            return
        if any(each.numel() > _SMALL for each in made):
            return
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": "cpu"}
        with unset_fake_temporarily():
            args, kwargs = tree_map_only(
                torch.Tensor, lambda each: self._known.get(each, each), (args, kwargs)
            )
            values = tensors_in(func(*args, **kwargs))
        for each, value in zip(made, values, strict=True):
            self._known[each] = value

    def _forget(self, tensor: torch.Tensor) -> None:
        """Forget the value of a tensor that is written to, and of what it is a view of."""
        for each in (tensor, tensor._base):
            if each is not None:
                self._known.pop(each, None)


@cache
def _is_in_place(func: OpOverload) -> bool:
    """Whether an operation returns its first argument, of the same shape as before."""
    is_inner = func._schema.name.endswith("_") and not func._schema.name.endswith("__")
    return is_inner and torch.Tag.inplace_view not in func.tags and func is not torch.ops.aten.resize_.default
