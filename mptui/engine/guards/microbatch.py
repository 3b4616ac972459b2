"""Splits batches into micro-batches."""

from collections.abc import Sequence
from itertools import pairwise

from mptui.data.core.batch import Batch


class MicroBatches:
    """Limits on the size of a micro-batch.

    Attributes:
        limits: Maximum samples per micro-batch by phase (training, validating); None: a whole batch.
    """

    def __init__(self) -> None:
        self.limits: dict[str, int | None] = {"training": None, "validating": None}

    def split(self, batch: Batch) -> Sequence[Batch]:
        """Split a training batch into micro-batches within the limit, of equal size up to one sample."""
        limit, rows = self.limits["training"], batch.size
        if limit is None or rows <= limit:
            return (batch,)
        count = -(-rows // limit)
        bounds = [rows * number // count for number in range(count + 1)]
        return [part(batch, first, last) for first, last in pairwise(bounds)]


def part(batch: Batch, first: int, last: int) -> Batch:
    """Return the rows from `first` up to `last` of a batch.

    `valid` is exact for labels. For masks it stays that of the whole batch: the exact count is only on the
    device, and losses use the window's.
    """
    size = max(0, min(last, batch.size) - first)
    piece = batch.rows(
        slice(first, last), size=size, valid=size if batch.valid == batch.size else batch.valid
    )
    piece.sample_indices = batch.sample_indices[first:last]
    return piece
