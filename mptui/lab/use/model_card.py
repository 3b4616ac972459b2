"""The model card beside an exported network: what it is, how to use it, how good it is, how it was trained.

The front matter follows the Hugging Face Hub's model cards
(https://huggingface.co/docs/hub/model-cards).
"""

import math
from collections.abc import Sequence
from typing import Any

import yaml

from mptui.events import EpochFinished
from mptui.lab.use.evaluate import Course
from mptui.lab.use.export_formats import BATCH_SIZES, NOT_STATED, Agreement
from mptui.registry.tasks import TASKS
from mptui.text import clean, markdown

CARD, CURVES = "README.md", "curves.svg"

_MOST_CLASSES = 50
_MOST_EPOCHS = 12
_WIDTH, _HEIGHT = 640, 240


def card(
    facts: dict[str, Any], course: Course, agreement: Agreement, *, file: str, usage: str, has_curves: bool
) -> str:
    """Return the model card as Markdown."""
    run = facts["run"]
    parts = [
        _front_matter(facts),
        f"# {markdown(clean(run['name']))}\n\n{_sentence(facts)}",
        "## Use\n\n```python\n" + usage.format(file=file) + "\n```\n\n" + _code(facts) + _input(facts),
        "## Results\n\n" + _results(facts, course),
        "## Training\n\n" + _training(facts, course, has_curves),
        "## Check of this file\n\n" + _check(agreement),
        "## Licences\n\n" + _table(("part", "licence"), list(facts["licences"].items())),
    ]
    return "\n\n".join(parts) + "\n"


def curves(course: Course) -> str | None:
    """Draw training and validation loss by epoch as SVG; None with fewer than two epochs."""
    series = {
        "training": [(e.epoch, e.train_loss) for e in course.epochs],
        "validation": [(e.epoch, e.val_loss) for e in course.epochs if e.val_loss is not None],
    }
    points = [(x, y) for line in series.values() for x, y in line if math.isfinite(y)]
    if len(course.epochs) < 2 or not points:
        return None
    (left, right), (low, high) = _range([x for x, _ in points]), _range([y for _, y in points])

    def place(x: float, y: float) -> str:
        across = 60 + (_WIDTH - 80) * (x - left) / (right - left)
        return f"{across:.1f},{20 + (_HEIGHT - 60) * (high - y) / (high - low):.1f}"

    drawn = []
    for number, (name, line) in enumerate(series.items()):
        shown = " ".join(place(x, y) for x, y in line if math.isfinite(y))
        dash = ' stroke-dasharray="6 4"' if number else ""
        drawn.append(f'<polyline points="{shown}" fill="none" stroke="currentColor"{dash}/>')
        drawn.append(
            f'<text x="{60 + 180 * number}" y="{_HEIGHT - 8}">{name}{" (dashed)" if number else ""}</text>'
        )
    labels = (
        f'<text x="4" y="26">{high:.3g}</text><text x="4" y="{_HEIGHT - 40}">{low:.3g}</text>'
        f'<text x="60" y="{_HEIGHT - 26}">epoch {left:g}</text>'
        f'<text x="{_WIDTH - 80}" y="{_HEIGHT - 26}">{right:g}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        f' font-size="12" fill="currentColor"><title>Loss by epoch</title>{labels}{"".join(drawn)}</svg>\n'
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1)


def _front_matter(facts: dict[str, Any]) -> str:
    entries: dict[str, Any] = {"tags": ["mptui", clean(str(facts["model"]["name"]))]}
    if (licence := facts["licences"]["this file"]) != NOT_STATED:
        entries["license"] = licence.lower()
    if tag := TASKS[facts["task"]].hub_tag:
        entries["pipeline_tag"] = tag
    if facts["metrics"]:
        entries["metrics"] = sorted(facts["metrics"])
    return f"---\n{yaml.safe_dump(entries, sort_keys=True, allow_unicode=True)}---"


def _sentence(facts: dict[str, Any]) -> str:
    run, count = facts["run"], len(facts["classes"])
    classes = f" with {count:,} classes" if count else ""
    weights = "the moving average of its weights" if run["ema"] else "its weights"
    return (
        f"`{clean(facts['model']['name'])}` for {facts['task']}{classes}, trained on"
        f" {markdown(clean(str(run['data'])))}:"
        f" {weights} at step {run['step']:,} ({run['checkpoint']} checkpoint). It computes in float32."
    )


def _code(facts: dict[str, Any]) -> str:
    """Return the code from an image file to the input, without mptui."""
    return f"From an image file to the input, and back:\n\n```python\n{facts['input']['code']}```\n\n"


def _input(facts: dict[str, Any]) -> str:
    rows = [(name, _words(value)) for name, value in facts["input"].items() if name != "code"]
    shown = facts["classes"][:_MOST_CLASSES]
    more = (
        f", … {len(facts['classes']) - len(shown):,} more in the file"
        if len(facts["classes"]) > len(shown)
        else ""
    )
    classes = ", ".join(f"{number} {markdown(clean(name, 60))}" for number, name in enumerate(shown))
    return _table(("input", "value"), rows) + (f"\n\nOutputs, in order: {classes}{more}." if classes else "")


def _results(facts: dict[str, Any], course: Course) -> str:
    validated = course.validated
    if validated is None:
        return "The run was not validated at this checkpoint."
    text = _table(("metric", "value"), [(name, _figure(v)) for name, v in facts["metrics"].items()])
    per_class = validated.per_class
    names = list(next(iter(per_class.values()), {}))[:_MOST_CLASSES]
    if names:
        rows = [(clean(n, 60), *(_figure(values[n]) for values in per_class.values())) for n in names]
        text += f"\n\n{_table(('class', *per_class), rows)}"
    return text


def _training(facts: dict[str, Any], course: Course, has_curves: bool) -> str:
    text = f"Precision of training: {facts['run']['precision']}. Epochs: {len(course.epochs):,}."
    if course.epochs:
        rows = [
            (str(e.epoch), _figure(e.train_loss), _figure(e.val_loss), f"{e.lr:.3g}")
            for e in _first_last_and_between(course.epochs)
        ]
        text += "\n\n" + _table(("epoch", "training loss", "validation loss", "learning rate"), rows)
        if course.validated is not None and course.validated.loss_terms:
            text += f"\n\nLosses are with {markdown(', '.join(course.validated.loss_terms))}."
    return text + (f"\n\n![Loss by epoch]({CURVES})" if has_curves else "")


def _first_last_and_between(epochs: list[EpochFinished]) -> list[EpochFinished]:
    """Return the first, the last and some between."""
    if len(epochs) <= _MOST_EPOCHS:
        return epochs
    last = len(epochs) - 1
    return [epochs[round(i * last / (_MOST_EPOCHS - 1))] for i in range(_MOST_EPOCHS)]


def _check(agreement: Agreement) -> str:
    sizes = ", ".join(map(str, BATCH_SIZES))
    return (
        "The file computes in fp32. It was loaded again and compared with what the run predicts in fp32 "
        f"(`mptui predict --precision fp32`) on {agreement.images:,} real images, in batches of {sizes}:"
        f" outputs differ by {agreement.difference:.3g} at most (accepted: {agreement.tolerance:.3g})."
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(markdown(str(cell)) for cell in line) + " |" for line in lines)


def _words(value: object) -> str:
    return ", ".join(f"{x:.6g}" for x in value) if isinstance(value, list) else str(value)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
