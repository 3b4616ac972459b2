"""Parquet files of images: the same samples in the same order as a folder, and a line for each fault."""

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mptui.data import scan
from mptui.data.fingerprint import changes, fingerprint
from mptui.data.layouts import parquet as parquet_files
from mptui.data.layouts.known import recognize
from mptui.data.scan import ScanCancelledError
from mptui.errors import ConfigError, DataError, DiskError
from mptui.io.cache import cache_folder
from mptui.registry.names import SampleKind
from tests.data.images import class_folders, pairs, stripes
from tests.data.packed_sets import assert_same, classes_to_parquet, parquet, png
from tests.data.prepared_sets import opened, prepared


@pytest.fixture
def folder(tmp_path, own_cache):
    return class_folders(tmp_path / "folder", {"cat": 12, "dog": 7})


def images(count=8):
    return [(png(number), f"{number}.png") for number in range(count)]


def labels(count=8):
    return [number % 2 for number in range(count)]


def test_parquet_files_have_the_samples_and_the_split_of_their_folder(folder, tmp_path):
    packed = classes_to_parquet(folder, tmp_path / "set")
    found = opened(packed, seed=3)
    assert_same(found, opened(folder, seed=3))
    assert found.train.request(0).name == f"{packed}/data/train-00000-of-00002.parquet:0.png"


def test_masks_images_alone_and_plain_columns_are_read(tmp_path, own_cache):
    folder = pairs(tmp_path / "pairs", [stripes(0, 1, 2)] * 6)
    read = [
        [((folder / kind / f"{n}.{end}").read_bytes(), None) for n in range(6)]
        for kind, end in (("images", "jpg"), ("masks", "png"))
    ]
    masked = parquet(tmp_path / "masked.parquet", read[0], masks=read[1])
    assert_same(opened(masked, kind=SampleKind.MASK), opened(folder, kind=SampleKind.MASK))
    alone = opened(parquet(tmp_path / "alone.parquet", images()), kind=SampleKind.IMAGE)
    assert len(alone.train) + len(alone.val) == 8
    named = pa.table({"img": [content for content, _ in images()], "class": ["dog", "cat"] * 4})
    pq.write_table(named, tmp_path / "named.parquet", use_dictionary=True)
    assert opened(tmp_path / "named.parquet").classes == ("cat", "dog")


def test_the_test_files_validate_if_there_are_no_others_and_they_have_labels(tmp_path, own_cache):
    parquet(tmp_path / "train-0.parquet", images(), labels(), classes=["a", "b"])
    parquet(tmp_path / "test-0.parquet", images(3), [-1, -1, -1], classes=["a", "b"])
    assert opened(tmp_path).held_out
    parquet(tmp_path / "test-0.parquet", images(4), labels(4), classes=["a", "b"])
    assert len(opened(tmp_path).val) == 4
    parquet(tmp_path / "validation-0.parquet", images(2), labels(2), classes=["a", "b"])
    assert len(opened(tmp_path).val) == 2


def test_images_are_copied_once_until_the_file_changes(folder, tmp_path, monkeypatch):
    packed = classes_to_parquet(folder, tmp_path / "set", files=1)
    first = opened(packed)
    with monkeypatch.context() as patch:
        patch.setattr(parquet_files, "_unpacked", lambda *_, **__: pytest.fail("copied again"))
        patch.setattr(scan, "check_all", lambda *_: pytest.fail("checked again"))
        assert_same(opened(packed), first)
    moved = tmp_path / "moved"
    shutil.copytree(packed, moved)
    assert changes(fingerprint(first), fingerprint(opened(moved))) == []
    classes_to_parquet(class_folders(tmp_path / "other", {"cat": 4, "dog": 4}), packed, files=1)
    assert changes(fingerprint(first), fingerprint(opened(packed)))
    assert len(list(cache_folder().glob("parquet/*/*.images"))) == 2  # of `packed` and of `moved`
    for copied in cache_folder().glob("parquet/*/*.images"):
        copied.unlink()
    assert len(opened(packed).train) == 6


