"""How many samples pass through the network at once."""

from collections.abc import Sequence
from itertools import pairwise

from mptui.data.core.batch import Batch


class MicroBatches:
    """The most samples that pass through the network at once.

    Attributes:
        limits: By phase (training, validating); None: a whole batch.
    """

    def __init__(self) -> None:
        self.limits: dict[str, int | None] = {"training": None, "validating": None}

    def split(self, batch: Batch) -> Sequence[Batch]:
        """A training batch in pieces within the limit, as even as can be."""
        limit, rows = self.limits["training"], batch.size
        if limit is None or rows <= limit:
            return (batch,)
        count = -(-rows // limit)
        bounds = [rows * number // count for number in range(count + 1)]
        return [part(batch, first, last) for first, last in pairwise(bounds)]


def part(batch: Batch, first: int, last: int) -> Batch:
    """Rows `first` to `last` of a batch.

    Its `valid` is exact for labels. For masks it stays that of the whole batch: only the device knows more,
    and a loss gets its window's.
    """
    size = max(0, min(last, batch.size) - first)
    piece = batch.rows(
        slice(first, last), size=size, valid=size if batch.valid == batch.size else batch.valid
    )
    piece.sample_indices = batch.sample_indices[first:last]
    return piece
