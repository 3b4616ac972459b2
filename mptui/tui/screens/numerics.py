"""The numerics screen: layers by risk in 16 bits, the exponents of one layer, the best loss scale."""

import math
from collections.abc import Callable, Mapping
from typing import TypeGuard

from textual.app import ComposeResult
from textual.content import Content

from mptui import text as fmt
from mptui.events import NUMERICS_BUDGET, Numerics, NumericsLayer
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import WOULD_BE_LOST, numerics_advice
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.screens.page import TooSmall, ViewPage
from mptui.tui.widgets.basics import KeyBar, Lines, Panel
from mptui.tui.widgets.header import Header

# The numerics screen: layers by risk in 16 bits, the exponents of one layer, the best loss scale
# -----------------------------------------------------------------------------------------------


class NumericsScreen(ViewPage):
    """Shows a run's numerics; requests full probes while the full mode is on.

    Args:
        view: The view of the run, updated by the live screen below.
        command: Sends a command to the run.
        keymap: The user's keys.
    """

    where = "numerics"
    BINDINGS = bindings("numerics")
    DEFAULT_CSS = """
    NumericsScreen {
        RiskTable { height: 1fr; min-height: 6; }
        ExponentPanel { height: 1fr; min-height: 9; }
        NumericsWords { height: 4; }
        &.-short RiskTable { height: 6; }
        &.-short ExponentPanel { min-height: 8; }
        &.-short NumericsWords { display: none; }
        &.-unseen {
            RiskTable { height: 1fr; }
            NumericsWords { display: block; }
        }
        &.-tiny, &.-flat {
            Header, Panel, KeyBar { display: none; }
        }
    }
    """

    def __init__(
        self,
        view: RunView,
        command: Callable[[str, str | None], None],
        keymap: Mapping[str, str],
    ) -> None:
        super().__init__(view, keymap)
        self._command = command
        self._full = False

    def compose(self) -> ComposeResult:
        """Lay out the table, the exponents, the advice and the keys."""
        table = RiskTable(id="risks")
        yield Header()
        yield table
        yield ExponentPanel(table, id="exponents")
        yield NumericsWords(id="words")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def show(self) -> None:
        """Show the view; before the first probe, without exponents."""
        unseen = self._view.numerics is None
        self.set_class(unseen, "-unseen")
        self.query_one(ExponentPanel).display = not unseen
        super().show()

    def action_choose(self, rows: int) -> None:
        """Choose another layer."""
        self.query_one(RiskTable).move(rows, self._view)
        self.show()

    def action_part(self) -> None:
        """Show outputs, gradients, weights' gradients, or all."""
        self.query_one(RiskTable).turn()
        self.show()

    def action_full(self) -> None:
        """Probe all values, or return to the configured mode."""
        self._full = not self._full
        self._command("numerics", "full" if self._full else None)

    def back(self) -> None:
        """Close, and return to the configured mode."""
        self._close("back")

    def leave(self) -> None:
        """Quit as the live screen does."""
        self._close("leave")

    def _close(self, how: str) -> None:
        if self._full and self._view.finished is None:
            self.action_full()
        self.dismiss(how)


# Panels of the numerics screen: layers by risk, the exponents of one layer, and recommendations
# ----------------------------------------------------------------------------------------------

PARTS = ("all", "forward", "gradient", "weights")
"""The parts of the table, in the order in which the key cycles through them."""

_WORDS = {"forward": "outputs", "gradient": "gradients", "weights": "weights' gradients"}
_BAR = 8
_FIGURES = 11 + 10 + 10 + 11 + _BAR + 3
"""Cells of a row besides the layer's name."""
_NAME = 20
"""Cells of a name that are there for any."""
_ROOMY = 70
"""Width below which a row omits the smallest value and the bar."""
_LEVELS = " ▁▂▃▄▅▆▇█"
# float16's exponents: normal from -14 to 15, subnormal from -24 on
_SUBNORMAL, _NORMAL, _TOP = -24, -14, 15
_BF16_NORMAL = -126


def rows_of(event: Numerics | None, part: str) -> list[NumericsLayer]:
    """Return the layers with that part, worst first."""
    if event is None:
        return []
    return [layer for layer in event.layers if part in {"all", layer.part}]