def test_parquet_files_are_prepared_as_their_folder(folder, tmp_path, small_shards):
    prepared(classes_to_parquet(folder, tmp_path / "set"), tmp_path / "a", size=8)
    prepared(folder, tmp_path / "b", size=8)
    assert_same(opened(tmp_path / "a", side=8), opened(tmp_path / "b", side=8))


@pytest.mark.parametrize(
    ("image", "label", "reason"),
    [
        (None, 0, "no image"),
        ((None, "x.png"), 0, "only the path of an image"),
        ((b"", "x.png"), 0, "empty"),
        ((b"no image", "../x\x1b[2J\0.png"), 0, "not an image"),
        ((png()[:90], "x.png"), 0, "truncated"),
        ((png(), "x.png"), None, "has no label"),
        ((png(), "x.png"), 2, "its label 2 is none of the 2 classes"),
        ((png(), "x.png"), -1, "its label -1 is none of the 2 classes"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path, own_cache, image, label, reason):
    parquet(tmp_path / "t.parquet", [*images(), image], [*labels(), label], classes=["a", "b"])
    found = opened(tmp_path, bad_sample_budget=0.2)
    (problem,) = found.problems
    assert problem.path.startswith(f"{tmp_path}/t.parquet:")
    assert reason in problem.reason
    assert len(found.train) + len(found.val) == 8


def test_a_damaged_file_is_one_clear_line(tmp_path, own_cache):
    path = parquet(tmp_path / "train.parquet", images(20), labels(20), classes=["a", "b"])
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    told = []
    for number in range(60):
        spoilt = bytearray(whole)
        for place in rng.integers(0, len(whole), 3):
            spoilt[place] = rng.integers(256)
        path.write_bytes(spoilt[: rng.integers(1, len(whole))] if number % 2 else spoilt)
        try:
            recognize(str(path))
            parquet_files.unpack(str(path), lambda _: None, lambda: False)
        except DataError as error:
            told.append(error.message)
    assert len(told) >= 30
    assert [text for text in told if "\n" in text and "no data of a known format" not in text] == []


def test_without_pyarrow_the_command_to_install_it_is_told(tmp_path, own_cache, monkeypatch):
    parquet(tmp_path / "train.parquet", images(), labels())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pyarrow") as caught:
        opened(tmp_path)
    assert caught.value.hint == "install it: pip install 'mptui[parquet]'"


def test_a_full_disk_and_a_stop_leave_no_part_of_a_copy(tmp_path, own_cache, monkeypatch):
    path = str(parquet(tmp_path / "train.parquet", images(), labels()))
    with pytest.raises(ScanCancelledError):
        parquet_files.unpack(path, lambda _: None, lambda: True)
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: usage(10))
        with pytest.raises(DiskError, match="1 KiB are free"):
            opened(tmp_path)
    assert not [file for file in cache_folder().glob("parquet/*/*") if file.is_file()]
    assert len(opened(tmp_path).train)


def test_a_copy_that_another_process_has_just_made_stays_while_it_is_made_again(tmp_path, own_cache):
    path = str(parquet(tmp_path / "t.parquet", images(), labels(), classes=["a", "b"]))
    copied = parquet_files.unpack(path, lambda _: None, lambda: False)
    next(cache_folder().glob("parquet/*/list.npz")).unlink()
    there = []
    again = parquet_files.unpack(path, lambda _: there.append(Path(copied.file).exists()), lambda: False)
    assert (again.file, set(there)) == (copied.file, {True})


def test_a_folder_of_classes_with_a_table_beside_it_is_a_folder_of_classes(folder):
    pq.write_table(pa.table({"a": [1]}), folder / "facts.parquet")
    assert recognize(str(folder))[1] is SampleKind.CLASS
