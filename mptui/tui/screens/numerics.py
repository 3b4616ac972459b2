"""The numerics screen: layers by risk in 16 bits, the exponents of one layer, the best loss scale."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TypeGuard

from textual.app import App, ComposeResult
from textual.content import Content
from typing_extensions import override

from mptui import text as fmt
from mptui.events import NUMERICS_BUDGET, Numerics, NumericsLayer
from mptui.runs.view.run_view import RunView
from mptui.runs.view.words import WOULD_BE_LOST, numerics_advice
from mptui.text import clean
from mptui.tui.keys import bindings
from mptui.tui.screens.page import SearchedPage, SearchField, TooSmall, ViewPage, has_words
from mptui.tui.widgets.basics import KeyBar, Lines, Panel
from mptui.tui.widgets.header import Header

# The numerics screen: layers by risk in 16 bits, the exponents of one layer, the best loss scale
# -----------------------------------------------------------------------------------------------


class NumericsScreen(SearchedPage, ViewPage):
    """Shows a run's numerics; requests full probes while the full mode is on.

    Args:
        view: The view of the run, updated by the live screen below.
        command: Sends a command to the run.
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
    }
    """

    def __init__(
        self,
        view: RunView,
        command: Callable[[str, str | None], None],
    ) -> None:
        super().__init__(view)
        self._command = command
        self._full = False

    def compose(self) -> ComposeResult:
        """Lay out the table, the exponents, the advice and the keys."""
        table = RiskTable(id="risks")
        yield Header()
        yield table
        yield ExponentPanel(table, id="exponents")
        yield NumericsWords(id="words")
        yield SearchField("words of a layer's name")
        yield KeyBar(self.where, self._keymap)
        yield TooSmall("The run continues.")

    def show(self) -> None:
        """Show the view; before the first probe, without exponents."""
        unseen = self._view.numerics is None
        self.set_class(unseen, "-unseen")
        self.query_one(ExponentPanel).display = not unseen
        super().show()

    @override
    def wheel(self, lines: int) -> None:
        self.action_choose(lines)

    def action_choose(self, rows: int) -> None:
        """Choose another layer."""
        self.query_one(RiskTable).move(rows, self._view)
        self.show()

    def action_part(self) -> None:
        """Show outputs, gradients, weights' gradients, or all."""
        self.query_one(RiskTable).turn()
        self.show()

    def searched(self, words: list[str]) -> None:
        """Show the layers with these words in their names."""
        self.query_one(RiskTable).search(words)
        self.show()

    def go_to_match(self, way: int) -> None:
        """Choose the next layer."""
        self.action_choose(way)

    def action_close(self) -> None:
        """Go back to the charts; within a search, to its next match."""
        table = self.query_one(RiskTable)
        if table.words:
            self.go_to_match(1)
        else:
            self.back()

    def action_full(self) -> None:
        """Probe all values, or return to the configured mode."""
        self._full = not self._full
        self._command("numerics", "full" if self._full else None)

    def back(self) -> None:
        """End the search; else close, and return to the configured mode."""
        if not self.end_search():
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
_PART, _FIGURE, _LOST, _GAP = 11, 10, 11, 2
_NAME, _SHORT_NAME = 23, 16
"""Cells of a name that are there for any, and on a narrow screen."""
_ROOMY, _WIDE = 70, 100
"""Widths from which a row has the largest value, and the smallest one."""
_LEVELS = " ▁▂▃▄▅▆▇█"
_SHADES = ((0.6, "█"), (0.25, "▓"), (0.05, "▒"), (0.0, "░"))
"""Signs of a share of values, from that part of the layer's largest one on."""


def rows_of(event: Numerics | None, part: str, words: Sequence[str] = ()) -> list[NumericsLayer]:
    """Return the layers with that part and these words in their names, worst first."""
    if event is None:
        return []
    return [
        layer
        for layer in event.layers
        if part in {"all", layer.part} and (not words or has_words(layer.name, words))
    ]


