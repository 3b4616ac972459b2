"""Out of memory: smaller micro-batches."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from mptui.data.batch import Batch, Window
from mptui.engine.compile import eagerly
from mptui.engine.context import TrainContext
from mptui.engine.hooks import Hook
from mptui.engine.memory.ledger import owners_in_words
from mptui.engine.micro_batches import (
    Recovery,
    forget_peak,
    in_pieces,
    is_host_full,
    is_out_of_memory,
    is_too_few_for_norm,
    release,
)
from mptui.errors import MemoryExhaustedError
from mptui.events import Recovered
from mptui.hardware.describe import held_by_others, hint_of_others
from mptui.models.layers import has_batch_norm

# The memory guard: recomputes a batch that does not fit in memory in smaller micro-batches
# -----------------------------------------------------------------------------------------
# The gradient of a window is a sum over its samples, so a split batch gives the same step, up to rounding;
# effective batch, learning rate and data order stay. Only BatchNorm differs: its statistics are those of a
# micro-batch. The split stays for the rest of the run, since running out of memory in each step costs more.


class MemoryGuard(Hook):
    """Splits batches after out-of-memory errors, and finds the micro-batch size if configured."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context
        self._limits = context.micro_batches.limits
        self._warned_of_norm = False
        self._configure(context.job.config.memory.micro_batch)

    def _configure(self, micro_batch: int | str | None) -> None:
        self._configured = micro_batch
        self._frozen = self._context.parts.frozen.frozen
        self._limits["training"] = micro_batch if isinstance(micro_batch, int) else None
        if self._context.job.config.memory.budget_gib is not None:
            self._limits["validating"] = self._limits["training"]
        self._to_find = micro_batch == "auto"

    def settings_changed(self) -> None:
        """Apply the micro-batch size if its setting has changed; find it again if other layers are frozen.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        micro_batch = self._context.job.config.memory.micro_batch
        found_for, self._frozen = self._frozen, self._context.parts.frozen.frozen
        is_outdated = micro_batch == "auto" and found_for != self._frozen
        if is_outdated or micro_batch != self._configured:
            self._configure(micro_batch)
            self.run_begins()

    def run_begins(self) -> None:
        """Find the micro-batch size once if configured; the state of the run is unchanged.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        if self._to_find:
            self._to_find = False
            with self._context.parts.replica.full_weights():  # each rank tries other sizes
                self._limits["training"] = find_micro_batch(self._context)
            self._warn_of_norm()

    def failed(self, error: Exception, phase: str, rows: int) -> Recovery | None:
        """Return a recovery that halves the micro-batch; None if `error` is not about memory.

        Call the result after the `except` block: until then the traceback holds the tensors of the failed
        frames.

        Raises:
            MemoryExhaustedError: The batch may not or can't be split further, or weights are partly updated
                and there is no state to roll back to.
        """
        limit = min(self._limits[phase] or rows, rows)
        if limit < rows and is_too_few_for_norm(error):
            raise _too_few(limit) from error
        if not is_out_of_memory(error):
            return None
        context = self._context
        owners = owners_in_words(context.model, context.parts, context.device), held_by_others()
        if told := "; ".join(filter(None, owners)):
            context.warn("memory_owners", f"the memory was full: {told}")
        half_applied = context.parts.updater.applying and not context.rollback.possible
        can_split = limit > 1 and not half_applied
        if not can_split or context.job.config.guards.on_oom == "stop":
            raise _exhausted(error, limit) from error
        return lambda: self._cut(phase, limit, rows)

    def _cut(self, phase: str, limit: int, rows: int) -> None:
        context = self._context
        context.parts.compiler.other_sizes()
        release(context.device)
        smaller = -(-limit // 2)
        self._limits[phase] = smaller
        count = -(-rows // smaller)
        split = phase == "training" and has_batch_norm(context.model)
        effect = "with BatchNorm statistics per micro-batch" if split else "same result"
        context.emit(
            Recovered(
                step=context.state.step,
                problem="out of memory",
                action=f"{phase}: micro-batch {limit} → {smaller}, a batch of {rows} in {count} parts, "
                f"{effect}",
            )
        )
        if phase == "training":
            self._warn_of_norm()

    def _warn_of_norm(self) -> None:
        splits_norm = self._limits["training"] is not None and has_batch_norm(self._context.model)
        if self._warned_of_norm or not splits_norm:
            return
        self._warned_of_norm = True
        self._context.warn(
            "batchnorm_split",
            "BatchNorm now computes statistics per micro-batch, so results differ from those of the whole "
            "batch; GroupNorm doesn't depend on it (unet: model.norm=group)",
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the limits, and the device for which they hold."""
        device = self._context.job.device_name
        return {"limits": dict(self._limits), "to_find": self._to_find, "device": device}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the limits from `state_dict`, unless a process of the run has another device."""
        device = self._context.job.device_name
        if all(self._context.ranks.gather(state_dict.get("device", device) == device)):
            self._limits.update(state_dict["limits"])
            self._to_find = bool(state_dict["to_find"])


def compute_in_pieces(context: TrainContext, batch: Batch, compute: Callable[[Batch], None]) -> None:
    """Call `compute` with a validation batch, or with its micro-batches if it does not fit.

    Raises:
        MemoryExhaustedError: Not even one sample fits.
    """
    in_pieces(
        batch,
        compute,
        limit=lambda: context.micro_batches.limits["validating"],
        recovery_for=lambda error, rows: context.recovery_for(error, "validating", rows),
    )


def read_windows(context: TrainContext, begin: Callable[[], Iterator[Window]]) -> Iterator[Window]:
    """Yield the windows of `begin()`, called again with less prefetch if host memory is full."""
    windows = begin()
    while True:
        full = False
        try:
            window = next(windows, None)
        except (MemoryError, OSError, RuntimeError) as error:
            full = is_host_full(error) and context.job.config.guards.on_oom == "split"
            if not full or not context.job.train_loader.read_less():
                raise
        if full:
            release(context.device)
            action = "fewer batches are prefetched, same data"
            context.emit(Recovered(step=context.state.step, problem="host memory", action=action))
            windows = begin()
        elif window is None:
            return
        else:
            yield window


def _too_few(limit: int) -> MemoryExhaustedError:
    """Return the error where a batch cut to fit in memory leaves BatchNorm a single sample."""
    return MemoryExhaustedError(
        f"a batch cut into micro-batches of {limit} to fit in memory leaves a single sample, on which "
        "BatchNorm can't be trained with feature maps of 1 x 1",
        hint="try --precision bf16 or fp16, --set memory.activation_checkpointing=true, "
        "a larger data.image_size, or a network without BatchNorm (unet: --set model.norm=group)",
    )


def _exhausted(error: Exception, limit: int) -> MemoryExhaustedError:
    first_line = (str(error).strip() or "out of memory").splitlines()[0]
    at_once = "a micro-batch of one sample" if limit == 1 else f"a micro-batch of {limit} samples"
    return MemoryExhaustedError(
        f"out of memory with {at_once}: {first_line}",
        hint=f"{hint_of_others()}try --precision bf16 or fp16, "
        "--set memory.activation_checkpointing=true, a smaller data.image_size, a smaller model, "
        "or a larger device" + ("" if limit == 1 else ", or split batches (--set guards.on_oom=split)"),
    )


# Finds the largest micro-batch that fits in memory, by trial before the run starts
# ---------------------------------------------------------------------------------
# A trial is a forward and a backward pass, as in training, over copies of the first samples, and an update
# that is refused. The state of the run is unchanged: weights, optimizer, random state and buffers stay bit
# for bit the same.

MARGIN = 0.1
"""Share of the largest micro-batch that is left unused, as headroom for later growth."""


def find_micro_batch(context: TrainContext) -> int | None:
    """Find the largest micro-batch that fits with a margin; None: a whole batch fits.

    Raises:
        MemoryExhaustedError: Not even one sample fits.
    """
    whole = context.job.train_loader.share_size
    cursor = context.state.cursor
    with context.job.train_loader.window_at(cursor.epoch, 1, cursor.sample) as window:
        wanted = math.ceil(whole / (1 - MARGIN))
        batch = next(iter(window), None)  # of few samples, one of several processes may read none
        most = wanted if batch is None else largest(partial(_fits, context, window, batch), wanted)
    forget_peak(context.device)
    most = min(context.ranks.gather(most))
    if most == 0:
        raise MemoryExhaustedError(
            "out of memory with a micro-batch of one sample",
            hint="try --precision bf16 or fp16, a smaller data.image_size, or a smaller model",
        )
    # 0.9 has no exact binary form, and 10 x 0.9 must give 9
    found = max(min(most, 2), math.floor(most * (1 - MARGIN) + 1e-9))  # BatchNorm may need two
    return None if found >= whole else found


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest count from 1 to `most` that fits, by bisection; 0 if none does."""
    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def _fits(context: TrainContext, window: Window, batch: Batch, count: int) -> bool:
    cuda = [context.device] if context.device.type == "cuda" else []
    fits = True
    with torch.random.fork_rng(devices=cuda):
        try:
            _pass(context, batch, count)
        except Exception as error:
            if not (is_out_of_memory(error) or is_too_few_for_norm(error)):
                raise
            fits = is_too_few_for_norm(error)  # one sample has room, though BatchNorm can't be trained on it
        context.parts.updater.forget()
    if not fits:
        release(context.device)
    return fits


def _pass(context: TrainContext, batch: Batch, count: int) -> None:
    """Run a forward and a backward pass over `count` rows."""
    rows = torch.arange(count, device=context.device) % batch.size
    copies = batch.rows(rows, size=count, valid=batch.valid)
    with context.parts.precision.forward_context(), eagerly(context.model):
        outputs = context.model(*copies.inputs)
        loss = context.task.loss(outputs, copies, max(1, batch.valid), count)
    context.parts.precision.backward(loss)
    if context.ranks.is_alone:  # an update meets other ranks, which may try another size
        context.parts.updater.try_refused()
