"""Pictures on terminals with graphics: what is sent, without a terminal that shows it."""

import io
import re
from base64 import b64decode

import pytest
from PIL import Image

from mptui.tui.terminal.graphics import protocol_of
from tests.e2e.picture_screen import GREEN

PLACEHOLDER = "\U0010eeee".encode()
HALF_BLOCK = "▀".encode()
BRIGHTNESS = b"-" * 20
"""A row of a green picture."""
ASKED = re.compile(rb"\x1b\[c|\x1b\[16t|a=q")


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "sixel"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "tmux-256color", "TERM_PROGRAM": "WezTerm"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, None),
        ({"TERM": "xterm-256color", "MPTUI_GRAPHICS": "sixel"}, "sixel"),
        ({"TERM": "xterm-kitty", "MPTUI_GRAPHICS": "off"}, None),
        ({}, None),
    ],
)
def test_the_environment_tells_the_terminal(environ, protocol):
    assert protocol_of(environ) == protocol


def shown(terminal, tmp_path, environ, sent, pixels=(1200, 900)):
    """Return what the screen has sent, once `sent` was."""
    program = terminal(
        size=(120, 45),
        pixels=pixels,
        environ={"COLORTERM": "truecolor", **environ},
        arguments=(str(tmp_path),),
        call="tests.e2e.picture_screen:show",
    )
    program.until(lambda: sent in program.output, repr(sent))
    assert not ASKED.search(program.output)
    return program.output


def test_kitty_gets_the_picture_and_the_cells_where_it_is_shown(terminal, tmp_path):
    pytest.importorskip("textual_image")
    output = shown(terminal, tmp_path, {"TERM": "xterm-kitty"}, PLACEHOLDER)
    parts = re.findall(rb"\x1b_G[^;\x1b]*;([^\x1b]+)\x1b", output)
    picture = Image.open(io.BytesIO(b64decode(b"".join(parts)))).convert("RGB")
    columns, rows = (int(n) for n in re.findall(rb"c=(\d+),r=(\d+)", output)[-1])
    assert (picture.width, picture.height) == (columns * 10, rows * 20)
    assert picture.width > 48
    assert picture.getpixel((picture.width // 2, picture.height // 2)) == GREEN
    assert HALF_BLOCK not in output


def test_others_get_sixels(terminal, tmp_path):
    pytest.importorskip("textual_image")
    output = shown(terminal, tmp_path, {"TERM": "foot"}, b"\x1bP0;0;0q")
    assert HALF_BLOCK not in output


@pytest.mark.parametrize(
    ("environ", "pixels", "drawn"),
    [
        ({"TERM": "xterm-kitty"}, (0, 0), HALF_BLOCK),
        ({"TERM": "xterm-kitty", "NO_COLOR": "1"}, (1200, 900), BRIGHTNESS),
        ({"TERM": "xterm-kitty", "COLORTERM": ""}, (1200, 900), HALF_BLOCK),
    ],
)
def test_characters_remain_where_a_picture_would_be_lost(terminal, tmp_path, environ, pixels, drawn):
    output = shown(terminal, tmp_path, environ, drawn, pixels)
    assert b"\x1b_G" not in output
