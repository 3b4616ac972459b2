"""JPEG files decoded where the training is: the same views of the same samples, whoever decodes them."""

import contextlib
import gc
import os
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image

from mptui.data.core.rng import RandomStream, uniforms
from mptui.data.core.types import BadSampleError
from mptui.data.decode import device_jpeg
from mptui.data.decode.image import FileRequest
from mptui.data.decode.mask import MaskCoding, MaskedFileRequest
from mptui.data.loading.prefetcher import HostBatch
from mptui.data.transforms.crop import DRAWS, Geometry, cut_image, views
from mptui.data.transforms.resize import resized
from mptui.data.transforms.undecoded import MOST_BYTES, cut_of, resized_upright, room_for
from mptui.registry.samples import SampleKind

from .device_decoding import OFF, device_decoded, loader, of_files, off
from .images import save_oriented
from .loaders import CPU, assert_same, batches, joined
from .samples import Drawn, Samples
from .test_jpeg import FAST, PILLOWS
from .test_resample import natural

CODING = MaskCoding(("a", "b"), (0, 1), (0, 1))


# -- the same views ------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [True, False])
def test_views_targets_and_order_are_those_of_workers_that_decode(
    photos: list[Path], augment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader(of_files(photos), augment=augment, decode_on_device=False) as workers:
        expected, targets, indices = joined([*batches(workers, 0), *batches(workers, 1)])
    calls = device_decoded(monkeypatch)
    with loader(of_files(photos), augment=augment, workers=2) as device:
        found, found_targets, found_indices = joined([*batches(device, 0), *batches(device, 1)])
    assert sum(calls) == 2 * (len(photos) - 3)  # all but the PNG, the progressive one and the CMYK
    assert found_indices == indices
    assert torch.equal(found_targets, targets)
    assert off(found, expected).max() < OFF


def test_masks_lie_where_their_images_say(tmp_path: Path) -> None:
    """All turns and orientations: the mask is cut by a worker, the image where it is trained on."""
    requests = []
    for index in range(32):
        mask = np.zeros((90, 120), np.uint8)
        mask[10:40, 15 + index % 20 : 60] = 1
        mask[55:80, 90:110] = 1
        picture = Image.fromarray(np.repeat((mask * 255)[:, :, None], 3, axis=2))
        stored = save_oriented(tmp_path / f"{index}.jpg", index % 8 + 1, picture)
        turned = Image.fromarray(np.asarray(stored)[:, :, 0] // 255)
        turned.save(tmp_path / f"{index}.png")
        requests.append(
            MaskedFileRequest(str(tmp_path / f"{index}.jpg"), str(tmp_path / f"{index}.png"), CODING)
        )
    split = Samples(len(requests), lambda index: requests[index])
    with loader(split, kind=SampleKind.MASK, num_classes=2, workers=1) as device:
        found, masks, indices = joined(batches(device))
    with loader(split, kind=SampleKind.MASK, num_classes=2, decode_on_device=False) as workers:
        expected, expected_masks, expected_indices = joined(batches(workers))
    assert indices == expected_indices
    assert torch.equal(masks, expected_masks)
    assert off(found, expected).max() < OFF
    bright = found.mean(dim=1) > 0.5
    assert (bright == masks.bool()).float().mean() > 0.95


@pytest.mark.parametrize("resize", [24, 40, 4000])
@pytest.mark.parametrize("length", [5, 300, 3000])
def test_a_view_is_that_of_a_worker_at_any_scale(tmp_path: Path, length: int, resize: int) -> None:
    side, image = 16, natural(length, length // 2 + 1, seed=length)
    Image.fromarray(image).save(tmp_path / "a.jpg", quality=75)
    request = FileRequest(str(tmp_path / "a.jpg"), 0)
    found = request.encoded(1 << 30)
    assert found is not None
    geometry = Geometry.for_training(SampleKind.MASK, side, resize)
    expected_HW3 = resized(request.read(resize), resize).image_HW3
    assert resized_upright(found, resize) == expected_HW3.shape[1::-1]
    box, flips = views(
        geometry,
        uniforms(RandomStream.GEOMETRY, 0, 0, np.array([1]), DRAWS),
        np.array([float(expected_HW3.shape[1])]),
        np.array([float(expected_HW3.shape[0])]),
    )
    (picture,) = device_jpeg.decoded([torch.from_numpy(np.frombuffer(found.content, np.uint8).copy())], CPU)
    assert picture is not None
    cut = cut_of(found, resize, box[0], flips[0])
    seen = device_jpeg.turned(device_jpeg.view(picture, cut, side), cut.turn)[0].numpy()
    expected = cut_image(expected_HW3, box[0], flips[0], side)
    assert np.abs(seen.astype(int) - expected).mean() < OFF


def test_any_number_of_workers_and_a_resume_give_the_same_bits(photos: list[Path]) -> None:
    with loader(of_files(photos)) as alone, loader(of_files(photos), workers=2, prefetch=1) as helped:
        whole = batches(alone, 3)
        assert_same(batches(helped, 3), whole)
        assert_same(batches(helped, 3, accumulate=3), whole)
        assert_same(batches(helped, 3, start_sample=10), whole[2:])


def test_a_window_read_again_has_the_same_bits_and_disturbs_nothing(photos: list[Path]) -> None:
    with loader(of_files(photos), workers=1) as it:
        whole = batches(it)
        windows = it.windows(0, 2)
        first = list(next(windows))
        with it.window_at(0, 2, 10) as again:
            assert_same(list(again), whole[2:4])
        assert_same([*first, *(batch for window in windows for batch in window)], whole)


def test_a_window_that_nobody_looks_at_leaves_nothing_behind(photos: list[Path]) -> None:
    """What was begun of it must not be taken for a later batch in the same memory."""
    with loader(of_files(photos), workers=1, prefetch=1) as it:
        whole = batches(it)
        # two batches have memory at a time: the fourth has that of the second
        found = [list(window) if number % 3 == 0 else [] for number, window in enumerate(it.windows(0, 1))]
    assert_same([batch for each in found for batch in each], whole[::3])


@pytest.mark.parametrize("cache", ["ram", "device"])
def test_what_is_kept_is_decoded_once_and_by_the_workers(
    photos: list[Path], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = device_decoded(monkeypatch)
    with loader(of_files(photos), cache=cache, workers=1) as kept:
        batches(kept)
    assert calls == []


def test_reading_less_ahead_changes_no_bits(photos: list[Path]) -> None:
    with loader(of_files(photos), workers=2) as it:
        expected = batches(it, 1)
        assert it.read_less()
        assert_same(batches(it, 1), expected)


# -- which files, and how many at once ------------------------------------------------------------


@pytest.mark.parametrize("kind", [*FAST, *PILLOWS])
def test_only_plain_files_are_left_to_the_device(tmp_path: Path, kind: str) -> None:
    content = {**FAST, **PILLOWS}[kind]
    (tmp_path / "a").write_bytes(content)
    found = FileRequest(str(tmp_path / "a"), 3).encoded(MOST_BYTES)
    plain = {"4:4:4", "4:2:2", "4:2:0", "restarts", "grey", "EXIF"}
    assert (found is not None) == (kind in plain)
    if found is not None:
        assert (found.content, found.label) == (content, 3)
        assert (found.width, found.height) == (75, 50)
        assert found.upright == ((75, 50) if kind == "EXIF" else (50, 75))


def test_a_file_cut_off_anywhere_is_left_to_the_workers(tmp_path: Path) -> None:
    content = FAST["4:2:0"]
    for length in [*range(4, len(content), 37), len(content) - 2, len(content) - 1]:
        (tmp_path / "a.jpg").write_bytes(content[:length])
        with contextlib.suppress(BadSampleError):
            assert FileRequest(str(tmp_path / "a.jpg"), 0).encoded(MOST_BYTES) is None
    (tmp_path / "a.jpg").write_bytes(content + b"\0\0\n")
    assert FileRequest(str(tmp_path / "a.jpg"), 0).encoded(MOST_BYTES) is not None


def test_room_is_for_the_files_there_are_and_larger_ones_are_decoded_by_workers(
    photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [path.stat().st_size for path in photos]
    room = room_for(of_files(photos), 100)
    assert max(sizes) <= room < 1.5 * max(sizes)
    assert room_for(of_files(photos), 10**6) >= 10**6  # pixels have room in any case
    assert room_for(Samples(5, Drawn), 100) == 0
    huge = tmp_path / "huge.jpg"
    huge.write_bytes(photos[20].read_bytes()[:-2] + bytes(2 << 20) + b"\xff\xd9")
    assert room_for(of_files([huge]), 100) <= MOST_BYTES
    calls = device_decoded(monkeypatch)
    with loader(of_files([*photos[18:22], huge]), train=False) as it:
        assert joined(batches(it))[2] == [0, 1, 2, 3, 4]
    assert calls == [4]


def test_few_images_are_decoded_at_once_where_they_are_large(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with loader(of_files(photos), batch_size=24) as it:
        expected = batches(it)
    monkeypatch.setattr(device_jpeg, "_AT_ONCE", 60_000)
    calls = device_decoded(monkeypatch)
    with loader(of_files(photos), batch_size=24) as it:
        assert_same(batches(it), expected)
    assert sum(calls) == len(photos) - 3
    assert max(calls) < 6


def test_it_is_told_who_decodes_and_how_fast(photos: list[Path]) -> None:
    with loader(of_files(photos), workers=1) as device, loader(of_files(photos), cache="device") as kept:
        assert device.decodes
        assert not kept.decodes
        before = device.alone
        assert before is None
        batches(device)
        rate, read = device.alone, device._pool.alone
        assert rate is not None
        assert read is not None
        assert 0 < rate <= read


# -- threads and processes ------------------------------------------------------------------------


def test_no_thread_process_or_memory_outlives_a_loader(photos: list[Path]) -> None:
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("mptui-decode")]

    with loader(of_files(photos), workers=2) as it:
        next(iter(it.windows(0, 1)))
        windows = it.windows(0, 2)
        list(next(windows))
        processes = [psutil.Process(pid) for pid in it.worker_pids]
        arena = it._pool.arena.fd
        assert len(threads()) == 1
    assert threads() == []
    assert psutil.wait_procs(processes, timeout=60)[1] == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(arena)


def test_no_memory_grows_with_the_epochs(photos: list[Path]) -> None:
    """Of the tensors that a batch has: none outlives its window, though nothing collects cycles."""
    gc.collect()
    gc.disable()
    try:
        with loader(of_files(photos), workers=1, prefetch=1) as it:
            counts = []
            for epoch in range(4):
                batches(it, epoch)
                counts.append(sum(type(each) in {HostBatch, torch.Tensor} for each in gc.get_objects()))
    finally:
        gc.enable()
    assert counts[3] <= counts[1]


def test_a_device_is_asked_whether_it_decodes_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_jpeg.why_not(CPU) is None
    assert "meta" in str(device_jpeg.why_not(torch.device("meta")))
    plain = device_jpeg.decoded
    for decoder, told in (
        (lambda files, on: [None] * len(files), "no JPEG decoder"),
        (
            lambda files, on: [torch.zeros_like(x) for x in plain(files, on) if x is not None],
            "another picture",
        ),
    ):
        device_jpeg.why_not.cache_clear()
        with monkeypatch.context() as patch:
            patch.setattr(device_jpeg, "decoded", decoder)
            assert told in str(device_jpeg.why_not(CPU))
    device_jpeg.why_not.cache_clear()
