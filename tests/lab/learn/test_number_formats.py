"""The formats of `mptui learn` are torch's: limits as in `torch.finfo`, bits as those of real casts."""

import math
from functools import cache

import pytest
import torch

from mptui.errors import ConfigError
from mptui.lab.learn.formats import FORMATS, formats_lesson, parsed, represent, text_of

WITH_DTYPE = [each for each in FORMATS if each.torch_name]
EDGES = [
    0.0,
    -0.0,
    1.0,
    65504,
    65519.99,
    65520,
    448,
    464,
    464.1,
    480,
    57344,
    61439,
    61440,
    2.0**-24,
    2.0**-25,
]
SATURATES = not torch.tensor(1e6).to(torch.float8_e4m3fn).isnan()
"""From torch 2.13 on; before, larger numbers became NaN."""
INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


@cache
def numbers():
    """Every magnitude of float32, with random mantissas, and what lies at the edges of the formats."""
    torch.manual_seed(0)
    exponents = torch.arange(-149, 128).repeat(8)
    values = torch.ldexp(1 + torch.rand(len(exponents), dtype=torch.float64), exponents).float()
    near = torch.tensor(EDGES)
    return [float(v) for v in torch.cat([values, -values, near]) if math.isfinite(v)]


def with_casts(each):
    """Yield the numbers with torch's casts to the format: value and bits."""
    cast = torch.tensor(numbers(), dtype=torch.float32).to(getattr(torch, each.torch_name))
    wholes = cast.view(INTEGERS[each.bits]).tolist()
    bits = [f"{whole & ((1 << each.bits) - 1):0{each.bits}b}" for whole in wholes]
    return zip(numbers(), cast.float().tolist(), bits, strict=True)


@pytest.mark.parametrize("each", WITH_DTYPE, ids=lambda each: each.torch_name)
def test_limits_are_those_of_finfo(each):
    info = torch.finfo(getattr(torch, each.torch_name))
    assert (each.bits, each.largest, each.eps) == (info.bits, info.max, info.eps)
    assert (each.tiny, each.smallest) == (info.tiny, info.smallest_normal * info.eps)


@pytest.mark.parametrize("each", WITH_DTYPE, ids=lambda each: each.torch_name)
def test_the_bits_of_numbers_are_those_of_real_casts(each):
    for number, cast, bits in with_casts(each):
        there = represent(number, each)
        assert (there.fate == "saturates") == (abs(number) > 464 and not each.has_infinity), number
        if there.fate == "saturates" and not SATURATES:
            assert math.isnan(cast)
            continue
        assert there.value == cast, number
        assert "".join(there.fields) == bits, number
        assert (there.fate == "overflows") == math.isinf(cast), number
        assert (there.fate == "exact") == (cast == number), number
        assert (there.fate == "vanishes") == (cast == 0 != number), number
        if there.fate == "subnormal":
            assert 0 < abs(cast) < each.tiny


def test_tf32_keeps_ten_bits_of_float32():
    tf32 = next(each for each in FORMATS if each.name == "tf32")
    bits = torch.tensor(numbers(), dtype=torch.float32).view(torch.int32).long()
    kept = (bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF
    values = kept.to(torch.int32).view(torch.float32).tolist()
    assert [represent(number, tf32).value for number in numbers()] == values


@pytest.mark.parametrize(
    ("text", "number"), [("0.1", 0.1), ("65,520", 65520), ("1e-8", 1e-8), ("2^-24", 2.0**-24), ("2**3", 8)]
)
def test_numbers_are_read_as_people_write_them(text, number):
    assert parsed(text) == number


@pytest.mark.parametrize("text", ["", "x", "nan", "1e999", "2^99999", "-2^0.5"])
def test_what_is_no_finite_number_is_refused(text):
    with pytest.raises(ConfigError, match="is not a finite number"):
        parsed(text)


@pytest.mark.parametrize("width", [58, 76])
def test_lines_fit_and_doubling_ends_before_float64_does(width):
    lesson = formats_lesson(1e-8)
    for focus in (0, 40, lesson.limited(10_000), lesson.limited(-10_000)):
        texts = [text_of(line) for line in lesson.lines(width, focus)]
        assert max(map(len, texts)) <= width
    assert any("vanishes" in text for text in texts)
