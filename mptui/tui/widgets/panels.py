"""The panels of the live screen, and the table that says what each needs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from textual.content import Content

from mptui import text as fmt
from mptui.events import DeviceSample, ImagesGenerated, RunFinished
from mptui.registry.names import LOSS_SCALED
from mptui.runs.view.numbers import line_of_numbers, numbers_of, primary_chart
from mptui.runs.view.run_view import RunView
from mptui.runs.view.specs import BOUND
from mptui.runs.view.words import GRADIENT_NORM, Tone, next_command, steps_words, time_words
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.terminal.graphics import HALF_BLOCKS, Graphics, graphics_of, half_blocks, on_whole_cells
from mptui.tui.widgets.basics import (
    FIGURE,
    LABEL,
    Lines,
    Panel,
    bar,
    busy,
    busy_with_own,
    clock,
    gauge,
    heat,
    joined,
    power,
    precision_words,
    row,
    share,
    throttle,
    words_of_numbers,
)

if TYPE_CHECKING:
    from PIL.Image import Image


# The mixed-precision panel: number format and loss scaling
# ---------------------------------------------------------

_MUCH = 0.01
"""Fraction of lost gradients from which it is shown as a warning."""
_SCALE_TOP = 24
"""The gauge spans loss scales from 2^0 to 2^24, the largest that torch's scaler grows to in practice."""


class PrecisionPanel(Panel):
    """AMP or fp32, the loss scale on a log2 gauge, skipped steps, and the gradient norm."""

    DEFAULT_CSS = "PrecisionPanel { height: 9; }"

    def __init__(self, ascii_only: bool) -> None:
        super().__init__("mixed precision")
        self._ascii_only = ascii_only

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the panel."""
        latest = view.latest
        norm = view.histories.get(GRADIENT_NORM, {}).get("norm")
        trend = fmt.sparkline(norm.tail(width - 22).tolist()) if norm else ""
        return [
            Content.assemble(
                precision_words(view.precision, self._ascii_only, on=" on  "), "   ", _tf32(view)
            ),
            Content.styled(_speed_settings(view), "$quiet"),
            row("loss scale", *_loss_scale(view, width)),
            row("skipped", fmt.count(view.skipped_steps) if latest else "", _skip_rate(view)),
            row(
                "grad norm",
                fmt.figure(latest.grad_norm) if latest else "",
                Content.styled(trend, "$train-curve"),
            ),
            row("lr", fmt.figure(latest.lr) if latest else ""),
            Content.assemble(("health      ", "$quiet"), _health(view)),
        ]


def _tf32(view: RunView) -> Content:
    if view.started is None:
        return Content("")
    return Content.styled("TF32 on" if view.started.tf32 else "TF32 off", "$quiet")


def _speed_settings(view: RunView) -> str:
    run = view.started
    if run is None:
        return ""
    layout = "channels last" if run.channels_last else "channels first"
    return f"{layout} · " + (f"compiled ({run.compile_mode})" if view.compiled else "not compiled")


def _loss_scale(view: RunView, width: int) -> tuple[str, Content]:
    scale = view.latest.loss_scale if view.latest else None
    if scale is None:
        needs_none = view.precision and view.precision not in LOSS_SCALED
        words = f"not needed in {view.precision}" if needs_none else ""
        return fmt.UNKNOWN if words or view.latest else "", Content.styled(words, "$quiet")
    power = math.log2(scale) if scale > 0 else 0.0
    moved = view.loss_scale
    moves = f"  ↑{fmt.short(moved.growths)} ↓{fmt.short(moved.backoffs)}" if moved else ""
    room = max(4, width - 29 - len(moves))
    gauge = bar(power / _SCALE_TOP, room, "$text-error" if power < 1 else "$text-accent")
    return fmt.count(scale), Content.assemble(gauge, f" 2^{power:.0f}", (moves, "$quiet"))


def _skip_rate(view: RunView) -> Content:
    if not view.step or view.latest is None:
        return Content("")
    share = f"{100 * view.skipped_steps / view.step:.2f} %"
    if view.skip_streak > 1:
        return Content.styled(f"{share}, {view.skip_streak:,} in a row", "$text-error")
    return Content.styled(f"of {view.step:,}  {share}", "$text-warning" if view.skipped_steps else "$quiet")


def _health(view: RunView) -> Content:
    """Describe the last numerics probe, for the run's precision."""
    seen = view.numerics
    if seen is None:
        return Content.styled(fmt.UNKNOWN if view.latest else "", "$quiet")
    if view.precision not in LOSS_SCALED:  # the same range as fp32
        return Content.styled("✓ no underflow", "$text-success")
    faults = seen.others_at_fault + sum(bool(layer.fault) for layer in seen.layers)
    if faults:
        return Content.styled(f"✗ {faults:,} layers don't fit fp16 (n)", "$text-error")
    if seen.lost:
        tone = "$text-warning" if seen.lost >= _MUCH else "$text-success"
        share = fmt.percent(seen.lost) if seen.lost >= 0.001 else "under 0.1 %"
        sign = "▲" if seen.lost >= _MUCH else "✓"
        return Content.styled(f"{sign} {share} of gradients lost", tone)
    return Content.styled("✓ no underflow", "$text-success")


