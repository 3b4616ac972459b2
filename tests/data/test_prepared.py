"""Prepared sets: their contents, what is read from them, and what is refused."""

import io
import tarfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data.decode import FileRequest
from mptui.data.open import kind_of
from mptui.data.transforms import resized
from mptui.data.types import IGNORE
from mptui.errors import ConfigError, DataError
from mptui.registry.names import SampleKind
from tests.data.images import class_folders, pairs, photo, save_oriented, stripes
from tests.data.packed_sets import assert_same
from tests.data.prepared_sets import RESIZE, SIDE, opened, photos, prepared
from tests.made.loaders import built_loader


def masked(root, count=8):
    values = [stripes(0, 1, 255, size=(150, 100)), stripes(1, 0, 0, size=(150, 100))]
    return pairs(root, [values[index % 2] for index in range(count)], size=(150, 100))


# -- the same samples -----------------------------------------------------------------------------


def same_samples(raw, other, tolerance):
    assert (other.classes, other.class_counts, other.name) == (raw.classes, raw.class_counts, raw.name)
    for half, expected in ((other.train, raw.train), (other.val, raw.val)):
        assert len(half) == len(expected)
        for index in range(len(half)):
            found, wanted = half.request(index).read(SIDE), expected.request(index).read(SIDE)
            assert found.label == wanted.label
            assert min(found.image_HWC.shape[:2]) >= min(SIDE, *wanted.image_HWC.shape[:2])
            if tolerance == 0:
                assert np.array_equal(found.image_HWC, wanted.image_HWC)


@pytest.mark.parametrize(
    "layout", [{"cat": 12, "dog": 9}, {"train/cat": 9, "train/dog": 9, "val/cat": 4, "val/dog": 3}]
)
@pytest.mark.parametrize("seed", [0, 3])
def test_it_has_the_samples_of_the_folder_in_their_order(tmp_path, small_shards, layout, seed):
    data = photos(tmp_path / "data", layout)
    broken = next(data.rglob("cat")) / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    settings = {"bad_sample_budget": 0.2}
    done = prepared(data, tmp_path / "out", **settings)
    assert [Path(problem.path).name for problem in done.problems] == ["3.jpg"]
    assert kind_of(DataConfig(path=str(tmp_path / "out"))) == SampleKind.CLASS
    raw, other = opened(data, seed=seed, **settings), opened(tmp_path / "out", seed=seed)
    same_samples(raw, other, tolerance=1)
    assert other.sides is not None
    assert max(other.sides) == RESIZE


def batches(dataset, *, train, epoch=0, kind=SampleKind.CLASS):
    with built_loader(
        dataset.train if train else dataset.val,
        kind=kind,
        batch_size=6,
        side=SIDE,
        num_classes=len(dataset.classes),
        device=torch.device("cpu"),
        train=train,
        augment=train,
        seed=4,
        workers=1,
    ) as loader:
        return [
            (b.images_BCHW.clone(), b.targets.clone()) for window in loader.windows(epoch, 1) for b in window
        ]


def test_a_network_sees_and_says_the_same(ready):
    """Validation images have almost the same pixels, and so the same total loss to a hundredth."""
    data, out = ready
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(), torch.nn.Linear(32, 2),
    )  # fmt: skip
    losses = []
    for path in (data, out):
        images, targets = (
            torch.cat(column) for column in zip(*batches(opened(path), train=False), strict=True)
        )
        losses.append(torch.nn.functional.cross_entropy(network(images), targets).item())
        if path == data:
            expected = images
    assert (images - expected).abs().mean() < 0.05
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_small_images_are_kept_as_they_are_and_train_to_the_same_bits(tmp_path, small_shards):
    data = class_folders(tmp_path / "data", {"cat": 10, "dog": 10})
    (data / "cat" / "0.png").unlink()
    photo(30, 25).save(data / "cat" / "00.jpg", quality=80)
    prepared(data, tmp_path / "out")
    raw, other = opened(data), opened(tmp_path / "out")
    same_samples(raw, other, tolerance=0)
    for (image, target), (wanted, label) in zip(
        batches(other, train=True, epoch=2), batches(raw, train=True, epoch=2), strict=True
    ):
        assert torch.equal(image, wanted)
        assert torch.equal(target, label)


