"""A lesson, and the one on number formats: what each makes of a number. Imports no torch."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from mptui import text as fmt
from mptui.errors import ConfigError

# What an exercise shows: lines of text with tones, curves, and a JSON document. Imports no torch
# -----------------------------------------------------------------------------------------------

Tone = Literal["", "quiet", "good", "warn", "bad", "accent", "strong"]
Line = Sequence[tuple[str, Tone]]
"""A line as spans of text with their tones; a screen gives tones colours, plain text leaves them out."""


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A value of each step, from step 1 on, for a chart."""

    label: str
    values: Sequence[float]


class Lesson(ABC):
    """The result of an exercise, possibly of its first steps."""

    @abstractmethod
    def lines(self, width: int, focus: int) -> list[Line]:
        """Return the lines for `width` cells; `focus` is what the person moved with the arrow keys."""

    def limited(self, focus: int) -> int:
        """Return the nearest `focus` that the lesson has; 0: there is nothing to move."""
        return 0

    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """Return the charts: title -> curves; empty if the exercise has none."""
        return {}

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Return the JSON document; numbers may be infinite or NaN."""


def quiet(text: str) -> Line:
    """Return a line in the quiet tone."""
    return [(text, "quiet")]


def plain(text: str = "") -> Line:
    """Return a line without a tone."""
    return [(text, "")]


def text_of(line: Line) -> str:
    """Return a line without its tones."""
    return "".join(text for text, _ in line).rstrip()


def power(exponent: int) -> str:
    """Return a power of two: `2^16 = 65,536`, without its value where that is long."""
    return f"2^{exponent} = {2**exponent:,}" if 0 <= exponent <= 24 else f"2^{exponent}"


# Number formats side by side: their ranges, and what each makes of a number. Imports no torch
# --------------------------------------------------------------------------------------------
# fp32, fp16 and bf16 are as in IEEE 754, with a sign, an exponent with bias 2^(e-1) - 1 and a mantissa
# without its leading 1; the smallest exponent is for zero and subnormal numbers, the largest for infinity
# and NaN. tf32 has fp32's exponent and fp16's mantissa. The fp8 formats are those of Micikevicius et al.
# 2022, "FP8 Formats for Deep Learning": e4m3 (torch.float8_e4m3fn) has no infinity and one NaN, so that its
# largest number is 448, to which torch's cast saturates.

Fate = Literal["exact", "rounded", "subnormal", "vanishes", "overflows", "saturates"]
"""What becomes of a number: kept; rounded to the format's digits; rounded to fewer digits, as it is below the
smallest normal number; zero; infinity; the largest number, in a format without infinity."""

_TONES: dict[str, Tone] = {"exact": "good", "rounded": "", "subnormal": "warn"}
_ROOMY = 76


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """A binary floating-point format."""

    name: str
    torch_name: str
    """Its dtype in torch; "" if it has none."""
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True

    @property
    def bits(self) -> int:
        """Number of bits, with the sign."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """What is added to an exponent in its field."""
        return (1 << self.exponent_bits - 1) - 1

    @property
    def eps(self) -> float:
        """Distance from 1 to the next number."""
        return 2.0**-self.mantissa_bits

    @property
    def tiny(self) -> float:
        """Smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """Smallest subnormal number."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    @property
    def largest(self) -> float:
        """Largest finite number."""
        if self.has_infinity:
            return (2 - self.eps) * 2.0**self.bias
        return (2 - 2 * self.eps) * 2.0 ** (self.bias + 1)

    @property
    def digits(self) -> float:
        """Number of decimal digits."""
        return (self.mantissa_bits + 1) * math.log10(2)


FORMATS = (
    NumberFormat("fp32", "float32", 8, 23),
    NumberFormat("tf32", "", 8, 10),
    NumberFormat("fp16", "float16", 5, 10),
    NumberFormat("bf16", "bfloat16", 8, 7),
    NumberFormat("fp8 e4m3", "float8_e4m3fn", 4, 3, has_infinity=False),
    NumberFormat("fp8 e5m2", "float8_e5m2", 5, 2),
)


@dataclass(frozen=True, slots=True)
class Representation:
    """A number in a format: the bits of its fields, its value, and the relative error of that."""

    format: NumberFormat
    sign: str
    exponent: str
    mantissa: str
    value: float
    error: float
    fate: Fate


def represent(number: float, into: NumberFormat) -> Representation:
    """Round `number` to a format: to nearest, ties to even.

    Args:
        number: Finite.
        into: The format.
    """
    exact = abs(Fraction(number))
    sign = "1" if math.copysign(1.0, number) < 0 else "0"
    exponent = max(_exponent(exact), 1 - into.bias)
    step = Fraction(2) ** (exponent - into.mantissa_bits)
    rounded = round(exact / step) * step  # of a fraction: ties to even
    over = rounded > Fraction(into.largest)
    if over and into.has_infinity:
        infinity = math.copysign(math.inf, number)
        bits = "1" * into.exponent_bits, "0" * into.mantissa_bits
        return Representation(into, sign, *bits, infinity, math.inf, "overflows")
    rounded = min(rounded, Fraction(into.largest))
    field, mantissa = _fields(rounded, into)
    error = float(abs(rounded - exact) / exact) if exact else 0.0
    fate: Fate = "exact" if rounded == exact else "vanishes" if not rounded else "rounded"
    if over:
        fate = "saturates"
    elif fate == "rounded" and not int(field, 2):
        fate = "subnormal"
    return Representation(into, sign, field, mantissa, math.copysign(float(rounded), number), error, fate)


def _exponent(exact: Fraction) -> int:
    """Return the exponent of a number in [2^e, 2^(e+1)); very small for zero."""
    if not exact:
        return -(1 << 16)
    guess = exact.numerator.bit_length() - exact.denominator.bit_length()
    return guess if Fraction(2) ** guess <= exact else guess - 1


def _fields(rounded: Fraction, into: NumberFormat) -> tuple[str, str]:
    exponent = _exponent(rounded)
    scale = Fraction(2) ** (max(exponent, 1 - into.bias) - into.mantissa_bits)
    whole = int(rounded / scale)
    field = exponent + into.bias if exponent >= 1 - into.bias else 0
    mantissa = whole & ((1 << into.mantissa_bits) - 1)
    return f"{field:0{into.exponent_bits}b}", f"{mantissa:0{into.mantissa_bits}b}"


def parsed(text: str) -> float:
    """Read a number as a person types it: `0.1`, `1e-8`, `2^-24`, `65520`.

    Raises:
        ConfigError: It is no finite number.
    """
    base, caret, exponent = text.strip().replace(",", "").replace("**", "^").partition("^")
    try:
        number = float(base) ** float(exponent) if caret else float(base)
    except (ValueError, ArithmeticError):
        number = math.nan
    if isinstance(number, complex) or not math.isfinite(number):
        raise ConfigError(f"{text!r} is not a finite number", hint="write 0.1, 65520, 1e-8 or 2^-24")
    return number


@dataclass(frozen=True, slots=True)
class FormatsLesson(Lesson):
    """A number in all formats."""

    number: float

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out the table of formats, and the bits of the number times 2^focus: these first if narrow."""
        number = math.ldexp(self.number, focus)
        times = f"  ({_short(self.number)} times 2^{focus})" if focus else ""
        title: Line = [("the number ", "quiet"), (f"{number:.9g}", "strong"), (times, "quiet")]
        bits = [title, *(_number_line(number, each, width) for each in FORMATS)]
        table = _table(width)
        return [*table, plain(), *bits] if width >= _ROOMY else [*bits, plain(), *table]

    def limited(self, focus: int) -> int:
        """Return the doublings that keep the number within float64."""
        exponent = math.frexp(self.number)[1]
        return min(max(focus, -1000 - exponent), 1000 - exponent)

    def document(self) -> dict[str, Any]:
        """Return the formats, and the number in each."""
        return {
            "number": self.number,
            "formats": {each.name: _format_document(self.number, each) for each in FORMATS},
        }


