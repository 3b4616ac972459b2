"""The mixed-precision panel: number format and loss scaling."""

import math

from textual.content import Content

from mptui import format as fmt
from mptui.registry.precisions import LOSS_SCALED, SIXTEEN_BIT
from mptui.runs.view.labels import GRADIENT_NORM
from mptui.runs.view.run_view import RunView
from mptui.tui.widgets.bars import bar
from mptui.tui.widgets.panel import Lines, Panel, row

_ON, _OFF = "🚀", "📊"
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
            Content.assemble(precision_words(view, self._ascii_only), "   ", _tf32(view)),
            Content.styled(_speed_settings(view), "$quiet"),
            row("loss scale", *_loss_scale(view, width)),
            row("skipped", fmt.count(view.skipped_steps if latest else None), _skip_rate(view)),
            row(
                "grad norm",
                fmt.figure(latest.grad_norm if latest else None),
                Content.styled(trend, "$series-1"),
            ),
            row("lr", fmt.figure(latest.lr if latest else None)),
            Content.assemble(("health      ", "$quiet"), _health(view)),
        ]


def precision_words(view: RunView, ascii_only: bool) -> Content:
    """Format whether mixed precision is on: an icon in its own cell, and text."""
    if not view.precision:
        return Content(f"mp: {fmt.UNKNOWN}")
    mixed = view.precision in SIXTEEN_BIT
    if ascii_only:
        return Content.styled(f"mp:on  {view.precision}" if mixed else "mp:fp32", "bold")
    return Content.assemble(
        "mp: ", _ON if mixed else _OFF, (" on   " if mixed else " ", "bold"), (view.precision, "bold")
    )


def precision_line(view: RunView, ascii_only: bool) -> list[Content]:
    """Return parts of one line for a small screen, the most important first."""
    latest = view.latest
    parts = [precision_words(view, ascii_only)]
    if view.precision in LOSS_SCALED:
        parts.append(Content(f"scale {fmt.count(latest.loss_scale if latest else None)}"))
    parts.append(Content(f"skipped {fmt.count(view.skipped_steps if latest else None)}"))
    parts.append(Content(f"grad norm {fmt.figure(latest.grad_norm if latest else None):>5}"))
    return [*parts, _tf32(view)]


def _tf32(view: RunView) -> Content:
    if view.started is None:
        return Content("")
    return Content.styled("TF32 on" if view.started.tf32 else "TF32 off", "$quiet")


def _speed_settings(view: RunView) -> str:
    run = view.started
    if run is None:
        return fmt.UNKNOWN
    layout = "channels last" if run.channels_last else "channels first"
    return f"{layout} · " + (f"compiled ({run.compile_mode})" if view.compiled else "not compiled")


def _loss_scale(view: RunView, width: int) -> tuple[str, Content]:
    scale = view.latest.loss_scale if view.latest else None
    if scale is None:
        needs_none = view.precision and view.precision not in LOSS_SCALED
        return fmt.UNKNOWN, Content.styled(f"not needed in {view.precision}" if needs_none else "", "$quiet")
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
        return Content.styled(fmt.UNKNOWN, "$quiet")
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
