"""Images for the tests: generated, or real ones if they lie next to the repository."""

import io
import struct
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from mptui.data.types import Pixels

SHARED = Path(__file__).parents[3] / "shared" / "data"


def photo(width=48, height=32, seed=0):
    """Return a smooth RGB image with four different corners, which reveals a wrong rotation."""
    rng = np.random.default_rng(seed)
    rough = rng.integers(0, 256, (4, 6, 3), np.uint8)
    rough[0, 0], rough[0, -1], rough[-1, 0], rough[-1, -1] = (
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
        (250, 250, 0),
    )
    return Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)


def save_oriented(path, orientation, upright):
    """Save `upright` as a rotated camera does: rotated, with the EXIF orientation that undoes it."""
    turn = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    stored = upright if turn is None else upright.transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(path, exif=exif, quality=95)
    return stored


def png_header(width, height):
    """Return a PNG header that claims a size, with almost no data."""
    size = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0")
    chunks = (
        struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (size, data, b"IEND")
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def class_folders(root, counts, extension=".png", size=(20, 16)):
    """Write `counts[name]` images of `size` into each folder `root/name`; names may contain slashes."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            (root / name / f"{index}{extension}").write_bytes(_stored(index, extension, size))
    return root


@lru_cache(4096)
def _stored(seed, extension, size):
    """Return the file of a photo: the same few are in most folders, and to code one takes a millisecond."""
    content = io.BytesIO()
    photo(size[0], size[1], seed).save(content, Image.registered_extensions()[extension.lower()])
    return content.getvalue()


def pairs(root, masks, size=(24, 16)):
    """Write an image and a mask for each of `masks`: Pillow images, or arrays of grey values."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    (root / "masks").mkdir(exist_ok=True)
    for index, mask in enumerate(masks):
        photo(size[0], size[1], index).save(root / "images" / f"{index}.jpg")
        picture = mask if isinstance(mask, Image.Image) else Image.fromarray(np.asarray(mask))
        picture.save(root / "masks" / f"{index}.png")
    return root


def stripes(*values, size=(24, 16), dtype=np.uint8):
    """Return a mask with vertical stripes of these values."""
    row = np.array(values, dtype)[np.arange(size[0]) * len(values) // size[0]]
    return np.repeat(row[None], size[1], axis=0)


@lru_cache(64)
def natural(width: int, height: int, seed: int = 0) -> Pixels:
    """Return smooth areas, edges and texture with amplitudes that fall with frequency, as in photos.

    Nobody may write to it.
    """
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    amplitude = np.maximum(np.hypot(fx, fy), 1 / max(width, height)) ** -1.2
    planes = []
    for _ in range(3):
        noise = rng.standard_normal(amplitude.shape) + 1j * rng.standard_normal(amplitude.shape)
        plane = np.fft.irfft2(noise * amplitude, (height, width))
        planes.append(plane / plane.std() * 50 + 128)
    image = np.stack(planes, axis=-1)
    image[height // 3 : height // 2, width // 4 : width // 2] += 60
    pixels = image.clip(0, 255).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels


def difference(a: Pixels, b: Pixels) -> tuple[float, int]:
    each = np.abs(a.astype(int) - b)
    return float(each.mean()), int(each.max())


def values(dtype: str, *shape: int, seed: int = 0) -> Pixels:
    """Random values that use all bits of their type."""
    random = np.random.default_rng(seed)
    if dtype == "float32":
        return (random.standard_normal(shape) * 1e4).astype(np.float32)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def png_of(pixels_HWC: Pixels, colour_type: int, more: bytes = b"") -> bytes:
    """Encode a PNG of 16 bits without any library for images."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width, _ = pixels_HWC.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels_HWC)
    head = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    ends = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + ends