class RiskTable(Panel):
    """The layers by risk; the cursor stays on a chosen one as their order changes, and else on the worst."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("layers by risk", id=id)
        self.part = PARTS[0]
        self._chosen: tuple[str, str] | None = None
        self._place = 0

    def turn(self) -> None:
        """Show the next part."""
        self.part = PARTS[(PARTS.index(self.part) + 1) % len(PARTS)]
        self._chosen, self._place = None, 0

    def move(self, rows: int, view: RunView) -> None:
        """Choose another row."""
        layers = rows_of(view.numerics, self.part)
        self._place = max(0, min(self._cursor(layers) + rows, len(layers) - 1))
        self._chosen = _identity(layers[self._place]) if self._place else None

    def chosen(self, view: RunView) -> NumericsLayer | None:
        """Return the layer under the cursor."""
        rows = rows_of(view.numerics, self.part)
        return rows[self._cursor(rows)] if rows else None

    def _cursor(self, rows: list[NumericsLayer]) -> int:
        """Return the place of the chosen layer; once it is not among the worst, that which it had."""
        places = {_identity(layer): place for place, layer in enumerate(rows)}
        self._place = 0 if self._chosen is None else places.get(self._chosen, self._place)
        return max(0, min(self._place, len(rows) - 1))

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out a heading, the rows around the chosen one, and the number of omitted layers."""
        event = view.numerics
        step = f" · step {event.step:,}" if event else ""
        parts = "" if self.part == "all" else f" · {_WORDS[self.part]}"
        self.retitle(f"layers by risk{step}{parts}")
        if event is None:
            return [Content.styled("no numerics sample yet", "$quiet")]
        roomy = width >= _ROOMY
        rows = rows_of(event, self.part)
        longest = max((len(clean(layer.name, 200)) for layer in rows), default=0)
        name = width - (_FIGURES if roomy else _FIGURES - 10 - _BAR - 3)
        name = max(8, min(name, max(longest, _NAME) + 3))
        smallest = f"{'smallest':>10}" if roomy else ""
        head = f"  {'layer':<{name - 2}}{'part':<11}{smallest}{'largest':>10}{_heading(event, roomy)}"
        room, cursor = max(1, self.content_size.height - 2), self._cursor(rows)
        first = max(0, min(cursor - room + 1, len(rows) - room))
        shown = [
            _row(layer, name, chosen=number == cursor, roomy=roomy)
            for number, layer in enumerate(rows[first : first + room], first)
        ]
        return [Content.styled(head, "$quiet"), *shown, _others(event)]


def _heading(event: Numerics, roomy: bool) -> str:
    """Return the heading of the share that fp16 loses, or would lose in a run of another precision."""
    if event.precision == "fp16":
        return f"{'lost':>11}"
    return f"{WOULD_BE_LOST:>{11 + _BAR + 3}}" if roomy else f"{'fp16 loses':>11}"


def _identity(layer: NumericsLayer) -> tuple[str, str]:
    return layer.name, layer.part


def _row(layer: NumericsLayer, width: int, *, chosen: bool, roomy: bool) -> Content:
    name = _shortened(layer.name, width - 3)
    lost = min(max(layer.lost, 0.0), 1.0) if math.isfinite(layer.lost) else 1.0
    tone = "$text-error" if layer.fault else "$text-warning" if lost >= 0.01 else "$text-success"
    filled = "█" * max(1 if lost > 0.001 else 0, round(_BAR * lost))
    sign = "✗ " if layer.fault else ""
    smallest = f"{fmt.figure(layer.smallest):>10}" if roomy else ""
    return Content.assemble(
        ("▸ " if chosen else "  ", "$text-accent"),
        (f"{name:<{width - 2}}", "bold" if chosen else ""),
        (f"{clean(layer.part, 10):<11}", "$quiet"),
        f"{smallest}{fmt.figure(layer.largest):>10}",
        (f"{sign + fmt.percent(layer.lost):>11}", "" if roomy else tone),
        (f"   {filled}" if roomy else "", tone),
    )


def _shortened(name: str, room: int) -> str:
    """Shorten the name of a layer; its last part, which identifies it, is kept."""
    name = clean(name, 200)
    return name if len(name) <= room else f"…{name[-(room - 1) :]}"


def _others(event: Numerics) -> Content:
    if not event.others:
        return Content("")
    faults = f" ({event.others_at_fault:,} at fault)" if event.others_at_fault else ""
    most = f"up to {fmt.percent(event.others_lost)}"
    lost = f", losing {most}" if event.precision == "fp16" else f"; {most} {WOULD_BE_LOST}"
    return Content.styled(f"  and {event.others:,} more{faults}{lost}", "$quiet")


