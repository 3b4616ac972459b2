"""The data path to a GPU: bit-identical to the host's, and the loop never waits for the device."""

import numpy as np
import pytest
import torch

from mptui.data.device_cache import Views, cut_by_products, cut_on_device, has_kernel
from mptui.data.to_device import Transfer
from mptui.data.worker import Arena
from tests.data.loaders import batches, joined, loader, segmentation
from tests.data.modes import as_on_a_gpu
from tests.data.samples import Masked, Samples

GPU = torch.device("cuda")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cache", ["off", "ram", "device"])
@pytest.mark.parametrize("augment", [True, False])
def test_no_batch_waits_for_the_device(cache, augment):
    with loader(Samples(300), device=GPU, cache=cache, augment=augment, workers=2) as data:
        batches(data)  # cached, pinned and allocated on first use
        torch.cuda.set_sync_debug_mode("error")
        try:
            for window in data.windows(1, 1):
                for batch in window:
                    batch.images_BCHW.mul_(2)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("cache", ["off", "ram", "device"])
def test_batches_are_those_of_a_host(cache):
    for make in (loader, lambda split, **settings: segmentation(Samples(52, Masked), **settings)):
        with make(Samples(52), device=GPU, cache=cache) as here, make(Samples(52), cache=cache) as there:
            images, targets, indices = joined(batches(here))
            with as_on_a_gpu():  # exact Pillow weights, which a host approximates
                expected_images, expected_targets, expected_indices = joined(batches(there))
        assert indices == expected_indices
        assert torch.equal(targets.cpu(), expected_targets)
        torch.testing.assert_close(images.cpu(), expected_images, atol=0.03, rtol=0)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_views_are_cut_by_the_kernel(interpolation):
    """Where a C compiler is there; TF32 products keep 11 bits of a value."""
    assert has_kernel(torch.device("cuda", 0))
    random = np.random.default_rng(0)
    sizes = random.integers(20, 300, (8, 2))
    counts = sizes.prod(axis=1)
    # smooth, since what a cubic kernel overshoots is clipped in another order of the dimensions
    pixels = torch.from_numpy((100 + 60 * np.sin(np.arange(counts.sum() * 3) / 9)).astype(np.uint8))
    low = random.random((8, 2)) * 0.4
    chosen = Views(
        np.cumsum(counts) - counts,
        sizes[:, 0],
        sizes[:, 1],
        np.concatenate([low, low + 0.2 + random.random((8, 2)) * 0.4], axis=1),
        np.array(list(np.ndindex(2, 2, 2)), bool),
    )
    by_kernel, _ = cut_on_device(pixels.view(-1, 3).to(GPU), None, chosen, 64, interpolation=interpolation)
    by_products, _ = cut_by_products(pixels.view(-1, 3), None, chosen, 64, interpolation=interpolation)
    assert (by_kernel.cpu() - by_products).abs().max() < 0.5


def test_memory_that_can_not_be_pinned_breaks_no_kernel():
    arena = Arena()
    arena.reserve(1 << 20)
    memory = arena.bytes()
    cudart = torch.cuda.cudart()
    assert cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0) == cudart.cudaError.success
    try:
        transfer = Transfer(GPU, arena)
        transfer.pin()  # refused: already pinned
        assert torch.ones(3, device=GPU).sum().item() == 3
        transfer.close()
    finally:
        cudart.cudaHostUnregister(memory.ctypes.data)
        arena.close()
