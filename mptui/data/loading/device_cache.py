"""Device cache of a split with one fixed view per sample: decoded once, stored, gathered as batches.

Shapes: N samples of the split, B of a batch, H and W pixels, C bands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import take_rows, to_device
from mptui.data.loading.device_copy import Transfer
from mptui.data.loading.prefetcher import Prefetcher, SampleSource
from mptui.data.transforms.color_mixup import Finish
from mptui.errors import DataError, cleaned_up_by

_FINISHED_BYTES = 1 << 28
_LOAD_BATCH = 64
"""Smallest batch size while the cache is filled: smaller ones cost more than reading their samples."""
_LOAD_BYTES = 8 << 20
LOAD_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Resident:
    """A split on the device. Row i is sample i of the split, or its replacement."""

    pixels: torch.Tensor
    """images_NHWC as decoded; if `finished`, the float32 input of the network, with N first in memory: images
    or latents."""
    targets: torch.Tensor
    """int64 labels_N or int16 masks_NHW."""
    indices: npt.NDArray[np.int64]
    valid_counts: npt.NDArray[np.int64]
    """Number of valid items of each sample."""
    finished: bool = False

    def finish(self, finish: Finish) -> "Resident":
        """Normalise a small split in advance, so that a batch needs only a gather."""
        if self.finished or self.pixels.numel() * 4 > _FINISHED_BYTES:
            return self
        return replace(self, pixels=finish.stored(self.pixels), finished=True)


class Pass:
    """One epoch over a resident split.

    Args:
        resident: The split.
        order: Its rows, in the order of the epoch.
    """

    def __init__(self, resident: Resident, order: npt.NDArray[np.int64]) -> None:
        self.resident, self.indices = resident, resident.indices[order]
        # sums up to each position: the count of a range is a subtraction, where a sum would cost 5 us a batch
        self._valid_before = np.concatenate(([0], np.cumsum(resident.valid_counts[order])))
        self._rows = to_device(order, resident.pixels.device)

    def valid(self, first: int, last: int) -> int:
        """Return the number of valid items of the samples at positions `first` to `last`."""
        return int(self._valid_before.item(last) - self._valid_before.item(first))

    def targets(self, first: int, last: int) -> torch.Tensor:
        """Return the targets at positions `first` to `last` of the order."""
        return self.resident.targets.index_select(0, self._rows[first:last])

    def targets_of(self, parts: Sequence[range], number: int) -> torch.Tensor:
        """Return the targets of one of some ranges of positions."""
        return self.targets(parts[number].start, parts[number].stop)

    def read(self, part: range, finish: Finish) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images_BCHW and the targets at the positions `part` of the order."""
        rows = self._rows[part.start : part.stop]
        finished = finish.unstored if self.resident.finished else finish.plain
        return finished(take_rows(self.resident.pixels, rows)), self.resident.targets.index_select(0, rows)


def load(
    source: SampleSource,
    device: torch.device,
    transfer: Transfer,
    on_progress: Callable[[int, int], None] | None,
    finish: Finish,
) -> Resident:
    """Decode the whole split and copy it to `device`; with a VAE, its latents.

    Args:
        source: The split; its geometry must not be random.
        device: The device.
        transfer: Copies batches to the device.
        on_progress: Called with (done, total) of samples after each batch.
        finish: Encodes images, if it has a VAE.

    Raises:
        DataError: Too many samples are bad, or latents are not finite.
        ConfigError: The VAE can't encode in 16 bits.
    """
    count, side = len(source.split), source.geometry.side
    form = source.pixels
    dtype: torch.dtype = getattr(torch, form.dtype)
    shape = (count, *((side, side, form.bands) if finish.vae is None else finish.latent_shape))
    pixels = torch.empty(shape, dtype=dtype if finish.vae is None else torch.float32, device=device)
    if source.masks:
        targets = torch.empty((count, side, side), dtype=torch.int16, device=device)
    else:
        targets = torch.empty(count, dtype=torch.int64, device=device)
    indices, valid_counts = np.empty(count, np.int64), np.empty(count, np.int64)
    stream = Prefetcher(
        source,
        epoch=0,
        indices=np.arange(count),
        batches=in_batches(count, load_batch(source.pool.size, side**2 * form.bands * dtype.itemsize)),
        ahead=LOAD_AHEAD,
        held=1,
    )
    with cleaned_up_by(stream.close), cleaned_up_by(transfer.settle):
        while batches := stream.take(1):
            batch = batches[0]
            rows = slice(batch.first, batch.first + batch.size)
            images, found = transfer.finish(batch)
            pixels[rows].copy_(images if finish.vae is None else finish.stored(images))
            targets[rows].copy_(found)
            indices[rows], valid_counts[rows] = batch.indices, batch.valid_counts
            transfer.settle([batch.slot])
            stream.release(batches)
            if on_progress is not None:
                on_progress(rows.stop, count)
    if finish.vae is not None:
        _check_finite(pixels, source, indices)
    return Resident(pixels, targets, indices, valid_counts, finished=finish.vae is not None)


def _check_finite(latents: torch.Tensor, source: SampleSource, indices: npt.NDArray[np.int64]) -> None:
    """Check the latents of a split. Syncs.

    Raises:
        DataError: Some are not finite.
    """
    # a sum is finite if its terms are: no copy of all latents
    is_finite_N = torch.isfinite(latents.flatten(1).sum(1)).cpu().numpy()
    if (bad := indices[~is_finite_N]).size:
        first = source.split.request(int(bad[0])).name
        raise DataError(
            f"the VAE gives values that are not finite for {len(bad):,} of {len(indices):,} images: {first}",
            hint="check these images, or use another model.vae",
        )


def load_batch(workers: int, sample_bytes: int) -> int:
    """Return the batch size while a cache is filled; all workers share each batch."""
    return max(_LOAD_BATCH, min(_LOAD_BATCH * workers, _LOAD_BYTES // sample_bytes))


def in_batches(count: int, size: int) -> list[range]:
    """Return the positions of `count` samples in batches of `size`; the last may have fewer."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
