import pytest

from tests.decoders import forked_decoders
from tests.forks import start_server
from tests.program import server

__all__ = ["forked_decoders"]


@pytest.fixture(scope="module")
def forked_servers():
    """Fork servers are forks of that of the tests, which has imported torch."""
    server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mptui.processes.start.start", start_server)
        yield
