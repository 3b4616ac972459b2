import io
import os
import pickle
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms, UnidentifiedImageError

from mptui.data.address import part_of
from mptui.data.decode import ArrayRequest, FileRequest, read_rgb
from mptui.data.types import BadSampleError
from tests.decoders import server
from tests.program import run_to_end

from .images import SHARED, photo, png_header, save_oriented


def close_to(picture_HW3, expected, tolerance=3.0):
    expected_HW3 = np.asarray(expected.convert("RGB"), np.float32)
    return picture_HW3.shape == expected_HW3.shape and np.abs(picture_HW3 - expected_HW3).mean() < tolerance


def refused(path):
    with pytest.raises(BadSampleError) as caught:
        read_rgb(str(path))
    assert caught.value.name == str(path)
    return caught.value.reason


def as_lab(picture):
    profiles = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
    converted = ImageCms.profileToProfile(picture, *profiles, outputMode="LAB")
    assert converted is not None
    return converted


MODES = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "L", "P", "1", "LA", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
    "BMP": ("RGB",),
    "GIF": ("P",),
    "TIFF": ("RGB", "CMYK", "YCbCr", "LAB"),
    "PPM": ("RGB", "L"),
}


@pytest.mark.parametrize(("form", "mode"), [(form, mode) for form in MODES for mode in MODES[form]])
def test_every_mode_of_every_format_comes_out_as_the_same_picture(tmp_path, form, mode):
    picture = photo()
    stored = as_lab(picture) if mode == "LAB" else picture.convert(mode)
    path = tmp_path / "picture.dat"  # the suffix is uninformative; the content decides
    stored.save(path, form)
    read_HW3 = FileRequest(str(path), 3).read().image_HWC
    expected = {"1": stored, "P": stored, "L": stored, "LA": stored}.get(mode, picture)
    assert read_HW3.dtype == np.uint8
    assert read_HW3.flags.writeable
    assert close_to(read_HW3, expected, tolerance=9.0 if form == "WEBP" else 4.0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_upright_however_the_camera_was_held(tmp_path, orientation):
    upright = photo(96, 64)
    stored = save_oriented(tmp_path / "a.jpg", orientation, upright)
    assert close_to(read_rgb(str(tmp_path / "a.jpg")), upright)
    assert orientation == 1 or not close_to(np.asarray(stored), upright)


@pytest.mark.parametrize("orientation", [1, 6])
def test_an_oriented_tiff_is_turned_once(tmp_path, orientation):
    upright = photo(96, 64)
    stored = upright.transpose(Image.Transpose.ROTATE_90) if orientation == 6 else upright
    stored.save(tmp_path / "a.tif", tiffinfo={0x0112: orientation})
    assert close_to(read_rgb(str(tmp_path / "a.tif")), upright)


def test_damaged_exif_does_not_cost_the_picture(tmp_path):
    photo().save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage", quality=95)
    assert close_to(read_rgb(str(tmp_path / "a.jpg")), photo())


def test_transparency_is_laid_over_white_and_opaque_pixels_stay(tmp_path):
    picture = photo().convert("RGBA")
    alpha = Image.new("L", picture.size, 255)
    alpha.paste(0, (0, 0, 10, 32))
    picture.putalpha(alpha)
    picture.save(tmp_path / "a.png")
    read_HW3 = read_rgb(str(tmp_path / "a.png"))
    assert (read_HW3[:, :10] == 255).all()
    assert (read_HW3[:, 10:] == np.asarray(photo())[:, 10:]).all()


def test_a_palette_with_a_transparent_colour_is_laid_over_white(tmp_path):
    stripes = np.repeat(np.arange(4, dtype=np.uint8), 8)[None].repeat(8, axis=0)
    picture = Image.fromarray(stripes).convert("P")
    picture.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    picture.save(tmp_path / "a.png", transparency=1)
    assert read_rgb(str(tmp_path / "a.png"))[0, ::8].tolist() == [
        [10, 20, 30], [255, 255, 255], [0, 200, 0], [0, 0, 200],
    ]  # fmt: skip


@pytest.mark.parametrize("extension", [".png", ".tif", ".pgm"])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path, extension):
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16)[None].repeat(4, axis=0)
    Image.fromarray(ramp).save(tmp_path / f"a{extension}")
    read_HW3 = read_rgb(str(tmp_path / f"a{extension}"))
    assert (read_HW3[..., 0] == np.arange(256)).all()
    assert (read_HW3[..., 0] == read_HW3[..., 2]).all()


def test_float_pictures_use_their_own_range_and_nan_is_black(tmp_path):
    values = np.array([[-2.0, 0.0, 2.0, np.nan, np.inf, -np.inf]], np.float32)
    Image.fromarray(values).save(tmp_path / "a.tif")
    assert read_rgb(str(tmp_path / "a.tif"))[0, :, 0].tolist() == [0, 128, 255, 0, 255, 0]
    Image.fromarray(np.full((2, 2), np.nan, np.float32)).save(tmp_path / "b.tif")
    assert (read_rgb(str(tmp_path / "b.tif")) == 0).all()


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "WEBP"])
def test_the_first_frame_of_several_is_read(tmp_path, form):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    frames[0].save(tmp_path / "a", form, save_all=True, append_images=frames[1:])
    assert close_to(read_rgb(str(tmp_path / "a")), frames[0])


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused_by_name(tmp_path, form, share):
    whole = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(whole, form)
    path = tmp_path / "cut.jpg"
    path.write_bytes(whole.getvalue()[: int(share * len(whole.getvalue()))])
    assert refused(path)


