"""A probe of one step: module hooks that count values, and are removed when the step ends."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mptui.engine.numerics import tally
from mptui.engine.numerics.ranking import Part, PartStatistics
from mptui.engine.numerics.spectrum import Spectrum
from mptui.engine.ranks.shards import shard_of
from mptui.models.activation_checkpointing import recomputing

WHOLE = "the network"
"""Name of a network that is a single layer."""

# modules that return their input, or a part of it
_PASSED_ON = (torch.nn.Identity, torch.nn.Flatten, torch.nn.modules.dropout._DropoutNd)
# modules whose exact zeros are small values that underflowed
_NEVER_ZERO = (torch.nn.Softmax, torch.nn.Softmax2d, torch.nn.Softmin, torch.nn.Sigmoid)


class Probe:
    """Counts outputs, their gradients and the weights' gradients of every layer used in a step.

    A layer is a module without submodules, or with weights of its own.

    Args:
        model: Must run eagerly while it is probed: compiled code calls no hooks.
        most: Maximum number of values counted per tensor; None: all.
    """

    def __init__(self, model: torch.nn.Module, device: torch.device, *, most: int | None = None) -> None:
        self._layers = [
            (name or WHOLE, module)
            for name, module in model.named_modules()
            if not isinstance(module, _PASSED_ON) and (not any(module.children()) or _own(module))
        ]
        self._most = most
        self._rows = tally.new_rows(3 * len(self._layers), device)
        self._taken: dict[tuple[int, Part], int] = {}

    @property
    def rows(self) -> torch.Tensor:
        """Counts so far, on the device: a row for each item of `seen`, in the same order."""
        return self._rows[: len(self._taken)]

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Count outputs and their gradients of the passes inside this context."""
        with ExitStack() as stack:
            for number, (_, module) in enumerate(self._layers):
                stack.callback(module.register_forward_hook(self._passing(number)).remove)
            yield

    def add_weights(self) -> None:
        """Count the current gradients of the weights, last layer first."""
        for number, (_, module) in reversed(list(enumerate(self._layers))):
            for weight in module.parameters(recurse=False):
                if weight.grad is not None and (own := shard_of(weight.grad)).numel():
                    self._add(number, "weights", own)

    def seen(self, rows: torch.Tensor) -> list[PartStatistics]:
        """Return the statistics of `rows`, which must be on the host, in order of execution."""
        counts = rows.numpy()
        return [
            PartStatistics(
                self._layers[number][0],
                part,
                Spectrum(
                    counts[row],
                    zeros_lost=part == "forward" and isinstance(self._layers[number][1], _NEVER_ZERO),
                ),
            )
            for (number, part), row in self._taken.items()
        ]

    def _passing(self, number: int) -> Callable[[torch.nn.Module, Any, Any], None]:
        def passing(module: torch.nn.Module, inputs: Any, outputs: Any) -> None:  # noqa: ANN401 - a hook
            if recomputing():
                return
            for value in tree_leaves(outputs):
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    self._add(number, "forward", value)
                    if value.requires_grad:
                        count = partial(self._add, number, "gradient")
                        value.register_hook(count)  # type: ignore[no-untyped-call]

        return passing

    def _add(self, number: int, part: Part, values: torch.Tensor) -> None:
        row = self._taken.setdefault((number, part), len(self._taken))
        with torch.no_grad():
            tally.add(self._rows[row], values, most=self._most)


def _own(module: torch.nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None
