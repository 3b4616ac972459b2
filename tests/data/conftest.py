import shutil

import pytest

from mptui.data import prepare
from tests.data.prepared_sets import photos, prepared
from tests.decoders import forked_decoders

__all__ = ["forked_decoders"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Isolate tests from the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(prepare, "SAMPLES_A_TAR", 7)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    data = photos(root / "data", {"cat": 12, "dog": 9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "SAMPLES_A_TAR", 7)
        prepared(data, root / "out")
    return root


@pytest.fixture
def ready(made, tmp_path, small_shards):
    """A folder and the prepared set made from it."""
    for name in ("data", "out"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "data", tmp_path / "out"
