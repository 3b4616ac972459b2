"""Counts made on the device equal numpy's in float64 and the effects of a real cast."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mptui.engine import spectrum as engine_spectrum
from tests.engine.numerics.rows import counted, values

NOT_FINITE = [float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_the_histogram_is_that_of_float64(seed, dtype):
    tensor = values(seed, dtype)
    tensor = tensor[tensor.isfinite()]
    exact = np.abs(tensor.double().numpy())
    exact = exact[exact > 0]
    exponents = np.frexp(exact)[1] - 1
    first, bars = counted(tensor).bars()
    expected = np.bincount(exponents - exponents.min())
    assert first == exponents.min()
    assert bars == np.ceil(1000 * expected / len(exact)).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sizes_and_counts_are_exact(dtype):
    tensor = torch.cat([values(0), torch.tensor(NOT_FINITE)]).to(dtype)
    spectrum = counted(tensor)
    finite = tensor[tensor.isfinite()].double().abs()
    assert spectrum.values == len(tensor)
    assert spectrum.zeros == int((tensor == 0).sum())
    assert spectrum.nonfinite == int((~tensor.isfinite()).sum())
    assert spectrum.smallest == float(finite[finite > 0].min())
    assert spectrum.largest == float(finite.max())


@pytest.mark.parametrize("doublings", [-24, -7, -1, 0, 1, 3, 10, 16, 30])
@pytest.mark.parametrize("seed", range(5))
def test_shares_are_those_of_a_cast_to_half_under_any_scale(seed, doublings):
    tensor = torch.cat([values(seed), torch.tensor(NOT_FINITE)])
    half = (tensor.double() * 2.0**doublings).float().half()
    there = tensor != 0
    zeroed = (half == 0) & there
    subnormal = (half.abs() > 0) & (half.abs() < 2.0**-14)
    shares = counted(tensor).shares(doublings)
    total = int(there.sum())
    assert shares.zeroed == int(zeroed.sum()) / total
    assert shares.subnormal == int(subnormal.sum()) / total
    assert shares.overflow == int((~half.isfinite()).sum()) / total


@pytest.mark.parametrize("doublings", [-9, 4, 12])
def test_shifting_the_histogram_is_scaling_the_values(doublings):
    tensor = values(1)
    scaled, shifted = counted(tensor * 2.0**doublings), counted(tensor)
    for more in (-5, 0, 5):
        assert scaled.shares(more) == shifted.shares(more + doublings)


def test_several_tensors_count_as_one():
    tensor = values(2)
    row = engine_spectrum.new_rows(1, tensor.device)[0]
    for part in tensor.split(777):
        engine_spectrum.add(row, part)
    whole = engine_spectrum.new_rows(1, tensor.device)[0]
    engine_spectrum.add(whole, tensor)
    assert torch.equal(row, whole)


def test_memory_of_any_layout_and_no_values_at_all():
    images = torch.randn(2, 3, 4, 5)
    expected = engine_spectrum.new_rows(1, images.device)[0]
    engine_spectrum.add(expected, images)
    for same in (images.to(memory_format=torch.channels_last), images.transpose(1, 3), images.double()):
        row = engine_spectrum.new_rows(1, images.device)[0]
        engine_spectrum.add(row, same)
        assert torch.equal(row, expected)
    engine_spectrum.add(expected, torch.empty(0, 3))
    assert torch.equal(row, expected)


SAMPLED = 1 << 14
LAYOUTS = ("contiguous", "channels last", "transposed", "strided")


def laid_out(tensor, layout):
    """Return the same values in another layout of memory."""
    if layout == "channels last":
        return tensor.to(memory_format=torch.channels_last)
    if layout == "transposed":
        return tensor.transpose(0, 3).contiguous().transpose(0, 3)
    if layout == "strided":
        wide = torch.zeros(*tensor.shape[:3], 2 * tensor.shape[3])
        wide[..., ::2] = tensor
        return wide[..., ::2]
    return tensor


@given(
    shape=st.tuples(st.integers(1, 64), st.integers(1, 256), st.integers(1, 64), st.integers(1, 64)).filter(
        lambda shape: SAMPLED < math.prod(shape) <= 1 << 20
    ),
    axis=st.integers(0, 3),
    place=st.floats(0, 1, exclude_max=True),
    layout=st.sampled_from(LAYOUTS),
)
@example(shape=(16, 64, 32, 32), axis=1, place=0.1, layout="channels last")  # a channel of 64
@example(shape=(32, 128, 14, 14), axis=1, place=0.5, layout="channels last")
@example(shape=(16, 64, 32, 32), axis=3, place=0.0, layout="contiguous")  # the border that padding made
@example(shape=(128, 64, 8, 8), axis=3, place=0.0, layout="contiguous")
@settings(max_examples=15)
def test_a_sample_sees_each_channel_row_and_column_as_often_as_it_is_there(shape, axis, place, layout):
    tensor = torch.ones(shape)
    tensor.select(axis, int(place * shape[axis])).fill_(2.0**20)
    share = 1 / shape[axis]
    found = counted(laid_out(tensor, layout), most=SAMPLED)

    assert found.values == SAMPLED
    spread = math.sqrt(share * (1 - share) / SAMPLED)
    assert abs(found.shares().overflow - share) <= 5 * spread


def test_a_sample_has_the_same_values_each_time():
    tensor = torch.randn(100_000)
    first, second = (engine_spectrum.new_rows(1, tensor.device)[0] for _ in range(2))
    engine_spectrum.add(first, tensor, most=1000)
    engine_spectrum.add(second, tensor.clone(), most=1000)
    assert torch.equal(first, second)
