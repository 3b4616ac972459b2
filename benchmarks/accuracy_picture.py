"""The accuracy of each side over seconds, of all results of `benchmarks.time_to_accuracy`, as one SVG.

    python -m benchmarks.accuracy_picture > docs/accuracy.svg

A line a side: the medians over the seeds of seconds and of accuracy at each validation.
"""

import json
import statistics
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, parser_of
from mptui.lab.report.pictures import CurveLine, SvgPlot, plot_of
from mptui.registry.tasks import metric_spec
from mptui.runs.view.history import History

WIDTH, HEIGHT = 720, 260
"""Of the curves of one set, in pixels."""
LEFT, TOP, BOTTOM, RIGHT = 60, 60, 50, 20
"""Room for axes, title and legend."""
COLOURS = {
    "mptui": "#0072b2",
    "mptui fast": "#b86e00",
    "mptui speedrun": "#00795a",
    "expert": "#a8437b",
    "timm": "#7d7500",
    "torchvision": "#b04500",
    "fastai": "#6f6f6f",
    "smp": "#5b4bc4",
}
"""The colour of a side, the same in all pictures; legible on light and on dark ground."""


def curve(seeds: list[list[list[float]]], *, colour: int, label: str) -> CurveLine:
    """Returns the line of a side from its curves, one a seed."""
    history = History()
    for validations in zip(*seeds, strict=True):
        seconds, accuracies = zip(*validations, strict=True)
        history.append(statistics.median(seconds), statistics.median(accuracies))
    return CurveLine(label, history, colour)


def panel(name: str, document: dict[str, Any], top: int) -> str:
    """Returns the curves of one set with their axes, from `top` pixels on."""
    metric = document.get("metric", "acc1")
    places = {side: number for number, side in enumerate(COLOURS, 1)}
    lines = [
        curve(seeds, colour=places[side], label=side)
        for side, seeds in sorted(document["curves"].items(), key=lambda each: places[each[0]])
    ]
    spec, asked = metric_spec(metric), document["asked"]
    title = f"{name}: {spec.word or spec.chart} over seconds, {asked['epochs']} epochs at {asked['side']} px"
    plot = plot_of(spec.chart, title, lines, single=False)
    if plot is None:
        raise SystemExit(f"{name} has no curves")
    machine = document["machine"]
    device = machine["gpu"] or f"{machine['cpu']}, {machine['threads']} threads"
    drawn = [text(LEFT, top + 18, title, "b"), text(LEFT, top + TOP + HEIGHT + 38, device, "q")]
    at = float(LEFT)
    for line in lines:
        drawn.append(f'<path class="line c{line.colour}" d="M{at:.0f} {top + 38}h18"/>')
        drawn.append(text(at + 24, top + 42, line.label, ""))
        at += 42 + 7.2 * len(line.label)
    return "".join([*drawn, framed(plot, top + TOP)])


def framed(plot: SvgPlot, top: int) -> str:
    """Returns the curves of a plot at their place, with the labels of both axes."""
    place = f'<svg x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" '
    steps, values = plot.step_labels, plot.value_labels
    drawn = [plot.svg.replace("<svg ", place, 1)]
    for number, label in enumerate(steps):
        x = LEFT + WIDTH * number / (len(steps) - 1)
        drawn.append(text(x, top + HEIGHT + 18, label, "q m" if number else "q"))
    for number, label in enumerate(values):
        drawn.append(text(LEFT - 8, top + 4 + HEIGHT * number / (len(values) - 1), label, "q e"))
    return "".join(drawn)


def text(x: float, y: float, words: str, classes: str) -> str:
    """Returns a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{classes}">{escape(words)}</text>'


def picture(documents: dict[str, dict[str, Any]]) -> str:
    """Returns the SVG of all sets, one below the other."""
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM
    colours = "".join(f".c{number}{{stroke:{colour}}}" for number, colour in enumerate(COLOURS.values(), 1))
    style = (
        "text{font:13px system-ui,sans-serif;fill:#1d242c}.b{font-weight:600}.q{fill:#66717c;font-size:12px}"
        ".m{text-anchor:middle}.e{text-anchor:end}path{vector-effect:non-scaling-stroke;fill:none}"
        f".grid{{stroke:#d9dde1}}.line{{stroke-width:2;stroke-linejoin:round}}{colours}"
    )
    panels = [panel(*each, height * number) for number, each in enumerate(documents.items())]
    size = f'viewBox="0 0 {width} {height * len(panels)}" width="{width}" height="{height * len(panels)}"'
    ground = '<rect width="100%" height="100%" fill="#fbfbf9"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{ground}'
    return f"{head}{''.join(panels)}</svg>\n"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="default: results/accuracy-*.json")
    given = parser.parse_args()
    files = given.results or sorted(RESULTS.glob("accuracy-*.json"))
    documents = {path.stem.removeprefix("accuracy-"): json.loads(path.read_text()) for path in files}
    print(picture(documents), end="")


if __name__ == "__main__":
    main()
