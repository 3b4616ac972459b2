"""A data set of a person's own, through the loader: workers, halves, masks, and samples of another form."""

import random
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data import reading
from mptui.data.decode import read_rgb
from mptui.data.open import kind_of, open_dataset
from mptui.data.own import OwnRequest, image_of
from mptui.data.types import IGNORE, BadSampleError
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.registry import own_code
from mptui.registry.names import SampleKind
from tests import program
from tests.data.caching import chosen
from tests.data.images import photo, save_oriented
from tests.data.loaders import assert_same, batches, loader
from tests.decoders import forks_of
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

    def read(value, side_hint=None):
        class Data:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return value() if callable(value) else value

        name = f"mine:Data_{next(NUMBERS)}"
        given(Data, name)
        return OwnRequest("", name, "all", 3).read(side_hint)

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
    monkeypatch.setattr(reading, "start", forks_of(program.server()))  # the code imports torch
    name = make_project(tmp_path, monkeypatch)
    own_code.allow(str(tmp_path))
    dataset = opened(DataConfig(name=f"{name}:Data"), SampleKind.CLASS)
    assert (len(dataset.train), len(dataset.val)) == (24, 8)
    assert dataset.classes == ("dark", "bright", "unknown")
    torch.manual_seed(7)
    random.seed(7)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    with loader(dataset.train, workers=0) as here, loader(dataset.train, workers=1) as there:
        assert_same(batches(there, epoch=1), batches(here, epoch=1))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    np.testing.assert_equal(np.random.get_state(legacy=False), before[2])


class Noise:
    """Noise of each of the three generators."""

    classes: tuple[str, ...] = ("a", "b")

    def __len__(self):
        return 40

    def __getitem__(self, index):
        drawn = [random.random(), np.random.random(), torch.rand(()).item()]
        return np.full((8, 8, 3), [255 * value for value in drawn], np.uint8), index % 2


def test_random_numbers_of_a_sample_are_others_in_each_epoch_and_with_each_seed(given):
    dataset = opened(given(Noise, f"mine:Data_{next(NUMBERS)}"), SampleKind.CLASS)
    plain: dict[str, Any] = {"workers": 0, "augment": False, "batch_size": 28}
    with loader(dataset.train, **plain) as one, loader(dataset.train, **plain, seed=6) as two:
        read = [batches(one, epoch=0), batches(one, epoch=1), batches(two, epoch=0)]
        again = batches(one, epoch=0)
    assert_same(again, read[0])
    colours = []
    for ((batch,),) in [(each,) for each in read]:
        place = np.argsort(batch.sample_indices)
        colours.append(batch.images_BCHW[place, :, 0, 0])
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert (colours[left] != colours[right]).float().mean() > 0.9


def test_the_sample_whose_reading_imports_torch_is_seeded_as_the_others(given, monkeypatch):
    class Late(Noise):
        def __init__(self):
            sys.modules["torch"] = torch  # as its import does

    name = f"mine:Data_{next(NUMBERS)}"
    given(Late, name)
    request = OwnRequest("", name, "all", 3)
    torch.manual_seed(7)
    monkeypatch.delitem(sys.modules, "torch")
    first = request.read()
    assert np.array_equal(first.image_HWC, request.read().image_HWC)


@pytest.mark.parametrize(("made", "draws", "mode"), [(Noise, True, "off"), (Masks, False, "ram")])
def test_a_set_whose_samples_draw_random_numbers_is_cached_only_where_that_is_asked(given, made, draws, mode):
    config = given(made, f"mine:Data_{next(NUMBERS)}")
    dataset = opened(config, kind_of(config))
    assert dataset.draws == draws
    assert chosen(dataset, side=8, epochs=3).mode == mode
    assert chosen(dataset, "ram", side=8, epochs=3).mode == "ram"


def test_a_worker_imports_torch_only_if_the_person_does(tmp_path, monkeypatch):
    (tmp_path / "light.py").write_text(
        "import sys\nimport numpy as np\n\n\nclass Data:\n    classes = ['no torch', 'torch']\n\n"
        "    def __len__(self):\n        return 8\n\n    def __getitem__(self, index):\n"
        "        return np.zeros((8, 8), np.uint8), int('torch' in sys.modules)\n"
    )
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


IMAGE = Image.new("RGB", (8, 8))


