import random

import pytest
import pytest_asyncio

from mptui.tui import threads
from tests.tui.stage import Stage


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


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test():
    """Wait for background work of a screen (such as importing torch) before the next test."""
    yield
    assert threads.wait(120)


@pytest.fixture
def uncounted(monkeypatch):
    """Leave the memory of the picker's profiles uncounted: that imports torch, and takes seconds."""
    monkeypatch.setattr("mptui.tui.screens.setup.selection_page.import_failure", lambda: "not tried")


@pytest.fixture
def environ(tmp_path):
    """Empty user folders."""
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "MPTUI_CONFIG_DIR": str(tmp_path / "config")}
