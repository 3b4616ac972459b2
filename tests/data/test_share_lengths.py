"""The numbers of samples that each process trains on at once, for all tails of an epoch."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mptui.data.sampler import EpochOrder, Share, fewest_at_once

batches_and_ranks = st.integers(1, 9).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(1, min(size, 8)))
)
"""A batch has a sample for each process: others are refused."""


@settings(max_examples=50)
@given(st.integers(1, 60), batches_and_ranks, st.integers(1, 4))
@example(11, (8, 2), 1)
@example(3, (8, 8), 1)
def test_every_sample_is_read_once_and_none_alone(count, sizes, accumulate):
    """But for batches of fewer than two samples a process, and for an epoch of a single sample."""
    batch_size, world_size = sizes
    orders = [
        EpochOrder(count, batch_size, True, 0, share=Share(rank, world_size)) for rank in range(world_size)
    ]
    end = orders[0].end(0)
    read, alone = [], 0
    for places in orders[0].windows(accumulate, 0, end):
        parts = [order.parts(places) for order in orders]
        batches = -(-len(places) // batch_size)
        assert len(parts[0]) == batches, "rank 0 reads a part of each batch"
        assert all(batches - 1 <= len(each) <= batches for each in parts)
        sizes_of = [len(part) for each in parts for part in each]
        alone += sizes_of.count(1)
        read += [place for each in parts for part in each for place in part]
    assert sorted(read) == list(range(end))
    assert count - end == (count > 1 and batch_size > 1 and count % batch_size == 1)
    if batch_size >= 2 * world_size and count > 1:
        assert alone == 0
    assert (fewest_at_once(count, batch_size, world_size, None) == 1) == (alone > 0)


@settings(max_examples=60)
@given(st.integers(2, 60), batches_and_ranks, st.integers(1, 9))
def test_the_fewest_in_a_pass_are_those_of_the_smallest_part(count, sizes, micro_batch):
    batch_size, world_size = sizes
    parts = [
        len(part)
        for rank in range(world_size)
        for order in [EpochOrder(count, batch_size, True, 0, share=Share(rank, world_size))]
        for places in order.windows(1, 0, order.end(0))
        for part in order.parts(places)
    ]
    passes = [
        max(
            np.diff([part * number // pieces for number in range(pieces + 1)]).min(),
            min(part, micro_batch, 2),  # beside another sample
        )
        for part in parts
        for pieces in [-(-part // micro_batch)]
    ]
    assert fewest_at_once(count, batch_size, world_size, micro_batch) == min(passes)
