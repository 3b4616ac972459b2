import random
from contextlib import asynccontextmanager
from functools import partial

import pytest
import pytest_asyncio

from mptui.errors import MptuiError
from mptui.hardware.sampler import DeviceSampler
from mptui.registry.models import find_model
from mptui.registry.names import BUILT_IN
from mptui.tui import work
from mptui.tui.data_preview import preview, preview_here
from mptui.tui.screens.picker import PickerScreen
from tests.hardware.machines import H200
from tests.made.apps import drawn_when_looked_at, styles_are_parsed_once, waits_are_for_work_alone
from tests.tui.frames import frame
from tests.tui.stage import Stage

__all__ = ["drawn_when_looked_at", "styles_are_parsed_once", "waits_are_for_work_alone"]


@pytest.fixture
def chance() -> random.Random:
    return random.Random(0)


def pytest_collection_modifyitems(items):
    for item in items:
        if "stage" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="package"), append=False)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stage():
    """Programs that stay open; the tests that show screens in them share their event loop."""
    opened = Stage()
    yield opened
    await opened.close()


@pytest.fixture
def picker(stage):
    """Show only the picker; yields (app, pilot, its screen)."""

    @asynccontextmanager
    async def shown(environ, size=(80, 24), device=H200, ascii_only=False):
        screen = PickerScreen(device, environ=environ, ascii_only=ascii_only)
        async with stage.show(screen, size, ascii_only=ascii_only) as (app, pilot):
            yield app, pilot, screen
            frame(app)  # whatever a test looks at, its last screen can be drawn

    return shown


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test():
    """Wait for background work of a screen (such as importing torch) before the next test."""
    yield
    assert work.wait(120)


@pytest.fixture
def _looked_at_here(monkeypatch):
    """Look at data for the picker in a thread: a process of its own takes a second."""

    def here(resolution, device, should_stop):
        data = resolution.config.data
        if data.path is None and data.name in {None, BUILT_IN}:
            return preview(resolution, device, should_stop)
        try:
            return preview_here(resolution)
        except MptuiError:
            return None

    monkeypatch.setattr("mptui.tui.screens.picker.preview", here)
    monkeypatch.setattr("mptui.tui.screens.picker.TYPING_PAUSE_S", 0.05)


@pytest.fixture
def uncounted(monkeypatch, _looked_at_here):
    """Leave the memory of the picker's profiles uncounted: that imports torch, and takes seconds."""
    monkeypatch.setattr("mptui.tui.screens.picker.import_failure", lambda: "not tried")


@pytest.fixture
def recorded(monkeypatch, _looked_at_here):
    """Give each network that there is the memory that was counted of a ResNet-18: to count takes seconds."""
    from mptui.engine.memory import ledger
    from tests.tui.pickers import resnet18_footprint

    count = ledger.footprint

    def from_record(config, task, **device):
        known = find_model(config.model.name) is not None
        return resnet18_footprint(config) if known else count(config, task, **device)

    monkeypatch.setattr(ledger, "footprint", from_record)


@pytest.fixture
def often_sampled(monkeypatch):
    """Sample devices, and read the samples, often: a change of a device is not waited for."""
    monkeypatch.setattr("mptui.hardware.sampler.DeviceSampler", partial(DeviceSampler, interval_s=0.05))
    monkeypatch.setattr("mptui.tui.screens.detection.READINGS_PER_SECOND", 10)


@pytest.fixture
def environ(tmp_path):
    """Empty user folders."""
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "MPTUI_CONFIG_DIR": str(tmp_path / "config")}
