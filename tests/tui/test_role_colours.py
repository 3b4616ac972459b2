"""The colours of the curves: legible on each background, and told apart with any colour vision."""

from itertools import combinations

import numpy as np
import pytest
from textual.color import Color

from mptui.tui.themes import ANSI, DARK, LIGHT
from mptui.tui.widgets.plot import ROLES

_SIGHT = {
    "usual": np.eye(3),
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
}
"""Matrices of Machado, Oliveira and Fernandes (2009) on linear RGB."""

XTERM = {"bright_blue": "#5c5cff", "magenta": "#cd00cd", "yellow": "#cdcd00", "green": "#00cd00"}
LINUX = {"bright_blue": "#5555ff", "magenta": "#aa00aa", "yellow": "#aa5500", "green": "#00aa00"}

_LEAST, _LEAST_OF_16, _LEAST_OF_SERIES = 20, 14, 5
"""The least distance of two curves in CIELAB; about 2 can just be seen where they touch."""

_ON_ROWS = ("foreground", "quiet", "text-accent", "text-warning", "text-error", "text-success")


def linear(colour):
    rgb = np.array(Color.parse(colour).rgb) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """The ratio of WCAG 2."""
    low, high = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    x, y, z = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.0089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
@pytest.mark.parametrize("sight", _SIGHT)
def test_curves_of_train_validation_and_device_and_warnings_are_told_apart(theme, sight):
    colours = [theme.variables[f"{role}-curve"] for role in ROLES]
    if sight == "usual":  # others know a warning by its sign and its words
        colours.append(theme.warning)
    seen = [lab(np.clip(_SIGHT[sight] @ linear(colour), 0, 1)) for colour in colours]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > _LEAST


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
@pytest.mark.parametrize("sight", _SIGHT)
def test_runs_and_parts_of_memory_are_told_apart_and_none_looks_like_a_state_beside_them(theme, sight):
    series = [theme.variables[f"series-{number}"] for number in range(1, 9)]
    seen = [lab(np.clip(_SIGHT[sight] @ linear(colour), 0, 1)) for colour in series]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > _LEAST_OF_SERIES
    assert min(contrast(colour, theme.background) for colour in series) >= 4.5
    if sight == "usual":  # others know a state by its sign and its words
        states = [lab(linear(colour)) for colour in (theme.warning, theme.error, theme.success)]
        assert min(np.linalg.norm(one - state) for one in seen for state in states) > _LEAST_OF_16


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_bars_are_legible_on_the_grounds_of_what_fp16_makes_of_them(theme):
    colours = {**theme.to_color_system().generate(), **theme.variables}
    tones = {"zero": "text-error", "loses-bits": "text-warning", "exact": "text-success", "inf": "series-4"}
    for name, tone in tones.items():
        assert contrast(colours[tone], colours[f"ground-{name}"]) >= 4.5, name
        assert contrast(colours[tone], theme.background) >= 4.5, name


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_curves_and_their_words_are_legible_on_each_background(theme):
    for role in ROLES:
        curve = theme.variables[f"{role}-curve"]
        for ground in (theme.background, theme.surface, theme.panel):
            assert contrast(curve, ground) >= 4.5, (role, ground)
    assert contrast(theme.warning, theme.panel) >= 4.5


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_a_selected_row_and_a_placeholder_are_legible(theme):
    colours = theme.to_color_system().generate() | theme.variables
    for words in _ON_ROWS:
        assert contrast(colours[words], colours["selected"]) >= 4.5, words
    for ground in (theme.background, theme.surface, theme.panel):
        assert contrast(colours["text-disabled"], ground) >= 4.5, ground
        assert contrast(colours["selected"], ground) >= 1.05


@pytest.mark.parametrize("palette", [XTERM, LINUX], ids=["xterm", "linux"])
@pytest.mark.parametrize("sight", _SIGHT)
def test_roles_are_legible_and_told_apart_in_sixteen_colours(palette, sight):
    named = [ANSI.variables[f"{role}-curve"] for role in ROLES]
    colours = [palette[name.removeprefix("ansi_")] for name in (*named, str(ANSI.warning))]
    assert min(contrast(colour, "#000000") for colour in colours) >= 3
    assert min(contrast(colour, "#ffffff") for colour in colours[:2]) >= 3
    told = colours if sight == "usual" else colours[:3]
    seen = [lab(np.clip(_SIGHT[sight] @ linear(colour), 0, 1)) for colour in told]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > _LEAST_OF_16
