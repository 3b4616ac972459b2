"""One fork server for all: torch is imported once."""

import pytest

from mptui.lab.forkserver import ForkServer


@pytest.fixture(scope="session")
def fork_server():
    with ForkServer() as server:
        yield server
