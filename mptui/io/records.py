"""Type-checked readers of JSON values, so that a damaged file can't stop its reader.

A reader takes a JSON value and returns it, or raises TypeError, ValueError, KeyError or OverflowError. Where
a float is expected, "nan", "inf" and "-inf" are numbers.
"""

import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

Read = Callable[[Any], Any]

_T = TypeVar("_T")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LAST_TIME = 253_402_300_800.0  # the year 10000, the end of datetime's range
_MOST = 2**63


def reader_of(kind: Any) -> Read:  # noqa: ANN401 - any annotation
    """The reader of str, int, bool, float, None, literals, dataclasses, list, and dict with text for keys."""
    if isinstance(kind, UnionType):
        (inner,) = (reader_of(part) for part in get_args(kind) if part is not NoneType)
        return lambda value: None if value is None else inner(value)
    if get_origin(kind) is Literal:
        return lambda value: get_args(kind)[get_args(kind).index(value)]
    if get_origin(kind) is list:
        item = reader_of(get_args(kind)[0])
        return lambda value: [item(each) for each in _of(list, value)]
    if get_origin(kind) is dict:
        item = reader_of(get_args(kind)[1])
        return lambda value: {key: item(each) for key, each in _of(dict, value).items()}
    if isinstance(kind, type) and is_dataclass(kind):
        parts = {part.name: reader_of(part.type) for part in fields(kind)}
        return lambda value: kind(**{name: read(_of(dict, value)[name]) for name, read in parts.items()})
    return _READERS[kind]


def as_number(value: object) -> float | None:
    """Return a finite number; None for any other value, as for an integer beyond a float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_time(value: object) -> float:
    """Read seconds since the epoch within datetime's range."""
    seconds = _as_float(value)
    if not 0 <= seconds < _LAST_TIME:
        raise ValueError("not a valid time")
    return seconds


def _as_float(value: object) -> float:
    if type(value) is float:
        return value
    return _NON_FINITE[value] if isinstance(value, str) else float(_of(int, value))


def _as_int(value: object) -> int:
    number = _of(int, value)
    if not -_MOST <= number < _MOST:
        raise ValueError("a number beyond 64 bits")
    return number


def _of(kind: type[_T], value: object) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


_READERS: dict[object, Read] = {
    str: lambda value: _of(str, value),
    bool: lambda value: _of(bool, value),
    int: _as_int,
    float: _as_float,
}
