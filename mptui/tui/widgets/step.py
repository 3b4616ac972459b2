"""The step panel: how long a step takes, what of it is waiting for data, and how fast images go by."""

from textual.content import Content

from mptui.tui import format as fmt
from mptui.tui.state import RunView
from mptui.tui.widgets.bars import sparkline
from mptui.tui.widgets.panel import Lines, Panel

WAITING = 0.1
"""From this share of a step on, waiting for data is what holds the run back."""

_COMPUTING, _DATA = "$series-1", "$series-2"


class StepPanel(Panel):
    """Where a step goes."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("where a step goes", id=id)

    def lines(self, view: RunView, width: int) -> Lines:
        """Say it in full."""
        speed = view.histories.get("speed", {}).get("images/s")
        trend = sparkline(speed.tail(width).tolist(), width) if speed else ""
        return [
            Content(_time(view) + _speed(view).rjust(width - len(_time(view)))),
            _split_bar(_waiting(view), width),
            _split(view),
            Content.styled(trend, "$series-3"),
            _verdict(view),
        ]


def step_line(view: RunView) -> Content:
    """Say it in one line, for a small screen."""
    return Content.assemble(f"step {_time(view)}   {_speed(view)}   ", _verdict(view))


def _time(view: RunView) -> str:
    return fmt.milliseconds(view.latest.step_time_s if view.latest else None)


def _speed(view: RunView) -> str:
    return f"{fmt.count(view.latest.samples_per_second if view.latest else None)} images/s"


def _waiting(view: RunView) -> float | None:
    return view.latest.data_wait_fraction if view.latest else None


def _split_bar(waiting: float | None, width: int) -> Content:
    if waiting is None:
        return Content.styled("─" * width, "$frame")
    cells = round(min(max(waiting, 0.0), 1.0) * width)
    return Content.assemble(("━" * (width - cells), _COMPUTING), ("━" * cells, _DATA))


def _split(view: RunView) -> Content:
    step_s, waiting = (view.latest.step_time_s if view.latest else None), _waiting(view)
    busy = idle = None
    if step_s is not None and waiting is not None:
        busy, idle = step_s * (1 - waiting), step_s * waiting
    return Content.assemble(
        ("━", _COMPUTING),
        (f" computing {fmt.milliseconds(busy)}   ", "$quiet"),
        ("━", _DATA),
        (f" data {fmt.milliseconds(idle)}", "$quiet"),
    )


def _verdict(view: RunView) -> Content:
    waiting = _waiting(view)
    if waiting is None:
        return Content(fmt.UNKNOWN)
    share = f"{100 * waiting:.0f} %"
    if waiting >= WAITING:
        return Content.styled(f"waiting for data {share} of each step", "$text-warning")
    return Content.styled(f"bound by compute; data {share}", "$quiet")
