"""Predicts the duration of a training step on several ranks, from that on one and a bandwidth.

Computation takes its time in proportion to floating-point operations. A rank has one link, on which
collectives run one after another, beside the computation. Durations of collectives follow the usual model of
bandwidth and latency (Thakur et al. 2005, "Optimization of Collective Communication Operations in MPICH"):
each rank sends (n-1)/n of the bytes in an all-gather and in a reduce-scatter, and twice that in an
all-reduce, in log2(n) hops, as NCCL's trees have. All ranks are equally fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2


@dataclass(frozen=True, slots=True)
class Link:
    """What connects `ranks` ranks: bytes per second and direction of each, and seconds per hop."""

    ranks: int
    bytes_per_s: float
    latency_s: float

    def gather_s(self, size: int) -> float:
        """Return the seconds of an all-gather to `size` bytes, or of a reduce-scatter of as many."""
        share = (self.ranks - 1) / self.ranks
        return share * size / self.bytes_per_s + ceil(log2(self.ranks)) * self.latency_s

    def reduce_s(self, size: int) -> float:
        """Return the seconds of an all-reduce of `size` bytes."""
        return 2 * self.gather_s(size)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together: their bytes, and the fraction of the step when they are ready."""

    size: int
    ready: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a sharded network.

    Attributes:
        share: Its fraction of the computation, forward and backward alike.
        gathered: Bytes of its weights, as gathered from all ranks.
        reduced: Bytes of its gradients, before they are scattered.
    """

    share: float
    gathered: int
    reduced: int


def replicated_step_s(step_s: float, buckets: Sequence[Bucket], link: Link) -> float:
    """Return the seconds of a step of DistributedDataParallel; buckets are reduced as they are ready."""
    free = 0.0
    for bucket in buckets:
        free = max(free, bucket.ready * step_s) + link.reduce_s(bucket.size)
    return max(step_s, free)


def sharded_step_s(step_s: float, forward: float, segments: Sequence[Segment], link: Link) -> float:
    """Return the seconds of a step of FSDP2.

    The weights of a segment are gathered while the one before it computes. The first segment, the root, keeps
    its weights until the backward pass has ended.

    Args:
        step_s: Seconds of a step on one rank.
        forward: Fraction of the step that is its forward pass.
        segments: Parts of the network in the order of the forward pass, the root first.
        link: The link of a rank.
    """
    free = began = done = 0.0

    def compute(segment: Segment, seconds: float, *, gather: bool = True) -> None:
        nonlocal free, began, done
        if gather:
            free = max(free, began) + link.gather_s(segment.gathered)
        began = max(done, free) if gather else done
        done = began + segment.share * seconds

    for segment in segments:
        compute(segment, forward * step_s)
    for segment in reversed(segments):
        compute(segment, (1 - forward) * step_s, gather=segment is not segments[0])
        free = max(free, done) + link.gather_s(segment.reduced)
    return max(done, free)
