import json
import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from mptui.config.schema import DataConfig
from mptui.data import scan as scanning
from mptui.data.open import kind_of
from mptui.data.scan import CheckProcess, ScanCancelledError, check, looking
from mptui.errors import ConfigError, DataError
from mptui.registry.names import SampleKind
from tests.data.opening import opened
from tests.decoders import server
from tests.program import run_to_end

from .images import SHARED, class_folders, pairs, photo, stripes


def paths(split):
    return [split.request(index).name for index in range(len(split))]


def test_a_folder_becomes_two_halves_that_share_nothing(tmp_path):
    class_folders(tmp_path, {"cat": 10, "dog": 5})
    dataset = opened(tmp_path, val_fraction=0.2)
    assert (dataset.name, dataset.kind, dataset.classes) == (tmp_path.name, SampleKind.CLASS, ("cat", "dog"))
    assert (len(dataset.train), len(dataset.val)) == (12, 3)
    assert not set(paths(dataset.train)) & set(paths(dataset.val))
    assert dataset.class_counts == [8, 4]
    assert dataset.sides == (16, 16, 16)
    assert paths(opened(tmp_path).val) == paths(dataset.val)
    assert paths(opened(tmp_path, seed=3).val) != paths(dataset.val)
    for index in range(len(dataset.val)):
        request = dataset.val.request(index)
        assert dataset.classes[request.read().label] == request.name.split("/")[-2]


def test_a_set_too_small_to_validate_with_is_named(tmp_path):
    class_folders(tmp_path / "tiny", {"cat": 1, "dog": 1})
    with pytest.raises(DataError, match="tiny: no usable images are left for validation"):
        opened(tmp_path / "tiny")


