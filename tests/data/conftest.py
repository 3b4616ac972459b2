import shutil

import pytest
from PIL import Image

from mptui.data.convert import convert
from tests.data.device_decoding import SIZES
from tests.data.images import save_oriented
from tests.data.prepared_sets import photos, prepared
from tests.data.test_resample import natural


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Tests neither read nor fill the cache of the person who runs them."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(convert, "SAMPLES_A_SHARD", 7)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    data = photos(root / "data", {"cat": 12, "dog": 9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "SAMPLES_A_SHARD", 7)
        prepared(data, root / "out")
    return root


@pytest.fixture
def ready(made, tmp_path, small_shards):
    """A folder and the set prepared from it."""
    for name in ("data", "out"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "data", tmp_path / "out"


@pytest.fixture(scope="module", name="photos")
def photos_of_all_kinds(tmp_path_factory):
    """Of all orientations, shapes and samplings; some grey, one PNG, one progressive, one CMYK."""
    folder = tmp_path_factory.mktemp("photos")
    paths = []
    for index in range(24):
        picture = Image.fromarray(natural(*SIZES[index % len(SIZES)], seed=index))
        path = folder / f"{index}.jpg"
        match index:
            case 9:
                picture.save(path, "PNG")
            case 10:
                picture.save(path, quality=90, progressive=True)
            case 11:
                picture.convert("CMYK").save(path, quality=90)
            case 12 | 13:
                picture.convert("L").save(path, quality=90)
            case 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8:
                save_oriented(path, index or 1, picture)
            case _:
                picture.save(path, quality=90, subsampling=index % 3)
        paths.append(path)
    return paths
