"""Logs which storages a piece of code allocates, and when each is freed.

A storage is the memory that tensors share, such as a tensor and its views: bytes are counted once. The log
works the same on tensors with and without storage (torch's FakeTensorMode), so that one is checked by the
other. torch's `torch.distributed._tools.mem_tracker` watches storages by the same means.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(slots=True)
class Allocation:
    """A storage: its bytes, what it is for, and the submodule that made it ("": none)."""

    size: int
    use: str
    module: str


class AllocationLog(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's modes have no types
    """Logs the storages of the tensors that operations return, in the order of their births and deaths.

    Attributes:
        use: What new storages are for.
        module: The submodule that makes them.
        allocations: All so far, in the order of birth.
        events: Number of each allocation at its birth, and its complement (`~number`) at its death.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.use = self.module = ""
        self.allocations: list[Allocation] = []
        self.events: list[int] = []
        self._closed = False
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    def __torch_dispatch__(  # type: ignore[no-untyped-def] # its types are torch's own
        self,
        func,  # noqa: ANN001
        types,  # noqa: ANN001
        args=(),  # noqa: ANN001
        kwargs=None,  # noqa: ANN001
    ) -> Any:  # noqa: ANN401
        outputs = func(*args, **(kwargs or {}))
        for output in (outputs,) if isinstance(outputs, torch.Tensor) else tree_leaves(outputs):
            if isinstance(output, torch.Tensor) and not self._is_known(output, args, kwargs):
                self.note(output)
        return outputs

    def _is_known(self, output: torch.Tensor, *inputs: Any) -> bool:  # noqa: ANN401 - as of any operation
        """Whether a storage is logged, or was there before the log: an input has it, too."""
        pointer = output.untyped_storage()._cdata
        return pointer in self._alive or any(
            isinstance(each, torch.Tensor) and each.untyped_storage()._cdata == pointer
            for each in tree_leaves(inputs)
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