# The device panel: utilisation, memory, power, temperature, throttling
# ---------------------------------------------------------------------


class DevicePanel(Panel):
    """The current load of the device; the title is its name."""

    DEFAULT_CSS = "DevicePanel { height: 7; }"

    def __init__(self) -> None:
        super().__init__("device")

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the panel."""
        self.retitle(_title(view))
        room = width - LABEL - FIGURE
        if (sample := view.device) is None:
            names = ("busy", "memory", "", *(["power"] if _is_gpu(view) else []))
            return [gauge(name, None, "", room) if name else Content("") for name in names]
        lines = [
            gauge("busy", sample.utilisation, busy(sample), room),
            gauge(
                "memory", share(sample.memory_used, sample.memory_total), fmt.size(sample.memory_used), room
            ),
            Content.styled(_memory(sample), "$quiet"),
        ]
        if sample.power_w is not None:  # a CPU and a slice of a GPU have no sensor
            lines.append(gauge("power", share(sample.power_w, sample.power_limit_w), power(sample), room))
        return [*lines, _state(sample)]


def device_line(view: RunView) -> list[Content]:
    """Return parts of one line for a small screen; throttling is never omitted."""
    sample = view.device or DeviceSample(name="")
    total = f" of {fmt.size(sample.memory_total)}" if sample.memory_total else ""
    measured = (
        (sample.utilisation, f"busy {' ' * (5 - len(busy(sample)))}{busy_with_own(sample)}"),
        (sample.memory_used, f"{fmt.size(sample.memory_used)}{total}"),
        (sample.power_w, power(sample)),
        (sample.temperature_c, heat(sample)),
    )
    figures = [Content(words) for value, words in measured if value is not None]
    figures.insert(1 if sample.throttle else len(figures), throttle(sample))
    return figures


def _title(view: RunView) -> str:
    if view.started is None:
        return view.device.name if view.device and view.device.name else "device"
    return f"{view.started.device}  {view.started.device_name}"


def _is_gpu(view: RunView) -> bool:
    return view.started is not None and view.started.device.partition(":")[0] != "cpu"


def _state(sample: DeviceSample) -> Content:
    """Format temperature, clock and throttling; for a CPU, which has none of these, the load by owner."""
    if sample.utilisation is not None and sample.utilisation_own is not None:
        others = max(0.0, sample.utilisation - sample.utilisation_own)
        return Content(
            f"busy with: ours {100 * sample.utilisation_own:3.0f} %   others {100 * others:3.0f} %"
        )
    return Content.assemble(f"{heat(sample)}   {clock(sample)}   ", throttle(sample))


def _memory(sample: DeviceSample) -> str:
    used, own, total = sample.memory_used, sample.memory_own, sample.memory_total
    others = used - own if used is not None and own is not None else None
    free = total - used if used is not None and total is not None else None
    return f"  ours {fmt.gib(own):>4}   others {fmt.gib(others):>4}   free {fmt.gib(free):>5} GiB"


# The panels of the live screen in one line each, for a narrow screen
# -------------------------------------------------------------------


class Folded(Panel):
    """Shows the numbers of now, and one line for each panel that has one, without a frame."""

    DEFAULT_CSS = "Folded { border: none; padding: 0 2; }"

    def __init__(self, *, ascii_only: bool = False, id: str | None = None) -> None:
        super().__init__("", id=id)
        self._ascii_only = ascii_only
        self._folded = [spec.folded for spec in PANELS.values() if spec.folded is not None]
        self.styles.height = 1 + len(self._folded)

    def lines(self, view: RunView, width: int) -> Lines:
        """Return the numbers, and the line of each panel."""
        numbers = words_of_numbers(line_of_numbers(view, width))
        return [numbers, *(joined(folded(view, self._ascii_only), width) for folded in self._folded)]


# The closing panel: how a run ended, over all its sessions
# ---------------------------------------------------------


_ENDING = 14


class ClosingPanel(Panel):
    """The end of a run, over all its sessions: steps, time and its bound, best and last, what to do next."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("end of the run", id=id)

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the panel; empty while the run goes on."""
        ended = view.finished
        if ended is None:
            return []
        *_, best = view.branch().words
        steps = f"{steps_words(view.step, view.total_steps)} steps"
        last = [each.words for each in numbers_of(view, primary_chart(view)) if "val " in each.words][:1]
        bound = [each.plain for each in _verdict(view)[:1] if each.plain]
        lines = [
            _said(
                ended.status.replace("_", " "),
                ", ".join([steps, f"{view.skipped_steps:,} skipped", *_returns(view)]),
            ),
            _said("time", ", ".join([time_words(ended.seconds, ended.total_s), *bound])),
            _said("best", ", ".join([best, *(f"{each} at the end" for each in last)])),
            *_next(ended, width),
        ]
        self.styles.height = len(lines) + 2
        return lines


def _next(ended: RunFinished, width: int) -> Lines:
    """Return what to do next, wrapped; empty if neither that nor the directory of the run is known."""
    if ended.hint:
        action, words = "next", ended.hint.partition("\n")[0]
    elif ended.directory:
        action, _, words = next_command(Path(ended.directory), ended.status).partition(": ")
    else:
        return [Content("")]
    first, *more = Content(clean(words)).wrap(max(10, width - _ENDING))
    return [_said(action, first.plain), *(_said("", line.plain) for line in more)]


def _said(label: str, words: str) -> Content:
    return Content.assemble((f"{clean(label):<{_ENDING}}", "$quiet"), clean(words))


def _returns(view: RunView) -> list[str]:
    """Return how often the run has gone back, by the reason."""
    counts = Counter(branch.ended for branch in view.branches)
    return [fmt.counted(count, reason) for reason, count in counts.items()]


# The log panel, with the newest lines at the bottom
# --------------------------------------------------

_STYLES = {
    "plain": "",
    "quiet": "$quiet",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "$text-error",
}
_INDENT = 10


class LogPanel(Panel, can_focus=True):
    """The last lines that fit; scrolls when focused."""

    BINDINGS = bindings("log")
    DEFAULT_CSS = "LogPanel { height: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("log", id=id)
        self._back = 0

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the lines that fit, ending `_back` lines before the last."""
        height = self.content_size.height
        rows: list[Content] = []
        oldest: Lines = []
        told = self._told_above(view)
        for line in reversed(view.log):
            if line.text in told:
                continue
            oldest = _laid_out(line.time, line.text, line.tone, width)
            rows[:0] = oldest
            if len(rows) >= height + self._back:
                break
        self._back = max(0, min(self._back, len(rows) - height))
        end = len(rows) - self._back
        start = max(0, end - height)
        if 0 < start < len(oldest) and not self._back:
            return [rows[0].append_text(" …"), *rows[start + 1 : end]]
        return rows[start:end]

    def _told_above(self, view: RunView) -> list[str]:
        """Return the advice of a completed run, which its end has, too, while that is shown."""
        ended = view.finished
        is_shown = any(panel.display for panel in self.screen.query(ClosingPanel))
        return [] if ended is None or ended.status != "completed" or not is_shown else [ended.hint]

    def on_mouse_scroll_up(self) -> None:
        """Show earlier lines."""
        self.action_scroll_log(3)

    def on_mouse_scroll_down(self) -> None:
        """Show later lines."""
        self.action_scroll_log(-3)

    def action_scroll_log(self, lines: int) -> None:
        """Scroll up by `lines`, or down if negative."""
        self._back = max(0, self._back + lines)
        if self._view is not None:
            self.show(self._view)


