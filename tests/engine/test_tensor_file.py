"""Written files are safetensors: the library itself reads them back, bit for bit."""

import hashlib

import pytest
import torch
from safetensors.torch import load_file

from mptui.io.safetensors import read_tensors, write_tensors

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
TYPES += [torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64]
TYPES += [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e4m3fnuz]
TYPES += [torch.float8_e5m2, torch.float8_e5m2fnuz]


def bits(tensors):
    return {name: (t.dtype, t.shape, t.reshape(-1).view(torch.uint8).tolist()) for name, t in tensors.items()}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type_comes_back(tmp_path, dtype):
    values = torch.arange(24).reshape(2, 3, 4).to(dtype)
    tensors = {"whole": values, "one": values[1, 2, 3].clone(), "odd": values.reshape(-1)[:5].clone()}
    digest = write_tensors(tmp_path / "file", tensors)
    assert bits(load_file(tmp_path / "file")) == bits(tensors)
    assert bits(read_tensors(tmp_path / "file", digest)) == bits(tensors)


def test_types_of_all_widths_lie_beside_each_other(tmp_path):
    tensors = {f"{dtype} {size}": torch.ones(size).to(dtype) for dtype in TYPES for size in (0, 1, 3)}
    tensors |= {"not a number": torch.tensor([torch.nan, -0.0, torch.inf]), "name é 猫": torch.ones(1)}
    digest = write_tensors(tmp_path / "file", tensors)
    assert bits(load_file(tmp_path / "file")) == bits(tensors)
    assert digest == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()


def test_memory_that_is_not_contiguous_is_written_in_order(tmp_path):
    image = torch.arange(48.0).reshape(1, 3, 4, 4).to(memory_format=torch.channels_last)
    write_tensors(tmp_path / "file", {"image": image, "turned": image[0, 0].T})
    read = load_file(tmp_path / "file")
    assert torch.equal(read["image"], image)
    assert torch.equal(read["turned"], image[0, 0].T)


def test_a_conjugate_and_its_imaginary_part_are_written_as_they_are(tmp_path):
    turned = torch.polar(torch.ones(3), torch.arange(3.0)).conj()
    write_tensors(tmp_path / "file", {"whole": turned, "part": turned.imag})
    read = load_file(tmp_path / "file")
    assert torch.equal(read["whole"], turned)
    assert torch.equal(read["part"], turned.imag)


def test_none_at_all_is_a_file_too(tmp_path):
    write_tensors(tmp_path / "file", {})
    assert load_file(tmp_path / "file") == {}
