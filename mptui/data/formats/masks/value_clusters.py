"""Joins grey values of masks that were saved with loss, or scaled with smoothing, to the classes they were.

Such masks hold many values: those of the classes, values near them (compression), and values between them at
edges (smoothing). A class has *even* pixels, whose neighbours are all alike, and the others have few. Values
are joined only if the classes lie far apart and everything else is near one of them or at an edge; class
numbers such as 0 to 20 never are, as they lie side by side.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mptui.data.decode.mask import MaskSurvey
from mptui.text import ranges

_EVEN = 0.05
"""Share of a class's pixels that are even, at least."""
_RARE = 0.001
"""Share of all even pixels that a class has, at least."""
_NEAR = 8
"""Values this near to a class come from compression."""
_GAP, _SPAN = 24, 32
"""Smallest distance between two classes, and largest spread of one."""
_MOST = 8
_AT_EDGES = 0.6
_FEW_EDGES = 3
_HALF = 128
_HIGHEST = 255


@dataclass(frozen=True, slots=True)
class Clusters:
    """Classes of grey values: the mean value of each, and the class of each value from 0 to 255."""

    values: tuple[int, ...]
    of_value: tuple[int, ...]

    def described(self, names: Sequence[str], values: Sequence[int]) -> str:
        """Say which of the values that occur are which class."""
        parts = []
        for place, name in enumerate(names):
            own = [value for value in values if self.of_value[value] == place]
            parts.append(
                f"{ranges(own)[0].split('-')[0]}-{own[-1]} → {name}" if len(own) > 1 else f"{own[0]} → {name}"
            )
        return f"mask values {', '.join(parts)}: saved with loss or smoothed once"


def find_clusters(surveys: Sequence[MaskSurvey]) -> Clusters | None:
    """Find the classes that the values of grey masks were; None: each value is a class, or it is unclear.

    Args:
        surveys: The survey of each mask; all are grey, with values up to 255.
    """
    total, even, between = _pixels(surveys)
    least = _RARE * even.total()
    cores = sorted(value for value in even if even[value] >= max(_EVEN * total[value], least, 1))
    lossy = any(survey.lossy for survey in surveys)
    # All values at first: those of compression lie near those of the classes, and none lie between.
    return _clusters(sorted(total), total, between, lossy) or _clusters(cores, total, between, lossy)


def _clusters(
    cores: Sequence[int], total: Counter[int], between: Counter[int], lossy: bool
) -> Clusters | None:
    """Return the classes around some values, or None if they are not clear."""
    clusters = _runs(cores)
    others = [value for value in total if value not in set(cores)]
    if not 2 <= len(clusters) <= _MOST or len(total) == len(clusters):
        return None
    near = {
        place: [value for value in others if cluster[0] - _NEAR <= value <= cluster[-1] + _NEAR]
        for place, cluster in enumerate(clusters)
    }
    far = [value for value in others if not any(value in values for values in near.values())]
    if sum(between[value] for value in far) < _AT_EDGES * sum(total[value] for value in far):
        return None
    spread = any(len(cluster) > 1 for cluster in clusters)
    if spread and not all(len(cluster) > 1 or near[place] for place, cluster in enumerate(clusters)):
        return None  # class numbers side by side, and one far from them
    if not lossy and (max(total) < _HALF or not (spread or len(others) >= _FEW_EDGES)):
        return None
    gaps = [after[0] - before[-1] for before, after in pairwise(clusters)]
    spans = [cluster[-1] - cluster[0] for cluster in clusters]
    if min(gaps) < max(_GAP, 2 * max(spans)) or max(spans) > _SPAN:
        return None
    cuts = [(before[-1] + after[0] + 1) // 2 for before, after in pairwise(clusters)]
    of_value = tuple(sum(value >= cut for cut in cuts) for value in range(_HIGHEST + 1))
    return Clusters(tuple(_mean(cluster, total) for cluster in clusters), of_value)


def _mean(values: Sequence[int], total: Counter[int]) -> int:
    """Return the mean of the values of a class; at an end of the range, where values are clipped, the end."""
    if values[0] == 0 or values[-1] == _HIGHEST:
        return 0 if values[0] == 0 else _HIGHEST
    return round(sum(value * total[value] for value in values) / sum(total[value] for value in values))


def look_smoothed(surveys: Sequence[MaskSurvey]) -> bool:
    """Whether values occur that are at edges alone, or side by side as loss makes them."""
    total, even, between = _pixels(surveys)
    edges = [
        value
        for value in total
        if even[value] < _EVEN * total[value] and between[value] > _AT_EDGES * total[value]
    ]
    lossy = any(survey.lossy for survey in surveys)
    beside = sum(value + 1 in total for value in total)
    return len(edges) >= _FEW_EDGES or (lossy and beside >= _FEW_EDGES)


def _pixels(surveys: Sequence[MaskSurvey]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return the pixels of each value in all masks: all, even ones, and those between their neighbours."""
    total, even, between = Counter[int](), Counter[int](), Counter[int]()
    for survey in surveys:
        looked_at = survey.even or survey.counts
        for place, (code, count) in enumerate(zip(survey.codes, survey.counts, strict=True)):
            total[code] += count
            even[code] += looked_at[place]
            between[code] += survey.between[place] if survey.between else 0
    return total, even, between


def _runs(values: Sequence[int]) -> list[list[int]]:
    """Group ascending values with small gaps."""
    groups: list[list[int]] = []
    for value in values:
        if groups and value - groups[-1][-1] <= _NEAR - 2:
            groups[-1].append(value)
        else:
            groups.append([value])
    return groups
