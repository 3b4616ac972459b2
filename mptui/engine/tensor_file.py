"""The safetensors format, written straight from the tensors' memory.

The library's own writer can neither be torn by a test nor tell the hash of what it writes, and older ones
copy every tensor while the interpreter is locked, which holds up the training beside the save. The format:
the length of a JSON header in eight bytes, the header, the tensors one after the other
(https://huggingface.co/docs/safetensors).
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from mptui.engine.files import write_synced

_ALIGNMENT = 8
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
}


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write tensors in host memory to a file, synced to the disk; returns its sha256.

    Raises:
        OSError: The disk is full, gone, or not writable.
        KeyError: A tensor is of a type that the format has no name for.
    """
    return write_synced(path, _blocks(tensors))


def _blocks(tensors: Mapping[str, torch.Tensor]) -> Iterator[bytes | memoryview]:
    # the widest numbers first, so that every tensor begins at a multiple of its own width
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
            yield tensor.detach().reshape(-1).view(torch.uint8).numpy().data
