"""The order of the samples in an epoch, which of them are used, and their windows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mptui.data.core.batch import Batch, Window
from mptui.data.core.rng import RandomStream, generator
from mptui.data.loading.lengths import samples_used


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order in which a split is used.

    Attributes:
        count: Samples of the split.
        batch_size: Samples a batch.
        train: Shuffle by seed and epoch; otherwise keep the order of the split. A last batch of one sample is
            left out of training, since BatchNorm can't be trained on it.
        drop_last: Leave a short last batch out, unless it is the only one.
        seed: Seed of the order.
    """

    count: int
    batch_size: int
    train: bool
    drop_last: bool
    seed: int

    def of(self, epoch: int) -> npt.NDArray[np.int64]:
        """The samples in the order of an epoch, with those that are left out."""
        if not self.train:
            return np.arange(self.count)
        return generator(RandomStream.ORDER, self.seed, epoch).permutation(self.count)

    def end(self, start: int) -> int:
        """Position after the last sample used, in an epoch that starts at `start`."""
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
    ) -> Window:
        """A window of the samples at `places` of the epoch's order, of which `end` is the last used."""
        return Window(
            index=places.start // (self.batch_size * accumulate),
            size=len(places),
            valid=valid,
            wait_s=wait_s,
            next_sample=self.count if places.stop == end else places.stop,
            batches=-(-len(places) // self.batch_size),
            load=load,
        )
