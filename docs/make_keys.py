"""Print `keys.md`, the keys of the terminal UI, from the table that makes them.

python docs/make_keys.py > docs/keys.md
"""

from mptui.tui.keys.bindings import KEYS, display

_PLACES = {
    "detection": "The devices",
    "picker": "The profiles",
    "list": "A list in focus",
    "edit": "A value being edited",
    "live": "The run",
    "chart": "A chart in focus",
    "log": "The log in focus",
    "column": "The panels on the right in focus",
    "numerics": "What 16 bits do to the numbers",
    "leave": "Leaving a run that still goes",
    "stop": "Before a run is stopped",
    "discard": "Before edits are lost",
    "switch": "Before another preset",
    "help": "The help screen",
    "app": "Everywhere",
}

_HEAD = """# Keys

`?` shows those of the screen you are on, `ctrl+p` finds a command by its name, and what stands in the bottom
line can be clicked. Each can be changed in `keys.toml` in your configuration folder (`~/.config/mptui`):

    [live]
    pause = "p"
    checkpoint = "ctrl+s,c"
"""


def page() -> str:
    """The page: a table for each place that hears keys."""
    places = dict.fromkeys([*_PLACES, *(key.where for key in KEYS)])
    blocks = [_HEAD]
    for place in places:
        rows = [f"| {display(key, {})} | {key.help} | `{key.id}` |" for key in KEYS if key.where == place]
        blocks.append(
            "\n".join(
                [f"## {_PLACES.get(place, place)}", "", "| key | does | name |", "| --- | --- | --- |", *rows]
            )
        )
    return "\n\n".join(block.strip() for block in blocks) + "\n"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
