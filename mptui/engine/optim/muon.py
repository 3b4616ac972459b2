"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for the matrices of hidden layers.

The momentum of each matrix is replaced by an approximation of the nearest orthogonal matrix, by torch's
Newton-Schulz iteration in bfloat16. All other parameters are trained by AdamW.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import _muon

from mptui.engine.optim.fused import FusedAdamW, GroupTensors, Tensors, View, average_in, descend

_COEFFICIENTS = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)


class Muon(FusedAdamW):
    """Muon as in torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"`, and AdamW for the other parameters.

    The update of an A x B matrix is scaled by 0.2 sqrt(max(A, B)), so that it is as large as AdamW's (Liu et
    al. 2025, "Muon is Scalable for LLM Training"): one rate and one weight decay suit both. A convolution of
    shape [out, in, height, width] is a matrix of shape [out, in x height x width], its columns in the order
    in memory, which makes no difference but for rounding in bfloat16.

    Args:
        groups: Parameter groups; in one with `hidden`, all are matrices of hidden layers.
        lr: 0-dim float32 tensor on the device.
        momentum: Of the matrices.
        nesterov: Nesterov momentum of the matrices.
        betas: Of AdamW.
        eps: Of AdamW.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: torch.Tensor,
        *,
        momentum: float,
        nesterov: bool,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(groups, lr, betas=betas, eps=eps)
        for group in self.param_groups:
            group |= {"momentum": momentum, "nesterov": nesterov}

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["hidden"] else super()._state_names(group)

    def _view(self, group: dict[str, Any], parameter: torch.Tensor) -> View:
        return _as_matrix if group["hidden"] else super()._view(group, parameter)

    def _update_group(self, part: GroupTensors, grads: Tensors, found_inf: torch.Tensor) -> None:
        group, rate, weights, states = part
        if not group["hidden"]:
            super()._update_group(part, grads, found_inf)
            return
        (buffers,), momentum = states, group["momentum"]
        average_in(buffers, grads, 1 - momentum, found_inf)
        averages = torch._foreach_lerp(grads, buffers, momentum) if group["nesterov"] else buffers
        updates = [_orthogonal(average) for average in averages]
        torch._foreach_mul_(updates, [0.2 * math.sqrt(max(update.shape)) for update in updates])
        descend(weights, updates, rate, found_inf, group["weight_decay"])


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    return tensor.as_strided((rows, columns), (columns, 1))


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    found = _muon._zeropower_via_newtonschulz(matrix, _COEFFICIENTS, _muon.DEFAULT_NS_STEPS, _muon.EPS)
    # a tall one is transposed, and the kernel reads memory in order
    return found.to(torch.float32, memory_format=torch.contiguous_format)
