import random

import pytest

from mptui.tui import threads


@pytest.fixture
def chance() -> random.Random:
    return random.Random(0)


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test():
    """What a screen began in the background (torch is loaded there) ends before the next test."""
    yield
    assert threads.wait(120)
