"""One fork server for all tests: torch is imported once."""

import pytest

from tests.chaos.killer import outcome_of
from tests.chaos.runs import UNET, trained
from tests.decoders import forked_decoders
from tests.program import server
from tests.runs.conftest import chance

__all__ = ["chance", "forked_decoders"]


@pytest.fixture(scope="session")
def fork_server():
    return server()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """Result of the undisturbed small U-Net run."""
    return outcome_of(trained(UNET, tmp_path_factory.mktemp("undisturbed"), "run"))
