"""Twenty kinds of bad image among twenty times as many: each is named, and the rest is used."""

import io
import os
import random
import shutil
import zlib
from pathlib import Path

import pytest
import torch

from mptui.config.schema import DataConfig
from mptui.data.open import open_dataset
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from tests.data.images import class_folders, photo, png_header
from tests.made.loaders import built_loader

GOOD = 380
SIDE = 16


def encoded(kind, **options):
    content = io.BytesIO()
    photo(64, 48, seed=9).save(content, kind, **options)
    return content.getvalue()


def cut(kind, share=2):
    whole = encoded(kind)
    return whole[: len(whole) // share]


def wrong_crc():
    whole = bytearray(encoded("PNG"))
    place = whole.index(b"IDAT") + 20
    whole[place] ^= 0xFF
    return bytes(whole)


def garbage_inside(kind):
    whole = encoded(kind)
    return whole[:40] + random.Random(1).randbytes(len(whole) - 40)


CONTENTS = {
    "empty.png": b"",
    "text.jpg": b"this is no picture\n" * 20,
    "page.jpg": b"<!DOCTYPE html><html><body>404</body></html>",
    "drawing.png": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "archive.jpg": b"PK\x03\x04" + b"\0" * 200,
    "postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
    "document.png": b"%PDF-1.7\n" + b"\0" * 100,
    "zeros.png": b"\0" * 5000,
    "noise.jpg": random.Random(0).randbytes(5000),
    "header-alone.jpg": b"\xff\xd8\xff\xe0",
    "cut.jpg": cut("JPEG"),
    "cut.png": cut("PNG"),
    "cut.webp": cut("WEBP"),
    "cut.bmp": cut("BMP"),
    "cut.tif": cut("TIFF", 10),
    "wrong-crc.png": wrong_crc(),
    "garbage.webp": garbage_inside("WEBP"),
    "too-many-pixels.png": png_header(9000, 9000),
    "too-wide.png": png_header(20_000, 2),
    "compressed.png": zlib.compress(b"x" * 4000),
}


def spoil(path, content):
    path.unlink()
    path.write_bytes(content)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Two classes of images, many of them links to one file; those to be damaged are still whole."""
    root = tmp_path_factory.mktemp("good")
    for number in range(20):
        photo(20, 16, seed=number).save(root / f"{number}.png")
    for name in ("a", "b"):
        (root / "set" / name).mkdir(parents=True)
    for number in range(GOOD):
        os.link(root / f"{number % 20}.png", root / "set" / "ab"[number % 2] / f"{number}.png")
    for number, name in enumerate(CONTENTS):
        os.link(root / f"{number}.png", root / "set" / "ab"[number % 2] / name)
    return root / "set"


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "set", copy_function=os.link)


@pytest.fixture
def few(tmp_path):
    """More than a batch."""
    return class_folders(tmp_path, {"a": 64, "b": 64})


def opened(folder, budget=0.06):
    return open_dataset(
        DataConfig(path=str(folder), bad_sample_budget=budget),
        kind=SampleKind.CLASS,
        side=SIDE,
        seed=0,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda message: None,
    )


def spoil_all(folder):
    paths = {}
    for number, (name, content) in enumerate(CONTENTS.items()):
        paths[name] = folder / "ab"[number % 2] / name
        spoil(paths[name], content)
    return paths


def test_the_scan_names_each_and_the_rest_is_used(folder):
    paths = spoil_all(folder)
    dataset = opened(folder)
    assert {problem.path for problem in dataset.problems} == {str(path) for path in paths.values()}
    assert all(problem.reason for problem in dataset.problems)
    assert len(dataset.train) + len(dataset.val) == GOOD
    with pytest.raises(DataError) as caught:
        opened(folder, budget=0.049)
    assert "20 of 400" in caught.value.message


def epoch_of(split, workers):
    """Return the tensors of an epoch as bytes, and its bad samples."""
    with built_loader(
        split,
        kind=SampleKind.CLASS,
        batch_size=100,
        side=SIDE,
        num_classes=2,
        device=torch.device("cpu"),
        train=True,
        augment=True,
        seed=3,
        workers=workers,
        bad_budget=0.08,
    ) as loader:
        batches = [batch for window in loader.windows(0, 1) for batch in window]
        images = torch.stack([batch.images_BCHW.sum(0) for batch in batches if batch.size == 100])
        indices = [index for batch in batches for index in batch.sample_indices.tolist()]
        return images, indices, {problem.path: problem.reason for problem in loader.bad}


def test_files_that_turn_bad_after_the_scan_are_replaced_alike_for_any_number_of_workers(folder):
    dataset = opened(folder)
    assert dataset.problems == ()
    spoil_all(folder)
    expected = epoch_of(dataset.train, 0)
    of_training = {dataset.train.request(index).name for index in range(len(dataset.train))}
    bad = {str(path) for name in CONTENTS for path in folder.glob(f"*/{name}")} & of_training
    assert len(bad) > 10
    assert set(expected[2]) == bad
    assert len(expected[1]) == len(dataset.train)
    assert not {dataset.train.request(index).name for index in expected[1]} & bad
    for workers in (1, 3):
        images, indices, problems = epoch_of(dataset.train, workers)
        assert torch.equal(images, expected[0])
        assert indices == expected[1]
        assert problems == expected[2]


@pytest.mark.parametrize("kind", ["gone", "a folder", "a pipe", "a link to nothing"])
def test_what_is_no_file_any_more_is_bad_and_never_waited_for(few, kind):
    dataset = opened(few)
    victim = Path(dataset.train.request(5).name)
    victim.unlink()
    if kind == "a folder":
        victim.mkdir()
    elif kind == "a pipe":
        os.mkfifo(victim)
    elif kind == "a link to nothing":
        victim.symlink_to("nowhere")
    assert set(epoch_of(dataset.train, 0)[2]) == {str(victim)}
