"""The L2 norm of all gradients.

On a CPU the large ones are squared and summed as soon as the backward pass has made them, while they are in
the processor's cache: read again at the end, they take 2 % of a ResNet-18's step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from mptui.engine.optim.dense import in_a_row

LARGE = 1 << 13
"""Numbers from which on a gradient is worth a call of its own."""

CACHED = 1 << 22
"""Numbers that a processor's cache still holds at the end of the backward pass: the update finds them there
once they were read for the norm. Fewer are not worth a call in the middle of the backward pass."""


@dataclass(slots=True)
class _Noted:
    """A gradient as it was when its squares (their sum, 0-dim) were taken."""

    grad: torch.Tensor
    version: int
    squares: torch.Tensor


class GradientNorm:
    """The norm of the gradients that some parameters have.

    Args:
        parameters: Dense, all of one device.
        early: On a CPU: take the squares of large gradients in the backward pass, where there are many. What
            happens to a gradient after that is seen, and then it is read again.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, early: bool) -> None:
        self._parameters = parameters
        self._early = early
        self._noted: dict[int, _Noted] = {}
        there_are_many = early and sum(parameter.numel() for parameter in parameters) >= CACHED
        # the hooks know neither this object nor the parameters: these would keep each other for good
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, self._noted, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(parameters)
            if there_are_many and parameter.numel() >= LARGE
        ]

    def close(self) -> None:
        """Watch the parameters no longer."""
        for hook in self._hooks:
            hook.remove()
        self.forget()

    def forget(self) -> None:
        """Let go of the gradients: they are none any more."""
        self._noted.clear()

    def total(self) -> torch.Tensor:
        """Of all gradients that are there now, at least one: 0-dim float32 on their device. Never syncs."""
        if not self._early:
            grads = [p.grad for p in self._parameters if p.grad is not None]
            norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0)))
            return norm
        rest, squares = [], []
        for number, parameter in enumerate(self._parameters):
            grad = parameter.grad
            if grad is None:
                continue
            noted = self._noted.get(number)
            if noted is not None and noted.grad is grad and noted.version == grad._version:
                squares.append(noted.squares)
            elif grad.numel() >= LARGE:
                squares.append(_squares(in_a_row(grad)))
            else:
                rest.append(in_a_row(grad))
        if rest:  # one sum of many small ones is cheaper than many sums
            squares.append(_squares(torch.cat(rest)))
        total = squares[0] if len(squares) == 1 else torch.stack(squares).sum()
        return total.sqrt()


def _squares(row: torch.Tensor) -> torch.Tensor:
    return torch.dot(row, row)


def _note(noted: dict[int, _Noted], number: int, parameter: torch.Tensor) -> None:
    grad = parameter.grad
    assert grad is not None, "it was just added to"
    noted[number] = _Noted(grad, grad._version, _squares(in_a_row(grad)))