def _format_document(number: float, each: NumberFormat) -> dict[str, Any]:
    there = represent(number, each)
    return {
        "dtype": each.torch_name or None,
        "bits": each.bits,
        "exponent_bits": each.exponent_bits,
        "mantissa_bits": each.mantissa_bits,
        "max": each.largest,
        "smallest_normal": each.tiny,
        "smallest_subnormal": each.smallest,
        "eps": each.eps,
        "number": {
            "fields": [there.sign, there.exponent, there.mantissa],
            "value": there.value,
            "relative_error": there.error,
            "fate": there.fate,
        },
    }


def _table(width: int) -> list[Line]:
    """Return a line for each format, without its smaller numbers if narrow."""
    roomy = width >= _ROOMY
    small = f"{'normal from':>12}{'smallest':>9}{'eps':>8}{'digits':>7}"
    head = f"{'':<9}{'bits':>5}{'exponent':>9}{'mantissa':>9}{'largest':>8}"
    lines = [quiet(head + small if roomy else head)]
    for each in FORMATS:
        fields = f"{each.bits:>5}{each.exponent_bits:>9}{each.mantissa_bits:>9}{_short(each.largest):>8}"
        ranges = f"{each.tiny:>12.1e}{each.smallest:>9.1e}{each.eps:>8.1e}{each.digits:>7.1f}"
        lines.append(plain(f"{each.name:<9}{fields}{ranges if roomy else ''}"))
    return lines


def _number_line(number: float, into: NumberFormat, width: int) -> Line:
    there = represent(number, into)
    tone = _TONES.get(there.fate, "bad")
    error = f"{there.error:.0e} off" if there.fate in {"rounded", "subnormal"} else ""
    bits: list[tuple[str, Tone]] = [
        (f"{into.name:<9}", "quiet"),
        (f"{there.sign} ", "accent"),
        (f"{there.exponent:<8} ", "warn"),
        (f"{there.mantissa:<23}", "accent"),
    ]
    value: list[tuple[str, Tone]] = [(f"{there.value:>12.6g}  ", "strong"), (there.fate, tone)]
    if width >= _ROOMY:
        return [*bits, *value, (f" {error}", "quiet")]
    return [*bits, (f"  {there.fate}", tone)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1 <= abs(value) < 1e6 and value == int(value) else fmt.figure(value)
