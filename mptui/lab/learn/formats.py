"""A lesson, and the one on number formats: what each makes of a number. Imports no torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from mptui import text as fmt
from mptui.errors import ConfigError

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request

# What an exercise is given, and what it shows: lines of text with tones, curves, and a JSON document
# ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LearnChoices:
    """What a person chooses for the exercises."""

    request: "Request"
    """Model, data and device."""
    number: float = 0.1
    precision: str = "fp16"
    rules_of: str = "cuda"
    """Device type whose autocast is shown."""

    @property
    def model(self) -> str:
        """Name of the network."""
        return str(self.request.flags.get("model.name", ("", "unet"))[1])

    def with_model(self, name: str) -> "LearnChoices":
        """Return the choices with another network."""
        flags = {**self.request.flags, "model.name": ("--model", name)}
        return replace(self, request=replace(self.request, flags=flags))


Tone = Literal["", "quiet", "good", "warn", "bad", "accent", "strong"]
Line = Sequence[tuple[str, Tone]]
"""A line as spans of text with their tones; a screen gives tones colours, plain text leaves them out."""

Curves = Mapping[str, Mapping[str, Sequence[float]]]
"""Title of a chart -> label of a curve -> its value at each step, from step 1 on."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """The result of an exercise, possibly of its first steps.

    Attributes:
        document: The JSON document; numbers may be infinite or NaN.
        lines: Returns the lines for a width in cells and a focus: what the person moved with the arrow keys.
        curves: The charts.
        focuses: Each focus that there is; only 0: there is nothing to move.
    """

    document: Mapping[str, Any]
    lines: Callable[[int, int], list[Line]]
    curves: Curves = field(default_factory=dict)
    focuses: range = range(1)

    def limited(self, focus: int) -> int:
        """Return the nearest focus that the lesson has."""
        return min(max(focus, self.focuses[0]), self.focuses[-1])


Report = Callable[[Lesson], None]


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
# largest number is 448, to which torch's cast saturates, from 2.13 on: before, it made NaN of what is larger.

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
        return self.tiny * self.eps

    @property
    def largest_bits(self) -> int:
        """Exponent and mantissa of the largest finite number: those after it are of infinity or NaN."""
        after = (1 << self.mantissa_bits) if self.has_infinity else 1
        return (1 << self.bits - 1) - after - 1

    @property
    def largest(self) -> float:
        """Largest finite number."""
        exponent, mantissa = divmod(self.largest_bits, 1 << self.mantissa_bits)
        return (1 + mantissa * self.eps) * 2.0 ** (exponent - self.bias)

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
    """A number in a format: the bits of sign, exponent and mantissa, and the value that they have."""

    fields: tuple[str, str, str]
    value: float
    relative_error: float
    fate: Fate


def represent(number: float, into: NumberFormat) -> Representation:
    """Round `number` to a format: to nearest, ties to even.

    Args:
        number: Finite.
        into: The format.
    """
    exact, lowest, digits = abs(number), 1 - into.bias, into.mantissa_bits
    exponent = max(math.frexp(exact)[1] - 1, lowest) if exact else lowest
    units = round(math.ldexp(exact, digits - exponent))  # ties to even
    # the leading 1 of a normal number, and a carry, add to the field of the exponent
    bits = units + ((exponent - lowest) << digits)
    fate: Fate
    if bits > into.largest_bits:
        fate, value = ("overflows", math.inf) if into.has_infinity else ("saturates", into.largest)
        bits = into.largest_bits + into.has_infinity
    else:
        value = math.ldexp(units, exponent - digits)
        inexact: Fate = "rounded" if bits >> digits else "subnormal" if bits else "vanishes"
        fate = "exact" if value == exact else inexact
    if value == exact:
        error = 0.0
    else:
        error = math.inf if math.isinf(value) else float(abs(Fraction(value) / Fraction(exact) - 1))
    sign = "1" if math.copysign(1.0, number) < 0 else "0"
    text = f"{bits:0{into.bits - 1}b}"
    fields = sign, text[: into.exponent_bits], text[into.exponent_bits :]
    return Representation(fields, math.copysign(value, number), error, fate)


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


def formats_lesson(number: float) -> Lesson:
    """Show a number in all formats; the focus doubles it, as far as float64 has it."""
    exponent = math.frexp(number)[1]
    documents = {each.name: _document(number, each) for each in FORMATS}
    return Lesson(
        {"number": number, "formats": documents},
        lambda width, focus: _lines(number, width, focus),
        focuses=range(-1000 - exponent, 1001 - exponent),
    )


def _document(number: float, each: NumberFormat) -> dict[str, Any]:
    return {
        "dtype": each.torch_name or None,
        "bits": each.bits,
        "exponent_bits": each.exponent_bits,
        "mantissa_bits": each.mantissa_bits,
        "max": each.largest,
        "smallest_normal": each.tiny,
        "smallest_subnormal": each.smallest,
        "eps": each.eps,
        "number": asdict(represent(number, each)),
    }


def _lines(number: float, width: int, focus: int) -> list[Line]:
    """Lay out the table of formats, and the bits of the number times 2^focus: these first if narrow."""
    doubled = math.ldexp(number, focus)
    times = f"  ({_short(number)} times 2^{focus})" if focus else ""
    title: Line = [("the number ", "quiet"), (f"{doubled:.9g}", "strong"), (times, "quiet")]
    bits = [title, *(_number_line(doubled, each, width) for each in FORMATS)]
    table = _table(width)
    return [*table, plain(), *bits] if width >= _ROOMY else [*bits, plain(), *table]


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
    sign, exponent, mantissa = there.fields
    fate: tuple[str, Tone] = (there.fate, _TONES.get(there.fate, "bad"))
    bits: list[tuple[str, Tone]] = [
        (f"{into.name:<9}", "quiet"),
        (f"{sign} ", "accent"),
        (f"{exponent:<8} ", "warn"),
        (f"{mantissa:<23}", "accent"),
    ]
    if width < _ROOMY:
        return [*bits, ("  ", ""), fate]
    error = f" {there.relative_error:.0e} off" if there.fate in {"rounded", "subnormal"} else ""
    return [*bits, (f"{there.value:>12.6g}  ", "strong"), fate, (error, "quiet")]


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1 <= abs(value) < 1e6 and value == int(value) else fmt.figure(value)
