"""The update as a transaction: a step whose gradients are not finite changes nothing.

It changes neither weights, optimizer state, buffers (one overflowing batch would leave BatchNorm's statistics
NaN for good while training looks fine), learning-rate schedule, EMA nor counts. Whether the step is good
stays on the device: a fused optimizer reads `found_inf` inside its kernel, and everything else is arithmetic
with it, so that no step synchronizes. An optimizer without a fused kernel syncs once per step.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from mptui.engine.optim.averages import AveragedWeights
from mptui.engine.optim.buffers import RevertibleBuffers, WeightMemory
from mptui.engine.optim.fused import FusedOptimizer, GradientNorm
from mptui.engine.precision import Precision
from mptui.engine.ranks.group import ALONE, Ranks, shard_of
from mptui.engine.reporting.step_time import read_now

Rates = Callable[[int], npt.NDArray[np.float32]]


class Updater:
    """Updates the model by the gradients of a window, or refuses the step.

    A step is `set_rate`, `unscale`, `clip`, `apply`, `commit`, in this order; `forget` undoes one that was
    interrupted before `apply`. The resulting figures are 0-dim tensors on the device.

    Args:
        model: In float32; its buffers are restored on a refused step.
        optimizer: From `build_optimizer`, with `lr` as its rate if it is fused.
        precision: The precision that scaled the loss.
        lr: 0-dim float32 tensor on the device, the rate of the next step.
        rates: Returns the rates of the steps after a number of applied ones, float32, shape (steps,).
        clip_grad_norm: Maximum L2 norm of the gradients; None: no clipping.
        average: The average of the weights, if there is one.
        shared_by: The ranks that update a shard of each weight; by default this process updates all of it.

    Attributes:
        keeps_grads: Gradients are zeroed in place instead of freed.
        applying: Weights are being updated: an error now leaves the step partly applied.
        good: Whether the step is applied, 0-dim bool; the reverse of `found_inf`.
        buffers: The model's buffers after the last accepted step.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        *,
        lr: torch.Tensor,
        rates: Rates,
        clip_grad_norm: float | None,
        average: AveragedWeights | None,
        shared_by: Ranks = ALONE,
    ) -> None:
        self._optimizer = optimizer
        self._fused = optimizer if isinstance(optimizer, FusedOptimizer) else None
        self._precision = precision
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._memory = WeightMemory(model, map(shard_of, self._parameters))
        # scaled gradients have their true size only after unscaling, and those of shards after the sums
        early = lr.device.type == "cpu" and not precision.scaled and shared_by.is_alone
        self._norm = GradientNorm(self._parameters, early=early, shared_by=shared_by)
        self._shared_by = shared_by
        self._clip = clip_grad_norm
        self._average = average
        self.keeps_grads = self.applying = False
        device = lr.device
        self.lr = lr
        self._lr_out = lr.view(1)  # the same memory, with the axis that index_select writes
        self.take_rates(rates)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)  # in the table of rates
        self.found_inf = torch.zeros((), device=device)
        self.norm = torch.zeros((), device=device)
        self.good = torch.ones((), dtype=torch.bool, device=device)
        self._infinity = torch.full(
            (), math.inf, device=device
        )  # as a number it would cost a host twice as much
        self.buffers = RevertibleBuffers(model, sync=device.type == "cpu")
        if average is not None:
            average.follow(self.buffers)
        self.seek(0)

    def take_rates(self, rates: Rates) -> None:
        """Replace what returns the rates, from the next `seek` on."""
        self._rates = rates

    def seek(self, applied: int) -> None:
        """Set the schedule's position to `applied` steps, and accept the model's current buffers."""
        self._read_rates(applied)
        self.buffers.refresh()

    def _read_rates(self, applied: int) -> None:
        """Put the rates of the steps after `applied` ones into the table on the device."""
        self._lr_table = torch.from_numpy(self._rates(applied)).to(self.lr)
        self._first = applied
        self._place.zero_()
        self._rates_left = len(self._lr_table)

    def keep_grads(self, kept: bool) -> None:
        """Set whether gradients are zeroed in place instead of freed.

        For CUDA graphs: a gradient first allocated inside a graph lies in the graph's memory pool, and the
        next replay overwrites it, so that those of several micro-batches would not add up
        (pytorch/pytorch#169545). Otherwise they are freed, which saves a step one kernel for each weight.
        """
        self.keeps_grads = kept
        self._clear_grads()

    def position(self) -> int:
        """Return the number of applied steps in the schedule. Waits for the device."""
        return self._first + int(read_now(self._place)[0])

    def step(self, loss: torch.Tensor) -> None:
        """Take a whole step. `Trainer._step` calls the five parts itself, so that it shows the whole step."""
        self.set_rate()
        self.unscale()
        self.clip()
        self.apply()
        self.commit(loss)

    def set_rate(self) -> None:
        """Set `lr` to the schedule's rate of this step.

        Once in a table's length it waits for the device: only there it is known how many steps were applied,
        and that they are no more than the steps of the table that were taken.
        """
        if self._rates_left == 0:
            self._read_rates(self.position())
        self._rates_left -= 1
        torch.index_select(self._lr_table, 0, self._place, out=self._lr_out)

    def unscale(self) -> None:
        """Unscale the gradients; set `norm`, and `found_inf` if a gradient is not finite, else `good`."""
        self._precision.unscale(self._optimizer)
        norm = self.norm = self._norm.total()
        self.good = torch.lt(norm, self._infinity)  # NaN is not less
        torch.logical_not(self.good, out=self.found_inf)
        if not self._shared_by.is_alone:
            self._precision.found_anywhere(self.found_inf)

    def clip(self) -> None:
        """Scale the gradients down to the configured norm."""
        if self._clip is not None:
            grads = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(grads, torch.clamp(self._clip / (self.norm + 1e-6), max=1.0))

    def apply(self) -> None:
        """Update the weights by the optimizer, unless `found_inf` is set."""
        self.applying = True
        self._memory.take_back()
        if self._fused is not None:
            self._fused.update(self.found_inf)
        elif not self.found_inf.bool():
            for group in self._optimizer.param_groups:
                group["lr"] = float(self.lr) * group["lr_scale"]
            self._optimizer.step()

    def commit(self, loss: torch.Tensor) -> None:
        """Update loss scale, buffers, EMA and schedule, or restore them; clear the gradients.

        `loss` (0-dim) is the window's: if it is not finite, the loss scale is not the cause.
        """
        self._precision.update(loss)
        self.buffers.keep_if(self.good)
        if self._average is not None:
            self._average.update(self.good.float(), self._place + self._first)
        self._place.add_(self.good)
        self.applying = False
        self._clear_grads()

    def forget(self) -> None:
        """Undo the changes of an interrupted window to gradients and buffers."""
        self.applying = False
        self._clear_grads()
        self._precision.forget()
        self.buffers.keep_if(torch.zeros_like(self.found_inf, dtype=torch.bool))

    def try_refused(self) -> None:
        """Take a step with the current gradients that is refused, to see whether its memory is there.

        Weights, optimizer and average stay as they are; call `forget` afterwards.
        """
        self.set_rate()
        self.unscale()
        self.clip()
        self.found_inf.fill_(1)
        self.apply()
        if self._average is not None:
            self._average.update(torch.zeros_like(self.found_inf), self._place + self._first)

    def close(self) -> None:
        """Remove the gradient hooks, when another updater takes over the weights, in their own memory."""
        self._norm.close()
        self._memory.take_back()

    def _clear_grads(self) -> None:
        self._norm.forget()
        if not self.keeps_grads:
            for parameter in self._parameters:
                parameter.grad = None
            return
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        torch._foreach_zero_([p.grad for p in self._parameters if p.grad is not None])
