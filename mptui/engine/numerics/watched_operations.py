"""A torch dispatch mode that knows the layer of each operation."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mptui.models.activation_checkpointing import recomputing


class WatchedOperations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the layer that operations belong to; subclasses run each of them in `watched`.

    Attributes:
        layer: Name of the innermost running module, forward or backward; "" is the network itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layer = ""
        self._stack: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator gives
        return self.watched(func, args, kwargs or {})

    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run an operator, and return its result."""
        raise NotImplementedError

    @contextmanager
    def layers_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Track the innermost running module, forward and backward."""
        with ExitStack() as stack:
            for name, module in model.named_modules():
                if name:
                    stack.callback(module.register_forward_pre_hook(self._entering(name)).remove)
                    stack.callback(module.register_forward_hook(self._leaving(name)).remove)
            yield

    def _entering(self, name: str) -> Any:  # noqa: ANN401 - a hook
        def enter(module: torch.nn.Module, inputs: Any) -> None:  # noqa: ANN401 - whatever the module takes
            if recomputing():  # forward: it ends early, without leaving all modules that it enters
                return
            self._stack.append(self.layer)
            self.layer = name

        return enter

    def _leaving(self, name: str) -> Any:  # noqa: ANN401 - a hook
        def leave(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:  # noqa: ANN401 - the same
            if recomputing():
                return
            self.layer = self._stack.pop()
            for value in tree_leaves(outputs):
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    # the gradient of its output arrives just before its own backward runs
                    value.register_hook(lambda _gradient: setattr(self, "layer", name))  # type: ignore[no-untyped-call]

        return leave