class RiskTable(Panel):
    """The layers by risk, with their exponents on one axis: what fp16 loses of a layer stands at its edges.

    The cursor stays on a chosen layer as their order changes, and else on the worst.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__("layers by risk", id=id)
        self.part = PARTS[0]
        self.words: list[str] = []
        self._chosen: tuple[str, str] | None = None
        self._place = 0
        self._drawn: tuple[object, Lines] = (None, ())

    def turn(self) -> None:
        """Show the next part."""
        self.part = PARTS[(PARTS.index(self.part) + 1) % len(PARTS)]
        self._chosen, self._place = None, 0

    def search(self, words: list[str]) -> None:
        """Show the layers with these words in their names."""
        self.words = words
        self._chosen, self._place = None, 0

    def move(self, rows: int, view: RunView) -> None:
        """Choose another row."""
        layers = rows_of(view.numerics, self.part, self.words)
        if not layers:
            return
        self._place = max(0, min(self._cursor(layers) + rows, len(layers) - 1))
        self._chosen = _identity(layers[self._place]) if self._place else None

    def chosen(self, view: RunView) -> NumericsLayer | None:
        """Return the layer under the cursor."""
        rows = rows_of(view.numerics, self.part, self.words)
        return rows[self._cursor(rows)] if rows else None

    def _cursor(self, rows: list[NumericsLayer]) -> int:
        """Return the place of the chosen layer; once it is not among the worst, that which it had."""
        places = {_identity(layer): place for place, layer in enumerate(rows)}
        self._place = 0 if self._chosen is None else places.get(self._chosen, self._place)
        return max(0, min(self._place, len(rows) - 1))

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the layers, once for each sample, place and size."""
        event = view.numerics
        step = f" · step {event.step:,}" if event else ""
        parts = "" if self.part == "all" else f" · {_WORDS[self.part]}"
        words = f" · /{clean(' '.join(self.words), 20)}" if self.words else ""
        self.retitle(f"layers by risk{step}{parts}{words}")
        if event is None:
            return [Content.styled("no numerics sample yet: f probes all values now", "$quiet")]
        rows = rows_of(event, self.part, self.words)
        if not rows and self.words:
            return [Content.styled("no layer has these words: esc shows all", "$quiet")]
        room, cursor = max(1, self.content_size.height - 2), self._cursor(rows)
        key = (event, self.part, *self.words, cursor, room, width, self.app.theme)
        if self._drawn[0] != key:
            self._drawn = (key, self._rows(event, rows, cursor, room, width))
        return self._drawn[1]

    def _rows(
        self, event: Numerics, rows: list[NumericsLayer], cursor: int, room: int, width: int
    ) -> list[Content]:
        """Lay out a heading, the rows around the chosen one, and the number of omitted layers."""
        longest = max((len(clean(layer.name, 200)) for layer in rows), default=0) + 3
        figures = _PART + _LOST + _FIGURE * ((width >= _ROOMY) + (width >= _WIDE))
        least = _NAME if width >= _ROOMY else _SHORT_NAME
        seen = [_SeenByFp16.of(layer, event) for layer in rows]
        axis = _Axis.over(seen, width - figures - least - _GAP, signed=_has_no_ground(self.app))
        name = max(least, min(longest, width - figures - _GAP - axis.width))
        head = f"  {'layer':<{name - 2}}{'part':<{_PART}}"
        head += f"{'smallest':>{_FIGURE}}" if width >= _WIDE else ""
        head += f"{'largest':>{_FIGURE}}" if width >= _ROOMY else ""
        head += f"{'lost' if event.precision == 'fp16' else 'fp16 loses':>{_LOST}}{'':{_GAP}}"
        first = max(0, min(cursor - room + 1, len(rows) - room))
        shown = [
            Content.assemble(
                _row(rows[number], name, width, chosen=number == cursor), *axis.heat(seen[number])
            )
            for number in range(first, min(first + room, len(rows)))
        ]
        return [Content.assemble((head, "$quiet"), *axis.ruler()), *shown, _others(event)]


