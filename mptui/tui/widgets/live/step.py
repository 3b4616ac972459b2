"""The step panel: time per step, its parts, and the bottleneck of the run."""

from textual.content import Content

from mptui import format as fmt
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.panel import Lines, Panel

_BARS = {
    "forward": ("$series-1", "█"),
    "backward": ("$series-3", "▒"),
    "optimizer": ("$series-4", "━"),
    "data": ("$series-2", "░"),
    "rest": ("$quiet", "─"),
}
"""Shown parts in the order of the bar -> their colours, and their signs where there are no colours."""

_REST = ("copy", "wait", "logging", "saving", "other")
_WHOLE = 5
"""Number of lines of the complete panel."""

_HOURS = 1e6
"""Seconds from which the time of a part is invalid."""

_VERDICTS = {
    "compute": "bound by compute",
    "data": "waiting for data {share}",
    "copy": "bound by batch transfer: {share} of each step",
    "launch": "bound by kernel launches: many small operations",
    "optimizer": "bound by the optimizer: {share} of each step",
    "saving": "bound by saving: {share} of the time",
    "wait": "waiting for other ranks {share}",
}


class StepPanel(Panel):
    """Shows the time per step, its parts, and the bottleneck."""

    DEFAULT_CSS = "StepPanel { height: 7; }"

    def __init__(self) -> None:
        super().__init__("time per step")

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the panel, in four lines if five don't fit."""
        parts = _parts(view)
        speed = _steps_speed(view) + _speed(view)
        time = Content(_time(view) + speed.rjust(width - len(_time(view))))
        signed = self.app.no_color
        bar, legend = _bar(parts, width, signed), _legend(parts, tuple(_BARS), signed)
        rows = ("forward", "backward"), ("optimizer", "data", "rest")
        legends = [_legend(parts, names, signed) for names in rows]
        verdict = Content("; ").join(_verdict(view))
        if self.content_size.height >= _WHOLE:
            return [time, bar, *legends, verdict]
        if legend.cell_length <= width:
            return [time, bar, legend, verdict]
        return [time, *legends, verdict]


def step_line(view: RunView) -> list[Content]:
    """Return parts of one line for a small screen."""
    return [Content(f"step {_time(view):>8}"), Content(_speed(view)), *_verdict(view)]


def _seconds(view: RunView) -> float | None:
    """Return the time per step, for the same steps as its parts."""
    if parts := _parts(view):
        return sum(parts.values())
    return view.latest.step_time_s if view.latest else None


def _time(view: RunView) -> str:
    return fmt.milliseconds(_seconds(view))


def _speed(view: RunView) -> str:
    return f"{fmt.count(view.latest.samples_per_second if view.latest else None):>6} images/s"


def _steps_speed(view: RunView) -> str:
    seconds = _seconds(view)
    return f"{fmt.figure(1 / seconds):>4} steps/s  " if seconds else ""


def _parts(view: RunView) -> dict[str, float]:
    """Return the seconds of each shown part; empty before the first measurement."""
    split = view.latest.split if view.latest else {}
    if not split or not all(0 <= seconds < _HOURS for seconds in split.values()):
        return {}
    shown = {part: split.get(part, 0.0) for part in _BARS if part != "rest"}
    return {**shown, "rest": sum(split.get(part, 0.0) for part in _REST)}


def _bar(parts: dict[str, float], width: int, signed: bool) -> Content:
    total = sum(parts.values())
    if not total:
        return Content.styled("─" * width, "$frame")
    ends, passed = [], 0.0
    for seconds in parts.values():
        passed += seconds
        ends.append(round(passed / total * width))
    spans = zip(_BARS.values(), [0, *ends], ends, strict=False)
    shown = [((sign if signed else "━") * (end - start), tone) for (tone, sign), start, end in spans]
    return Content.assemble(*shown)


def _legend(parts: dict[str, float], names: tuple[str, ...], signed: bool) -> Content:
    told: list[tuple[str, str]] = []
    for name in names:
        seconds = parts.get(name)
        figure = fmt.UNKNOWN if seconds is None else f"{1000 * seconds:,.{0 if seconds >= 0.0995 else 1}f}"
        tone, sign = _BARS[name]
        told += [(sign if signed else "━", tone), (f" {name} {figure:>4} ", "$quiet")]
    return Content.assemble(*told[:-1], (f"{told[-1][0].rstrip()} ms", "$quiet"))


def _verdict(view: RunView) -> list[Content]:
    """Describe the bottleneck, and the rate that is possible without it."""
    latest = view.latest
    if latest is None or latest.bound_by not in _VERDICTS:
        return [Content(fmt.UNKNOWN)]
    total = sum(latest.split.values())
    share = latest.split.get(latest.bound_by, 0.0) / total if total else 0.0
    words = [_VERDICTS[latest.bound_by].format(share=fmt.percent(share))]
    other = {"data": "steps", "compute": "data"}.get(latest.bound_by, "")
    if (rate := latest.ceilings.get(other)) is not None:
        words.append(f"{other} could {fmt.count(rate)}/s")
    tone = "$quiet" if latest.bound_by == "compute" else "$text-warning"
    return [Content.styled(each, tone) for each in words]
