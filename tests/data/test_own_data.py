"""A data set of a person's own, through the loader: workers, halves, masks, and samples of another form."""

import random
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data.core.types import IGNORE, BadSampleError
from mptui.data.formats.open import kind_of, open_dataset
from mptui.data.formats.own.sample import OwnRequest
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.registry import own_code
from mptui.registry.samples import SampleKind
from tests.data.loaders import assert_same, batches, loader
from tests.toys.own_project import NUMBERS, make_project


class Masks:
    """Random images with masks; not split."""

    classes: tuple[str, ...] = ("background", "thing")

    def __len__(self):
        return 10

    def __getitem__(self, index):
        mask = np.zeros((20, 24), np.uint8)
        mask[:4], mask[4:8] = 255, 1
        return Image.new("L", (24, 20), index), mask


@pytest.fixture
def given(monkeypatch):
    """Give a name to a data set of this process."""

    def give(make, name="mine:Data"):
        monkeypatch.setitem(own_code._given, name, make)
        return DataConfig(name=name, val_fraction=0.3, ignore_index=255)

    return give


@pytest.fixture
def sample(given):
    """Read sample 3 of a data set whose samples are what is given."""

    def read(value):
        class Data:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return value() if callable(value) else value

        name = f"mine:Data_{next(NUMBERS)}"
        given(Data, name)
        return OwnRequest("", name, "all", 3).read()

    return read


def opened(config, kind):
    return open_dataset(
        config,
        kind=kind,
        side=24,
        seed=3,
        on_progress=lambda *_: None,
        should_stop=lambda: False,
        on_warning=lambda _: None,
    )


def test_workers_read_the_same_bits_as_the_trainer_whose_random_numbers_stay(tmp_path, monkeypatch):
    name = make_project(tmp_path, monkeypatch)
    own_code.allow(str(tmp_path))
    dataset = opened(DataConfig(name=f"{name}:Data"), SampleKind.CLASS)
    assert (len(dataset.train), len(dataset.val)) == (24, 8)
    assert dataset.classes == ("dark", "bright", "unknown")
    torch.manual_seed(7)
    random.seed(7)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    with loader(dataset.train, workers=0) as here, loader(dataset.train, workers=2) as there:
        assert_same(batches(there, epoch=1), batches(here, epoch=1))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    np.testing.assert_equal(np.random.get_state(legacy=False), before[2])


def test_a_worker_imports_torch_only_if_the_person_does(tmp_path, monkeypatch):
    (tmp_path / "light.py").write_text(
        "import sys\nimport numpy as np\n\n\nclass Data:\n    classes = ['no torch', 'torch']\n\n"
        "    def __len__(self):\n        return 8\n\n    def __getitem__(self, index):\n"
        "        return np.zeros((8, 8), np.uint8), int('torch' in sys.modules)\n"
    )
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(own_code, "_folders", [])
    own_code.allow(str(tmp_path))
    dataset = opened(DataConfig(name="light:Data"), SampleKind.CLASS)
    with loader(dataset.train, workers=1, batch_size=2) as there:
        assert {int(t) for batch in batches(there) for t in batch.targets} == {0}


def test_masks_are_split_by_the_seed_and_ignored_values_are_ignored(given):
    config = given(Masks)
    assert kind_of(config) is SampleKind.MASK
    dataset = opened(config, SampleKind.MASK)
    assert (len(dataset.train), len(dataset.val)) == (7, 3)
    rows = [split.request(i).index for split in (dataset.train, dataset.val) for i in range(len(split))]
    assert sorted(rows) == list(range(10))
    read = dataset.train.request(2).read()
    assert read.image_HWC.shape == (20, 24, 3)
    assert np.unique(read.mask_HW).tolist() == [IGNORE, 0, 1]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ((np.zeros((3, 8, 8), np.float32), 0), r"its image is a ndarray, float32 \[3, 8, 8\]"),
        ((Image.new("RGB", (8, 8)), -1), "its class is -1"),
        ((Image.new("RGB", (8, 8)), "cat"), "its target is a str"),
        ((Image.new("RGB", (8, 8)), np.zeros((4, 8), int)), r"its target is a ndarray, int64 \[4, 8\]"),
        ((Image.new("RGB", (8, 8)), np.full((8, 8), -7)), "its mask has the value -7"),
    ],
)
def test_a_sample_of_another_form_is_told(value, told, sample):
    with pytest.raises(OwnCodeError, match=told):
        sample(value)


def test_a_file_that_cannot_be_read_is_a_bad_sample(sample, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"not an image")
    with pytest.raises(BadSampleError, match="cannot identify image"):
        sample(lambda: (Image.open(tmp_path / "broken.png"), 0))
    with pytest.raises(BadSampleError, match="no such file"):
        sample(lambda: (Image.open(tmp_path / "gone.png"), 0))


def test_a_class_that_is_no_data_set_is_told(given):
    class Empty(Masks):
        def __len__(self):
            return 0

    class Nameless(Masks):
        classes = ()

    with pytest.raises(ConfigError, match="makes no data set"):
        kind_of(given(object, "mine:NoData"))
    with pytest.raises(DataError, match="has no samples"):
        kind_of(given(Empty, "mine:Empty"))
    with pytest.raises(ConfigError, match="has no classes"):
        opened(given(Nameless, "mine:Nameless"), SampleKind.MASK)
