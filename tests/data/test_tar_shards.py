"""Tar shards: the same samples in the same order as a folder, and a line for each fault."""

import os
import tarfile

import numpy as np
import pytest
import tifffile

from mptui.data import scan
from mptui.data.fingerprint import changes, fingerprint
from mptui.data.layouts import tar as tar_shards
from mptui.data.types import BadSampleError, PixelFormat
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.images import class_folders, pairs, stripes
from tests.data.packed_sets import assert_same, classes_to_tar, pairs_to_tar, png, shard
from tests.data.prepared_sets import opened, prepared

LINK = {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}


@pytest.fixture
def folder(tmp_path, own_cache):
    return class_folders(tmp_path / "folder", {"cat": 12, "dog": 7})


def sound(name, seed=0, label=0):
    """The two members of a sample."""
    return [(f"{name}.png", png(seed), {}), (f"{name}.cls", str(label).encode(), {})]


def labelled(count=8):
    """Members of sound samples of two classes."""
    return [member for number in range(count) for member in sound(number, number, number % 2)]


@pytest.mark.parametrize("label", ["cls", "json"])
def test_a_set_of_shards_has_the_samples_and_the_split_of_its_folder(folder, tmp_path, label):
    packed = classes_to_tar(folder, tmp_path / "tar", label=label)
    found, expected = opened(packed, seed=3), opened(folder, seed=3)
    assert_same(found, expected)
    assert found.train.request(0).name.startswith(f"{packed}/train-0000")


def test_masks_and_images_alone_are_read_from_shards(tmp_path, own_cache):
    folder = pairs(tmp_path / "pairs", [stripes(0, 1, 2)] * 6)
    packed = pairs_to_tar(folder, tmp_path / "tar")
    kind = SampleKind.MASK
    assert_same(opened(packed, kind=kind), opened(folder, kind=kind))
    alone = class_folders(tmp_path / "alone", {"cat": 3, "dog": 3})
    unlabelled = opened(classes_to_tar(alone, tmp_path / "tar2"), kind=SampleKind.IMAGE)
    assert (len(unlabelled.train) + len(unlabelled.val), unlabelled.classes) == (6, ("image",))


def test_splits_come_from_the_names_of_files_or_folders(folder, tmp_path):
    for name in ("data/train-0.tar", "data/validation/0.tar", "data/test-0.tar"):
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        shard(tmp_path / "set" / name, labelled(4 if "train" in name else 2))
    found = opened(tmp_path / "set")
    assert (len(found.train), len(found.val), found.held_out) == (4, 2, False)
    assert found.classes == ("0", "1")


def test_an_unchanged_shard_is_neither_listed_nor_checked_again(folder, tmp_path, monkeypatch):
    packed = classes_to_tar(folder, tmp_path / "tar")
    first = opened(packed)
    with monkeypatch.context() as patch:
        patch.setattr(tar_shards, "_listed", lambda *_: pytest.fail("listed again"))
        patch.setattr(scan, "check_all", lambda *_: pytest.fail("checked again"))
        assert_same(opened(packed), first)
    (packed / "train-00000.tar").unlink()
    shard(packed / "train-00000.tar", [(f"a{name}", content, facts) for name, content, facts in labelled()])
    again = opened(packed)
    assert changes(fingerprint(first), fingerprint(again))


def test_the_fingerprint_is_of_the_contents_not_of_the_place(folder, tmp_path):
    packed = classes_to_tar(folder, tmp_path / "tar")
    before = fingerprint(opened(packed))
    moved = packed.rename(tmp_path / "elsewhere")
    assert changes(before, fingerprint(opened(moved))) == []


def test_a_set_of_shards_is_prepared_as_its_folder(folder, tmp_path, small_shards):
    packed = classes_to_tar(folder, tmp_path / "tar")
    prepared(packed, tmp_path / "a", size=8)
    prepared(folder, tmp_path / "b", size=8)
    assert_same(opened(tmp_path / "a", side=8), opened(tmp_path / "b", side=8))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("x.png", b"", LINK), ("x.cls", b"0", {})], "a link, not a file"),
        ([("x.png", b"", {"type": tarfile.LNKTYPE, "linkname": "0.png"}), ("x.cls", b"0", {})], "a link"),
        ([("x.png", png(), {}), ("x.png", png(1), {}), ("x.cls", b"0", {})], "two members have this name"),
        ([("x.png", png(), {}), ("x.jpg", png(1), {}), ("x.cls", b"0", {})], "two images have this key"),
        ([("x.png", png(), {})], "has no label"),
        ([("x.png", png(), {}), ("x.json", b"[" * 100_000, {})], "has no label"),
        ([("x.png", png()[:100], {}), ("x.cls", b"0", {})], "truncated"),
        ([("x.png", b"no image", {}), ("x.cls", b"0", {})], "not an image"),
        ([("x.png", b"", {}), ("x.cls", b"0", {})], "empty"),
    ],
    ids=["symlink", "hardlink", "twice", "two images", "no label", "odd label", "cut", "text", "empty"],
)
def test_a_member_that_cannot_be_used_is_named(tmp_path, own_cache, members, reason):
    shard(tmp_path / "train.tar", [*labelled(), *members])
    found = opened(tmp_path, bad_sample_budget=0.2)
    (problem,) = found.problems
    assert problem.path.startswith(f"{tmp_path}/train.tar:x.")
    assert reason in problem.reason
    assert len(found.train) + len(found.val) == 8