class ExponentPanel(Panel):
    """The exponents of the chosen layer, with the ranges of float16 and bfloat16."""

    def __init__(self, table: RiskTable, *, id: str | None = None) -> None:
        super().__init__("exponents", id=id)
        self._table = table

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the bars, and below them the ranges on the same axis."""
        event, layer = view.numerics, self._table.chosen(view)
        if event is None or not _can_be_drawn(layer):
            self.retitle("exponents")
            return [Content.styled("no values to show" if event else "", "$quiet")]
        part = _WORDS.get(layer.part, clean(layer.part, 20))
        # the frame takes five cells beside the title, which `retitle` truncates to 60
        self.retitle(f"{_shortened(layer.name, min(width, 60) - len(part) - 5)} · {part}")
        scale = 1.0 if layer.part == "forward" else event.loss_scale or event.best_scale or 1.0
        shift = _doublings(scale)
        axis = _Axis(layer, shift, width - 6)
        height = max(2, self.content_size.height - 4)
        bars = [Content.assemble("      ", *axis.line(row, height)) for row in range(height)]
        return [*bars, axis.ticks(), axis.range16(), axis.range_bf16(), _caption(layer, scale)]


def _can_be_drawn(layer: NumericsLayer | None) -> TypeGuard[NumericsLayer]:
    """Whether the layer has exponents, all within the range of float32."""
    if layer is None:
        return False
    shares, first = layer.exponents, layer.first_exponent
    return 0 < len(shares) <= 256 and -256 < first < 256 and min(shares) >= 0 and sum(shares) > 0


class _Axis:
    """Columns of exponents: the layer's, and float16's under a scale of 2^shift."""

    def __init__(self, layer: NumericsLayer, shift: int, width: int) -> None:
        self._shift = shift
        lowest = min(layer.first_exponent, _SUBNORMAL - shift)
        highest = max(layer.first_exponent + len(layer.exponents) - 1, _TOP - shift)
        span = highest - lowest + 1
        self._each = -(-span // max(width, 1))
        self._cells = max(1, width // span)
        self._lowest = lowest
        columns = -(-span // self._each)
        self._heights = [0] * columns
        for number, share in enumerate(layer.exponents):
            self._heights[(layer.first_exponent + number - lowest) // self._each] += share
        self._most = max(self._heights)

    def line(self, row: int, height: int) -> list[tuple[str, str]]:
        """Return one row of the bars, counted from the top."""
        parts = []
        for column, share in enumerate(self._heights):
            eighths = -(-share * height * 8 // self._most) - 8 * (height - 1 - row)
            parts.append((_LEVELS[min(max(eighths, 0), 8)] * self._cells, self._tone(column)))
        return parts

    def _tone(self, column: int) -> str:
        exponent = self._lowest + column * self._each + self._shift
        if exponent > _TOP or exponent < _SUBNORMAL:
            return "$text-error"
        return "$text-warning" if exponent < _NORMAL else "$series-1"

    def ticks(self) -> Content:
        """Return the exponents under the bars, every few columns."""
        line = ""
        for column in range(len(self._heights)):
            place = column * self._cells
            exponent = self._lowest + column * self._each
            if place >= len(line) and exponent % 8 < self._each:
                line = f"{line:<{place}}2^{exponent - exponent % 8} "
        return Content.styled(f"      {line}", "$quiet")

    def range16(self) -> Content:
        """Draw the range of float16: normal and subnormal."""
        cells = []
        for column in range(len(self._heights)):
            exponent = self._lowest + column * self._each + self._shift
            whole, some = _NORMAL <= exponent <= _TOP, _SUBNORMAL <= exponent < _NORMAL
            cells.append(("━" if whole else "╌" if some else " ") * self._cells)
        return Content.assemble(("fp16  ", "$quiet"), ("".join(cells), "$text-accent"))

    def range_bf16(self) -> Content:
        """Draw the range of bfloat16."""
        cells = [
            ("━" if self._lowest + column * self._each >= _BF16_NORMAL else "╌") * self._cells
            for column in range(len(self._heights))
        ]
        return Content.assemble(("bf16  ", "$quiet"), ("".join(cells), "$quiet"))


def _doublings(scale: float) -> int:
    shift = 0
    while scale >= 2 and shift < 127:
        scale, shift = scale / 2, shift + 1
    return shift


def _caption(layer: NumericsLayer, scale: float) -> Content:
    under = "" if layer.part == "forward" else f", scale {scale:,.0f}"
    words = [
        f"in fp16{under}: {fmt.percent(layer.zeroed)} to zero",
        f"{fmt.percent(layer.subnormal)} losing bits",
        f"{fmt.percent(layer.overflow)} too large",
    ]
    return Content(", ".join(words))


class NumericsWords(Panel):
    """A recommendation, and the cost of probes."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("recommendation", id=id)

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the recommendation and the cost."""
        event = view.numerics
        if event is None:
            most = fmt.percent(NUMERICS_BUDGET["full"])
            return [
                Content("waiting for the first numerics sample (guards.numerics)"),
                Content.styled(f"f: probe all values, for at most {most} of the time", "$quiet"),
            ]
        return [Content(numerics_advice(event)), Content.styled(priced(event), "$quiet")]


def priced(event: Numerics) -> str:
    """Describe the measured cost of probes."""
    share = fmt.percent(event.cost_s / event.every_s if event.cost_s is not None and event.every_s else None)
    cost = f"+{fmt.milliseconds(event.cost_s)} on a step in {fmt.duration(event.every_s)}: {share}"
    if event.mode == "full":
        return f"full: {cost} of the time{' · not compiled' if event.eager else ''}"
    most = fmt.percent(NUMERICS_BUDGET["full"])
    return f"{clean(event.mode, 10)}: {cost} · f: all values, at most {most}"
