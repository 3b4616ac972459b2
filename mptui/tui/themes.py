"""The three themes: dark, light, and the sixteen colours of the terminal.

`text-disabled` is a colour here: Textual's own value, `auto 38%`, has no effect within a line of text.

A curve of a run has the colour of its role: of train, of validation, of the device. On a screen with colours
that name a run, or a part of the memory, there are no roles: they are those of Okabe and Ito, made unlike the
colours of states. An accent colour marks the selection; green, amber and red are only for states. `selected`
is the ground of a selected row.
"""

from rich.style import Style as RichStyle
from textual.style import Style
from textual.theme import BUILTIN_THEMES, Theme
from textual.widget import Widget

_SERIES = {
    "train-curve": "#56b4e9",
    "validation-curve": "#f2843c",
    "device-curve": "#2fa37f",
    "series-1": "#56b4e9",
    "series-2": "#e69f00",
    "series-3": "#159352",
    "series-4": "#cc79a7",
    "series-5": "#f0e442",
    "series-6": "#d55e00",
    "series-7": "#9a8cff",
    "series-8": "#c3cbd3",
    "series-raw": "#4c5b6b",
    "ground-zero": "#4a2527",
    "ground-loses-bits": "#40391c",
    "ground-exact": "#16352c",
    "ground-inf": "#371e30",
    "frame": "#39424e",
    "quiet": "#8b97a5",
    "footer-key-foreground": "#8cc8ee",
    "scrollbar-background": "#1b222b",
    "text-disabled": "#7f8a97",
    "selected": "#1b2e3c",
}

DARK = Theme(
    name="dark",
    primary="#56b4e9",
    secondary="#7a8794",
    accent="#56b4e9",
    success="#3fb68b",
    warning="#e8c547",
    error="#f2665b",
    foreground="#d7dde4",
    background="#0f1318",
    surface="#141a21",
    panel="#1b222b",
    variables=_SERIES,
)

LIGHT = Theme(
    name="light",
    primary="#0a5c94",
    secondary="#5c6670",
    accent="#0a5c94",
    success="#0b7a54",
    warning="#756000",
    error="#b3261e",
    foreground="#1d242c",
    background="#fbfbf9",
    surface="#f3f3f0",
    panel="#e8e8e4",
    dark=False,
    variables={
        "train-curve": "#00679f",
        "validation-curve": "#ab4300",
        "device-curve": "#007556",
        "series-1": "#0072b2",
        "series-2": "#9b6437",
        "series-3": "#456640",
        "series-4": "#a8437b",
        "series-5": "#443d0d",
        "series-6": "#b04500",
        "series-7": "#5b4bc4",
        "series-8": "#59636d",
        "series-raw": "#8fa1b1",
        "ground-zero": "#f3d6d3",
        "ground-loses-bits": "#ede5c4",
        "ground-exact": "#d6ebe1",
        "ground-inf": "#f6e9f1",
        "frame": "#c9ced3",
        "quiet": "#58636d",
        "footer-key-foreground": "#0a5c94",
        "text-disabled": "#5f6872",
        "selected": "#d3e1e9",
    },
)

_ANSI = BUILTIN_THEMES["ansi-dark"]
ANSI = Theme(
    name="ansi",
    ansi=True,
    primary="ansi_blue",
    secondary="ansi_cyan",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_cyan",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        **_ANSI.variables,
        "train-curve": "ansi_bright_blue",
        "validation-curve": "ansi_magenta",
        "device-curve": "ansi_green",
        "series-1": "ansi_bright_blue",
        "series-2": "ansi_yellow",
        "series-3": "ansi_green",
        "series-4": "ansi_magenta",
        "series-5": "ansi_cyan",
        "series-6": "ansi_red",
        "series-7": "ansi_bright_magenta",
        "series-8": "ansi_bright_green",
        "series-raw": "ansi_bright_black",
        "ground-zero": "ansi_default",
        "ground-loses-bits": "ansi_default",
        "ground-exact": "ansi_default",
        "ground-inf": "ansi_default",
        "frame": "ansi_bright_black",
        "quiet": "ansi_default",
        "text-disabled": "ansi_bright_black",
        "selected": "ansi_default",
        "footer-key-foreground": "ansi_cyan",
    },
)

THEMES = (DARK, LIGHT, ANSI)


def style_on(widget: Widget, words: str) -> RichStyle:
    """Return the style of words such as `bold $text-error` in the current theme, on a widget's background.

    Textual parses them once for each theme. Component classes would cost a node and a pass through all rules
    for each class, widget and change of the widget's own style.
    """
    return (widget.visual_style + Style.parse(words)).rich_style
