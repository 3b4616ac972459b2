"""The halves of a data set of the person's own. It is a class, or a function, of the person's code.

One that takes `train` is made twice, with True and with False; another is split by `data.val_fraction`.
"""

import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mptui.config.schema import DataConfig
from mptui.data.core.types import Dataset
from mptui.data.formats.assemble import halves
from mptui.data.formats.own.sample import OwnRequest, Part, kind_of_samples, opened
from mptui.data.formats.splits import Rows
from mptui.errors import ConfigError, DataError
from mptui.registry.own_code import allowed, load
from mptui.registry.samples import SampleKind
from mptui.text import clean_name


@dataclass(frozen=True, slots=True)
class OwnSplit:
    """Some samples of a data set of the person's own."""

    folder: str
    code: str
    part: Part
    rows: Rows
    ignore_index: int | None

    def __len__(self) -> int:
        return len(self.rows)

    def request(self, index: int) -> OwnRequest:
        """Return the request for sample `index`."""
        return OwnRequest(self.folder, self.code, self.part, int(self.rows[index]), self.ignore_index)


def kind_of_own(code: str) -> SampleKind:
    """Return the kind of the samples of a data set, by the first one; runs the person's code.

    Raises:
        ConfigError: There is no such data set.
        DataError: It has no samples.
        Exception: Whatever the person's code raises.
    """
    return _kind(allowed(), code)[0]


def open_own(code: str, data: DataConfig, kind: SampleKind, seed: int) -> Dataset:
    """Open a data set of the person's own.

    Args:
        code: `package.module:name`.
        data: The share of validation, the ignored mask value.
        kind: Kind of the samples.
        seed: Selects the validation half if the set has none.

    Raises:
        ConfigError: There is no such data set, or it has no classes.
        DataError: It has too few samples.
        Exception: Whatever the person's code raises.
    """
    folder = allowed()
    chosen: dict[Part, Rows]
    if _has_halves(code):
        chosen = {part: np.arange(_count(folder, code, part)) for part in ("train", "val")}
        train, val = (OwnSplit(folder, code, part, rows, data.ignore_index) for part, rows in chosen.items())
    else:
        count = _count(folder, code, "all")
        as_one_class = np.zeros(count, np.int64)
        both = halves(code, as_one_class, np.arange(count), count, data.val_fraction, seed)
        train, val = (OwnSplit(folder, code, "all", rows, data.ignore_index) for rows in both)
    return Dataset(
        name=code,
        kind=kind,
        classes=_classes(code, opened(folder, code, train.part), kind),
        train=train,
        val=val,
        has_ignored=kind is SampleKind.MASK,  # nobody has counted them
        draws=_kind(folder, code)[1],
    )


@lru_cache(maxsize=8)
def _kind(folder: str, code: str) -> tuple[SampleKind, bool]:
    part: Part = "train" if _has_halves(code) else "all"
    _count(folder, code, part)
    return kind_of_samples(folder, code, part)


def _count(folder: str, code: str, part: Part) -> int:
    count = len(opened(folder, code, part))
    if not count:
        made = "" if part == "all" else f" with train={part == 'train'}"
        raise DataError(f"{code}{made} has no samples", hint="check its __len__")
    return count


def _has_halves(code: str) -> bool:
    make = load(code)
    return callable(make) and "train" in inspect.signature(make).parameters


def _classes(code: str, dataset: Any, kind: SampleKind) -> tuple[str, ...]:  # noqa: ANN401 - the person's
    names = tuple(clean_name(str(name)) for name in getattr(dataset, "classes", ()))
    if not names and kind is not SampleKind.IMAGE:
        hint = "set `classes` to the names of the classes, in the order of their numbers"
        raise ConfigError(f"{code} has no classes", hint=hint)
    return names