@lru_cache(maxsize=256)  # the lines that are shown stay, as steps add none
def _laid_out(time: float, text: str, tone: Tone, width: int) -> list[Content]:
    """Return the rows of a line: its time of day, with the wrapped text beside it."""
    style = _STYLES[tone]
    texts = Content(text).wrap(max(10, width - _INDENT)) or [Content("")]
    times = [fmt.clock(time, seconds=True).ljust(_INDENT), *[" " * _INDENT] * (len(texts) - 1)]
    return [
        Content.assemble((moment, "$quiet"), (text.plain.rstrip(), style))
        for moment, text in zip(times, texts, strict=True)
    ]


# The step panel: time per step, its parts, and the bottleneck of the run
# -----------------------------------------------------------------------

_BARS = {"forward": "█", "backward": "▒", "optimizer": "━", "data": "░", "rest": "─"}
"""Shown parts in the order of the bar -> their signs."""

_ON_DEVICE = {"forward", "backward", "optimizer"}

_REST = ("copy", "wait", "logging", "saving", "other")
_WHOLE = 6
"""Number of lines of the complete panel."""
_NAME, _MS, _SHARE = 10, 8, 7

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
    """Shows what a step is bound by, what may help, and its parts."""

    DEFAULT_CSS = "StepPanel { height: 8; }"

    def __init__(self) -> None:
        super().__init__("time per step")

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the verdict and a row for each part; parts side by side where rows don't fit."""
        parts, bound = _parts(view), view.latest.bound_by if view.latest else None
        time, speed = "", ""
        if view.latest is not None:
            time, speed = _time(view), (_steps_speed(view) + _speed(view)).strip()
        first, *more = _verdict(view)
        whole = Content("; ").join([first, *more])
        verdict = whole if whole.cell_length <= width else first
        if self.content_size.height >= _WHOLE:
            self.retitle("time per step" + f" · {time}" * bool(time))
            self.subtitle(speed)
            return [verdict, *(_part(name, parts, width, bound) for name in _BARS)]
        self.retitle("time per step")
        self.subtitle("")
        legend = _legend(parts, tuple(_BARS), bound)
        rows = ("forward", "backward"), ("optimizer", "data", "rest")
        pace = Content(time + speed.rjust(width - len(time)))
        if legend.cell_length <= width:
            return [verdict, pace, _bar(parts, width, bound), legend]
        return [verdict, pace, *(_legend(parts, names, bound) for names in rows)]


