"""Order of the samples in an epoch, number of samples used, and their windows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import Batch, Window
from mptui.data.rng import RandomStream, generator

# Order of the samples in an epoch, number of samples used, and their windows
# ---------------------------------------------------------------------------

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
class Share:
    """The contiguous part of each batch that one of several processes reads, as even as possible.

    Fewer processes read a short last training batch, if a part would be a single sample: see `readers_of`.

    Attributes:
        rank: Number of the process, from 0; the first ones read the larger parts.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1

    def of(self, batch: range, *, short: bool = False) -> range:
        """Return the part of the positions `batch`, of a `short` training batch or another one.

        It is empty if there are too few for this process.
        """
        if self.world_size == 1:
            return batch
        size, readers = len(batch), readers_of(len(batch), self.world_size, short=short)
        first, last = (min(size, -(-size * rank // readers)) for rank in (self.rank, self.rank + 1))
        return batch[first:last]

    def largest(self, size: int, *, short: bool = False) -> int:
        """Return the size of the largest part of a batch of `size` samples, that of rank 0."""
        return -(-size // readers_of(size, self.world_size, short=short))

    def lead(self, mixes: bool) -> int:
        """Return the number of samples to read before each part: images mix with the one before them."""
        return int(mixes and self.world_size > 1)


WHOLE = Share()
"""The share of a process that is alone."""


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of a split's samples by epoch.

    Attributes:
        count: Number of samples of the split.
        batch_size: Samples per batch.
        train: Shuffle by seed and epoch; otherwise keep the order of the split. A last training batch of one
            sample is dropped, as BatchNorm can't be trained on it.
        seed: Seed of the order.
        labels_N: The class of each sample, to draw all classes equally often; None: each sample once.
        share: The part of each batch that this process reads.
    """

    count: int
    batch_size: int
    train: bool
    seed: int
    labels_N: Labels | None = None
    share: Share = WHOLE

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
        return start + samples_used(self.count - start, self.batch_size, train=self.train)

    @property
    def whole_size(self) -> int:
        """Size of a batch that is not a short last one; of a set that has only a short one, its size."""
        return min(self.batch_size, self.count)

    @property
    def usual_rows(self) -> int:
        """Samples of a whole batch that this process reads."""
        short = self.train and self.whole_size < self.batch_size
        return len(self.share.of(range(self.whole_size), short=short))

    def windows(self, accumulate: int, start: int, end: int) -> Iterator[range]:
        """Return the positions of each window of `accumulate` batches, from `start` to `end`."""
        size = self.batch_size * accumulate
        return (range(first, min(first + size, end)) for first in range(start, end, size))

    def parts(self, places: range) -> list[range]:
        """Return this process's part of each batch of the window `places`, without the empty ones.

        Only the last batch of an epoch has empty parts: it may have fewer samples than there are processes.
        """
        if self.share.world_size == 1 and len(places) <= self.batch_size:  # the usual window
            return [places]
        batches = (
            places[first : first + self.batch_size] for first in range(0, len(places), self.batch_size)
        )
        parts = (self.share.of(batch, short=self.train and len(batch) < self.batch_size) for batch in batches)
        return [part for part in parts if part]

    def before(self, places: range, part: range) -> int:
        """Return the position before a part's first one in its batch of the window `places`.

        Before the first position of a batch is its last.
        """
        at = part.start - places.start
        batch = places[at - at % self.batch_size :][: self.batch_size]
        return batch[batch.index(part.start) - 1]

    def window(
        self,
        accumulate: int,
        places: range,
        end: int,
        *,
        batches: int,
        valid: int,
        wait_s: float,
        load: Callable[[int], Batch],
        targets: Callable[[int], torch.Tensor],
    ) -> Window:
        """Return the window of the samples at positions `places`, of which `batches` parts are read here.

        `end` is the end of the used samples.
        """
        return Window(
            index=places.start // (self.batch_size * accumulate),
            size=len(places),
            valid=valid,
            wait_s=wait_s,
            next_sample=self.count if places.stop == end else places.stop,
            batches=batches,
            load=load,
            targets=targets,
        )


# Computes the numbers of samples of an epoch and of its passes. Imports no torch, as screens use it too
# ------------------------------------------------------------------------------------------------------


def samples_used(count: int, batch_size: int, *, train: bool) -> int:
    """Return how many of `count` samples are used in batches of `batch_size`.

    Args:
        count: Number of samples left in the epoch.
        batch_size: Samples per batch.
        train: Drop a last batch of one sample, as BatchNorm can't be trained on it.
    """
    tail = count % batch_size
    too_few = train and tail == 1 and count > 1
    return count - tail if too_few else count


def readers_of(size: int, processes: int, *, short: bool) -> int:
    """Return how many of the processes read a part of a batch of `size` samples; the first ones do.

    Of a `short` training batch none reads a single sample, unless there is only one: BatchNorm can't be
    trained on it. In whole batches all take part, also with a sample each.
    """
    return min(processes, max(1, size // 2)) if short else processes


def fewest_at_once(count: int, batch_size: int, processes: int, micro_batch: int | None) -> int:
    """Return the fewest samples that a process trains on in one pass.

    Args:
        count: Samples of an epoch.
        batch_size: Samples of a batch of all processes.
        processes: Number of processes.
        micro_batch: The most samples of a pass, in which a part is split evenly; None: any number. With two
            or more, a single sample of a split part is computed beside another one.
    """
    used = samples_used(count, batch_size, train=True)
    batches = [(min(used, batch_size), used < batch_size)]
    if tail := used % batch_size:
        batches.append((tail, True))
    passes = []
    for size, short in batches:
        readers = readers_of(size, processes, short=short)
        for part in {size // readers, -(-size // readers)} - {0}:
            most = micro_batch or part
            passes.append(max(part // -(-part // most), min(part, most, 2)))
    return min(passes)
