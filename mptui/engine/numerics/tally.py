"""Counts a tensor's values by magnitude, on the device, without synchronization.

A float32 is binned by its bits: the exponent field and the range of the mantissa give one of 1,024 bins. The
edges are such that float16 treats all values of a bin alike (zero, subnormal, infinity), under any loss scale
that is a power of two. Values of float16 and bfloat16 are exact in float32.
"""

import functools

import torch

BINS = 1024
"""Four for each of the 256 exponent fields: zero is bin 0, infinity and NaN are bin 1020."""

COLUMNS = BINS + 2
"""The bins, and the bits of the smallest non-zero and of the largest finite magnitude."""

_INFINITY = 0x7F800000
# Offsets that carry a float32's bits into the next binade: for all values but the power of two itself; for
# those that float16 rounds up to its smallest normal number; for those that it rounds up to infinity.
_TO_NEXT = ((1 << 23) - 1, 1 << 13, 1 << 12)

_CHUNK = {"cpu": 1 << 16}  # fits in a core's cache
_CHUNK_ELSEWHERE = 1 << 22
_SPREAD = 64
_DRAW_BITS = 31


def new_rows(count: int, device: torch.device) -> torch.Tensor:
    """Allocate empty rows of counts: int64, shape (count, COLUMNS)."""
    rows = torch.zeros(count, COLUMNS, dtype=torch.int64, device=device)
    rows[:, BINS] = _INFINITY
    return rows


def add(row: torch.Tensor, values: torch.Tensor, *, most: int | None = None) -> None:
    """Count `values` (any floating type and shape) into `row`, one of `new_rows`.

    Args:
        row: Shape (COLUMNS,).
        values: Values to count; not modified.
        most: Number of values to count at most, drawn at random and the same each time; None: all.
    """
    flat = _flat(values.detach())
    if most is not None and len(flat) > most:
        flat = flat[drawn_places(len(flat), most, flat.device)]
    for part in torch.split(flat, _CHUNK.get(row.device.type, _CHUNK_ELSEWHERE)):
        _add(row, part.float())


def drawn_places(length: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the places of `count` of `length` values, drawn at random and the same each time."""
    return _draws(count, device) * length >> _DRAW_BITS


@functools.cache
def _draws(count: int, device: torch.device) -> torch.Tensor:
    """Return sorted random fractions of 2^31, int64, shape (count,).

    Every k-th value would do where no axis of a tensor is a multiple of k; with channels last, one of a power
    of two of channels, it is the same channel each time. Random positions have no period.
    """
    chance = torch.Generator(device).manual_seed(0)
    return torch.randint(1 << _DRAW_BITS, (count,), generator=chance, device=device).sort().values


def _flat(values: torch.Tensor) -> torch.Tensor:
    """Return the values as 1-D, without a copy where their memory is dense."""
    if values.dim() == 4 and values.is_contiguous(memory_format=torch.channels_last):
        values = values.permute(0, 2, 3, 1)
    return values.reshape(-1)


def _add(row: torch.Tensor, part: torch.Tensor) -> None:
    if not len(part):
        return
    bits = part.contiguous().view(torch.int32) & 0x7FFFFFFF
    bits.clamp_(max=_INFINITY)
    bins = bits >> 23
    for to_next in _TO_NEXT:
        bins += (bits + to_next) >> 23
    _count(row[:BINS], bins)
    smallest, largest = row[BINS:].unbind()
    torch.minimum(smallest, bits.where(bits > 0, _INFINITY).amin(), out=smallest)
    torch.maximum(largest, bits.where(bits < _INFINITY, 0).amax(), out=largest)


def _count(counts: torch.Tensor, bins: torch.Tensor) -> None:
    one = torch.ones((), dtype=torch.int64, device=bins.device)
    if bins.device.type == "cpu":
        counts.scatter_add_(0, bins.long(), one.expand(bins.shape))
        return
    # most values share a few bins: in one row, thousands of threads would contend for the same counters
    rows = torch.zeros(_SPREAD, BINS, dtype=torch.int64, device=bins.device)
    lanes = torch.arange(len(bins), device=bins.device) % _SPREAD * BINS
    rows.view(-1).scatter_add_(0, lanes + bins, one.expand(bins.shape))
    counts += rows.sum(dim=0)
