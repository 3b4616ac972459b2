"""Pieces of a batch."""

from mptui.data.core.batch import Batch


def part(batch: Batch, first: int, last: int) -> Batch:
    """Rows `first` to `last` of a batch.

    Its `valid` is exact for labels. For masks it stays that of the whole batch: only the device knows more,
    and a loss is told its window's.
    """
    size = max(0, min(last, batch.size) - first)
    piece = batch.rows(
        slice(first, last), size=size, valid=size if batch.valid == batch.size else batch.valid
    )
    piece.sample_indices = batch.sample_indices[first:last]
    return piece
