"""List of the samples in a packed file: where the bytes of each lie, its name and its label.

A list is cached, as a shard has no table of contents: to find its images, all their headers are read.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mptui.data.core.parts import status_of
from mptui.data.core.types import Problem
from mptui.data.formats.splits import PathTable
from mptui.errors import DataError
from mptui.io.user_cache import cache_folder, load_arrays, save_arrays
from mptui.text import clean, clean_name

PLACE = np.dtype([("at", "<i8"), ("size", "<i8"), ("mask_at", "<i8"), ("mask_size", "<i8"), ("label", "<i4")])
"""Where the image and the mask of a sample lie in bytes, and the place of its label in `Listing.labels`."""
LONGEST_LABEL = 1000
"""Longest text of a label in characters."""

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Listing:
    """The samples of one packed file."""

    file: str
    """The file with the bytes of the images."""
    title: str
    """The packed file in messages; another than `file` where the images were unpacked."""
    names: Sequence[str]
    """Name of each sample; empty: it has none but its number."""
    places: npt.NDArray[np.void]
    """[N] of `PLACE`."""
    labels: tuple[str, ...]
    """The different labels, as text; numbers are decimal."""
    classes: tuple[str, ...] | None = None
    """Names of the classes 0, 1, …, where the file declares them."""
    problems: tuple[Problem, ...] = ()
    """Samples that can't be used."""
    warnings: tuple[str, ...] = ()
    from_text: int = 0
    """Number of samples whose label is a text beside the image, which may be a caption."""


@dataclass(slots=True)
class ListingBuilder:
    """Collects the samples of one packed file."""

    title: str
    names: list[str] = field(default_factory=list)
    places: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    from_text: int = 0
    """See `Listing`."""
    _labels: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, image: tuple[int, int], mask: tuple[int, int] | None, label: str | None) -> None:
        """Add a sample: offset and size of its image and its mask in bytes, and its label."""
        code = -1 if label is None else self._labels.setdefault(label, len(self._labels))
        self.names.append(name)
        self.places.append((*image, *(mask or (0, 0)), code))

    def refuse(self, name: str, reason: str) -> None:
        """Record that a sample can't be used."""
        self.problems.append(Problem(f"{self.title}:{name}", reason))

    def listing(
        self, file: str, classes: tuple[str, ...] | None = None, warnings: tuple[str, ...] = ()
    ) -> Listing:
        """Return the list."""
        places = np.array(self.places, PLACE)
        names = PathTable(self.names)
        return Listing(
            file,
            self.title,
            names,
            places,
            tuple(self._labels),
            classes,
            tuple(self.problems),
            warnings,
            self.from_text,
        )


def cache_of(path: str, folder: str) -> Path:
    """Return the folder of the cache for what was found in a packed file."""
    digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()
    return cache_folder() / folder / digest[:32]


def recalled(place: Path, path: str, key: Mapping[str, Any]) -> Listing | None:
    """Return the cached list of a packed file; None if there is none, or the file has changed since.

    Args:
        place: File of the cache.
        path: The packed file.
        key: What else the list depends on.
    """
    kept = load_arrays(place)
    try:
        facts = json.loads(kept["facts"].tobytes())
        if facts["key"] != _key(path, key) or kept["places"].dtype != PLACE:
            return None
        names = PathTable.restored(kept["names"], kept["ends"])
        return Listing(
            str(facts["file"]),
            path,
            names,
            kept["places"],
            tuple(facts["labels"]),
            None if facts["classes"] is None else tuple(facts["classes"]),
            tuple(Problem(name, reason) for name, reason in facts["problems"]),
            tuple(facts["warnings"]),
            int(facts["from_text"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def remember(place: Path, path: str, key: Mapping[str, Any], listing: Listing) -> None:
    """Save a list in the cache."""
    facts = {
        "key": _key(path, key),
        "file": listing.file,
        "labels": listing.labels,
        "classes": listing.classes,
        "problems": [(problem.path, problem.reason) for problem in listing.problems],
        "warnings": listing.warnings,
        "from_text": listing.from_text,
    }
    assert isinstance(listing.names, PathTable)
    names, ends = listing.names.arrays()
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    save_arrays(place, {"facts": text, "names": names, "ends": ends, "places": listing.places})


def damaged(path: str, why: object) -> DataError:
    """Return the error for a packed file that can't be read."""
    return DataError(
        f"{clean_name(path)}: damaged: {clean(str(why), 200)}",
        hint="Copy or download it again, or remove it.",
    )


def _key(path: str, more: Mapping[str, Any]) -> list[Any]:
    return [_VERSION, *status_of(path), dict(more)]
