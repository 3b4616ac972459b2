"""The numbers of now: the latest values of a chart and its best, as many as fit into a line."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mptui import text as fmt
from mptui.registry.tasks import DEFAULT_TASK, TASKS, VAL_LOSS, metric_word
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import LOSS, TRAIN, VALIDATION, is_percent

_APART = "   "
_FIGURE = 5
"""Cells of the usual figure, so that what follows one that counts stays in place."""

_VALIDATION, _BEST, _TRAIN, _EPOCH = range(4)
"""The order in which the numbers of a metric are left out, from the last on."""

_LEAVE_LOSS = {_VALIDATION: 6, _BEST: 7, _TRAIN: 2, _EPOCH: 8}
"""The same of the loss where it stands after the metric: that of training stays longest."""


@dataclass(frozen=True, slots=True)
class Number:
    """A part of a line.

    Attributes:
        words: What it says.
        leave: Its place among those that can be left out, the largest first; 0: it stays.
        before: What parts it from the one before.
    """

    words: str
    leave: int = 0
    before: str = " · "


def primary_chart(view: RunView) -> str:
    """Return the chart of the primary metric; for the loss, that of the task's first metric."""
    name, primary = (DEFAULT_TASK, "") if view.started is None else (view.started.task, view.started.primary)
    return TASKS.get(name, TASKS[DEFAULT_TASK]).chart(primary)


def named(view: RunView, chart: str) -> str:
    """Return the name of a chart: the word of its metric if it has only one."""
    words = list(dict.fromkeys(metric_and_role(label)[0] for label in view.histories.get(chart, {})))
    return words[0] if len(words) == 1 and words[0] and _is_metric(view, chart) else view.title_of(chart)


def best_word(view: RunView, chart: str) -> str:
    """Return what the best of a chart is: its lowest loss, its best, or its value at the best epoch."""
    if chart == LOSS:
        return "lowest"
    return "best" if chart == primary_chart(view) and _primary(view) != VAL_LOSS else "at the best"


def numbers_of(view: RunView, chart: str) -> list[Number]:
    """Return the latest value of each curve of a chart, with the best after the first metric."""
    curves = [(*metric_and_role(label), label) for label in view.histories.get(chart, {})]
    words = list(dict.fromkeys(word for word, _, _ in curves))
    words.sort(key=lambda word: word != metric_word(_primary(view)))
    numbers: list[Number] = []
    for place, word in enumerate(words):
        own = [(role, label) for each, role, label in curves if each == word]
        several = f"{word} " if len(words) > 1 else ""
        for role, label in sorted(own, key=lambda each: each[0] != TRAIN):
            said = _value(view, chart, label).rjust(_FIGURE if role == TRAIN else 0)
            name = {VALIDATION: "val "}.get(role, f"{role} " if role else "")
            leave = _VALIDATION if role == VALIDATION or len(own) == 1 else _TRAIN
            leave += (_EPOCH + 1) * place
            numbers.append(Number(_united(several + name, said, word), leave))
        if not place:
            numbers += _best(view, chart)
    return numbers


def line_of_numbers(view: RunView, width: int) -> list[Number]:
    """Return the numbers of the primary metric and of the loss that fit into `width` cells."""
    chart = primary_chart(view)
    metric = _headed(named(view, chart), numbers_of(view, chart))
    loss = _headed(LOSS, numbers_of(view, LOSS), _APART if metric else "")
    return fitted([*metric, *(replace(each, leave=_LEAVE_LOSS.get(each.leave, 9)) for each in loss)], width)


def fitted(numbers: Sequence[Number], width: int) -> list[Number]:
    """Return those that fit into `width` cells; a figure is left out, never cut."""
    shown = list(numbers)
    while shown and sum(len(each.before) + len(each.words) for each in shown) > width:
        last = max(reversed(shown), key=lambda each: each.leave)
        if not last.leave:
            break
        shown.remove(last)
    return shown


def _headed(name: str, numbers: list[Number], before: str = "") -> list[Number]:
    """Put a name before the first number."""
    first = [replace(each, words=f"{name} {each.words}", before=before) for each in numbers[:1]]
    return first + numbers[1:]


def _best(view: RunView, chart: str) -> list[Number]:
    best = view.best.get(chart)
    if best is None or best.step > view.step:
        return []
    words = f"{best_word(view, chart)} {_said(chart, best.value)}"
    return [Number(words, _BEST), Number(f"in epoch {best.epoch}", _EPOCH, " ")]


def _primary(view: RunView) -> str:
    return "" if view.started is None else view.started.primary


def _is_metric(view: RunView, chart: str) -> bool:
    return any(label.endswith((TRAIN, VALIDATION)) for label in view.histories.get(chart, {}))


def metric_and_role(label: str) -> tuple[str, str]:
    """Return the metric of a curve, and whether it is of train or validation; "": of neither."""
    role = next((each for each in (TRAIN, VALIDATION) if label.endswith(each)), "")
    return label.removesuffix(role).rstrip(), role


def _value(view: RunView, chart: str, label: str) -> str:
    history = view.histories[chart][label]
    value = history.at(view.step) if view.is_past else history.last if history.version else None
    return _said(chart, value)


def _said(chart: str, value: float | None) -> str:
    return fmt.percent(value) if is_percent(chart) else fmt.figure(value)


def _united(name: str, said: str, word: str) -> str:
    """Join a name and a figure; a unit such as images/s stands after it."""
    return f"{said} {word}" if "/" in word else f"{name}{said}"
