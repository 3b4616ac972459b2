"""`data.cache = "auto"`: the mode chosen from the scanned sizes, and its explanation."""

from typing import Any

import pytest
import torch

from mptui.data import cache_policy
from mptui.data.cache_policy import memory_room
from mptui.registry.names import SampleKind
from tests.data.caching import chosen, dataset
from tests.data.loaders import segmentation
from tests.data.samples import Masked, Samples

GIB = 1 << 30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Total and free bytes, which a test may change."""
    figures = [64 * GIB, 60 * GIB]
    monkeypatch.setattr(cache_policy, "host_memory", lambda: tuple(figures))
    return figures


@pytest.mark.parametrize(
    ("count", "settings", "mode", "said"),
    [
        (400, {}, "device", "fit in 1,024 MiB on cpu"),
        (20_000, {}, "ram", "do not fit in 1,024 MiB on cpu"),
        (20_000, {"epochs": 1}, "off", "reads each image once"),
        (500_000, {}, "off", "do not fit in 30,720 MiB"),
    ],
)
def test_auto_takes_what_fits_and_says_why(
    memory: list[int], count: int, settings: dict[str, Any], mode: str, said: str
) -> None:
    choice = chosen(dataset(count), **settings)
    assert choice.mode == mode
    assert said in choice.reason
    assert choice.warning is None


def test_small_images_take_less_than_large_ones(memory: list[int]) -> None:
    assert chosen(dataset(200_000)).mode == "off"
    assert chosen(dataset(200_000, side=120)).mode == "ram"


def test_masks_with_ignored_pixels_are_kept_in_memory(memory: list[int]) -> None:
    masked = dataset(200, kind=SampleKind.MASK, has_ignored=True)
    assert chosen(masked).mode == "ram"
    assert "ignored" in chosen(masked).reason


def test_views_that_change_on_the_host_are_not_kept_on_the_device(memory: list[int]) -> None:
    names = ("crop", "trivial")
    choice = chosen(dataset(400), names=names)
    assert (choice.mode, choice.warning) == ("ram", None)
    assert "on cpu, views would be cut without trivial" in choice.reason
    asked = chosen(dataset(400), "device", names=names)
    assert asked.mode == "ram"
    assert "without trivial; images are cached in memory" in str(asked.warning)


def test_latents_fit_where_their_images_do_not(memory: list[int]) -> None:
    alone = dataset(20_000, kind=SampleKind.IMAGE)
    assert chosen(alone).mode == "ram"
    assert chosen(alone, latent_bytes=4 * 28 * 28 * 4).mode == "device"


def test_memory_that_was_asked_for_is_taken_as_far_as_it_goes(memory: list[int]) -> None:
    assert chosen(dataset(40_000), "ram").warning is None
    memory[1] = 8 * GIB
    short = chosen(dataset(40_000), "ram")
    assert short.mode == "ram"
    assert "the other samples are decoded" in str(short.warning)
    assert chosen(dataset(200_000), "off").mode == "off"


def test_what_was_asked_for_on_the_device_and_does_not_fit_whole_is_kept_in_memory(memory: list[int]) -> None:
    """Smaller images are not cached instead: that would change training."""
    assert chosen(dataset(40_000), "device") == cache_policy.CacheChoice("device", "requested")
    assert chosen(dataset(40_000), "device", resize=256).mode == "device"
    memory[1] = 32 * GIB
    short = chosen(dataset(40_000), "device")
    assert short.mode == "ram"
    assert "do not fit in 26,214 MiB on cpu; images are cached in memory" in str(short.warning)
    assert chosen(dataset(40_000), "device", resize=256).mode == "device"


def test_the_resolution_decides_what_fits(memory: list[int]) -> None:
    assert chosen(dataset(1_000), resize=256).mode == "device"
    assert chosen(dataset(1_000), resize=448).mode == "device"
    assert chosen(dataset(2_000), resize=256).mode == "device"
    assert chosen(dataset(2_000), resize=448).mode == "ram"


def test_there_is_room_until_the_share_is_taken_or_memory_is_short(memory: list[int]) -> None:
    room = memory_room(0.5)
    assert room(0) == 30 * GIB
    assert room(29 * GIB) == GIB
    assert room(31 * GIB) < 0
    memory[1] = 5 * GIB  # used by other processes
    assert room(0) < 0


@pytest.mark.parametrize(("kind", "module"), [("cuda", torch.cuda), ("xpu", torch.xpu)])
def test_a_card_gives_a_fifth_of_its_memory_unasked_and_four_fifths_asked(
    memory: list[int], monkeypatch: pytest.MonkeyPatch, kind: str, module: object
) -> None:
    monkeypatch.setattr(module, "mem_get_info", lambda device: (10 * GIB, 80 * GIB))
    card = torch.device(kind)
    assert f"fit in 2,048 MiB on {kind}" in chosen(dataset(100), device=card).reason
    assert chosen(dataset(9_000), "device", device=card).mode == "device"
    assert f"do not fit in 8,192 MiB on {kind}" in chosen(dataset(12_000), "device", device=card).reason


def test_memory_gives_a_half_of_what_is_free_unasked_and_four_fifths_asked(memory: list[int]) -> None:
    assert "in 30,720 MiB of memory" in chosen(dataset(20_000)).reason
    assert "in 49,152 MiB of memory" in chosen(dataset(20_000), "ram").reason


@pytest.mark.parametrize("cache", ["off", "device"])
def test_masks_alone_are_those_of_the_batches(cache):
    with segmentation(Samples(20, Masked), cache=cache) as data:
        for window in data.windows(1, 2):
            alone = [window.targets(number).long() for number in range(window.batches)]
            assert all(torch.equal(one, batch.targets) for one, batch in zip(alone, window, strict=True))
