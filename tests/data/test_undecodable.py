"""What the device can not decode: workers do, and name what is wrong with it."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from mptui.data.core.types import Problem
from mptui.data.decode import device_jpeg
from mptui.data.decode.image import FileRequest
from mptui.data.transforms.undecoded import MOST_BYTES
from mptui.errors import DataError

from .device_decoding import OFF, device_decoded, loader, of_files, off
from .loaders import assert_same, batches, joined
from .samples import Drawn, Samples
from .test_jpeg import FAST, damaged


def test_sets_without_files_and_those_kept_in_memory_are_decoded_by_workers(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = device_decoded(monkeypatch)
    for split, cache in ((Samples(12, Drawn), "off"), (of_files(photos), "ram")):
        with loader(split, cache=cache) as it, loader(split, cache=cache, decode_on_device=False) as plain:
            assert_same(batches(it), batches(plain))
    assert calls == []


def test_a_file_that_the_device_refuses_is_decoded_by_a_worker(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a batch: the others are decoded as if it were not there."""
    split = of_files(photos[14:])
    with loader(split, train=False, batch_size=10, decode_on_device=False) as workers:
        by_workers = joined(batches(workers))
    with loader(split, train=False, batch_size=10) as device:
        by_device = joined(batches(device))
    refused = photos[17].stat().st_size
    _refuse(monkeypatch, lambda file: len(file) == refused)
    problems: list[Problem] = []
    with loader(split, train=False, batch_size=10, workers=1, on_bad=problems.append) as it:
        found = joined(batches(it))
    assert problems == []
    assert torch.equal(found[0][3], by_workers[0][3])
    assert not torch.equal(found[0][3], by_device[0][3])
    others = [row for row in range(10) if row != 3]
    assert torch.equal(found[0][others], by_device[0][others])
    assert torch.equal(found[1], by_workers[1])


def test_a_device_that_decodes_nothing_gives_what_workers_give(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse(monkeypatch, lambda file: True)
    with loader(of_files(photos), workers=2) as it, loader(of_files(photos), decode_on_device=False) as plain:
        assert_same(batches(it), batches(plain))


def test_a_picture_of_another_size_than_the_file_says_is_not_taken(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = device_jpeg.decoded
    monkeypatch.setattr(
        device_jpeg, "decoded", lambda files, on: [None if x is None else x[:, 1:] for x in plain(files, on)]
    )
    with loader(of_files(photos)) as it, loader(of_files(photos), decode_on_device=False) as other:
        assert_same(batches(it), batches(other))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_files_are_named_and_replaced_as_without_a_device(
    photos: list[Path], tmp_path: Path, workers: int
) -> None:
    paths = list(photos)
    whole = photos[20].read_bytes()
    for number, content in enumerate((whole[:-40], whole[: len(whole) // 2], whole[:100], b"", b"no image")):
        paths[14 + number] = tmp_path / f"bad-{number}.jpg"
        paths[14 + number].write_bytes(content)
    paths[19] = tmp_path / "gone.jpg"
    told = []
    for chosen in ({"decode_on_device": False}, {"workers": workers}):
        with loader(of_files(paths), bad_budget=0.5, **chosen) as it:
            _, targets, indices = joined(batches(it))
            told.append((sorted((each.path, each.reason) for each in it.bad), targets.tolist(), indices))
    assert len(told[0][0]) == 6
    assert told[1] == told[0]


def test_a_file_that_only_a_decoder_finds_bad_is_named(
    photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device refuses it, and so does the worker that is asked then; the sample is replaced."""
    data = bytearray(photos[20].read_bytes())
    at = data.index(b"\xff\xc4")
    data[at + 4 : at + 30] = bytes([255]) * 26  # lengths that no code has
    paths = [*photos[14:20], tmp_path / "odd.jpg"]
    paths[-1].write_bytes(data)
    assert FileRequest(str(paths[-1]), 0).encoded(MOST_BYTES) is not None
    problems: list[Problem] = []
    with loader(of_files(paths), train=False, bad_budget=0.5, on_bad=problems.append) as it:
        images, targets, indices = joined(batches(it))
    with loader(of_files(paths), train=False, bad_budget=0.5, decode_on_device=False) as workers:
        expected = joined(batches(workers))
        assert [problem.path for problem in workers.bad] == [str(paths[-1])]
    assert problems == workers.bad
    assert (targets.tolist(), indices) == (expected[1].tolist(), expected[2])
    assert off(images, expected[0]).max() < OFF


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_a_damaged_file_is_used_or_named_as_without_a_device(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("a.jpg", "b.jpg")]
        paths[0].write_bytes(data)
        paths[1].write_bytes(FAST["4:2:0"])
        told = []
        for on_device in (True, False):
            with loader(of_files(paths), batch_size=2, bad_budget=0.5, decode_on_device=on_device) as it:
                told.append((joined(batches(it))[1:], it.bad))
    assert str(told[0]) == str(told[1])


def test_too_many_bad_files_end_the_run(photos: list[Path], tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(photos[20].read_bytes()[:-40])
    with (
        loader(of_files([*photos, bad, bad]), workers=1, bad_budget=0.01) as it,
        pytest.raises(DataError, match=r"2 of 26 samples can't be used"),
    ):
        batches(it)


def test_what_the_decoder_dies_of_is_told_where_the_batch_is_wanted(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory for views")

    with loader(of_files(photos), workers=1) as it:
        expected = batches(it)
        with monkeypatch.context() as patch:
            patch.setattr(device_jpeg, "view", out_of_memory)
            windows = it.windows(0, 1)
            window = next(windows)
            with pytest.raises(torch.OutOfMemoryError, match="no memory for views"):
                list(window)
        assert_same(list(window), expected[:1])  # as the guards do: the same batch again


def _refuse(monkeypatch: pytest.MonkeyPatch, refused: Callable[[torch.Tensor], bool]) -> None:
    """Let the decoder behave as nvJPEG's: one file that it can't decode, and it decodes none of a call."""
    import torchvision.io

    plain = torchvision.io.decode_jpeg

    def decode(files: list[torch.Tensor], **settings: Any) -> Any:
        if any(refused(file) for file in files):
            raise RuntimeError("Error while decoding JPEG images: Failed to decode batch: 2")
        return plain(files, **settings)

    monkeypatch.setattr(torchvision.io, "decode_jpeg", decode)
