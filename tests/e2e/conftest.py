import pytest

from tests.e2e.terminal import Terminal


@pytest.fixture
def terminal(tmp_path):
    """Start the program on a terminal: `terminal(size=…, environ=…)`."""
    started = []

    def start(**kwargs):
        started.append(Terminal(tmp_path, **kwargs))
        return started[-1]

    yield start
    for each in started:
        each.end()
