"""Prepared sets that are damaged, newer or hostile: refused in one line, or harmless."""

import hashlib
import json
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from mptui.data.prepare import TarWriter
from mptui.data.prepared import INDEX, SAMPLES, check_bytes, open_prepared, record_type
from mptui.data.types import Problem
from mptui.errors import DataError, TwoReadingsError
from mptui.registry.names import SampleKind
from tests.data.images import pairs, stripes
from tests.data.prepared_sets import SIDE, opened, photos, prepared
from tests.made.loaders import built_loader


def changed(out, **facts):
    index = json.loads((out / INDEX).read_text())
    (out / INDEX).write_text(json.dumps({**index, **facts}))


def indexed(out, records):
    """Write other records, with their sha256."""
    np.save(out / SAMPLES, records, allow_pickle=True)
    content = (out / SAMPLES).read_bytes()
    facts = {"name": SAMPLES, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    changed(out, samples=facts)
    return content


def test_a_newer_version_is_refused_in_a_line(ready):
    _, out = ready
    changed(out, version=3)
    with pytest.raises(DataError, match=r"version 3, but this mptui reads 2$") as caught:
        opened(out)
    assert caught.value.exit_code == 3


def test_a_set_of_an_earlier_version_is_refused_with_the_command_that_prepares_it_anew(tmp_path):
    """What `prepared.json` of version 1 had in it."""
    facts = {
        "format": "mptui-prepared", "version": 1, "key": "0" * 64, "name": "data", "task": "classification",
        "classes": ["cat", "dog"], "image_size": 96, "side": 192, "quality": 90, "ignore_index": None,
        "count": 2, "train_count": None, "left_out": [], "warnings": [],
        "samples": {"bytes": 216, "sha256": "0" * 64}, "shards": [{"bytes": 4096, "sha256": "0" * 64}],
    }  # fmt: skip
    (tmp_path / INDEX).write_text(json.dumps(facts))
    (tmp_path / "samples-00000.tar").write_bytes(bytes(4096))
    with pytest.raises(DataError, match="prepared by an earlier mptui") as caught:
        opened(tmp_path)
    assert "mptui prepare DATA --image-size 96 --out NEW" in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("file", ["train-00001.tar", "samples.npy"])
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
    for file in ("train-00002.tar", "samples.npy"):
        content = bytearray((out / file).read_bytes())
        content[-600] ^= 4
        (out / file).write_bytes(content)
        with pytest.raises(DataError, match=f"{file}: damaged"):
            check_bytes(open_prepared(str(out)), lambda done, total: None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tar", 3), ("tar", 2**32 - 1), ("at", 2**63), ("at", 10**9), ("size", 0), ("size", 2**32 - 1),
        ("label", 2), ("label", -1), ("shorter", 0), ("longer", 1),
    ],
)  # fmt: skip
def test_records_that_point_elsewhere_are_refused(ready, field, value):
    _, out = ready

    records = np.load(out / SAMPLES)
    records[field][5] = value
    indexed(out, records)
    with pytest.raises(DataError, match=r"samples\.npy: damaged"):
        opened(out)


def test_pickles_are_not_unpickled(ready, tmp_path):
    _, out = ready

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    assert pickle.dumps(Bomb())[:2] in indexed(out, np.array([Bomb()] * 21, object))
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
        except TwoReadingsError:
            assert json.loads(changed_text)["masks"] is True  # and the tars have classes
        except DataError as error:
            refused.append(error.message)
    assert len(refused) > len(texts) / 2
    assert all(len(message.splitlines()) == 1 for message in refused)


def test_what_is_no_image_in_a_tar_is_a_bad_sample(ready):
    _, out = ready
    record = np.load(out / SAMPLES)[0]
    assert record.dtype == record_type()
    with (out / "train-00000.tar").open("r+b") as file:
        file.seek(int(record["at"]))
        file.write(bytes(int(record["size"])))
    dataset = opened(out)
    bad: list[Problem] = []
    with built_loader(
        dataset.train, kind=SampleKind.CLASS, batch_size=5, side=SIDE, num_classes=2, train=True,
        device=torch.device("cpu"), augment=True, seed=0, bad_budget=0.5, on_bad=bad.append,
    ) as loader:  # fmt: skip
        assert sum(window.size for window in loader.windows(0, 1)) == len(dataset.train)
    assert [problem.path for problem in bad] == [f"{out}/train-00000.tar:00000000"]


@pytest.mark.parametrize("ignored", [[255], {"a": 1}, "255", 3])
def test_an_ignored_value_of_another_kind_is_another_value(tmp_path, small_shards, ignored):
    masks = [stripes(0, 1, 255, size=(150, 100)), stripes(1, 0, 0, size=(150, 100))] * 3
    prepared(pairs(tmp_path / "data", masks, size=(150, 100)), tmp_path / "out", ignore_index=255)
    changed(tmp_path / "out", ignore_index=ignored)
    with pytest.raises(DataError, match=r"another data\.ignore_index|not the index"):
        opened(tmp_path / "out", kind=SampleKind.MASK, ignore_index=255)


def test_more_classes_than_masks_can_number_are_refused(tmp_path, small_shards):
    masks = [stripes(0, 1, 1, size=(150, 100))] * 4
    prepared(pairs(tmp_path / "data", masks, size=(150, 100)), tmp_path / "out")
    changed(tmp_path / "out", classes=[str(number) for number in range(40_000)])
    with pytest.raises(DataError, match="invalid entries"):
        open_prepared(str(tmp_path / "out"))


def test_a_set_with_an_empty_half_is_refused_before_it_is_written(tmp_path, small_shards):
    data = photos(tmp_path / "data", {"train/cat": 3, "train/dog": 3, "val/cat": 1, "val/dog": 1})
    for path in (data / "val").rglob("*.jpg"):
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="data: no usable images are left for validation"):
        prepared(data, tmp_path / "out", bad_sample_budget=0.9)
    assert not list(tmp_path.glob("out/*.tar"))


def test_a_tar_that_is_given_up_leaves_nothing_even_on_a_full_disk(tmp_path):
    writer = TarWriter(tmp_path, "train-00000.tar", 0, record_type())
    writer._file.close()
    with Path("/dev/full").open("wb") as full:
        writer._file = full
        writer._write(b"nothing finds room")
        writer.give_up()
    assert list(tmp_path.iterdir()) == []
