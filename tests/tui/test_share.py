"""What is shown to others, and what is kept for the next start: `S` and the theme."""

import io

import pytest
from PIL import Image
from rich.cells import cell_len

from mptui.tui import share
from mptui.tui.app import chosen_theme, keep_theme, theme_of_terminal
from mptui.tui.share import HEIGHT, WIDTH, picture_of
from tests.tui.events import MemorySource, demo, demo_source
from tests.tui.frames import frame
from tests.tui.test_runs_screen import a_run


@pytest.fixture(params=[pytest.param("fonts of the machine", marks=pytest.mark.slow), "no fonts"])
def _fonts(request, monkeypatch):
    if request.param == "no fonts":
        monkeypatch.setattr(share, "_FONTS", (("no-such-font.ttf", "no-such-font.ttf"),))
    caches = (share._font, share._mask)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("_fonts")
async def test_the_picture_of_a_screen_has_its_cells(stage):
    async with stage.live(demo_source(), (120, 36)) as (app, _):
        svg, lines = app.export_screenshot(), frame(app).splitlines()
    picture = Image.open(io.BytesIO(picture_of(svg)))
    assert picture.size == (120 * WIDTH, 36 * HEIGHT)
    for line, text in enumerate(lines):
        for column, character in enumerate(text):
            left, top = cell_len(text[:column]) * WIDTH, line * HEIGHT
            colours = picture.crop((left, top, left + WIDTH, top + HEIGHT)).getcolors() or []
            if character.isascii() or "\u2801" <= character <= "\u28ff":
                assert len(colours) > 1 or character == " ", (character, column, line)
                assert len(colours) == 1 or character != " ", (character, column, line)


async def test_the_key_writes_svg_png_and_words(stage, tmp_path, monkeypatch):
    source = MemorySource(demo()[:120])
    source.run = a_run(tmp_path / "runs", "one", events=demo()[:120])
    monkeypatch.chdir(tmp_path)
    async with stage.live(source) as (app, pilot):
        await pilot.press("S")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "written: mptui-live-" in frame(app)
    written = {path.suffix: path for path in tmp_path.glob("mptui-live-*")}
    assert len({path.stem for path in written.values()}) == 1
    assert "url(http" not in written[".svg"].read_text(encoding="utf-8")
    assert Image.open(written[".png"]).size == (120 * WIDTH, 36 * HEIGHT)
    words = written[".txt"].read_text(encoding="utf-8").splitlines()
    assert len(words) == 2
    assert words[0].startswith("one · resnet18 · shapes")


async def test_the_theme_chosen_by_its_key_is_that_of_the_next_start(stage, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert chosen_theme() is None
    async with stage.live(MemorySource(demo()[:20])) as (app, pilot):
        await pilot.press("ctrl+t")
        assert app.theme == "light"
    assert chosen_theme() == "light"
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert chosen_theme(environ | {"MPTUI_THEME": "ansi"}) == "ansi"
    assert chosen_theme(environ | {"NO_COLOR": "1"}) == "ansi"


@pytest.mark.parametrize(
    ("ground", "theme"), [("0;15", "light"), ("0;default;7", "light"), ("15;0", "dark"), ("", "dark")]
)
def test_a_terminal_that_tells_of_a_light_ground_is_met_by_the_light_theme(tmp_path, ground, theme):
    environ = {"XDG_STATE_HOME": str(tmp_path), "COLORFGBG": ground}
    assert chosen_theme(environ) is None
    assert theme_of_terminal(environ) == theme
    assert theme_of_terminal(environ | {"TERM": "linux"}) == "ansi"
    assert theme_of_terminal(environ, colours="standard") == "ansi"
    assert theme_of_terminal(environ, colours="256") == theme


@pytest.mark.parametrize("text", ["", "no theme", "\x1b[2J", "x" * 1000])
def test_a_file_that_names_no_theme_is_ignored(tmp_path, text):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    keep_theme(text, environ)
    assert chosen_theme(environ) is None