def _tone(name: str, bound: str | None) -> str:
    """Return the colour of a part: of the device's work, of what the steps are bound by, or of the others."""
    if name == bound or (name == "rest" and bound in _REST):
        return "$text-warning"
    return "$device-curve" if name in _ON_DEVICE else "$quiet"


def _part(name: str, parts: dict[str, float], width: int, bound: str | None) -> Content:
    """Return the row of a part: its milliseconds, its share of the step, and a bar."""
    seconds = parts.get(name)
    share = None if seconds is None else seconds / (sum(parts.values()) or 1.0)
    room = max(0, width - _NAME - _MS - _SHARE - 1)
    filled = round(room * (share or 0.0))
    figures = f"{_part_ms(seconds):>{_MS - 3}} ms{fmt.percent(share):>{_SHARE}} "
    if seconds is None:
        figures = " " * len(figures)
    track = ("─" * (room - filled), "$frame")
    return Content.assemble(
        (f"{name:<{_NAME}}", "$quiet"), figures, ("━" * filled, _tone(name, bound)), track
    )


def _part_ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.{0 if seconds >= 0.0995 else 1}f}"


def step_line(view: RunView) -> list[Content]:
    """Return parts of one line for a small screen."""
    figures = (_seconds(view), f"step {_time(view):>8}"), (_images_per_second(view), _speed(view))
    verdict = [each for each in _verdict(view) if each]
    return [*(Content(words) for value, words in figures if value is not None), *verdict]


def _seconds(view: RunView) -> float | None:
    """Return the time per step, for the same steps as its parts."""
    if parts := _parts(view):
        return sum(parts.values())
    return view.latest.step_time_s if view.latest else None


def _time(view: RunView) -> str:
    return fmt.milliseconds(_seconds(view))


def _speed(view: RunView) -> str:
    return f"{fmt.count(_images_per_second(view)):>6} images/s"


