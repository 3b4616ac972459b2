"""Each format of data does what a run relies on; for files of ours see `test_prepared_damaged.py`."""

import csv
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from mptui.data.layouts.known import FORMATS
from mptui.registry.names import SampleKind
from mptui.testing import FormatContract
from tests.data.packed_sets import add, parquet


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def numbered(images):
    """Yield the name of a class, a name of its own, and the content of each image."""
    for name, contents in images.items():
        yield from ((name, f"{name} {number}", content) for number, content in enumerate(contents))


def mask():
    content = io.BytesIO()
    Image.fromarray(np.repeat(np.array([[0] * 5 + [255] * 5], np.uint8), 12, axis=0)).save(content, "PNG")
    return content.getvalue()


class TestClassFolders(FormatContract):
    @pytest.fixture
    def spec(self):
        return FORMATS["class folders"]

    def make(self, folder, images):
        for name, own, content in numbered(images):
            put(folder / name / f"{own}.png", content)
        return folder


class TestListOfImages(FormatContract):
    @pytest.fixture
    def spec(self):
        return FORMATS["list of images"]

    def make(self, folder, images):
        rows = [("image", "label")]
        for name, own, content in numbered(images):
            put(folder / "all" / f"{own}.png", content)
            rows.append((f"all/{own}.png", name))
        with (folder / "list.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        return folder / "list.csv"


class TestTarShards(FormatContract):
    @pytest.fixture
    def spec(self):
        return FORMATS["tar shards"]

    def make(self, folder, images):
        folder.mkdir(parents=True)
        with tarfile.open(folder / "all.tar", "w") as tar:
            for number, (name, _, content) in enumerate(numbered(images)):
                add(tar, f"{number}.png", content)
                add(tar, f"{number}.cls", name.encode())
        return folder


class TestParquetFiles(FormatContract):
    @pytest.fixture
    def spec(self):
        return FORMATS["Parquet files"]

    def make(self, folder, images):
        names = sorted(images)
        rows = [(name, (content, f"{own}.png")) for name, own, content in numbered(images)]
        labels = [names.index(name) for name, _ in rows]
        parquet(folder / "all.parquet", [content for _, content in rows], labels, classes=names)
        return folder


class TestImagesAlone(FormatContract):
    kind = SampleKind.IMAGE

    @pytest.fixture
    def spec(self):
        return FORMATS["images alone"]

    def make(self, folder, images):
        for _, own, content in numbered(images):
            put(folder / f"{own}.png", content)
        return folder


class TestImagesAndMasks(FormatContract):
    kind = SampleKind.MASK

    @pytest.fixture
    def spec(self):
        return FORMATS["images and masks"]

    def make(self, folder, images):
        for _, own, content in numbered(images):
            put(folder / "images" / f"{own}.png", content)
            put(folder / "masks" / f"{own}.png", mask())
        return folder


class TestMasksBesideImages(FormatContract):
    kind = SampleKind.MASK

    @pytest.fixture
    def spec(self):
        return FORMATS["masks beside images"]

    def make(self, folder, images):
        for _, own, content in numbered(images):
            put(folder / f"{own}.png", content)
            put(folder / f"{own}_mask.png", mask())
        return folder
