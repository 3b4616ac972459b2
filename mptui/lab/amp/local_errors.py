"""Finds the modules that lose most in 16 bits: each is computed in fp32 too, from the same inputs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from mptui.engine.precision.amp import DTYPES
from mptui.models.activation_checkpointing import recomputing

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
            errors = [_error(a, b) for a, b in zip(found, expected, strict=True)]
            self.errors[name] = max([self.errors.get(name, 0.0), *errors])

    def _computed(self, module: torch.nn.Module, call: _Call) -> list[torch.Tensor]:
        """Compute a module again in fp32; nothing if it can't be."""
        now = self._random_state()
        self._set_random_state(call.random)
        self._again, self._depth = call.given, 0
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
    leaves = tree_leaves(values)
    return [t.detach().float() for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    if not found.numel():
        return 0.0
    error, norm = float((found - expected).norm()), float(expected.norm())
    if not isfinite(norm):  # it is so in fp32 too
        return 0.0
    return (error / norm if norm else inf if error else 0.0) if isfinite(error) else inf
