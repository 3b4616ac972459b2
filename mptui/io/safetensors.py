"""Reads and writes the safetensors format, without copying tensors.

The library's writer neither returns a hash nor lets tests inject failures, and older versions copy every
tensor while holding the GIL, which blocks training during a save. Its reader maps the file: a read error of
the disk ends the process (SIGBUS), other disk errors look like a damaged file, and paths must be UTF-8. The
format: the length of a JSON header in eight bytes, the header, the tensors one after the other
(https://huggingface.co/docs/safetensors).
"""

import errno
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mptui.io.files import open_regular, write_synced

_ALIGNMENT = 8
_BLOCK = 1 << 24
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
"""The types that the library reads, too."""
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def why_unsaveable(tensor: torch.Tensor) -> str | None:
    """Return why a file can't hold a tensor; None if it can."""
    if tensor.layout is not torch.strided:
        return f"its layout is {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_meta:
        return "it has no data (device meta)"
    if tensor.dtype not in _NAMES:
        return f"safetensors have no type {str(tensor.dtype).removeprefix('torch.')}"
    return None


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write tensors in host memory to a file, sync it to disk, and return its sha256.

    Raises:
        OSError: The disk is full, gone or not writable.
        KeyError: The format doesn't support the type of a tensor.
    """
    return write_synced(path, _blocks(tensors))


def read_tensors(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    """Read all tensors of a file in one pass, and verify its hash.

    Raises:
        ValueError: The file has another sha256, or is not a safetensors file.
        OSError: It can't be read.
    """
    file = open_regular(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return _Reading(file, path.name).tensors(sha256)
    finally:
        os.close(file)


class _Reading:
    """Reads a file sequentially and hashes the bytes read."""

    def __init__(self, file: int, name: str) -> None:
        self._file = file
        self._name = name
        self._left = os.fstat(file).st_size
        self._digest = hashlib.sha256()

    def tensors(self, sha256: str) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        try:
            layout = self._layout()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise self._wrong() from error
        for name, shape, dtype in layout:
            found[name] = tensor = _empty(shape, dtype)
            if tensor.numel():
                self._fill(tensor.reshape(-1).view(torch.uint8).numpy().data)
        if self._digest.hexdigest() != sha256:
            raise self._wrong()
        return found

    def _layout(self) -> list[tuple[str, list[int], torch.dtype]]:
        """Read name, shape and type of each tensor, in file order; they must fill the rest of the file."""
        (length,) = struct.unpack("<Q", self._take(8))
        header: dict[str, dict[str, Any]] = json.loads(self._take(length))
        header.pop("__metadata__", None)
        layout, end = [], 0
        for name, entry in sorted(header.items(), key=lambda item: tuple(item[1]["data_offsets"])):
            shape, dtype = entry["shape"], _DTYPES[entry["dtype"]]
            if not all(type(side) is int and side >= 0 for side in shape):
                raise self._wrong()
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            if entry["data_offsets"] != [begin, end]:
                raise self._wrong()
            layout.append((name, shape, dtype))
        if end != self._left:
            raise self._wrong()
        return layout

    def _take(self, size: int) -> bytes:
        if size > self._left:
            raise self._wrong()
        content = bytearray(size)
        self._fill(memoryview(content))
        return bytes(content)

    def _fill(self, place: memoryview) -> None:
        while place:
            count = os.readv(self._file, [place[:_BLOCK]])
            if not count:
                raise self._wrong()
            self._digest.update(place[:count])
            self._left -= count
            place = place[count:]

    def _wrong(self) -> ValueError:
        return ValueError(f"{self._name} differs from what was written")


def _empty(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error


def _blocks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    # the widest types first, so that every tensor is aligned to its type
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        if tensor.numel():
            plain = tensor.detach().resolve_conj().resolve_neg()
            yield plain.reshape(-1).view(torch.uint8).numpy().data