def _images_per_second(view: RunView) -> float | None:
    """Return the rate of the steps that the time is of: an event's own is of its last steps alone."""
    latest, seconds = view.latest, _seconds(view)
    if latest is None or not seconds or latest.step_time_s is None or latest.samples_per_second is None:
        return None if latest is None else latest.samples_per_second
    return latest.samples_per_second * latest.step_time_s / seconds


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


def _bar(parts: dict[str, float], width: int, bound: str | None) -> Content:
    total = sum(parts.values())
    if not total:
        return Content.styled("─" * width, "$frame")
    ends, passed = [], 0.0
    for seconds in parts.values():
        passed += seconds
        ends.append(round(passed / total * width))
    spans = zip(_BARS.items(), [0, *ends], ends, strict=False)
    shown = [(sign * (end - start), _tone(name, bound)) for (name, sign), start, end in spans]
    return Content.assemble(*shown)


def _legend(parts: dict[str, float], names: tuple[str, ...], bound: str | None) -> Content:
    told: list[tuple[str, str]] = []
    for name in names:
        words = f" {name} {_part_ms(parts.get(name)):>4} "
        told += [(_BARS[name], _tone(name, bound)), (words, "$quiet")]
    return Content.assemble(*told[:-1], (f"{told[-1][0].rstrip()}{' ms' if parts else ''}", "$quiet"))


def _verdict(view: RunView) -> list[Content]:
    """Describe the bottleneck, what is advised against it, and the rate that is possible without it."""
    latest = view.latest
    if latest is None or latest.bound_by not in _VERDICTS:
        return [Content("")]
    total = sum(latest.split.values())
    share = latest.split.get(latest.bound_by, 0.0) / total if total else 0.0
    words = [_VERDICTS[latest.bound_by].format(share=fmt.percent(share))]
    code = f"{latest.bound_by}{BOUND}"
    advised = (alert.setting for alert in view.alerts if alert.code == code)
    words[0] += "".join(f": try {clean(setting, 40)}" for setting in advised if setting)
    other = {"data": "steps", "compute": "data"}.get(latest.bound_by, "")
    if (rate := latest.ceilings.get(other)) is not None:
        words.append(f"{other} could {fmt.count(rate)}/s")
    tone = "$quiet" if latest.bound_by == "compute" else "$text-warning"
    return [Content.styled(each, tone) for each in words]


# Base class of panels with a picture: two pixels in a cell, or those of the screen
# ---------------------------------------------------------------------------------

_MOST_PIXELS = 1 << 24


class PicturePanel(Panel):
    """Shows pictures in half blocks, or by the terminal's graphics.

    Args:
        title: Title of the panel.
        ascii_only: Draw in ASCII.
    """

    def __init__(self, title: str, ascii_only: bool, *, id: str | None = None) -> None:
        super().__init__(title, id=id)
        self._ascii_only = ascii_only

    @cached_property
    def graphics(self) -> Graphics | None:
        """What shows pictures, in pixels or half blocks; None: nothing, signs tell how bright a pixel is."""
        return None if self.in_signs else graphics_of(self.app) or HALF_BLOCKS

    @property
    def in_signs(self) -> bool:
        """Whether signs tell how bright a pixel is, as there are no colours."""
        return self._ascii_only or self.app.no_color

    @property
    def in_sixteen(self) -> bool:
        """Whether pictures are in sixteen colours."""
        return not self.in_signs and self.app.console.color_system == "standard"

    @property
    def cell(self) -> tuple[int, int]:
        """Width and height in pixels of what a cell shows."""
        return (1, 2) if self.graphics is None else self.graphics.cell

    def show_pixels(self, *strips: "tuple[int, Image]") -> None:
        """Replace the pictures, each with so many lines above it."""
        self.remove_children()
        if self.graphics is not None:
            for lines, pixels in strips:
                picture, size = on_whole_cells(pixels, self.graphics.cell)
                shown = self.graphics.widget(picture)
                shown.styles.width, shown.styles.height = size
                shown.styles.margin = (lines, 0, 0, 0)
                self.mount(shown)

    def strip(self, pictures: "Sequence[Image]", tile: int) -> "Image":
        """Return pictures of a height side by side, each in so many cells."""
        from PIL import Image  # only such runs need it

        across = tile * self.cell[0]
        strip = Image.new("RGBA", (len(pictures) * across, max(picture.height for picture in pictures)))
        for number, picture in enumerate(pictures):
            strip.paste(picture, (number * across, 0))
        return strip

    def blocks(self, pixels: "Image") -> list[Content]:
        """Return a picture as lines of signs, two rows of pixels in each."""
        return half_blocks(pixels, ascii_only=True)


