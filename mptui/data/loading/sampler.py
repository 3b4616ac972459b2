"""Order of the samples in an epoch, number of samples used, and their windows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.core.batch import Batch, Window
from mptui.data.core.rng import RandomStream, generator
from mptui.data.loading.lengths import samples_used

Labels = npt.NDArray[np.int64]


def balanced_draws(labels_N: Labels, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draw N samples, with all classes equally often: class-aware sampling (Shen, Lin and Huang 2016).

    A class draws its samples in random order, and begins again once it has drawn them all: none is drawn
    twice more often than another of its class. The remainder of N by the classes goes to random ones.

    Args:
        labels_N: The class of each sample.
        random: Decides the draws.

    Returns:
        The draws in random order, as `EpochOrder.of`.
    """
    count = len(labels_N)
    by_class = np.argsort(labels_N, kind="stable")
    members = np.split(by_class, np.flatnonzero(np.diff(labels_N[by_class])) + 1)
    shares = np.full(len(members), count // len(members))
    shares[random.permutation(len(members))[: count % len(members)]] += 1
    draws = [
        np.concatenate([random.permutation(own) + count * time for time in range(-(-share // len(own)))])[
            :share
        ]
        for own, share in zip(members, shares.tolist(), strict=True)
        if share
    ]
    return random.permutation(np.concatenate(draws))


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
        labels_N: The class of each sample, to draw all classes equally often; None: each sample once.
    """

    count: int
    batch_size: int
    train: bool
    drop_last: bool
    seed: int
    labels_N: Labels | None = None

    def of(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the draws of an epoch in order, including dropped ones.

        Draw d is sample d modulo `count`, for the (d // count + 1)-th time in this epoch.
        """
        if not self.train:
            return np.arange(self.count)
        random = generator(RandomStream.ORDER, self.seed, epoch)
        return (
            random.permutation(self.count) if self.labels_N is None else balanced_draws(self.labels_N, random)
        )

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
