import tempfile
from pathlib import Path

import pytest

from tests.runs.control.clients import Client, Run


@pytest.fixture
def begin():
    runs = []

    def begin_at(path):
        runs.append(Run(path))
        runs[-1].server.open()
        return runs[-1]

    yield begin_at
    for run in runs:
        run.end()


@pytest.fixture
def run(begin, short):
    return begin(short / "run")


@pytest.fixture
def short():
    """A folder whose path is short enough for a socket, wherever the tests run."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def connect():
    clients = []

    def connect_to(run):
        clients.append(Client(run))
        return clients[-1]

    yield connect_to
    for client in clients:
        client.close()
