"""Order of the samples in an epoch, number of samples used, and their windows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import Batch, Window
from mptui.data.core.rng import RandomStream, generator
from mptui.data.loading.lengths import samples_used


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of a split's samples by epoch.

    Attributes:
        count: Number of samples of the split.
        batch_size: Samples per batch.
        train: Shuffle by seed and epoch; otherwise keep the order of the split. A last training batch of one
            sample is dropped, as BatchNorm can't be trained on it.
        drop_last: Drop a short last batch, unless it is the only one.
        seed: Seed of the order.
    """

    count: int
    batch_size: int
    train: bool
    drop_last: bool
    seed: int

    def of(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the samples in the order of an epoch, including dropped ones."""
        if not self.train:
            return np.arange(self.count)
        return generator(RandomStream.ORDER, self.seed, epoch).permutation(self.count)

    def end(self, start: int) -> int:
        """Return the position after the last used sample of an epoch that starts at `start`."""
        drop_last = self.drop_last and self.count > self.batch_size
        ahead = self.count - start
        return start + samples_used(ahead, self.batch_size, train=self.train, drop_last=drop_last)

    def window(
        self,
        accumulate: int,
        places: range,
        end: int,
        *,
        valid: int,
        wait_s: float,
        load: Callable[[int], Batch],
        targets: Callable[[int], torch.Tensor],
    ) -> Window:
        """Return the window of the samples at positions `places`; `end` is the end of the used samples."""
        return Window(
            index=places.start // (self.batch_size * accumulate),
            size=len(places),
            valid=valid,
            wait_s=wait_s,
            next_sample=self.count if places.stop == end else places.stop,
            batches=-(-len(places) // self.batch_size),
            load=load,
            targets=targets,
        )
