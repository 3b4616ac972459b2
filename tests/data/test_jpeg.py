"""JPEGs are decoded exactly as by Pillow alone: the same pixels, errors and messages."""

import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mptui.data import decode
from mptui.data.decode import FileRequest, load_upright, opened, read_rgb, to_rgb
from mptui.data.reading import Pool
from mptui.data.transforms import Geometry
from mptui.data.types import BadSampleError, Pixels
from mptui.data.worker import ReadTask, perform
from mptui.registry.names import SampleKind
from tests.data.images import difference, natural

from .images import photo, save_oriented

SIDE = 32


def encoded(picture: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def ycck(picture: Image.Image) -> bytes:
    """Return a JPEG of YCCK, as Photoshop writes it: Pillow's file with that marker."""
    data = encoded(picture.convert("CMYK"), quality=90)
    at = data.index(b"Adobe")
    return data[: at + 11] + b"\x02" + data[at + 12 :]


PICTURE = Image.fromarray(natural(75, 50))
FAST: dict[str, bytes] = {
    "4:4:4": encoded(PICTURE, quality=90, subsampling=0),
    "4:2:2": encoded(PICTURE, quality=90, subsampling=1),
    "4:2:0": encoded(PICTURE, quality=75, subsampling=2),
    "progressive": encoded(PICTURE, progressive=True, optimize=True),
    "restarts": encoded(PICTURE, restart_marker_blocks=2),
    "grey": encoded(PICTURE.convert("L")),
    "RGB, not YCbCr": encoded(PICTURE, keep_rgb=True),
    "two pictures": encoded(PICTURE, "MPO", save_all=True, append_images=[photo(33, 20)]),
    "EXIF": encoded(PICTURE, exif=b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"),
}
PILLOWS: dict[str, bytes] = {
    "CMYK": encoded(PICTURE.convert("CMYK")),
    "YCCK": ycck(PICTURE),
    "PNG": encoded(PICTURE, "PNG"),
}


def pillow_alone(path: str, side_hint: int | None = None) -> Pixels:
    with opened(path) as image:
        if side_hint is not None:
            image.draft(None, (side_hint, side_hint))
        return to_rgb(load_upright(image)[0])


def outcome(read: Callable[[], Pixels]) -> Pixels | str:
    """Return the pixels, or the reason why there are none; other exceptions propagate and fail the test."""
    try:
        return read()
    except BadSampleError as error:
        return error.reason


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("hint", [None, 51, 25, 12, 6, 1])
def test_the_pixels_are_those_of_pillow_at_every_size(tmp_path: Path, kind: str, hint: int | None) -> None:
    path = tmp_path / "a"
    path.write_bytes(FAST[kind])
    with opened(str(path)) as image:
        assert decode.decoded(image, hint) is not None
    mean, most = difference(read_rgb(str(path), hint), pillow_alone(str(path), hint))
    assert mean < 0.5
    assert most <= 4  # from two builds of the same library


@pytest.mark.parametrize("kind", PILLOWS)
@pytest.mark.parametrize("hint", [None, 12])
def test_what_is_less_common_is_left_to_pillow(tmp_path: Path, kind: str, hint: int | None) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(PILLOWS[kind])
    with opened(str(path)) as image:
        assert decode.decoded(image, hint) is None
    np.testing.assert_array_equal(read_rgb(str(path), hint), pillow_alone(str(path), hint))


def test_a_size_that_only_libjpeg_reads_is_left_to_pillow(tmp_path: Path) -> None:
    """The size that Pillow read is the one that was validated."""
    (tmp_path / "a.jpg").write_bytes(FAST["4:4:4"])
    with opened(str(tmp_path / "a.jpg")) as image:
        image._size = (image.width // 2, image.height)
        assert decode.decoded(image, None) is None


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_decoded_smaller_is_upright(tmp_path: Path, orientation: int) -> None:
    upright = photo(480, 320)
    save_oriented(tmp_path / "a.jpg", orientation, upright)
    small = FileRequest(str(tmp_path / "a.jpg"), 0).read(80).image_HWC
    assert difference(small, np.asarray(upright.reduce(4)))[0] < 2
    np.testing.assert_array_equal(small.shape, (80, 120, 3))


@pytest.mark.parametrize("kind", ["4:2:0", "progressive", "grey"])
def test_a_file_cut_at_any_byte_ends_as_with_pillow(tmp_path: Path, kind: str) -> None:
    data, path = FAST[kind], tmp_path / "a.jpg"
    reasons = set()
    for length in [*range(0, len(data), 23), len(data) - 2, len(data) - 1]:
        path.write_bytes(data[:length])
        found, expected = (
            outcome(lambda: read_rgb(str(path), 20)),
            outcome(lambda: pillow_alone(str(path), 20)),
        )
        assert isinstance(found, str) == isinstance(expected, str), length
        if isinstance(found, str):
            assert found == expected
            reasons.add(found)
    assert "truncated: the end of the file is missing" in reasons


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Draw a JPEG with some bytes changed, removed, duplicated or inserted, or truncated."""
    data = bytearray(FAST[draw(st.sampled_from(sorted(FAST)))])
    for _ in range(draw(st.integers(1, 4))):
        # Most of the structure is at the beginning.
        place = draw(st.integers(0, min(len(data), draw(st.sampled_from([700, 1 << 20])))))
        match draw(st.sampled_from(["change", "cut out", "double", "put in", "cut off"])):
            case "change":
                data[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case "cut out":
                del data[place : place + draw(st.integers(1, 20))]
            case "double":
                data[place:place] = data[place : place + draw(st.integers(1, 40))]
            case "put in":
                data[place:place] = draw(st.binary(min_size=1, max_size=8))
            case _:
                del data[max(place, 4) :]
    return bytes(data)


def same_end(data: bytes, hint: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "a.jpg")
        Path(path).write_bytes(data)
        found, expected = outcome(lambda: read_rgb(path, hint)), outcome(lambda: pillow_alone(path, hint))
        if isinstance(found, str) or isinstance(expected, str):
            assert found == expected
        else:
            assert found.shape == expected.shape
            assert difference(found, expected)[0] < 1
        geometry = Geometry.for_validation(SampleKind.CLASS, SIDE)
        refused = isinstance(outcome(lambda: pillow_alone(path, geometry.side)), str)
        with Pool(0) as pool:
            pool.arena.reserve(SIDE * SIDE * 3)
            task = ReadTask(1, (FileRequest(path, 0),), (0,), 0, 0, geometry, classes=1, pixels_offset=0)
            assert len(perform(task, pool.arena.fd, lambda: False).failures) == refused


@settings(max_examples=50)
@given(damaged(), st.sampled_from([None, 20, 1]))
def test_a_damaged_file_ends_as_with_pillow(data: bytes, hint: int | None) -> None:
    same_end(data, hint)


@pytest.mark.chaos
@settings(max_examples=20_000, derandomize=False)
@given(damaged(), st.sampled_from([None, 20, 1]))
def test_any_damaged_file_ends_as_with_pillow(data: bytes, hint: int | None) -> None:
    same_end(data, hint)