def test_a_lossless_set_has_the_pixels_of_a_cache_in_memory(tmp_path):
    data = photos(tmp_path / "data", {"cat": 2, "dog": 2})
    prepared(data, tmp_path / "out", quality=0)
    raw, other = opened(data), opened(tmp_path / "out")
    for index in range(len(raw.train)):
        expected = resized(FileRequest(raw.train.request(index).name, 0).read(RESIZE), RESIZE)
        assert np.array_equal(other.train.request(index).read().image_HWC, expected.image_HWC)


def test_masks_come_along(tmp_path, small_shards):
    data = masked(tmp_path / "data")
    prepared(data, tmp_path / "out", ignore_index=255)
    raw = opened(data, kind=SampleKind.MASK, ignore_index=255)
    other = opened(tmp_path / "out", kind=SampleKind.MASK)
    assert (other.classes, other.has_ignored) == (raw.classes, True)
    shares = [np.array(of.class_counts) / sum(of.class_counts) for of in (raw, other)]
    assert np.abs(shares[0] - shares[1]).max() < 0.02
    for index in range(len(raw.train)):
        found, wanted = other.train.request(index).read(), raw.train.request(index).read()
        assert set(np.unique(found.mask_HW)) == set(np.unique(wanted.mask_HW))
        assert (found.mask_HW == IGNORE).mean() == pytest.approx((wanted.mask_HW == IGNORE).mean(), abs=0.03)
        assert found.mask_HW.shape == found.image_HWC.shape[:2]
    for (_, mask), (_, expected) in zip(
        batches(other, train=False, kind=SampleKind.MASK),
        batches(raw, train=False, kind=SampleKind.MASK),
        strict=True,
    ):
        assert (mask == expected).float().mean() > 0.9
    with pytest.raises(DataError, match="ignore_index"):
        opened(tmp_path / "out", kind=SampleKind.MASK, ignore_index=7)


def test_more_classes_than_eight_bits_hold(tmp_path):
    masks = [np.arange(600, dtype=np.uint16).reshape(20, 30) % 255 + start for start in (0, 3)]
    data = pairs(tmp_path / "data", masks, size=(30, 20))
    (data / "classes.toml").write_text("".join(f"c{value} = {value}\n" for value in range(300)))
    prepared(data, tmp_path / "out")
    other = opened(tmp_path / "out", kind=SampleKind.MASK)
    raw = opened(data, kind=SampleKind.MASK)
    assert len(other.classes) == 300
    assert np.array_equal(other.train.request(0).read().mask_HW, raw.train.request(0).read().mask_HW)


# -- read by others -------------------------------------------------------------------------------


def members(path):
    """What plain `tarfile` reads of a tar: the contents by key and ending, as WebDataset groups them."""
    samples: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    with tarfile.open(path) as archive:
        for member in archive:
            key, _, ending = member.name.partition(".")
            if (file := archive.extractfile(member)) is not None:
                samples[key][ending] = file.read()
    return list(samples.values())


