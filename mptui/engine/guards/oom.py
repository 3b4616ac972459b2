"""The memory guard: what does not fit at once is done again in smaller pieces.

The gradient of a window is a sum over its samples, so a batch cut in two gives the same step, up to rounding;
the effective batch, the learning rate and the order of the data stay. Only BatchNorm sees the difference: its
statistics are a piece's. A cut stays for the rest of the run: to meet the limit anew in each step costs more.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from mptui.data.core.batch import Batch, Window
from mptui.engine.guards.batch_size_finder import find_micro_batch
from mptui.engine.guards.microbatch import part
from mptui.engine.guards.oom_errors import is_host_full, is_out_of_memory, is_too_few_for_norm, release
from mptui.errors import MemoryExhaustedError
from mptui.events import Recovered, Warned

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer


class MemoryGuard:
    """Cuts the batches of one trainer, and goes on where memory ran out."""

    def __init__(self, trainer: "Trainer") -> None:
        self._trainer = trainer
        self._limits: dict[str, int | None] = {"training": None, "validating": None}
        self._warned_of_norm = False
        self._ask_for(trainer.job.config.memory.micro_batch)

    def _ask_for(self, micro_batch: int | str | None) -> None:
        self._asked = micro_batch
        self._limits["training"] = micro_batch if isinstance(micro_batch, int) else None
        self._to_find = micro_batch == "auto"

    def take_parts(self) -> None:
        """The trainer has other parts; where another micro-batch is asked for, it is in force now.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        micro_batch = self._trainer.job.config.memory.micro_batch
        if micro_batch != self._asked:
            self._ask_for(micro_batch)
            self.find()

    @property
    def micro_batch(self) -> int | None:
        """Samples that go through the network at once in training; None: a whole batch."""
        return self._limits["training"]

    def find(self) -> None:
        """Find the micro-batch where it is to be found, once; nothing else of the run moves.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        if self._to_find:
            self._to_find = False
            self._limits["training"] = find_micro_batch(self._trainer)
            self._warn_of_norm()

    def pieces(self, batch: Batch) -> Sequence[Batch]:
        """A training batch in the pieces that go through the network at once, as even as can be."""
        limit, rows = self._limits["training"], batch.size
        if limit is None or rows <= limit:
            return (batch,)
        count = -(-rows // limit)
        bounds = [rows * number // count for number in range(count + 1)]
        return [part(batch, first, last) for first, last in pairwise(bounds)]

    def measure(self, batch: Batch, work: Callable[[Batch], None]) -> None:
        """Do `work` on a batch of a validation, in pieces where it does not fit.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        done, rows = 0, batch.images_BCHW.shape[0]
        while done < rows:
            limit = self._limits["validating"] or rows
            piece = batch if limit >= rows else part(batch, done, done + limit)
            mend = None
            try:
                if piece.size:
                    work(piece)
            except Exception as error:
                mend = self._trainer.mend_for(error, "validating", rows)
                if mend is None:
                    raise
            if mend is None:
                done += limit
            else:
                mend()

    def mend(self, error: Exception, phase: str, rows: int) -> Callable[[], None] | None:
        """What makes the next try smaller; None where `error` is not of memory.

        To be called once the `except` block is left: until then the traceback holds the tensors of the frames
        that failed.

        Args:
            error: What was caught.
            phase: training or validating.
            rows: Samples of a whole batch.

        Raises:
            MemoryExhaustedError: It may not be cut, or can't be any more, or weights are half moved and there
                is no state to go back to.
        """
        limit = min(self._limits[phase] or rows, rows)
        if limit < rows and is_too_few_for_norm(error):
            raise _exhausted(error, 1) from error
        if not is_out_of_memory(error):
            return None
        trainer = self._trainer
        half_applied = trainer.parts.updater.applying and not trainer.guards.nan.can_go_back
        if trainer.job.config.guards.on_oom == "stop" or limit == 1 or half_applied:
            raise _exhausted(error, limit) from error
        return lambda: self._cut(phase, limit, rows)

    def _cut(self, phase: str, limit: int, rows: int) -> None:
        release(self._trainer.device)
        smaller = -(-limit // 2)
        self._limits[phase] = smaller
        count = -(-rows // smaller)
        split = phase == "training" and self._has_batch_norm()
        effect = "with BatchNorm's statistics from each piece" if split else "same result"
        self._trainer.emit(
            Recovered(
                step=self._trainer.step,
                problem="out of memory",
                action=f"{phase}: {limit} → {smaller} samples at once, a batch of {rows} in {count} pieces, "
                f"{effect}",
            )
        )
        if phase == "training":
            self._warn_of_norm()

    def windows(self, begin: Callable[[], Iterator[Window]]) -> Iterator[Window]:
        """The windows of `begin`, begun again with less read ahead where the host's memory is full."""
        windows = begin()
        while True:
            full = False
            try:
                window = next(windows, None)
            except (MemoryError, OSError, RuntimeError) as error:
                full = is_host_full(error) and self._trainer.job.config.guards.on_oom == "split"
                if not full or not self._trainer.job.train_loader.read_less():
                    raise
            if full:
                release(self._trainer.device)
                self._tell_host()
                windows = begin()
            elif window is None:
                return
            else:
                yield window

    def _tell_host(self) -> None:
        self._trainer.emit(
            Recovered(
                step=self._trainer.step,
                problem="host memory",
                action="fewer batches are read ahead, same data",
            )
        )

    def _warn_of_norm(self) -> None:
        if not self._warned_of_norm and self.micro_batch is not None and self._has_batch_norm():
            self._warned_of_norm = True
            self._trainer.emit(
                Warned(
                    step=self._trainer.step,
                    code="batchnorm_split",
                    message="BatchNorm takes its statistics from the pieces of a batch now, so the result is "
                    "not that of the whole batch; GroupNorm does not depend on it (unet: model.norm=group)",
                )
            )

    def _has_batch_norm(self) -> bool:
        norms = torch.nn.modules.batchnorm._BatchNorm
        return any(isinstance(module, norms) for module in self._trainer.model.modules())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "limits": dict(self._limits),
            "to_find": self._to_find,
            "device": self._trainer.job.device_name,
        }

    def load_state(self, state: dict[str, Any], asked: frozenset[str]) -> None:
        """Go on with the limits of `state`, unless another device or another setting has its own."""
        device = self._trainer.job.device_name
        if "memory.micro_batch" in asked or state.get("device", device) != device:
            return
        self._limits = dict(state["limits"])
        self._to_find = bool(state["to_find"])


def _exhausted(error: Exception, limit: int) -> MemoryExhaustedError:
    first_line = (str(error).strip() or "out of memory").splitlines()[0]
    at_once = "one sample at a time" if limit == 1 else f"{limit} samples at once"
    return MemoryExhaustedError(
        f"out of memory with {at_once}: {first_line}",
        hint="try --precision bf16 or fp16, a smaller data.image_size, a smaller model, or a larger device"
        + ("" if limit == 1 else ", or let the batch be cut (--set guards.on_oom=split)"),
    )
