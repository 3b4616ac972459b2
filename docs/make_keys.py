"""Print `keys.md`, the keys of the terminal UI, from the table of keys.

python docs/make_keys.py > docs/keys.md
"""

from mptui.tui.keys import KEYS, PLACES, display

_HEAD = """# Keys

`?` shows the keys that do something now on the current screen. `ctrl+p` lists what can be done, first
what it was used for most, and finds commands, settings, profiles, runs, metrics and pages like this one by
name. Keys in the bottom line can be clicked. All can be changed in `keys.toml` in your configuration folder
(`~/.config/mptui`):

    [live]
    pause = "p"
    checkpoint = "ctrl+s,c"

Lists, logs and rows of images have the same keys everywhere: arrows or `j` and `k`, page keys, `home` or
`g`, `end` or `G`, and the wheel. In a list, `/` leaves the lines with some words, and `n` and `N` go
through them; a click chooses a line, a second one opens it. In a chart, the wheel shows fewer or more steps
and a second click all; on the timeline, the wheel goes back in time. A key that does nothing on a screen says
once what it is for. The escape key counts 30 ms after it is pressed, as a sequence of another key could begin
with it: `ESCDELAY=100` (in milliseconds, as for curses) suits a line that is slower than SSH.

Colours are dark or light as the terminal's background, which is asked for at the start. `ctrl+t` chooses
another theme, also for the next start; `MPTUI_THEME=dark`, `light` or `ansi` (the terminal's sixteen colours)
names one. `NO_COLOR=1` leaves the terminal its own two. On the Linux console, on VT terminals and where the
locale has no UTF-8, the screens use the signs that are there.
"""


def page() -> str:
    """Return the page: a table for each screen or widget with keys."""
    blocks = [_HEAD]
    for name, place in PLACES.items():
        rows = [f"| {display(key, {})} | {key.help} | `{key.id}` |" for key in KEYS if key.where == name]
        blocks.append(
            "\n".join([f"## {place.title}", "", "| key | does | name |", "| --- | --- | --- |", *rows])
        )
    return "\n\n".join(block.strip() for block in blocks) + "\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