@pytest.mark.parametrize(
    ("value", "told", "remedy"),
    [
        ((np.zeros((3, 8, 8), np.float32), 0), r"its image is a ndarray, float32 \[3, 8, 8\]", "PIL image"),
        ({"image": IMAGE, "label": 1}, "its image is a dict with the keys image, label", "PIL image"),
        ((IMAGE, -1), "its class is -1", "from 0"),
        ((IMAGE, "cat"), "its target is a str: 'cat'", "classes.index"),
        ((IMAGE, 1.0), "its target is a float: 1.0", "as an integer"),
        ((IMAGE, np.float32(1)), r"its target is a float32, float32 \[\]", "as an integer"),
        ((IMAGE, torch.eye(3)[1]), r"its target is a Tensor, torch.float32 \[3\]", "argmax"),
        ((IMAGE, np.eye(3, dtype=int)[1]), r"its target is a ndarray, int64 \[3\]", "argmax"),
        ((IMAGE, [1]), "its target is a list of 1", "alone"),
        ((IMAGE, torch.tensor([1])), r"its target is a Tensor, torch.int64 \[1\]", "alone"),
        ((IMAGE, {"label": 1}), "its target is a dict with the keys label", "a tuple of two"),
        ((IMAGE, [[1], [2, 3]]), "its target is a list of 2", "the number of a class"),
        ((IMAGE, 1, "1.png"), "it has 3 values", "a tuple of two"),
        ((IMAGE,), "it has 1 value", "a tuple of two"),
        ((IMAGE, np.zeros((4, 8), int)), r"its target is a ndarray, int64 \[4, 8\]", r"\[8, 8\]"),
        ((IMAGE, np.zeros((8, 8))), r"its target is a ndarray, float64 \[8, 8\]", "integers"),
        ((IMAGE, np.zeros((2, 8, 8), int)), r"its target is a ndarray, int64 \[2, 8, 8\]", "no channels"),
        ((IMAGE, np.full((8, 8), -7)), "its mask has the value -7", "-1 to ignore"),
    ],
)
def test_a_sample_of_another_form_is_told_with_its_remedy(value, told, remedy, sample):
    with pytest.raises(OwnCodeError, match=told) as raised:
        sample(value)
    assert re.search(remedy, raised.value.hint)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"image": IMAGE, "label": 1}, "its image is a dict"),
        ((np.zeros((3, 8, 8), np.float32), 0), "its image is a ndarray"),
        ((IMAGE, "cat"), "its target is a str"),
        ((IMAGE, 1, "1.png"), "it has 3 values"),
    ],
)
def test_the_network_is_not_blamed_for_the_first_sample(value, told, given):
    class Data(Masks):
        def __getitem__(self, index):
            return value

    with pytest.raises(OwnCodeError, match=told):
        kind_of(given(Data, f"mine:Data_{next(NUMBERS)}"))


def files_of_all_modes(folder):
    """Write an image of each mode and orientation that files may have."""
    grey = np.linspace(0, 1, 40 * 64).reshape(40, 64)
    rgba = photo(64, 40).convert("RGBA")
    rgba.putalpha(Image.fromarray((255 * grey).astype(np.uint8)))
    images = {
        "deep.png": Image.fromarray((65535 * grey).astype(np.uint16)),
        "float.tif": Image.fromarray((grey / 8).astype(np.float32)),
        "int.tif": Image.fromarray((100_000 * grey).astype(np.int32)),
        "clear.png": rgba,
        "clear_grey.png": rgba.convert("LA"),
        "palette.gif": photo(64, 40).quantize(16),
        "bits.png": photo(64, 40).convert("1"),
        "print.jpg": photo(64, 40).convert("CMYK"),
        "photo.jpg": photo(64, 40),
    }
    for name, image in images.items():
        image.save(folder / name)
    photo(64, 40).quantize(16).save(folder / "clear_palette.png", transparency=3)
    for orientation in range(2, 9):
        save_oriented(folder / f"turned_{orientation}.jpg", orientation, photo(64, 40))
    return sorted(folder.iterdir())


@pytest.mark.parametrize("side_hint", [None, 16])
def test_a_pil_image_is_read_as_its_file_is(sample, tmp_path, side_hint):
    for file in files_of_all_modes(tmp_path):
        expected = read_rgb(str(file), side_hint)
        np.testing.assert_array_equal(
            sample(lambda file=file: (Image.open(file), 0), side_hint).image_HWC, expected, file.name
        )
        if side_hint is None:  # of a file of which the pixels were read before
            np.testing.assert_array_equal(
                sample(lambda file=file: (Image.open(file).copy(), 0)).image_HWC, expected, file.name
            )


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_is_turned_with_its_image(sample, tmp_path, orientation):
    """A mask that was drawn over the stored image, or over the upright one, or that says how it is stored."""
    upright = Image.new("L", (64, 40))
    upright.paste(1, (3, 5, 20, 12))
    stored = save_oriented(tmp_path / "mask.png", orientation, upright)
    save_oriented(tmp_path / "photo.jpg", orientation, photo(64, 40))
    masks = [stored, np.array(stored), np.array(stored) > 0, torch.tensor(np.array(stored))]
    masks += [upright] * (orientation > 4)
    masks += [Image.open(tmp_path / "mask.png")]
    for mask in masks:
        read = sample(lambda mask=mask: (Image.open(tmp_path / "photo.jpg"), mask))
        np.testing.assert_array_equal(read.mask_HW, np.array(upright))
        shrunk = sample(lambda mask=mask: (Image.open(tmp_path / "photo.jpg"), mask), 16)
        assert shrunk.mask_HW.shape == shrunk.image_HWC.shape[:2] == (20, 32)


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


@pytest.mark.parametrize(
    ("image", "back"),
    [
        (np.linspace(0, 1, 24 * 20 * 3, dtype=np.float32).reshape(20, 24, 3), "(image * 255).round()"),
        (np.full((20, 24), 40_000, np.uint16), "(image / 257).round()"),
    ],
)
def test_arrays_of_other_values_are_refused_with_the_way_to_convert_them(image, back):
    with pytest.raises(OwnCodeError, match=image.dtype.name) as refused:
        image_of("mine:Data[3]", image)
    assert f"{back}.astype(numpy.uint8)" in refused.value.hint
