"""Splits batches into micro-batches."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from mptui.data.core.batch import Batch, Window

Recovery = Callable[[], None]
"""Prepares a retry of a failed operation; called after the `except` block."""


class MicroBatches:
    """Limits on the size of a micro-batch.

    Attributes:
        limits: Maximum samples per micro-batch by phase (training, validating); None: a whole batch.
    """

    def __init__(self) -> None:
        self.limits: dict[str, int | None] = {"training": None, "validating": None}

    def split(self, batch: Batch) -> Sequence[Batch]:
        """Split a training batch into micro-batches within the limit, of equal size up to one sample.

        A single sample, of an odd batch in pairs, is computed beside its neighbour, which doesn't count then:
        BatchNorm can't be trained on one value.
        """
        limit, rows = self.limits["training"], batch.size
        if limit is None or rows <= limit:
            return (batch,)
        count = -(-rows // limit)
        bounds = [rows * number // count for number in range(count + 1)]
        return [part(batch, first, last, rows=min(limit, 2)) for first, last in pairwise(bounds)]

    def are_several(self, window: Window) -> bool:
        """Whether a window has several micro-batches, whose gradients add up."""
        limit = self.limits["training"]
        return window.batches > 1 or (limit is not None and window.size > limit)

    def of(self, window: Window) -> Iterator[tuple[Batch, bool]]:
        """Yield the micro-batches of a window, and whether each is the last."""
        for number, batch in enumerate(window, start=1):
            *pieces, last = self.split(batch)
            for piece in pieces:
                yield piece, False
            yield last, number == window.batches


def part(batch: Batch, first: int, last: int, *, rows: int = 1) -> Batch:
    """Return the rows from `first` up to `last` of a batch, and as many of the next as make `rows`.

    `valid` is exact for labels. For masks it stays that of the whole batch: the exact count is only on the
    device, and losses use the window's.
    """
    size = max(0, min(last, batch.size) - first)
    piece = batch.rows(
        slice(first, max(last, first + rows)),
        size=size,
        valid=size if batch.valid == batch.size else batch.valid,
    )
    piece.sample_indices = batch.sample_indices[first:last]
    return piece


def in_pieces(
    batch: Batch,
    compute: Callable[[Batch], None],
    *,
    limit: Callable[[], int | None],
    recovery_for: Callable[[Exception, int], Recovery | None],
) -> None:
    """Call `compute` with an inference batch, or with its micro-batches if it does not fit.

    Args:
        batch: The batch.
        compute: Adds nothing if it raises.
        limit: Returns the maximum samples per micro-batch; None: a whole batch.
        recovery_for: Returns what to do before a retry after an error with a batch of so many samples; None:
            raise the error.
    """
    done, rows = 0, batch.images_BCHW.shape[0]
    while done < rows:
        size = limit() or rows
        piece = batch if size >= rows else part(batch, done, done + size)
        recover = None
        try:
            if piece.size:
                compute(piece)
        except Exception as error:
            recover = recovery_for(error, rows)
            if recover is None:
                raise
        if recover is None:
            done += size
        else:  # outside the except block, since the traceback holds the tensors of all frames
            recover()