def opened_picture(path: Path) -> "Image | None":
    """Return a PNG file as RGB; None if it is missing, damaged, or larger than any of ours."""
    from PIL import Image  # only such runs need it

    try:
        with Image.open(path, formats=["PNG"]) as image:
            return image.convert("RGB") if image.width * image.height <= _MOST_PIXELS else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def fitted(image: "Image", width: int, height: int) -> "Image":
    """Scale to fit; up by whole numbers only, so that pixels stay square."""
    from PIL.Image import Resampling

    scale = min(width / image.width, height / image.height)
    if scale >= 1:
        return image.resize((image.width * int(scale), image.height * int(scale)), Resampling.NEAREST)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Resampling.BOX)


# The images panel: what a diffusion model has made, in half blocks or by the terminal's graphics
# -----------------------------------------------------------------------------------------------

_FOLDER = "samples"


class ImagesPanel(PicturePanel):
    """Shows the last grid of images, scaled to the panel: two pixels in a cell, or those of the screen."""

    DEFAULT_CSS = "ImagesPanel { min-height: 8; }"

    def __init__(self, ascii_only: bool) -> None:
        super().__init__("images", ascii_only)
        self._drawn: tuple[object, Lines] = (None, ())

    def lines(self, view: RunView, width: int) -> Lines:
        """Draw the picture, or name its file; it is read once for each size."""
        rows = self.content_size.height
        event = view.images if rows > 0 else None
        if event is None or view.started is None:
            return []
        key = (event.path, event.step, width, rows)
        if self._drawn[0] != key:
            # a name in a journal says nothing of other folders
            path = Path(view.started.directory) / _FOLDER / Path(event.path).name
            self._drawn = (key, self._picture(path, event, width, rows))
        self.retitle(f"images of epoch {event.epoch}")
        return self._drawn[1]

    def _picture(self, path: Path, event: ImagesGenerated, width: int, rows: int) -> Lines:
        image = opened_picture(path)
        if image is None:
            self.show_pixels()
            return [Content.styled(event.path or "not written", "$quiet")]
        across, down = self.cell
        pixels = fitted(image, across * width, down * rows)
        if self.graphics is None:
            return self.blocks(pixels)
        self.show_pixels((0, pixels))
        return []


# The panels in the right column of the live screen, from top to bottom
# ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSpec:
    """A panel of the live screen. Its class sets its height, and `lines` its content.

    Attributes:
        build: Builds the panel, given `ascii_only`.
        folded: Returns the parts of its line on a narrow screen, given the view and `ascii_only`; the last
            parts are omitted if they don't fit. None: the panel has no such line.
        page: Its page on a screen of fewer than 24 rows.
        needs: Whether a run has what it shows, given the view; it is absent until then. None: any run has.
    """

    build: Callable[[bool], Panel]
    folded: Callable[[RunView, bool], list[Content]] | None
    page: Literal[2, 3] = 3
    needs: Callable[[RunView], bool] | None = None


PANELS: dict[str, PanelSpec] = {
    "precision": PanelSpec(build=PrecisionPanel, folded=None, page=2),  # it stands in the header
    "device": PanelSpec(build=lambda _: DevicePanel(), folded=lambda view, _: device_line(view)),
    "step": PanelSpec(build=lambda _: StepPanel(), folded=lambda view, _: step_line(view)),
    "images": PanelSpec(build=ImagesPanel, folded=None, needs=lambda view: view.images is not None),
}
"""Name (also the widget's id) -> panel."""


def build_panels(ascii_only: bool) -> list[Panel]:
    """Build all panels, each with its name as id and the CSS class of its page."""
    panels = []
    for name, spec in PANELS.items():
        panel = spec.build(ascii_only)
        panel.id = name
        panel.add_class(f"-of-page-{spec.page}", *(["-absent"] if spec.needs else []), update=False)
        panels.append(panel)
    return panels
