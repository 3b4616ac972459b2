"""Figures, tables and lists in words, as the page has them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

Ratio = Mapping[str, float]
"""`median`, `min` and `max`, as `benchmarks.common.ratios` has them."""

NETWORKS = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "vit": "ViT-B/16",
    "unet": "U-Net",
    "tiny": "tiny network",
    "tiny-fp16": "tiny network, FP16",
    "python": "loop bound by Python",
}
"""How the networks of the results are called."""


def network(name: str) -> str:
    """What a network of the results is called."""
    return NETWORKS.get(name, name)


def capital(words: str) -> str:
    """As a line or a heading begins."""
    return words[0].upper() + words[1:]


def figure(value: float) -> str:
    """A number with three digits that count."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def percent(share: float) -> str:
    """A share of 1 in percent."""
    return f"{100 * share:.2g} %" if abs(share) < 0.1 else f"{100 * share:.0f} %"


def bounds(median: float, low: float, high: float) -> str:
    """A median, with the lowest and the highest."""
    return f"{figure(median)} ({figure(low)} to {figure(high)})"


def spread(values: Sequence[float]) -> str:
    """The median of rounds, with the lowest and the highest of them."""
    if len(values) == 1:
        return figure(values[0])
    return bounds(statistics.median(values), min(values), max(values))


def ratio(found: Ratio) -> str:
    """A ratio of rounds."""
    return bounds(found["median"], found["min"], found["max"])


def interval(found: Mapping[str, float | None] | None) -> str:
    """A ratio with its interval, as `mptui bench` and `mptui tune` have it."""
    if found is None or found["median"] is None:
        return "–"
    if found["low"] is None or found["high"] is None:
        return f"{figure(found['median'])} (one round)"
    return bounds(found["median"], found["low"], found["high"])


def rounds(count: int) -> str:
    return f"{count:,} round{'' if count == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """Names as a sentence lists them."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; what is below the first heading are names, the rest figures."""
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def paragraph(*sentences: str) -> str:
    """Sentences, those that say nothing left out."""
    return " ".join(sentence for sentence in sentences if sentence)


def beside_one(found: Ratio) -> str:
    """Whether a ratio is above 1, below it, or a tie: one whose rounds lie on both sides of 1."""
    if found["min"] > 1:
        return "more"
    return "less" if found["max"] < 1 else "a tie"


def standing(ratios: Mapping[str, Ratio]) -> str:
    """Whom `mptui run` is ahead of, and whom behind."""
    told = {
        "more": "ahead of {} in every round",
        "a tie": "level with {}, with rounds on both sides of 1",
        "less": "behind {} in every round",
    }
    sides = {how: [name for name, found in ratios.items() if beside_one(found) == how] for how in told}
    parts = [words.format(listed(sides[how])) for how, words in told.items() if sides[how]]
    return f"`mptui run` is {'; '.join(parts)}."
