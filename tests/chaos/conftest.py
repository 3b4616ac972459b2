"""One fork server for all: torch is imported once."""

import pytest

from mptui.lab.crash.kills import outcome_of
from tests.chaos.runs import UNET, finished
from tests.program import server
from tests.runs.conftest import chance

__all__ = ["chance"]


@pytest.fixture(scope="session")
def fork_server():
    return server()


@pytest.fixture(scope="session")
def undisturbed(fork_server, tmp_path_factory):
    """What comes out of the small U-Net run when nobody disturbs it."""
    return outcome_of(finished(fork_server, UNET, tmp_path_factory.mktemp("undisturbed"), "run"))
