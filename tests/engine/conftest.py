"""One thread for torch: tensors are small, and results bit-identical on any number of cores."""

import pytest
import torch

from mptui.engine.checkpoint.files import write_checkpoint
from tests.engine.checkpoints import snapshot


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def with_compiler(tmp_path, monkeypatch):
    """Make a C++ compiler appear to be installed."""
    program = tmp_path / "bin" / "c++"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """Isolate the cache of compile costs between tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def two(tmp_path):
    """An older and a newer checkpoint."""
    return [write_checkpoint(tmp_path, snapshot(step)) for step in (1, 2)]