def _identity(layer: NumericsLayer) -> tuple[str, str]:
    return layer.name, layer.part


def _row(layer: NumericsLayer, name: int, width: int, *, chosen: bool) -> Content:
    """Return what stands before the exponents of a layer."""
    lost = min(max(layer.lost, 0.0), 1.0) if math.isfinite(layer.lost) else 1.0
    tone = "$text-error" if layer.fault else "$text-warning" if lost >= 0.01 else "$text-success"
    figures = f"{fmt.figure(layer.smallest):>{_FIGURE}}" if width >= _WIDE else ""
    figures += f"{fmt.figure(layer.largest):>{_FIGURE}}" if width >= _ROOMY else ""
    sign = "✗ " if layer.fault else ""
    return Content.assemble(
        ("▸ " if chosen else "  ", "$text-accent"),
        (f"{_shortened(layer.name, name - 3):<{name - 2}}", "bold" if chosen else ""),
        (f"{clean(layer.part, 10):<{_PART}}", "$quiet"),
        figures,
        (f"{sign + fmt.percent(layer.lost):>{_LOST}}", tone),
        " " * _GAP,
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


# The exponents of layers, and what float16 makes of them: zero, fewer bits, all bits, infinity
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Band:
    """Exponents that float16 treats alike, from `first` on.

    `short` stands for its name on a narrow ruler, `sign` on a narrower one; `empty` for its ground where that
    has no colour.
    """

    first: int
    name: str
    short: str
    sign: str
    empty: str
    tone: str
    ground: str


_BANDS = (
    _Band(-(2**30), "zero", "", "·", "·", "$text-error", "$ground-zero"),
    _Band(-24, "loses bits", "lossy", "╌", "╌", "$text-warning", "$ground-loses-bits"),
    _Band(-14, "exact", "", "━", " ", "$text-success", "$ground-exact"),
    _Band(16, "inf", "", "×", "×", "$series-4", "$ground-inf"),
)
_LEAST, _MOST = -64, 31
"""Exponents that are drawn; those beyond stand at the edge."""
_AT_ONCE = (1, 2, 5, 10)
"""Exponents that a column may have: the bands begin at the edges of such columns."""
_BF16_NORMAL = -126


@dataclass(frozen=True, slots=True)
class _SeenByFp16:
    """The shares of a layer's exponents, from `first` on, as float16 gets them: scaled by 2^shift."""

    first: int
    shares: Sequence[int]
    shift: int

    @classmethod
    def of(cls, layer: NumericsLayer, event: Numerics) -> "_SeenByFp16":
        shift = _doublings(_scale_of(layer, event))
        if not _can_be_drawn(layer):
            return cls(0, (), shift)
        return cls(layer.first_exponent + shift, layer.exponents, shift)

    @property
    def last(self) -> int:
        return self.first + len(self.shares) - 1


class _Axis:
    """Columns of exponents as float16 gets them, of `cells` each.

    Args:
        lowest: The lowest exponent that is to be there.
        highest: The highest one.
        room: The cells that there are.
        signed: Whether a ground has signs, and no colour.
    """

    def __init__(self, lowest: int, highest: int, room: int, *, signed: bool) -> None:
        self._signed = signed
        below, above = _BANDS[1].first - max(lowest, _LEAST), min(highest, _MOST) - _BANDS[1].first + 1
        for each in _AT_ONCE:
            columns = -(-below // each) - (-above // each)
            if columns <= room:
                break
        self.each = each
        self.lowest = _BANDS[1].first - -(-below // each) * each
        self._columns = columns if columns <= room else 0
        self.cells = max(1, room // columns)

    @classmethod
    def over(cls, seen: Sequence[_SeenByFp16], room: int, *, signed: bool) -> "_Axis":
        """Return the axis of several layers, with a cell to a column."""
        drawn = [each for each in seen if each.shares]
        axis = cls(
            min([_BANDS[1].first - 1, *(each.first for each in drawn)]),
            max([_BANDS[3].first, *(each.last for each in drawn)]),
            room,
            signed=signed,
        )
        axis.cells = 1
        return axis

    @property
    def width(self) -> int:
        """Cells of all columns; 0: there is no room for any."""
        return self._columns * self.cells

    @property
    def exponents(self) -> list[int]:
        """The lowest exponent of each column."""
        return [self.lowest + self.each * column for column in range(self._columns)]

    def bands(self) -> list[_Band]:
        """Return the band of each column."""
        return [[band for band in _BANDS if band.first <= lowest][-1] for lowest in self.exponents]

    def shares(self, seen: _SeenByFp16) -> list[int]:
        """Return the share of each column."""
        shares = [0] * self._columns
        for exponent, share in enumerate(seen.shares, seen.first):
            if self._columns:
                shares[max(0, min((exponent - self.lowest) // self.each, self._columns - 1))] += share
        return shares

    def ruler(self) -> list[tuple[str, str]]:
        """Return the names of the bands, each over its columns where it fits apart, else its sign."""
        parts: list[tuple[str, str]] = []
        for band, columns in groupby(self.bands()):
            room = self.cells * len(list(columns))
            name = next((word for word in (band.name, band.short) if len(word) + bool(parts) <= room), "")
            parts.append((name.center(room, band.sign), band.tone))
        return parts

    def heat(self, seen: _SeenByFp16) -> list[tuple[str, str]]:
        """Return a line with a sign for each column, dense where many values are."""
        shares = self.shares(seen)
        most = max([1, *shares])
        return self._joined(
            [next((sign for least, sign in _SHADES if share > least * most), " ") for share in shares]
        )

    def bars(self, seen: _SeenByFp16, height: int) -> list[list[tuple[str, str]]]:
        """Return the lines of bars, on the ground of their bands."""
        shares = self.shares(seen)
        most, lines = max([1, *shares]), []
        for row in range(height):
            eighths = (-(-share * height * 8 // most) - 8 * (height - 1 - row) for share in shares)
            lines.append(self._joined([_LEVELS[min(max(each, 0), 8)] for each in eighths]))
        return lines

    def _joined(self, signs: Sequence[str]) -> list[tuple[str, str]]:
        """Return the signs of columns with their styles, one part for each band."""
        parts = []
        for band, columns in groupby(zip(self.bands(), signs, strict=True), key=itemgetter(0)):
            text = "".join(sign * self.cells for _, sign in columns)
            if self._signed:
                text = text.replace(" ", band.empty)
            parts.append((text, f"{band.tone} on {band.ground}"))
        return parts


_LABEL = 6
_ZERO, _INF = 4, 3
"""Exponents beyond the range of float16 that are always there."""


def _has_no_ground(app: App[object]) -> bool:
    return app.no_color or app.current_theme.ansi


class ExponentPanel(Panel):
    """The exponents of the chosen layer, with the ranges of float16 and bfloat16."""

    def __init__(self, table: RiskTable, *, id: str | None = None) -> None:
        super().__init__("exponents", id=id)
        self._table = table
        self._drawn: tuple[object, Lines] = (None, ())

    def lines(self, view: RunView, width: int) -> Lines:
        """Lay out the bars, and below them the ranges on the same axis; once for each layer and size."""
        event, layer = view.numerics, self._table.chosen(view)
        if event is None or not _can_be_drawn(layer):
            self.retitle("exponents")
            return [Content.styled("no values to show" if event else "", "$quiet")]
        part = _WORDS.get(layer.part, clean(layer.part, 20))
        # the frame takes five cells beside the title, which `retitle` truncates to 60
        self.retitle(f"{_shortened(layer.name, min(width, 60) - len(part) - 5)} · {part}")
        height = max(2, self.content_size.height - 4)
        key = (event, layer, height, width, self.app.theme)
        if self._drawn[0] != key:
            self._drawn = (key, self._bars(event, layer, height, width - _LABEL))
        return self._drawn[1]

    def _bars(self, event: Numerics, layer: NumericsLayer, height: int, room: int) -> list[Content]:
        seen = _SeenByFp16.of(layer, event)
        lowest, highest = _BANDS[1].first - _ZERO, _BANDS[3].first - 1 + _INF
        axis = _Axis(min(seen.first, lowest), max(seen.last, highest), room, signed=_has_no_ground(self.app))
        bars = [Content.assemble(" " * _LABEL, *line) for line in axis.bars(seen, height)]
        ticks, bf16 = "", ""
        for column, lowest in enumerate(axis.exponents):
            exponent, place = lowest - seen.shift, column * axis.cells
            if place >= len(ticks) and exponent % 8 < axis.each:
                ticks = f"{ticks:<{place}}2^{exponent - exponent % 8} "
            bf16 += ("━" if exponent >= _BF16_NORMAL else "╌") * axis.cells
        return [
            *bars,
            Content.styled(f"{'':{_LABEL}}{ticks}", "$quiet"),
            Content.assemble((f"{'fp16':<{_LABEL}}", "$quiet"), *axis.ruler()),
            Content.styled(f"{'bf16':<{_LABEL}}{bf16}", "$quiet"),
            _caption(layer, _scale_of(layer, event), self.content_size.width),
        ]


def _scale_of(layer: NumericsLayer, event: Numerics) -> float:
    """Return what a layer's values are multiplied by where they become float16."""
    return 1.0 if layer.part == "forward" else event.loss_scale or event.best_scale or 1.0


def _can_be_drawn(layer: NumericsLayer | None) -> TypeGuard[NumericsLayer]:
    """Whether the layer has exponents, all within the range of float32."""
    if layer is None:
        return False
    shares, first = layer.exponents, layer.first_exponent
    return 0 < len(shares) <= 256 and -256 < first < 256 and min(shares) >= 0 and sum(shares) > 0


def _doublings(scale: float) -> int:
    shift = 0
    while scale >= 2 and shift < 127:
        scale, shift = scale / 2, shift + 1
    return shift


def _caption(layer: NumericsLayer, scale: float, width: int) -> Content:
    """Say what fp16 would do to the values, in short words where others have no room."""
    under = "" if layer.part == "forward" else f", scale {scale:,.0f}"
    shares = [fmt.percent(share) for share in (layer.zeroed, layer.subnormal, layer.overflow)]
    zero, bits, inf = shares
    words = f"in fp16{under}: {zero} to zero, {bits} losing bits, {inf} too large"
    return Content(words if len(words) <= width else f"fp16{under}: {zero} zero, {bits} lossy, {inf} inf")


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
        cost = priced(event, view.pace.step_s())
        lines = [*Content(numerics_advice(event)).wrap(width), Content.styled(cost, "$quiet")]
        self.styles.height = 2 + len(lines)
        return lines


def priced(event: Numerics, step_s: float | None) -> str:
    """Describe the measured cost of probes; `step_s`: seconds per step, None while unknown."""
    often = f"once in {fmt.duration(event.every_s)}"
    steps = event.every_s / step_s if step_s else math.nan
    if math.isfinite(steps):
        often = f"one step in {max(1, round(steps)):,}"
    cost = f"a look, {often}, has no known cost yet"
    if event.cost_s is not None and event.every_s:
        share = fmt.percent(event.cost_s / event.every_s)
        cost = f"a look cost {fmt.milliseconds(event.cost_s)}, {often}: {share} of the time"
    if event.mode == "full":
        return f"{cost}{' · not compiled' if event.eager else ''}"
    return f"{cost}; f: at most {fmt.percent(NUMERICS_BUDGET['full'])}"
