import random

import pytest

from mptui.tui import threads


@pytest.fixture
def chance() -> random.Random:
    return random.Random(0)


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
