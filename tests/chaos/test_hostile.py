"""Five hundred hostile names, in every field that a screen, a table or the console shows.

Fast variants with a few names each are next to the tests of those screens.
"""

import io
import json

import pytest

from mptui.cli.console import Bars, Plain, Quiet
from mptui.cli.main import _exit_code
from mptui.cli.output import console
from mptui.events import DeviceSample, EpochStarted, Event, RunFinished, Validated
from mptui.runs.store.directory import CONFIG, SUMMARY
from tests import hostile
from tests.hardware.conftest import driver
from tests.hardware.fake_nvml import h200
from tests.tui.cockpits import cockpit, until
from tests.tui.conftest import environ, picker, stage
from tests.tui.events import START, MemorySource, step_event
from tests.tui.frames import frame, live, put
from tests.tui.test_live import told_of
from tests.tui.test_numerics import layer, looked

__all__ = ["driver", "environ", "picker", "stage"]

pytestmark = pytest.mark.chaos

NAMES = [*hostile.NAMES, *hostile.generated(500 - len(hostile.NAMES))]
CARDS = 8
PROFILES = 20


def assert_harmless(text, width=None):
    assert not hostile.acts(text)
    if width is not None:
        assert not hostile.overflows(text, width)


def test_there_are_five_hundred_and_most_act_by_themselves():
    assert len(NAMES) == 500
    assert len(set(NAMES)) > 450
    assert sum(bool(hostile.acts(name) or "\n" in name) for name in NAMES) > 350


def everywhere(name, chance) -> list[Event]:
    """Return events with the name in each of their fields."""
    return [
        *told_of(name),
        step_event(12, START, chance, metrics={name: 1.0}, bound_by=name, split={name: 0.1}),
        Validated(time=START, step=12, epoch=1, loss=1.0, metrics={name: 0.5}, seconds=1.0, best=True),
        DeviceSample(time=START, step=12, name=name, throttle=[name]),
        looked(layers=[layer(name), layer(f"a{name}")], mode=name, precision=name),
    ]


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_the_live_screen_and_the_numerics_lens(ascii_only, chance):
    source = MemorySource(profiles=NAMES[:6])
    async with live(source, ascii_only=ascii_only) as (app, pilot):
        for number, name in enumerate(NAMES):
            await put(app, pilot, *everywhere(name, chance))
            assert_harmless(frame(app), 120)
            if number % 10 == 0:
                for keys in (("l",), ("escape", "n"), ("escape",)):
                    await pilot.press(*keys)
                    await pilot.pause()
                    assert_harmless(frame(app), 120)
        for name in NAMES:
            ended = RunFinished(time=START, status=name, exit_code=1, message=name, hint=name, directory=name)
            await put(app, pilot, ended)
            assert_harmless(frame(app), 120)
        assert app.is_running


async def test_the_devices(driver):
    for start in range(0, len(NAMES), CARDS):
        names = NAMES[start : start + CARDS]
        uuids = [f"GPU-00000000-0000-0000-0000-0000000000{number:02}" for number in range(len(names))]
        nvml = driver(
            *(h200(uuid=uuid, compute=[(number + 1, 1 << 30)]) for number, uuid in enumerate(uuids))
        )
        for number, name in enumerate(names):
            nvml.gpus[number].name = name
            nvml.process_names[number + 1] = name
        async with cockpit() as (app, pilot, _):
            await until(app, pilot, "cuda:0")
            for _ in names:
                await pilot.press("down")
                await pilot.pause()
                assert_harmless(frame(app), 80)


@pytest.mark.asyncio(loop_scope="package")
async def test_the_picker(picker, environ, tmp_path):
    folder = tmp_path / "config" / "profiles"
    folder.mkdir(parents=True)
    for start in range(0, len(NAMES), PROFILES):
        for number, name in enumerate(NAMES[start : start + PROFILES]):
            text = f"description = {json.dumps(name)}\n"
            (folder / f"p{number}.toml").write_text(text, encoding="utf-8", errors="replace")
        async with picker(environ) as (app, pilot, screen):
            screen.query_one("#profiles").focus()
            for key in ("end", *["up"] * PROFILES):
                await pilot.press(key)
                await pilot.pause()
                assert_harmless(frame(app), 80)


def test_the_tables_of_runs(tmp_path, capfd):
    for number, name in enumerate(NAMES):
        run = tmp_path / f"r{number:03}"
        run.mkdir()
        (run / CONFIG).write_text(
            f"description = {json.dumps(name)}\n[model]\nname = {json.dumps(name)}\n",
            encoding="utf-8",
            errors="replace",
        )
        told = {"status": name, "device": name, "precision": {"used": name}, "final": {name: 1.0}}
        best = {"epoch": 1, "metric": name, "value": 0.5}
        (run / SUMMARY).write_text(json.dumps({**told, "best": best, "model": name}))
    asked = [["runs"], *(["runs", "compare", f"r{n:03}", f"r{n + 1:03}"] for n in range(0, len(NAMES), 2))]
    for arguments in asked:
        _exit_code([*arguments, "--runs-dir", str(tmp_path)], debug=False)
        out, err = capfd.readouterr()
        assert_harmless(out + err)


@pytest.mark.parametrize(
    "make", [Plain, Bars, lambda console, _: Quiet(console)], ids=["plain", "bars", "quiet"]
)
def test_the_console(make, chance):
    out = io.StringIO()
    renderer = make(console(out, width=120), ("on", "off"))
    for name in NAMES:
        renderer.handle(EpochStarted(epoch=1, epochs=2, steps=3))
        for event in everywhere(name, chance):
            renderer.handle(event)
    renderer.close()
    assert_harmless(out.getvalue().replace("\r", ""))
