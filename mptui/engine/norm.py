"""The L2 norm of all gradients.

On a CPU the large ones are squared and summed as soon as the backward pass has made them, while they are in
the processor's cache: read again at the end, they take 2 % of a ResNet-18's step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

LARGE = 1 << 16
"""Numbers from which on it is worth a call in the middle of the backward pass."""


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
        early: Take the squares of large gradients in the backward pass. What happens to a gradient after
            that is seen, and then it is read again.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], *, early: bool) -> None:
        self._parameters = parameters
        self._noted: dict[int, _Noted] = {}
        # the hooks know neither this object nor the parameters: these would keep each other for good
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, self._noted, number))  # type: ignore[no-untyped-call]
            for number, parameter in enumerate(parameters)
            if early and parameter.numel() >= LARGE
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
        if not self._noted:
            return _norm([p.grad for p in self._parameters if p.grad is not None])
        rest, squares = [], []
        for number, parameter in enumerate(self._parameters):
            grad = parameter.grad
            if grad is None:
                continue
            noted = self._noted.get(number)
            if noted is not None and noted.grad is grad and noted.version == grad._version:
                squares.append(noted.squares)
            else:
                rest.append(grad)
        if not squares:
            return _norm(rest)
        early = torch.stack(squares).sum().sqrt()
        return torch.hypot(early, _norm(rest)) if rest else early


def _norm(grads: list[torch.Tensor]) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0)))
    return norm


def _note(noted: dict[int, _Noted], number: int, parameter: torch.Tensor) -> None:
    grad = parameter.grad
    assert grad is not None, "it was just added to"
    flat = grad.as_strided((grad.numel(),), (1,))  # dense in any order of its axes
    noted[number] = _Noted(grad, grad._version, torch.dot(flat, flat))
