"""Fixtures of tests of the engine."""

import pytest

from mptui.engine.checkpoint.files import write_checkpoint
from tests.decoders import forked_decoders
from tests.engine.checkpoints import snapshot

__all__ = ["forked_decoders"]


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
