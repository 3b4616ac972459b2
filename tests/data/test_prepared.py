"""A prepared set: what is in it, what is read from it, and what is refused."""

import json
import os
import random
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from mptui.config.schema import DataConfig
from mptui.data import preparing
from mptui.data.loader import Loader
from mptui.data.open import files_of, open_dataset, task_of
from mptui.data.prepared import INDEX, RECORD, SAMPLES, check_bytes, open_prepared
from mptui.data.preparing import Order, prepare_set
from mptui.data.readers import FileRequest
from mptui.data.types import IGNORE, Problem
from mptui.errors import ConfigError, DataError
from tests.data.images import class_folders, pairs, photo, stripes

SIDE = 32


def prepared(data, out, *, size=SIDE, quality=95, told=lambda line: None, **settings):
    config = DataConfig(path=str(data), **settings)
    name, task, found = files_of(config, None, lambda: False)
    order = Order(name, task, found, Path(out), size, quality, config)
    return prepare_set(order, told, lambda done, total: None, lambda: False)


def opened(path, *, task="classification", side=SIDE, seed=0, **settings):
    heard: list[str] = []
    dataset = open_dataset(
        DataConfig(path=str(path), **settings),
        task=task,
        side=side,
        seed=seed,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=heard.append,
    )
    assert heard == list(dataset.warnings)
    return dataset


