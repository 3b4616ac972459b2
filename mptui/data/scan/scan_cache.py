"""On-disk cache of scans, keyed by path, size and modification time of each file."""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mptui.data.core.parts import status_of
from mptui.data.core.types import PixelFormat, Sides
from mptui.data.decode.mask import MaskSurvey
from mptui.data.scan.check_sample import survey_from_json
from mptui.data.scan.process_pool import ScanCancelledError
from mptui.io.user_cache import load_arrays, save_arrays

Keys = npt.NDArray[np.uint64]

_AT_ONCE = 2048
_THREADS = 8
"""A network file system answers many requests in parallel; a local one is hardly slower."""


def file_keys(images: Sequence[str], masks: Sequence[str] | None, should_stop: Callable[[], bool]) -> Keys:
    """Return a key per sample that changes with path, size or time of its files. Reads no content.

    Raises:
        ScanCancelledError: `should_stop` returned True.
    """
    keys = np.empty(len(images), np.uint64)

    def fill(start: int) -> None:
        if not should_stop():
            for row in range(start, min(start + _AT_ONCE, len(images))):
                keys[row] = _key(images[row], None if masks is None else masks[row])

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(fill, range(0, len(images), _AT_ONCE)):
            pass
    if should_stop():
        raise ScanCancelledError
    return keys


def recall(
    path: Path, keys: Keys, *, masked: bool
) -> tuple[Sides, dict[int, MaskSurvey], dict[int, PixelFormat]]:
    """Load the cached sides (0: not cached), surveys and formats of the samples with `keys`."""
    sides = np.zeros((len(keys), 2), np.uint16)
    surveys: dict[int, MaskSurvey] = {}
    formats: dict[int, PixelFormat] = {}
    kept = load_arrays(path)
    try:
        known, known_sides = kept["keys"].astype(np.uint64), kept["sides"].astype(np.uint16)
        if known_sides.shape != (len(known), 2) or not len(known):
            return sides, {}, {}
        by_key = np.argsort(known)
        found = by_key[np.searchsorted(known, keys, sorter=by_key).clip(max=len(known) - 1)]
        same = np.flatnonzero(known[found] == keys)
        if masked:
            texts = dict(json.loads(kept["surveys"].tobytes()))
            surveys = {int(row): survey_from_json(texts[int(found[row])]) for row in same}
        if "formats" in kept:  # version 0.1.0 kept none
            stored = {int(place): PixelFormat(*form) for place, form in json.loads(kept["formats"].tobytes())}
            places = {int(row): int(found[row]) for row in same} if stored else {}
            formats = {row: stored[place] for row, place in places.items() if place in stored}
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, RecursionError):
        return sides, {}, {}
    sides[same] = known_sides[found[same]]
    return sides, surveys, formats


def remember(
    path: Path,
    keys: Keys,
    sides: Sides,
    surveys: Mapping[int, MaskSurvey],
    formats: Mapping[int, PixelFormat],
) -> None:
    """Save the sides, surveys and formats of the usable samples."""
    usable = np.flatnonzero(sides[:, 0])
    texts, stored = (
        [(place, astuple(of[row])) for place, row in enumerate(usable.tolist()) if row in of]
        for of in (surveys, formats)
    )
    save_arrays(
        path,
        {
            "keys": keys[usable],
            "sides": sides[usable],
            "surveys": np.frombuffer(json.dumps(texts).encode(), np.uint8),
            "formats": np.frombuffer(json.dumps(stored).encode(), np.uint8),
        },
    )


def _key(image: str, mask: str | None) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for path in (image,) if mask is None else (image, mask):
        try:
            size, changed_ns = status_of(path)
            facts = f"{size} {changed_ns}"
        except OSError:
            facts = "missing"
        digest.update(os.fsencode(path) + b"\0" + facts.encode() + b"\0")
    return int.from_bytes(digest.digest(), "little")