def test_names_of_members_are_text(tmp_path, own_cache):
    hostile = ["/etc/passwd.png", "../../up.png", "a\x1b[2J.png", "\udcff.png", "C:\\x.png"]
    more = [member for name in hostile for member in sound(name[:-4])]
    shard(tmp_path / "train.tar", [*labelled(), *more])
    before = sorted(tmp_path.iterdir())
    found = opened(tmp_path)
    assert len(found.train) + len(found.val) == 8 + len(hostile)
    assert sorted(tmp_path.iterdir()) == before


def test_a_shard_with_a_label_outside_its_class_file_names_the_sample(tmp_path, own_cache):
    shard(tmp_path / "train.tar", [*labelled(), ("x.png", png(), {}), ("x.cls", b"2", {})])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = opened(tmp_path, bad_sample_budget=0.2)
    assert found.classes == ("cat", "dog")
    assert "its label 2 is none of the 2 classes" in found.problems[0].reason


def test_two_classes_of_one_name_stay_two(tmp_path, own_cache):
    shard(tmp_path / "train.tar", labelled())
    (tmp_path / "classes.txt").write_text("crane\ncrane\n")  # the bird and the machine of ImageNet
    found = opened(tmp_path)
    assert found.classes == ("crane", "crane (2)")
    assert min(found.class_counts) > 0


def huge_header(path):
    """A shard whose last member says 10 GB, of which nothing is there."""
    shard(path, labelled())
    member = tarfile.TarInfo("x.png")
    member.size = 10 << 30
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + bytes(-len(whole) % 512) + member.tobuf())


def long_name(path):
    """A shard whose header claims a name of 10 GB, which are there: zeros of a sparse file."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 10 << 30
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 11 << 30)


def chained(path):
    """A shard of thousands of extended headers, one inside the other."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 12
    path.write_bytes((header.tobuf() + b"12 path=abc\n".ljust(512, b"\0")) * 3000)


def cut(path):
    shard(path, labelled())
    path.write_bytes(path.read_bytes()[:5000])


def without_end(path):
    shard(path, labelled())
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole + bytes(-len(whole) % 512))


def spoilt(path):
    shard(path, labelled())
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"5.png")] = 0xFF
    path.write_bytes(whole)


@pytest.mark.parametrize(
    "spoil",
    [
        huge_header,
        long_name,
        chained,
        cut,
        without_end,
        spoilt,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no tar file" * 100),
        lambda path: os.mkfifo(path),
    ],
    ids=["10 GB", "name of 10 GB", "chain", "cut", "no end", "spoilt header", "empty", "text", "fifo"],
)
def test_a_damaged_shard_is_one_clear_line(tmp_path, own_cache, spoil):
    shard(tmp_path / "train-0.tar", labelled())
    spoil(tmp_path / "train-1.tar")
    if not (tmp_path / "train-1.tar").is_file():
        assert len(opened(tmp_path).train)  # a pipe is no shard
        return
    with pytest.raises(DataError, match=r"train-1\.tar: damaged: .") as caught:
        opened(tmp_path)
    assert "\n" not in caught.value.message


def test_a_shard_that_shrinks_after_it_was_listed_gives_bad_samples(folder, tmp_path):
    packed = classes_to_tar(folder, tmp_path / "tar", shards=1)
    found = opened(packed)
    requests = [found.train.request(index) for index in range(len(found.train))]
    os.truncate(packed / "train-00000.tar", 600)
    with pytest.raises(BadSampleError, match=r"train-00000\.tar:"):
        requests[-1].read()


def test_bands_are_read_from_shards(tmp_path, own_cache):
    for name in ("cat", "dog"):
        (tmp_path / "folder" / name).mkdir(parents=True)
        for number in range(3):
            values = np.arange(8 * 9 * 4, dtype=np.uint16).reshape(8, 9, 4) * 50 + number
            tifffile.imwrite(tmp_path / "folder" / name / f"{number}.tif", values, photometric="minisblack")
    packed = classes_to_tar(tmp_path / "folder", tmp_path / "tar")
    found, expected = opened(packed, bands="all"), opened(tmp_path / "folder", bands="all")
    assert found.pixels == expected.pixels == PixelFormat(4, "uint16")
    assert_same(found, expected)