def photos(root, counts):
    """Photos large enough to be made small."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            photo(150 + index, 100, seed=index).save(root / name / f"{index}.jpg", quality=95)
    return root


def masked(root, count=8):
    values = [stripes(0, 1, 255, size=(150, 100)), stripes(1, 0, 0, size=(150, 100))]
    return pairs(root, [values[index % 2] for index in range(count)], size=(150, 100))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(preparing, "SAMPLES_A_SHARD", 7)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    data = photos(root / "data", {"cat": 12, "dog": 9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "SAMPLES_A_SHARD", 7)
        prepared(data, root / "out")
    return root


@pytest.fixture
def ready(made, tmp_path, small_shards):
    """A folder and the set prepared from it."""
    for name in ("data", "out"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "data", tmp_path / "out"


# -- the same samples -----------------------------------------------------------------------------


def same_samples(raw, other, tolerance):
    assert (other.classes, other.class_counts, other.name) == (raw.classes, raw.class_counts, raw.name)
    for half, expected in ((other.train, raw.train), (other.val, raw.val)):
        assert len(half) == len(expected)
        for index in range(len(half)):
            found, wanted = half.request(index).read(SIDE), expected.request(index).read(SIDE)
            assert found.label == wanted.label
            assert min(found.image_HW3.shape[:2]) >= min(SIDE, *wanted.image_HW3.shape[:2])
            if tolerance == 0:
                assert np.array_equal(found.image_HW3, wanted.image_HW3)


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
    assert task_of(DataConfig(path=str(tmp_path / "out"))) == "classification"
    raw, other = opened(data, seed=seed, **settings), opened(tmp_path / "out", seed=seed)
    same_samples(raw, other, tolerance=1)
    assert other.sides is not None
    assert max(other.sides) == round(SIDE * 1.15)


def batches(dataset, *, train, epoch=0, task="classification"):
    with Loader(
        dataset.train if train else dataset.val,
        task=task,
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
    """Of each validation image nearly the same pixels, and so of all the same loss, to a hundredth."""
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
    from mptui.data.stored import shrunk

    data = photos(tmp_path / "data", {"cat": 2, "dog": 2})
    prepared(data, tmp_path / "out", quality=0)
    raw, other = opened(data), opened(tmp_path / "out")
    for index in range(len(raw.train)):
        expected = shrunk(FileRequest(raw.train.request(index).name, 0).read(37), 37)
        assert np.array_equal(other.train.request(index).read().image_HW3, expected.image_HW3)


def test_masks_come_along(tmp_path, small_shards):
    data = masked(tmp_path / "data")
    prepared(data, tmp_path / "out", ignore_index=255)
    raw = opened(data, task="segmentation", ignore_index=255)
    other = opened(tmp_path / "out", task="segmentation")
    assert (other.classes, other.has_ignored) == (raw.classes, True)
    shares = [np.array(of.class_counts) / sum(of.class_counts) for of in (raw, other)]
    assert np.abs(shares[0] - shares[1]).max() < 0.02
    for index in range(len(raw.train)):
        found, wanted = other.train.request(index).read(), raw.train.request(index).read()
        assert set(np.unique(found.mask_HW)) == set(np.unique(wanted.mask_HW))
        assert (found.mask_HW == IGNORE).mean() == pytest.approx((wanted.mask_HW == IGNORE).mean(), abs=0.03)
        assert found.mask_HW.shape == found.image_HW3.shape[:2]
    for (_, mask), (_, expected) in zip(
        batches(other, train=False, task="segmentation"),
        batches(raw, train=False, task="segmentation"),
        strict=True,
    ):
        assert (mask == expected).float().mean() > 0.9
    with pytest.raises(DataError, match="ignore_index"):
        opened(tmp_path / "out", task="segmentation", ignore_index=7)


def test_more_classes_than_eight_bits_hold(tmp_path):
    masks = [np.arange(600, dtype=np.uint16).reshape(20, 30) % 255 + start for start in (0, 3)]
    data = pairs(tmp_path / "data", masks, size=(30, 20))
    (data / "classes.toml").write_text("".join(f"c{value} = {value}\n" for value in range(300)))
    prepared(data, tmp_path / "out")
    other = opened(tmp_path / "out", task="segmentation")
    raw = opened(data, task="segmentation")
    assert len(other.classes) == 300
    assert np.array_equal(other.train.request(0).read().mask_HW, raw.train.request(0).read().mask_HW)


def test_shards_are_archives_that_others_read(ready):
    _, out = ready
    names = []
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                names.append(member.name)
                file = archive.extractfile(member)
                content = b"" if file is None else file.read()
                if member.name == "00000014.cls":
                    assert content == b"1"
    assert len(names) == 42
    assert names[:2] == ["00000000.jpg", "00000000.cls"]
    assert sorted(path.name for path in out.iterdir()) == [
        "prepared.json", *(f"samples-0000{number}.tar" for number in range(3)), "samples.npy",
    ]  # fmt: skip


def test_a_larger_view_than_it_was_prepared_for_is_told(ready):
    _, out = ready
    assert opened(out).warnings == ()
    assert "--image-size 64" in " ".join(opened(out, side=64).warnings)


# -- again ----------------------------------------------------------------------------------------


def test_it_is_made_once(made, small_shards):
    data, out = made / "data", made / "out"
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    prepared(data, out)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_a_folder_of_other_things_is_left_alone(ready, tmp_path):
    data, out = ready
    with pytest.raises(ConfigError, match="holds a set that was prepared from other files"):
        prepared(data, out, size=24)
    photo(150, 100, seed=99).save(data / "cat" / "99.jpg")
    with pytest.raises(ConfigError, match="other files"):
        prepared(data, out)
    with pytest.raises(ConfigError, match="other things"):
        prepared(data, data)
    other = tmp_path / "other"
    other.mkdir()
    (other / "preparing.json").write_text('{"key": "x"}')
    with pytest.raises(ConfigError, match="the beginning of a set from other files"):
        prepared(data, other)
    with pytest.raises(DataError, match="not complete"):
        opened(other)


# -- damaged, or from a stranger ------------------------------------------------------------------


def changed(out, **facts):
    index = json.loads((out / INDEX).read_text())
    (out / INDEX).write_text(json.dumps({**index, **facts}))


def rewritten(out, change):
    """The records changed, with a sha256 that fits."""
    import hashlib

    records = np.load(out / SAMPLES)
    change(records)
    np.save(out / SAMPLES, records)
    content = (out / SAMPLES).read_bytes()
    changed(out, samples={"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


def test_a_newer_version_is_refused_in_a_line(ready):
    _, out = ready
    changed(out, version=2)
    with pytest.raises(DataError, match=r"of version 2, and this mptui reads 1$") as caught:
        opened(out)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("file", ["samples-00001.tar", "samples.npy"])
@pytest.mark.parametrize("how", ["cut", "gone", "a link"])
def test_a_damaged_file_is_named(ready, tmp_path, file, how):
    _, out = ready
    path = out / file
    if how == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif how == "gone":
        path.unlink()
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=file) as caught:
        opened(out)
    assert "mptui prepare" in caught.value.hint


def test_a_flipped_bit_is_found(ready):
    _, out = ready
    check_bytes(open_prepared(str(out)), lambda done, total: None)
    for file in ("samples-00002.tar", "samples.npy"):
        content = bytearray((out / file).read_bytes())
        content[-600] ^= 4
        (out / file).write_bytes(content)
        with pytest.raises(DataError, match=f"{file}: damaged"):
            check_bytes(open_prepared(str(out)), lambda done, total: None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shard", 3), ("shard", 2**32 - 1), ("at", 2**63), ("at", 10**9), ("size", 0), ("size", 2**32 - 1),
        ("label", 2), ("label", -1), ("shorter", 0), ("longer", 1),
    ],
)  # fmt: skip
def test_records_that_point_elsewhere_are_refused(ready, field, value):
    _, out = ready

    def change(records):
        records[field][5] = value

    rewritten(out, change)
    with pytest.raises(DataError, match=r"samples\.npy: damaged"):
        opened(out)


def test_pickles_are_not_unpickled(ready, tmp_path):
    import hashlib
    import pickle

    _, out = ready

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    np.save(out / SAMPLES, np.array([Bomb()] * 21, object), allow_pickle=True)
    content = (out / SAMPLES).read_bytes()
    assert pickle.dumps(Bomb())[:2] in content
    changed(out, samples={"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    with pytest.raises(DataError, match=r"samples\.npy"):
        opened(out)
    assert not (tmp_path / "ran").exists()


def test_any_change_of_the_index_is_refused_or_harmless(ready):
    _, out = ready
    whole = json.loads((out / INDEX).read_text())
    text = (out / INDEX).read_text()
    values: list[object] = [
        None,
        -1,
        0,
        2**40,
        1e400,
        "../../etc/passwd",
        "x" * 10_000,
        [],
        {},
        [[[]]],
        True,
        [None],
        {"bytes": "1"},
    ]
    chance = random.Random(0)
    trees = [{**whole, key: value} for key in whole for value in values]
    trees += [{k: v for k, v in whole.items() if k != key} for key in whole]
    texts = [json.dumps(tree) for tree in trees]
    for _ in range(200):
        at = chance.randrange(len(text))
        texts.append(text[:at] + chance.choice('0"}]{[,x\x00') + text[at + chance.randrange(3) :])
    texts += ["", "[" * 100_000, "null", "[]", '{"format": "mptui-prepared"}', text[: len(text) // 2]]
    refused = []
    for changed_text in texts:
        (out / INDEX).write_text(changed_text)
        try:
            dataset = opened(out, side=SIDE)
            dataset.train.request(0).read()
        except DataError as error:
            refused.append(error.message)
    assert len(refused) > len(texts) / 2
    assert all(len(message.splitlines()) == 1 for message in refused)


def test_what_is_no_image_in_a_shard_is_a_bad_sample(ready):
    _, out = ready
    record = np.load(out / SAMPLES)[0]
    assert record.dtype == RECORD
    with (out / "samples-00000.tar").open("r+b") as file:
        file.seek(int(record["at"]))
        file.write(bytes(int(record["size"])))
    dataset = opened(out)
    bad: list[Problem] = []
    with Loader(
        dataset.train, task="classification", batch_size=5, side=SIDE, num_classes=2, train=True,
        device=torch.device("cpu"), augment=True, seed=0, bad_budget=0.5, on_bad=bad.append,
    ) as loader:  # fmt: skip
        assert sum(window.size for window in loader.windows(0, 1)) == len(dataset.train)
    assert [problem.path for problem in bad] == [f"{out}/samples-00000.tar:00000000"]