def pixels(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def test_others_read_the_samples_of_each_half_and_the_names_of_their_classes(tmp_path, small_shards):
    data = photos(tmp_path / "data", {"train/cat": 9, "train/dog": 8, "val/cat": 2, "val/dog": 3})
    out = tmp_path / "out"
    prepared(data, out)
    assert sorted(path.name for path in out.iterdir()) == [
        "classes.txt", "prepared.json", "samples.npy",
        "train-00000.tar", "train-00001.tar", "train-00002.tar", "val-00000.tar",
    ]  # fmt: skip
    classes = (out / "classes.txt").read_text().splitlines()
    ours = opened(out)
    for half, split in (("train", ours.train), ("val", ours.val)):
        theirs = [sample for path in sorted(out.glob(f"{half}-*.tar")) for sample in members(path)]
        assert len(theirs) == len(split)
        for index, sample in enumerate(theirs):
            wanted = split.request(index).read()
            assert classes[int(sample["cls"])] == ours.classes[wanted.label]
            assert np.array_equal(pixels(sample["jpg"]), wanted.image_HWC)


def test_others_read_masks_that_lie_on_their_images_also_of_photographs_stored_turned(tmp_path):
    data = pairs(tmp_path / "data", [stripes(0, 1, 255, size=(30, 20))] * 4, size=(30, 20))
    for number in range(4):
        save_oriented(data / "images" / f"{number}.jpg", 3 + number, photo(30, 20, number))
    prepared(data, tmp_path / "out", ignore_index=255)
    ours, theirs = opened(tmp_path / "out", kind=SampleKind.MASK), members(tmp_path / "out/train-00000.tar")
    assert len(theirs) == len(ours.train) + len(ours.val) == 4
    for row, index in zip(ours.train.rows, range(len(ours.train)), strict=True):
        wanted, sample = ours.train.request(index).read(), theirs[row]
        mask_HW = pixels(sample["seg.png"]).astype(np.int16)
        assert np.array_equal(pixels(sample["jpg"]), wanted.image_HWC)
        assert np.array_equal(np.where(mask_HW == 255, IGNORE, mask_HW), wanted.mask_HW)


def test_images_alone_have_no_class_for_others_either(tmp_path):
    prepared(photos(tmp_path / "data", {".": 10}), tmp_path / "out")
    assert {tuple(sample) for sample in members(tmp_path / "out/train-00000.tar")} == {("jpg",)}


def test_without_its_index_it_is_a_set_of_tar_shards_with_the_same_samples(ready, own_cache):
    """So another program's copy of the tars alone is read, too."""
    _, out = ready
    ours = opened(out)
    for name in ("prepared.json", "samples.npy"):
        (out / name).unlink()
    assert_same(opened(out), ours)


# -- resized once -----------------------------------------------------------------------------------


def test_a_larger_view_than_it_was_prepared_for_is_told(ready):
    _, out = ready
    assert opened(out).warnings == ()
    assert opened(out, side=SIDE * 2, resize=RESIZE).warnings == ()
    (told,) = opened(out, side=SIDE * 2).warnings
    assert f"prepared at a shorter side of {RESIZE} px, but data.resize is {RESIZE * 2}" in told
    assert f"--resize {RESIZE * 2}, or set data.resize to {RESIZE}" in told
    (told,) = opened(out, interpolation="bicubic").warnings
    assert "data.interpolation = bicubic resamples their crops alone" in told


# -- repeated preparation -------------------------------------------------------------------------


def test_it_is_made_once(made, small_shards):
    data, out = made / "data", made / "out"
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    prepared(data, out)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_a_folder_of_other_things_is_left_alone(ready, tmp_path):
    data, out = ready
    with pytest.raises(ConfigError, match="holds a set prepared from other files"):
        prepared(data, out, size=24)
    photo(150, 100, seed=99).save(data / "cat" / "99.jpg")
    with pytest.raises(ConfigError, match="other files"):
        prepared(data, out)
    with pytest.raises(ConfigError, match="is not empty"):
        prepared(data, data)
    other = tmp_path / "other"
    other.mkdir()
    (other / "preparing.json").write_text('{"key": "x"}')
    with pytest.raises(ConfigError, match="an incomplete set from other files"):
        prepared(data, other)
    with pytest.raises(DataError, match="an incomplete prepared set"):
        opened(other)


def test_images_alone_are_prepared_for_diffusion_and_those_in_classes_serve_it_too(tmp_path):
    alone, classes = photos(tmp_path / "alone", {".": 10}), photos(tmp_path / "data", {"cat": 5, "dog": 5})
    assert prepared(alone, tmp_path / "out").about.task == "diffusion"
    prepared(classes, tmp_path / "classes")
    assert kind_of(DataConfig(path=str(tmp_path / "out"))) == SampleKind.IMAGE
    for folder in ("out", "classes"):
        dataset = opened(tmp_path / folder, kind=SampleKind.IMAGE)
        assert (dataset.kind, len(dataset.train), len(dataset.val)) == (SampleKind.IMAGE, 8, 2)
    with pytest.raises(DataError, match="has images alone"):
        opened(tmp_path / "out")
