"""Wraps the forward of a module in place: the network's structure, names and state_dict stay as they are."""

from collections.abc import Callable
from typing import Any

from torch import nn

Forward = Callable[..., Any]

_CHAIN = "_wrapped_forward"


class WrappedForward:
    """Replaces the forward of `module` by `around(forward)` until `remove`; a later one is outside.

    Several can be removed in any order.
    """

    def __init__(self, module: nn.Module, around: Callable[[Forward], Forward]) -> None:
        self._module = module
        # first a forward of the instance, which the class does not have
        self._chain: list[Any] = vars(module).setdefault(_CHAIN, [vars(module).get("forward")])
        self._chain.append(self)
        self._around = around
        module.forward = around(module.forward)

    @property
    def module(self) -> nn.Module:
        """The module whose forward is wrapped."""
        return self._module

    def remove(self) -> None:
        """Restore the forward without this one."""
        module, own = self._module, self._chain[0]
        self._chain.remove(self)
        vars(module).pop("forward")
        if own is not None:
            module.forward = own
        for wrapped in self._chain[1:]:
            module.forward = wrapped._around(module.forward)
        if len(self._chain) == 1:
            vars(module).pop(_CHAIN)
