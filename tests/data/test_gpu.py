"""The way of the data to a GPU: the same bits as on a host, and nothing in the loop waits for the device."""

import pytest
import torch

from mptui.data.decode import device_jpeg
from mptui.data.decode.image import FileRequest
from mptui.data.loading.device_copy import Transfer
from mptui.data.loading.shared_memory import Arena
from mptui.data.transforms.undecoded import Cut
from tests.data.device_decoding import of_files, off
from tests.data.loaders import batches, joined, loader, segmentation
from tests.data.samples import Masked, Samples
from tests.data.test_jpeg import FAST
from tests.data.test_resample import natural

GPU = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("cache", ["off", "ram", "device"])
@pytest.mark.parametrize("augment", [True, False])
def test_no_batch_waits_for_the_device(cache, augment):
    with loader(Samples(300), device=GPU, cache=cache, augment=augment, workers=2) as data:
        batches(data)  # what is kept, pinned and allocated the first time
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
            expected_images, expected_targets, expected_indices = joined(batches(there))
        assert indices == expected_indices
        assert torch.equal(targets.cpu(), expected_targets)
        if cache == "device":  # by Pillow's own weights, where a host approximates them
            assert off(images.cpu(), expected_images).mean() < 1.0
        else:
            torch.testing.assert_close(images.cpu(), expected_images, atol=0.03, rtol=0)


needs_nvjpeg = pytest.mark.skipif(
    torch.cuda.is_available() and device_jpeg.why_not(GPU) is not None, reason="needs nvJPEG"
)
OFF = 4.0
"""Of 255, in a view on average: nvJPEG enlarges colours and rounds in its own way."""


@needs_nvjpeg
@pytest.mark.parametrize("augment", [True, False])
def test_files_decoded_by_the_device_are_those_that_workers_decode(photos, augment):
    settings = {"device": GPU, "workers": 2, "side": 48, "augment": augment}
    with loader(of_files(photos), **settings) as workers:
        expected, targets, indices = joined([*batches(workers, 0), *batches(workers, 1)])
    with loader(of_files(photos), decode_on_device=True, **settings) as device:
        found, found_targets, found_indices = joined([*batches(device, 0), *batches(device, 1)])
    assert found_indices == indices
    assert torch.equal(found_targets, targets)
    assert off(found, expected).max() < OFF


@needs_nvjpeg
@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "restarts", "grey"])
def test_each_kind_of_plain_file_has_the_pixels_of_the_processor(tmp_path, kind):
    (tmp_path / "a.jpg").write_bytes(FAST[kind])
    expected = torch.from_numpy(FileRequest(str(tmp_path / "a.jpg"), 0).read().image_HW3).permute(2, 0, 1)
    file = torch.frombuffer(bytearray(FAST[kind]), dtype=torch.uint8)
    (found,) = device_jpeg.decoded([file], GPU)
    assert found is not None
    assert (found.cpu().int() - expected).abs().float().mean() < OFF


@needs_nvjpeg
def test_no_step_waits_for_what_the_device_decodes(photos):
    with loader(of_files(photos * 8), device=GPU, side=48, workers=2, decode_on_device=True) as data:
        batches(data)  # what is pinned and allocated the first time
        torch.cuda.set_sync_debug_mode("error")
        try:
            for window in data.windows(1, 1):
                for batch in window:
                    batch.images_BCHW.mul_(2)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@needs_nvjpeg
def test_what_the_training_still_reads_is_not_written_over(photos):
    """Freed while kernels that read it are still queued: the decoder must not have that memory yet."""
    with loader(of_files(photos * 8), device=GPU, side=48, workers=2, decode_on_device=True) as data:
        expected = [batch.images_BCHW.double().sum().item() for batch in batches(data)]
        found = []
        for window in data.windows(0, 1):
            for batch in window:
                torch.cuda._sleep(20_000_000)
                found.append(batch.images_BCHW.double().sum())
                others = [torch.full((3, 98, 130), 7, dtype=torch.uint8, device=GPU) for _ in range(8)]
                found[-1] += sum(each.double().sum() for each in others) - 8 * 7 * 3 * 98 * 130
    assert [each.item() for each in found] == expected


@needs_nvjpeg
def test_a_file_that_nvjpeg_refuses_does_not_spoil_its_batch(photos, tmp_path):
    data = bytearray(photos[20].read_bytes())
    at = data.index(b"\xff\xc4")
    data[at + 4 : at + 30] = bytes([255]) * 26
    (tmp_path / "odd.jpg").write_bytes(data)
    split = of_files([*photos[14:20], tmp_path / "odd.jpg"])
    settings = {"device": GPU, "side": 48, "train": False, "bad_budget": 0.5}
    with loader(split, decode_on_device=True, **settings) as device, loader(split, **settings) as workers:
        found, expected = joined(batches(device)), joined(batches(workers))
        assert device.bad == workers.bad
    assert found[2] == expected[2]
    assert off(found[0], expected[0]).max() < OFF


@needs_nvjpeg
@pytest.mark.parametrize("scale", [0.5, 3.0, 40.0, 400.0])
def test_views_of_any_scale_can_be_made_there(scale):
    """Of the weights of a steep filter there is room for few on a GPU."""
    side = 16
    image = torch.from_numpy(natural(round(side * scale), round(side * scale * 0.7))).permute(2, 0, 1)
    cut = Cut(1, image.shape[2], image.shape[1], 0, 0, image.shape[2], image.shape[1], 0)
    there, here = device_jpeg.view(image.to(GPU), cut, side), device_jpeg.view(image, cut, side)
    torch.testing.assert_close(there.cpu(), here, atol=1.0, rtol=0)


def test_memory_that_can_not_be_pinned_breaks_no_kernel():
    arena = Arena()
    arena.reserve(1 << 20)
    memory = arena.bytes()
    cudart = torch.cuda.cudart()
    assert cudart.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0) == cudart.cudaError.success
    try:
        transfer = Transfer(GPU, arena)
        transfer.pin()  # refused: it is pinned already
        assert torch.ones(3, device=GPU).sum().item() == 3
        transfer.close()
    finally:
        cudart.cudaHostUnregister(memory.ctypes.data)
        arena.close()