def test_every_broken_file_is_named_and_left_out(tmp_path):
    class_folders(tmp_path, {"train/cat": 20, "train/dog": 20, "val/cat": 5, "val/dog": 5}, ".jpg")
    whole = (tmp_path / "train/cat/3.jpg").read_bytes()
    (tmp_path / "train/cat/3.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "val/dog/1.jpg").write_bytes(b"")
    dataset = opened(tmp_path, bad_sample_budget=0.05)
    assert [(os.path.relpath(p.path, tmp_path), p.reason.split()[0]) for p in dataset.problems] == [
        ("train/cat/3.jpg", "truncated:"),
        ("val/dog/1.jpg", "empty"),
    ]
    assert (len(dataset.train), len(dataset.val)) == (39, 9)
    assert str(tmp_path / "train/cat/3.jpg") not in paths(dataset.train)
    with pytest.raises(DataError) as caught:
        opened(tmp_path, bad_sample_budget=0.03)
    assert caught.value.exit_code == 3
    assert "train/cat/3.jpg" in caught.value.message
    assert "val/dog/1.jpg" in caught.value.message
    assert "data.bad_sample_budget" in caught.value.hint


def test_a_long_list_of_broken_files_ends_with_their_number(tmp_path):
    class_folders(tmp_path, {"cat": 30, "dog": 2})
    for path in (tmp_path / "cat").iterdir():
        path.write_text("broken\n")
    (tmp_path / "cat" / "0.png").rename(tmp_path / "cat" / "0\n\x1b[2J.png")
    with pytest.raises(DataError) as caught:
        opened(tmp_path)
    lines = caught.value.message.split("\n")
    assert "30 of 32" in lines[0]
    assert lines[-1] == "  … and 10 more"
    assert len(lines) == 22
    assert all(line.isprintable() for line in lines)


def test_a_set_that_leaves_nothing_to_validate_with_is_refused(tmp_path):
    class_folders(tmp_path, {"cat": 1, "dog": 1})
    with pytest.raises(DataError, match="validation"):
        opened(tmp_path)


def test_a_class_with_one_image_is_trained_on_and_named(tmp_path):
    class_folders(tmp_path, {"cat": 5, "dog": 1})
    dataset = opened(tmp_path)
    assert dataset.class_counts == [4, 1]
    assert any("dog" in warning for warning in dataset.warnings)


def test_a_picture_that_holds_nan_is_used_and_named_each_time(tmp_path):
    class_folders(tmp_path, {"cat": 5, "dog": 5})
    Image.fromarray(np.full((16, 16), np.nan, np.float32)).save(tmp_path / "dog" / "nan.tif")
    for _ in range(2):
        dataset = opened(tmp_path)
        assert len(dataset.train) + len(dataset.val) == 11
        named, reduced = dataset.warnings
        assert str(tmp_path / "dog" / "nan.tif") in named
        assert "nan.tif (1 band of float32)" in reduced


def test_an_unchanged_set_is_not_decoded_again_and_a_changed_one_is(tmp_path, own_cache):
    class_folders(tmp_path, {"cat": 20, "dog": 20})
    first: list[tuple[int, int]] = []
    second: list[tuple[int, int]] = []
    third: list[tuple[int, int]] = []
    dataset = opened(tmp_path, progress=first)
    assert first[0] == (0, 40)
    assert first[-1] == (40, 40)
    assert opened(tmp_path, progress=second).sides == dataset.sides
    assert second == [(40, 40)]
    (tmp_path / "cat" / "7.png").write_bytes(b"no longer an image")
    assert len(opened(tmp_path, progress=third, bad_sample_budget=0.5).problems) == 1
    assert third[0] == (39, 40)
    for kept in (own_cache / "mptui" / "scans").iterdir():
        kept.write_bytes(kept.read_bytes()[:-80])
    assert len(opened(tmp_path, bad_sample_budget=0.5).train) == 31


def test_what_a_scan_of_masks_keeps_is_what_it_found(tmp_path):
    pairs(tmp_path, [stripes(0, 1, 255)] * 9)
    first = opened(tmp_path, kind=SampleKind.MASK, ignore_index=255)
    again = opened(tmp_path, kind=SampleKind.MASK, ignore_index=255)
    assert (again.classes, again.class_counts, again.has_ignored) == (first.classes, first.class_counts, True)


def test_a_scan_can_be_stopped(tmp_path):
    class_folders(tmp_path, {"cat": 20, "dog": 20})
    with pytest.raises(ScanCancelledError):
        opened(tmp_path, should_stop=lambda: True)


def test_above_the_limit_ends_of_files_tell_the_truncated(tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "DECODE_WHOLE", 10)
    class_folders(tmp_path, {"cat": 10, "dog": 10}, ".jpg")
    cut = tmp_path / "cat" / "3.jpg"
    cut.write_bytes(cut.read_bytes()[:-40])
    trailing = tmp_path / "cat" / "4.jpg"
    trailing.write_bytes(trailing.read_bytes() + b"x" * 500)
    photo().save(tmp_path / "cat" / "5.bmp")
    dataset = opened(tmp_path, bad_sample_budget=0.5)
    assert [p.path for p in dataset.problems] == [str(cut)]


def test_a_file_that_ends_the_process_is_named_and_costs_no_other(tmp_path, monkeypatch):
    class_folders(tmp_path, {"cat": 3})
    killer = tmp_path / "cat" / "1.png"
    site = tmp_path / "site"
    site.mkdir()
    (site / "deadly_check.py").write_text(
        "import os, PIL.Image\n"
        "from mptui.data.scan import main\n"
        "whole = PIL.Image.open\n"
        f"killer = {str(killer)!r}\n"
        "PIL.Image.open = lambda path, **k: os._exit(9) if str(path) == killer else whole(path, **k)\n"
    )
    monkeypatch.syspath_prepend(site)
    checker = CheckProcess(replace(looking(whole=True), call="deadly_check:main"))
    try:
        found = checker.check([(str(tmp_path / "cat" / f"{i}.png"), None) for i in range(3)])
    finally:
        checker.stop()
        checker.close()
    assert [finding.side for finding in found] == [16, 0, 16]
    assert found[1].path == str(killer)


def test_decoders_that_complain_write_nothing_to_the_terminal(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    class_folders(tmp_path, {"a": 3, "b": 3})
    Image.fromarray(noise).save(tmp_path / "a" / "bad.tif", compression="tiff_lzw")
    damaged = bytearray((tmp_path / "a" / "bad.tif").read_bytes())
    for place in range(3000, 3100):
        damaged[place] ^= 0x5A
    (tmp_path / "a" / "bad.tif").write_bytes(damaged)
    script = """
import sys
from dataclasses import replace
from mptui.config.schema import DataConfig
from mptui.registry.names import SampleKind
from mptui.data.open import open_dataset
d = open_dataset(DataConfig(path=sys.argv[1], bad_sample_budget=1.0), kind=SampleKind.CLASS, side=8, seed=0,
    on_progress=lambda *a: None, should_stop=lambda: False, on_warning=lambda m: None)
print([p.path.rpartition("/")[2] for p in d.problems], "torch" in sys.modules)
"""
    ran = run_to_end(script, tmp_path, call="tests.program:execute", forks=server())
    assert (ran.stdout.strip(), ran.stderr) == ("['bad.tif'] False", "")


def test_findings_travel_as_json(tmp_path):
    pairs(tmp_path, [stripes(0, 3)])
    finding = check((str(tmp_path / "images/0.jpg"), str(tmp_path / "masks/0.png")), whole=True)
    assert type(finding).from_json(json.loads(json.dumps(finding.to_json()))) == finding
    assert finding.mask is not None
    assert finding.mask.codes == (0, 3)


def test_images_and_masks_are_for_another_model_than_classes(tmp_path):
    class_folders(tmp_path, {"cat": 2, "dog": 2})
    assert kind_of(DataConfig(path=str(tmp_path))) == SampleKind.CLASS
    with pytest.raises(DataError) as caught:
        opened(tmp_path, kind=SampleKind.MASK)
    assert "--model unet" in caught.value.hint


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="did you mean cifar10"):
        kind_of(DataConfig(name="cifar-10"))
    assert kind_of(DataConfig()) is None
    assert kind_of(DataConfig(name="cifar10")) == SampleKind.CLASS


def test_nothing_named_means_shapes():
    dataset = opened(samples=20)
    assert (dataset.name, len(dataset.train), len(dataset.val)) == ("shapes", 20, 10)
    assert dataset.train.request(3).read().image_HWC.shape == (32, 32, 3)


def test_a_real_set_names_each_broken_file(tmp_path):
    """The set of difficult files next to the repository, or a small one like it."""
    root = SHARED / "awkward-basic"
    if not root.exists():
        root = class_folders(tmp_path, {"formats": 6})
        (root / "broken").mkdir()
        for name in ("text.jpg", "zero_bytes.jpg"):
            (root / "broken" / name).write_bytes(b"text"[: 4 * (name == "text.jpg")])
        page = Image.new("RGB", (9, 8))
        page.save(root / "formats" / "multipage.tif", save_all=True, append_images=[page])
    dataset = opened(root, bad_sample_budget=0.5)
    unusable = {*(root / "broken").iterdir(), root / "formats" / "multipage.tif"}
    assert sorted(p.path for p in dataset.problems) == sorted(map(str, unusable))
    assert dataset.class_counts[0] == 0


@pytest.mark.parametrize("layout", ["flat", "deep", "one class", "halves", "classes"])
def test_diffusion_takes_every_image_of_a_folder(tmp_path, layout):
    folders = {
        "flat": {".": 10},
        "deep": {".": 4, "a/b": 6},
        "one class": {"faces": 10},
        "halves": {"train": 8, "val": 2},
        "classes": {"train/cat": 4, "train/dog": 4, "val/cat": 2},
    }
    class_folders(tmp_path, folders[layout])
    dataset = opened(tmp_path, kind=SampleKind.IMAGE, val_fraction=0.2)
    assert (dataset.kind, len(dataset.train), len(dataset.val)) == (SampleKind.IMAGE, 8, 2)
    assert not set(paths(dataset.train)) & set(paths(dataset.val))
    if layout in {"halves", "classes"}:
        assert all("/val/" in path for path in paths(dataset.val))
    assert {dataset.train.request(n).read().label for n in range(8)} == {0}
    assert len(dataset.classes) == 1


def test_images_alone_are_for_diffusion_and_masks_are_not(tmp_path):
    class_folders(tmp_path / "flat", {".": 3})
    assert kind_of(DataConfig(path=str(tmp_path / "flat"))) == SampleKind.IMAGE
    with pytest.raises(DataError) as caught:
        opened(tmp_path / "flat")
    assert "each class into a folder of its own" in caught.value.hint
    assert "diffusion_unet for images alone, without model.class_conditional" in caught.value.hint
    pairs(tmp_path / "masks", [stripes(0, 1)] * 3)
    with pytest.raises(DataError, match="has images with masks, but the model needs images alone"):
        opened(tmp_path / "masks", kind=SampleKind.IMAGE)
    assert len(opened(tmp_path / "masks/images", kind=SampleKind.IMAGE).train) == 2


def test_sets_with_classes_serve_diffusion_too():
    dataset = opened(kind=SampleKind.IMAGE, samples=20)
    assert (dataset.name, dataset.kind, len(dataset.train), len(dataset.val)) == (
        "shapes",
        SampleKind.IMAGE,
        20,
        10,
    )