def test_what_is_no_image_is_refused_and_says_why(tmp_path):
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("<html>404</html>")
    (tmp_path / "script.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")
    assert "0 bytes" in refused(tmp_path / "empty.jpg")
    assert "not an image" in refused(tmp_path / "text.jpg")
    assert "not an image" in refused(tmp_path / "script.jpg")
    assert "no such file" in refused(tmp_path / "nothing.jpg")
    assert "directory" in refused(tmp_path)


@pytest.mark.parametrize("size", [(8000, 8000), (17_000, 10), (100_000, 100_000)])
def test_a_header_that_claims_too_many_pixels_is_refused_in_silence(tmp_path, size):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(*size))
    assert "too large" in refused(path)


def icon(inside, width=16, height=16):
    """Return an icon whose header says one size, around an image."""
    entry = struct.pack("<BBBBHHII", width, height, 0, 0, 1, 32, len(inside), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inside


def bitmap(width, height):
    """Return the header of a bitmap inside an icon, with almost no data."""
    return struct.pack("<IiiHHIIiiII", 40, width, 2 * height, 1, 32, 0, 0, 0, 0, 0, 0) + b"\0" * 16


@pytest.mark.parametrize("inside", [png_header(9000, 9000), bitmap(9000, 9000)], ids=["png", "bitmap"])
def test_an_image_inside_an_icon_is_refused_by_its_own_size_before_it_is_decoded(
    tmp_path, inside, monkeypatch
):
    path = tmp_path / "small.ico"
    path.write_bytes(icon(inside))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)

    with pytest.raises(BadSampleError, match="9000x9000 pixels is too large"):
        read_rgb(str(path))
    with pytest.raises(BadSampleError, match="9000x9000 pixels is too large"):
        read_rgb(part_of(str(path), 0, path.stat().st_size, "a part"))


@pytest.mark.parametrize("cut_at", [4, 8, 22, 30])
def test_an_icon_that_is_cut_off_is_no_image(tmp_path, cut_at):
    path = tmp_path / "cut.ico"
    path.write_bytes(icon(png_header(16, 16))[:cut_at])

    with pytest.raises(BadSampleError):
        read_rgb(str(path))


@pytest.mark.parametrize("bitmap_format", ["png", "bmp"])
def test_an_icon_is_read(tmp_path, bitmap_format):
    path = tmp_path / "good.ico"
    Image.new("RGBA", (48, 48), (200, 10, 10, 255)).save(path, sizes=[(48, 48)], bitmap_format=bitmap_format)

    assert read_rgb(str(path)).tolist() == [[[200, 10, 10]] * 48] * 48


def test_odd_files_write_nothing_to_the_terminal(tmp_path):
    (tmp_path / "big.png").write_bytes(png_header(10_000, 10_000))
    photo().save(tmp_path / "exif.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    script = """
import sys
from mptui.data.decode import BadSampleError, read_rgb
for path in sys.argv[1:]:
    try:
        read_rgb(path)
    except BadSampleError:
        pass
"""
    files = tmp_path / "big.png", tmp_path / "exif.jpg"
    ran = run_to_end(script, *files, call="tests.program:execute", forks=server())
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("hint", "size"), [(None, (320, 480)), (200, (320, 480)), (100, (160, 240)), (30, (40, 60))]
)
def test_a_jpeg_is_decoded_smaller_but_never_below_the_hint(tmp_path, hint, size):
    save_oriented(tmp_path / "a.jpg", 6, photo(480, 320))
    assert FileRequest(str(tmp_path / "a.jpg"), 0).read(hint).image_HWC.shape[:2] == size


def test_an_array_gives_its_images_as_rgb(tmp_path):
    grey = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5)
    np.save(tmp_path / "grey.npy", grey)
    decoded = ArrayRequest(str(tmp_path / "grey.npy"), 1, 7).read()
    assert decoded.label == 7
    assert (decoded.image_HWC == grey[1][..., None]).all()
    assert decoded.image_HWC.shape == (4, 5, 3)
    with pytest.raises(BadSampleError):
        ArrayRequest(str(tmp_path / "grey.npy"), 2, 0).read()


def test_a_request_and_its_failure_travel_between_processes(tmp_path):
    request = pickle.loads(pickle.dumps(FileRequest(str(tmp_path / "no.jpg"), 1)))
    with pytest.raises(BadSampleError) as caught:
        request.read()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.name, again.reason) == (request.name, "no such file or directory")


def test_real_awkward_files_are_read_or_refused(tmp_path):
    """The set of difficult files next to the repository, or a generated file of each kind."""
    root = SHARED / "awkward-basic"
    if not root.exists():
        root = tmp_path
        (root / "formats").mkdir()
        (root / "broken").mkdir()
        photo().save(root / "formats" / "plain.JPG")
        (root / "broken" / "text.jpg").write_text("text")
    for entry in os.scandir(root / "formats"):
        picture_HW3 = read_rgb(entry.path)
        assert picture_HW3.dtype == np.uint8, entry.name
        assert picture_HW3.shape[2] == 3, entry.name
        assert picture_HW3.size == 3 or picture_HW3.std() > 10, entry.name
    for entry in os.scandir(root / "broken"):
        assert refused(entry.path), entry.name


def test_a_file_that_goes_while_it_is_read_is_a_bad_sample(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"no image")

    def removed(*args, **kwargs):
        path.unlink()
        raise UnidentifiedImageError("cannot identify")

    monkeypatch.setattr("mptui.data.decode.Image.open", removed)
    with pytest.raises(BadSampleError, match="no such file"):
        read_rgb(str(path))
