"""The best loss scale equals the result of a search over real casts."""

import math

import pytest
import torch

from mptui.engine.spectrum import HEADROOM, HIGHEST_SCALE, LOWEST_SCALE, LayerGradients, Spectrum, best_scale
from tests.engine.numerics.rows import counted, row_of


def gradients(seed: int, layers: int = 4) -> list[torch.Tensor]:
    """Return gradients of a few layers, each with its own magnitude."""
    chance = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-28, -8, (layers,), generator=chance).tolist()
    return [torch.randn(2000, generator=chance) * 2.0**size for size in sizes]


def lost(layers: list[torch.Tensor], scale: float) -> float:
    """Return the mean fraction of values that a cast makes subnormal or zero; 1 if a layer overflows."""
    shares = []
    for layer in layers:
        half = (layer * scale).half().abs()
        if not half.isfinite().all():
            return 1.0
        shares.append(int((half < 2.0**-14).sum()) / len(layer))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("seed", range(10))
def test_it_loses_least_of_all_scales_that_leave_headroom(seed):
    layers = gradients(seed)
    best = best_scale([counted(layer) for layer in layers])
    assert best is not None
    scales = [2.0**k for k in range(int(math.log2(LOWEST_SCALE)), int(math.log2(HIGHEST_SCALE)) + 1)]
    fitting = [scale for scale in scales if lost(layers, scale * 2**HEADROOM) < 1]
    assert best.scale == min(fitting, key=lambda scale: (lost(layers, scale), scale))
    assert best.lost == pytest.approx(lost(layers, best.scale), abs=1e-12)


@pytest.mark.parametrize("scale", [1024.0, 1000.0])
def test_gradients_seen_with_a_scale_give_the_same_advice(scale):
    layers = gradients(1)
    bare = best_scale([counted(layer) for layer in layers])
    scaled = best_scale([counted(layer * scale) for layer in layers], scale)
    assert bare is not None
    assert scaled is not None
    assert 0.5 < scaled.scale / bare.scale < 2
    assert lost(layers, scaled.scale) == pytest.approx(scaled.lost, abs=1e-12)


def test_headroom_is_given_up_before_anything_overflows():
    layers = [torch.full((10,), 2.0**14)]
    assert best_scale([counted(layer) for layer in layers]) is not None
    assert best_scale([counted(torch.full((10,), 2.0**16))]) is None


def test_the_weight_below_the_range_is_of_the_sum_and_not_of_the_values():
    few_large = torch.cat([torch.full((990,), 2.0**-20), torch.full((10,), 1.0)])
    assert counted(few_large).shares().lost == 0.99
    assert counted(few_large).weight_below() < 1e-3
    assert counted(few_large).weight_below(-20) == 1.0
    assert counted(torch.zeros(3)).weight_below() == 0.0


def test_no_gradients_need_no_scale():
    assert best_scale([]) is None
    assert best_scale([counted(torch.zeros(5))]) is None
    assert LayerGradients([]).lost() == 0.0


def test_zeros_of_a_softmax_were_not_zero():
    row = row_of(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert Spectrum(row).shares().lost == 0
    assert Spectrum(row, zeros_lost=True).shares().zeroed == 0.75
