"""The exponents of the layers of a numerics probe as small charts, with the range of fp16."""

from html import escape

from mptui.events import Numerics, NumericsLayer
from mptui.runs.view.run_view import RunView

_LAYERS = 12
"""Largest number of layers that have a chart, worst first."""
_LOWEST, _HIGHEST = -48, 24
"""Exponents on the axis; those beyond are drawn at its ends."""
_SUBNORMAL, _NORMAL, _TOP = -24, -14, 15
"""Exponents of fp16: subnormal, with fewer bits, below `_NORMAL`."""
_PARTS = {"lost": "bad", "fewer": "warn", "kept": "c1"}


def exponents_html(view: RunView) -> str:
    """Return a chart for each of the worst layers of the last probe; "" without a probe."""
    event = view.numerics
    if event is None:
        return ""
    drawn = "".join(_layer(event, layer) for layer in event.layers[:_LAYERS] if sum(layer.exponents) > 0)
    legend = (
        '<ul class="legend"><li class="bar c1">kept by fp16</li><li class="bar warn">with fewer bits</li>'
        '<li class="bar bad">lost: zero or too large</li></ul>'
    )
    return f'{legend}<div class="exponents">{drawn}</div>' if drawn else ""


def _layer(event: Numerics, layer: NumericsLayer) -> str:
    """Draw a bar for each exponent, as fp16 has it under the loss scale."""
    scale = 1.0 if layer.part == "forward" else event.loss_scale or event.best_scale or 1.0
    shift = max(0, int(scale).bit_length() - 1) if scale < 2.0**127 else 127
    heights = dict.fromkeys(range(_LOWEST, _HIGHEST + 1), 0)
    for number, share in enumerate(layer.exponents):
        exponent = min(max(layer.first_exponent + number + shift, _LOWEST), _HIGHEST)
        heights[exponent] += max(share, 0)
    most = max(heights.values())
    bars = dict.fromkeys(_PARTS, "")
    for exponent, share in heights.items():
        if share:
            bars[_part(exponent)] += f"M{exponent - _LOWEST + 0.5:g} 1V{1 - share / most:.3f}"
    drawn = "".join(f'<path class="bar {_PARTS[part]}" d="{path}"/>' for part, path in bars.items() if path)
    title = escape(f"{layer.name} · {layer.part}")
    return (
        f'<figure><svg viewBox="0 0 {_HIGHEST - _LOWEST + 1} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{title}">{drawn}</svg><figcaption>{title}</figcaption></figure>'
    )


def _part(exponent: int) -> str:
    if exponent < _SUBNORMAL or exponent > _TOP:
        return "lost"
    return "fewer" if exponent < _NORMAL else "kept"
