"""Inference in smaller parts where a batch does not fit into memory; results do not depend on it."""

from collections.abc import Callable
from functools import partial

import torch

from mptui.data.core.batch import Batch
from mptui.engine.guards.microbatch import Recovery, in_pieces
from mptui.engine.guards.oom_errors import is_out_of_memory, release
from mptui.errors import MemoryExhaustedError


class HalvingBatches:
    """Computes batches, from the first that does not fit on in parts of half the size.

    Args:
        device: The device.
        note: Called once, if a batch did not fit.
        recovery_for: Other recoveries, which come first: returns None if there is none.

    Attributes:
        limit: Maximum samples at once; None: whole batches.
    """

    def __init__(
        self,
        device: torch.device,
        note: Callable[[str], None],
        recovery_for: Callable[[Exception], Recovery | None] = lambda error: None,
    ) -> None:
        self.limit: int | None = None
        self._device, self._note, self._others = device, note, recovery_for

    def __call__(self, batch: Batch, compute: Callable[[Batch], None]) -> None:
        """Call `compute` with the batch or its parts.

        Raises:
            MemoryExhaustedError: Not even one sample fits.
        """
        in_pieces(batch, compute, limit=lambda: self.limit, recovery_for=self._recovery_for)

    def _recovery_for(self, error: Exception, rows: int) -> Recovery | None:
        if (recovery := self._others(error)) is not None or not is_out_of_memory(error):
            return recovery
        size = min(self.limit or rows, rows)
        if size == 1:
            raise MemoryExhaustedError(
                "out of memory with a single image",
                hint="end other programs on the device, or use another: --device cpu",
            ) from error
        return partial(self._halve, size)

    def _halve(self, size: int) -> None:
        release(self._device)
        if self.limit is None:
            self._note(f"out of memory with {size} images at once: batches are computed in smaller parts")
        self.limit = -(-size // 2)
