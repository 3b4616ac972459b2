"""Counts the memory of a training step, moment by moment, on tensors without storage.

A step is traced at two batch sizes (torch's FakeTensorMode). It makes the same tensors in the same order at
each, and their sizes are affine in the batch, so that the two give every moment of a step of any batch size:
its peak is exact, not extrapolated (of one sample, some copies are not made). Nothing is allocated, and the
device need not exist.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from mptui.data.core.batch import Batch
from mptui.engine.memory.allocations import AllocationLog
from mptui.engine.memory.recurrent_workspace import with_workspace
from mptui.engine.memory.tape import Tape
from mptui.models.wrapped_forward import WrappedForward
from mptui.tasks.base import Task

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


@contextmanager
def no_storage(mode: FakeTensorMode | None = None) -> Iterator[None]:
    """Make tensors without storage; for values read of them see `NoValues`. `mode`: of earlier such tensors.

    Raises:
        UncountableError: torch can't run it so: a number of layers or channels is computed from tensors, the
            shapes of an operation's results are not known, or the layers do not fit one another.
    """
    # the fallback of an operation without shapes would allocate its inputs
    with mode or FakeTensorMode(allow_fallback_kernels=False), NoValues():
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
        self._network, self._log, self._autocast = network, log, autocast
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


class NoValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves out operations that only write into tensors, and answers code that reads a value of one.

    Known are small tensors that are computed from numbers alone, such as rates and widths of layers. Of
    others, a float is 1, since optimizers divide by it, and a condition False, since weights are drawn again
    while one is out of range. An integer may be a number of layers or channels, so that none is made up.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: MutableMapping[torch.Tensor, torch.Tensor] = WeakTensorKeyDictionary()

    def __torch_dispatch__(  # type: ignore[no-untyped-def] # its types are torch's own
        self,
        func,  # noqa: ANN001
        types,  # noqa: ANN001
        args=(),  # noqa: ANN001
        kwargs=None,  # noqa: ANN001
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if not func._schema.returns:  # it writes into tensors, as fused optimizers do
            return None
        if _is_in_place(func):
            self._forget(args[0])
            return args[0]
        if func is torch.ops.aten._local_scalar_dense.default:
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
            raise DynamicOutputShapeException(torch.ops.aten._local_scalar_dense.default)
        return False if tensor.dtype is torch.bool else 1.0

    def _learn(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:  # noqa: ANN401 - an operation
        """Compute small results for real, if they follow from numbers and known values."""
        inputs, made = _tensors_in((args, kwargs)), _tensors_in(outputs)
        follows = all(each in self._known or not isinstance(each, FakeTensor) for each in inputs)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if not follows or is_random or not (inputs or func in _OF_NUMBERS):
            return
        if any(each.numel() > _SMALL for each in made):
            return
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": "cpu"}
        with unset_fake_temporarily():
            args, kwargs = tree_map_only(
                torch.Tensor, lambda each: self._known.get(each, each), (args, kwargs)
            )
            values = _tensors_in(func(*args, **kwargs))
        for each, value in zip(made, values, strict=True):
            self._known[each] = value

    def _forget(self, tensor: torch.Tensor) -> None:
        """Forget the value of a tensor that is written to, and of what it is a view of."""
        for each in (tensor, tensor._base):
            if each is not None:
                self._known.pop(each, None)


def _tensors_in(values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - a tree
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


@cache
def _is_in_place(func: torch._ops.OpOverload) -> bool:
    """Whether an operation returns its first argument, of the same shape as before."""
    is_inner = func._schema.name.endswith("_") and not func._schema.name.endswith("__")
    return is_inner and torch.Tag.inplace_view not in func.tags and func is not torch.ops.aten.resize_.default
