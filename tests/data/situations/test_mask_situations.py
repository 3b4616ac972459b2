"""Sets of images with masks as people have them: the right mask of each, or a refusal whose remedy works."""

import json
import shutil
import unicodedata

import numpy as np
import pytest
from PIL import Image

from mptui.data.types import IGNORE
from mptui.errors import DataError
from mptui.registry.names import SampleKind

from .pictures import classes_of, mask_of, pairs, photo_of, put, right_mask, turned_pairs
from .read import opened

GREY = {number: number for number in range(16)}
VOID = {**GREY, IGNORE: 255}


def assert_right(root, train, val, **settings):
    """Check that each mask is that of its picture, and the number of samples in each half."""
    dataset, heard = opened(root, SampleKind.MASK, bad_sample_budget=0.0, **settings)
    assert (len(dataset.train), len(dataset.val)) == (train, val)
    for split in (dataset.train, dataset.val):
        for index in range(len(split)):
            request = split.request(index)
            sample = request.read()
            right_HW = right_mask(sample.image_HWC)
            same = np.array_equal(sample.mask_HW, right_HW)
            close = np.mean(sample.mask_HW == right_HW) > 0.97  # JPEG moves edges by a pixel
            assert same or (close and request.path.endswith(".jpg")), request.name
    return dataset, heard


# -- layouts ------------------------------------------------------------------------------------------


def folders(root):
    pairs(root, "images/{}.png", "masks/{}.png")


def folders_of_splits(root):
    pairs(root, "train/images/{}.png", "train/masks/{}.png")
    pairs(root, "val/images/{}.png", "val/masks/{}.png", 2)


def ade20k(root):
    pairs(root, "images/training/{}.png", "annotations/training/{}.png", values=GREY, classes=3)
    pairs(root, "images/validation/{}.png", "annotations/validation/{}.png", 2, values=GREY, classes=3)


def camvid(root):
    for split, count in (("train", 5), ("val", 2), ("test", 3)):
        pairs(root, f"{split}/{{}}.png", f"{split}annot/{{}}.png", count, values=GREY, classes=3)


def compound_names(root):
    pairs(root, "train_images/{}.png", "train_masks/{}.png")
    pairs(root, "val_images/{}.png", "val_masks/{}.png", 2)


def cityscapes(root):
    for split, count in (("train", 5), ("val", 2)):
        mask = f"gtFine/{split}/ulm/u_{{}}_gtFine_%s.png"
        image = f"leftImg8bit/{split}/ulm/u_{{}}_leftImg8bit.png"
        for other in ("color", "instanceIds", "labelIds"):
            pairs(root, image, mask % other, count, values={0: 7, 1: 8, 2: 9})
        pairs(root, image, mask % "labelTrainIds", count, values=VOID, classes=3, ring=True)


def voc(root):
    pairs(root, "JPEGImages/{}.png", "SegmentationClass/{}.png", 7, VOID, 3, ring=True)
    pairs(root, "JPEGImages/{}.png", "SegmentationObject/{}.png", 7, VOID, 3, ring=True)
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("0\n1\n2\n3\n")
    (lists / "val.txt").write_text("4\n5\n")


def voc_without_lists(root):
    pairs(root, "JPEGImages/{}.png", "SegmentationClass/{}.png", 5, VOID, 3, ring=True)


def prefixes(root):
    pairs(root, "images/img_{}.png", "masks/mask_{}.png")


def zeros_before_numbers(root):
    pairs(root, "images/{:03}.png", "masks/{}.png")


def two_spellings(root):
    name = "Zelle_ü{}.png"
    pairs(root, "images/" + unicodedata.normalize("NFC", name), "masks/" + unicodedata.normalize("NFD", name))


def masks_beside(root):
    for name in ("benign", "malignant"):
        pairs(root, f"{name}/{name} ({{}}).png", f"{name}/{name} ({{}})_mask.png")


def masks_beside_in_splits(root):
    for split, count in (("train", 5), ("valid", 2), ("test", 3)):
        pairs(root, split + "/{}_jpg.rf.0.png", split + "/{}_jpg.rf.0_mask.png", count)


def parts(root):
    for first, name in enumerate(("COVID", "Normal")):
        pairs(root, name + "/images/{}.png", name + "/masks/{}.png", 5, first=10 * first)


def parts_in_splits(root):
    for split, count in (("Train", 4), ("Val", 2)):
        for name in ("Rural", "Urban"):
            pairs(root, f"{split}/{name}/images_png/{{}}.png", f"{split}/{name}/masks_png/{{}}.png", count)


def names_of_one_subject(root):
    for split, count in (("Training", 5), ("Validation", 2)):
        image, mask = f"X2_Task1-2_{split}_Input/I_{{}}.png", f"X2_Task1_{split}_GroundTruth/I_{{}}"
        pairs(root, image, mask + "_segmentation.png", count)


def masks_in_an_inner_folder(root):
    pairs(root, "images/{}.png", "annotations/trimaps/{}.png")
    (root / "annotations" / "README").write_text("-")


def directories(root):
    for split, count in (("train", 5), ("val", 2)):
        pairs(root, f"img_dir/{split}/{{}}.png", f"ann_dir/{split}/{{}}.png", count)


def a_validation_folder_beside(root):
    pairs(root, "images/{}.png", "masks/{}.png", 5)
    pairs(root, "val/images/{}.png", "val/masks/{}.png", 2)


def values_and_colours(root):
    pairs(root, "images/{}.png", "labels/{}_color.png", values={0: 7, 1: 8})
    pairs(root, "images/{}.png", "labels/{}_labelIds.png", values=GREY, classes=3)


def masks_and_pictures_of_them(root):
    pairs(root, "JPEGImages/{}.png", "SegmentationClassPNG/{}.png", 5, VOID, 3, ring=True)
    pairs(root, "JPEGImages/{}.png", "SegmentationClassVisualization/{}.png", 5, VOID, 3, ring=True)


def second_masks(root):
    pairs(root, "images/b ({}).png", "masks/b ({})_mask.png")
    put(root / "masks" / "b (2)_mask_1.png", mask_of(classes_of(2), {0: 0, 1: 255}))


def a_folder_an_image(root):
    for number in range(5):
        classes_HW = classes_of(number)
        put(root / f"id{number}/images/id{number}.png", photo_of(classes_HW))
        for part in range(2):
            half_HW = classes_HW.copy()
            half_HW[:, :10] *= part == 0
            half_HW[:, 10:] *= part == 1
            put(root / f"id{number}/masks/{part}.png", mask_of(half_HW, {0: 0, 1: 255}))


def coloured_on_transparent(root):
    for number in range(5):
        classes_HW = classes_of(number)
        put(root / f"images/{number}.png", photo_of(classes_HW))
        colours = np.array([(0, 0, 0, 0), (255, 0, 0, 255)], np.uint8)
        put(root / f"masks/{number}.png", Image.fromarray(colours[classes_HW]))


@pytest.mark.parametrize(
    ("make", "halves", "classes", "said"),
    [
        (folders, (4, 1), 2, ""),
        (folders_of_splits, (5, 2), 2, ""),
        (ade20k, (5, 2), 3, ""),
        (camvid, (5, 2), 3, ""),
        (compound_names, (5, 2), 2, ""),
        (cityscapes, (5, 2), 3, "255 is ignored"),
        (voc, (4, 2), 3, "255 is ignored"),
        (voc_without_lists, (4, 1), 3, "255 is ignored"),
        (prefixes, (4, 1), 2, ""),
        (zeros_before_numbers, (4, 1), 2, ""),
        (two_spellings, (4, 1), 2, ""),
        (masks_beside, (8, 2), 2, ""),
        (masks_beside_in_splits, (5, 2), 2, ""),
        (parts, (8, 2), 2, "2 folders of images and masks are joined to one set: COVID, Normal"),
        (parts_in_splits, (8, 4), 2, "joined to one set: Rural, Urban"),
        (names_of_one_subject, (5, 2), 2, ""),
        (masks_in_an_inner_folder, (4, 1), 2, ""),
        (directories, (5, 2), 2, ""),
        (a_validation_folder_beside, (5, 2), 2, ""),
        (values_and_colours, (4, 1), 3, "a picture of the same mask of another kind"),
        (masks_and_pictures_of_them, (4, 1), 3, "255 is ignored"),
        (second_masks, (4, 1), 2, "joined"),
        (a_folder_an_image, (4, 1), 2, "joined"),
        (coloured_on_transparent, (4, 1), 2, ""),
    ],
)
def test_a_layout_is_read_as_it_is(tmp_path, make, halves, classes, said):
    make(tmp_path)
    dataset, heard = assert_right(tmp_path, *halves)
    assert len(dataset.classes) == classes
    assert said in " ".join(heard)


def of_the_only_folder(root):
    pairs(root, "Kvasir/images/{}.png", "Kvasir/masks/{}.png")


def rename_splits(root):
    for name, split in (("X-TR", "train"), ("X-TE", "test")):
        (root / name).rename(root / split)


def splits_by_other_words(root):
    pairs(root, "X-TR/images/{}.png", "X-TR/masks/{}.png", 4)
    pairs(root, "X-TE/images/{}.png", "X-TE/masks/{}.png", 1)


def two_kinds_of_masks(root):
    for number in range(5):
        noise_HWC = np.random.default_rng(number).integers(0, 255, (40, 48, 3), np.uint8)
        noise_HWC[..., 0] = np.asarray(photo_of(classes_of(number)))[..., 0]
        put(root / f"images/{number}_training.tif", Image.fromarray(noise_HWC))
        put(root / f"1st_manual/{number}_manual1.gif", mask_of(classes_of(number), {0: 0, 1: 255}))
        put(root / f"mask/{number}_training_mask.gif", mask_of(1 - classes_of(number), {0: 0, 1: 255}))


def list_the_masks(root):
    lines = (f"images/{number}_training.tif,1st_manual/{number}_manual1.gif" for number in range(5))
    (root / "list.csv").write_text("image,mask\n" + "\n".join(lines))


@pytest.mark.parametrize(
    ("make", "said", "hint", "remedy", "given"),
    [
        (of_the_only_folder, "its only folder Kvasir", "/Kvasir", None, "Kvasir"),
        (splits_by_other_words, r"\n  splits: X-T.*\n  parts", "name the folders", rename_splits, "."),
        (two_kinds_of_masks, r"\n  other masks: 1st_manual/", "LIST.csv", list_the_masks, "list.csv"),
    ],
)
def test_folders_that_can_be_meant_otherwise_are_refused_and_the_remedy_works(
    tmp_path, make, said, hint, remedy, given
):
    make(tmp_path)
    with pytest.raises(DataError, match=said) as caught:
        opened(tmp_path, SampleKind.MASK)
    assert hint in caught.value.hint
    if remedy is not None:
        remedy(tmp_path)
    assert_right(tmp_path / given, 4, 1)


def test_the_test_half_and_what_is_in_no_list_are_named(tmp_path):
    camvid(tmp_path / "camvid")
    reading = opened(tmp_path / "camvid", SampleKind.MASK)[0].reading
    assert (len(reading.test), reading.split) == (6, "folders train and val")
    voc(tmp_path / "voc")
    reading = opened(tmp_path / "voc", SampleKind.MASK)[0].reading
    left = {each.reason: each.count for each in reading.left_out}
    assert left["is in no list of ImageSets/Segmentation"] == 2
    assert left["lies in no folder of images or masks"] == 7


# -- values -------------------------------------------------------------------------------------------


def soft_png(root):
    pairs(root, "images/{}.png", "jpg/{}.jpg", quality=95)
    (root / "masks").mkdir()
    for file in (root / "jpg").iterdir():
        with Image.open(file) as image:
            image.save(root / "masks" / f"{file.stem}.png")
    shutil.rmtree(root / "jpg")


def scaled_down(root):
    for number in range(5):
        classes_HW = classes_of(number)
        put(root / f"images/{number}.png", photo_of(classes_HW))
        large = mask_of(classes_HW, {0: 0, 1: 255}).resize((144, 120), Image.Resampling.BILINEAR)
        put(root / f"masks/{number}.png", large.resize((48, 40), Image.Resampling.BOX))


def jpeg(*values):
    def make(root):
        coding = dict(enumerate(values))
        pairs(root, "images/{}.png", "masks/{}.jpg", values=coding, classes=len(values), quality=92)

    return make


@pytest.mark.parametrize(
    ("make", "classes"),
    [
        (soft_png, ("background", "foreground")),
        (scaled_down, ("background", "foreground")),
        (jpeg(0, 255), ("background", "foreground")),
        (jpeg(0, 200), ("background", "foreground")),
        (jpeg(0, 128, 255), ("class_0", "class_128", "class_255")),
    ],
)
def test_values_in_clear_clusters_are_joined_and_that_is_said(tmp_path, make, classes):
    make(tmp_path)
    dataset, heard = opened(tmp_path, SampleKind.MASK)
    assert dataset.classes == classes
    assert dataset.reading.cleaned[0] in heard
    for index in range(len(dataset.train)):
        sample = dataset.train.request(index).read()
        assert np.mean(sample.mask_HW == right_mask(sample.image_HWC)) > 0.97


@pytest.mark.parametrize("values", [(0, 64, 128, 191, 255), (0, 1, 2, 3), (0, 100, 200), (10, 20, 30, 40)])
def test_values_of_classes_with_areas_are_not_joined(tmp_path, values):
    pairs(tmp_path, "images/{}.png", "masks/{}.png", values=dict(enumerate(values)), classes=len(values))
    dataset, _ = assert_right(tmp_path, 4, 1)
    assert dataset.classes == tuple(f"class_{value}" for value in values)


def gaps_and_void(root):
    pairs(root, "images/{}.png", "masks/{}.png", 5, {0: 0, 1: 1, 2: 15, IGNORE: 255}, 3, ring=True)


def numbers_and_void(root):
    pairs(root, "images/{}.png", "masks/{}.png", 5, VOID, 3, ring=True)


def void_colour(root):
    colours = np.array([(0, 0, 0), (0, 128, 0), (128, 0, 0), (224, 224, 192)], np.uint8)
    for number in range(5):
        classes_HW = classes_of(number, 3, ring=True)
        put(root / f"images/{number}.png", photo_of(classes_HW))
        put(root / f"masks/{number}.png", Image.fromarray(colours[classes_HW]))


def two_codings(root):
    pairs(root, "images/{}.png", "masks/{}.png", 3, {0: 0, 1: 1})
    pairs(root, "images/{}.png", "masks/{}.png", 3, {0: 0, 1: 255}, first=3)


def instances(root):
    for number in range(5):
        objects_HW = np.zeros((40, 48), np.int64)
        for place in range(12 + 3 * number):
            row, column = divmod(place, 8)
            objects_HW[2 + 9 * row : 8 + 9 * row, 2 + 5 * column : 5 + 5 * column] = place + 1
        put(root / f"images/{number}.png", photo_of((objects_HW > 0).astype(np.int64)))
        put(root / f"masks/{number}.png", Image.fromarray(objects_HW.astype(np.uint8)))


def numbered(root, numbers, values, masks=5):
    """Save masks of discs in a grid; `numbers` gives the value of each disc of mask i."""
    rows, columns = np.mgrid[:64, :80]
    for number in range(masks):
        mask_HW = np.zeros((64, 80), np.uint8)
        for place, value in enumerate(numbers(number)[:values]):
            row, column = divmod(place, 5)
            mask_HW[(rows - 8 - 16 * row) ** 2 + (columns - 8 - 16 * column) ** 2 < 36] = value
        put(root / f"images/{number}.png", photo_of((mask_HW > 0).astype(np.int64)))
        put(root / f"masks/{number}.png", Image.fromarray(mask_HW))


def random_numbers(number):
    return np.random.default_rng(number).permutation(np.arange(1, 250))


def numbers_with_gaps(number):
    return np.sort(np.random.default_rng(number).permutation(np.arange(1, 40 + number))[:20])


def instances_at_random(root):
    numbered(root, random_numbers, 12)


def instances_with_gaps(root):
    numbered(root, numbers_with_gaps, 20)


def test_a_few_compact_values_a_mask_may_be_objects_and_that_is_said(tmp_path):
    numbered(tmp_path, random_numbers, 4)
    for _ in range(2):  # a second time from the cache
        _, heard = opened(tmp_path, SampleKind.MASK)
        assert any(
            "one compact region in its mask: if these are numbers of objects" in line for line in heard
        )
    class_file("background = 0\nobject = '1-255'")(tmp_path)
    dataset, heard = opened(tmp_path, SampleKind.MASK)
    assert (dataset.classes, heard) == (("background", "object"), [])


def test_values_of_one_mask_each_may_be_objects_and_that_is_said(tmp_path):
    for number in range(6):
        classes_HW = classes_of(number, 3)
        put(tmp_path / f"images/{number}.png", photo_of(classes_HW))
        values_HW = (1000 * classes_HW + number * (classes_HW > 0)).astype(np.uint16)
        put(tmp_path / f"masks/{number}.png", Image.fromarray(values_HW))
    _, heard = opened(tmp_path, SampleKind.MASK)
    assert any("12 of 12 values above 0 are in one mask each" in line for line in heard)
    class_file("background = 0\nobject = '1-2005'")(tmp_path)
    dataset, heard = opened(tmp_path, SampleKind.MASK)
    assert (dataset.classes, heard) == (("background", "object"), [])


def test_whole_numbers_stored_as_fractions_are_values(tmp_path):
    pairs(tmp_path, "images/{}.png", "masks/{}.png")
    for number in range(5):
        (tmp_path / f"masks/{number}.png").unlink()
        mask = Image.fromarray(classes_of(number).astype(np.float32))
        put(tmp_path / f"masks/{number}.tif", mask)
    assert_right(tmp_path, 4, 1)


def test_classes_in_several_regions_are_no_objects(tmp_path):
    numbered(tmp_path, lambda number: np.random.default_rng(number).integers(1, 13, 20), 20)
    dataset, heard = opened(tmp_path, SampleKind.MASK)
    assert len(dataset.classes) == 13
    assert not any("numbers of objects" in line for line in heard)


def alpha_alone(root):
    for number in range(5):
        classes_HW = classes_of(number)
        put(root / f"images/{number}.png", photo_of(classes_HW))
        rgba = np.full((40, 48, 4), 255, np.uint8)
        rgba[..., 3] = 255 * classes_HW
        put(root / f"masks/{number}.png", Image.fromarray(rgba))


def save_alpha(root):
    for file in (root / "masks").iterdir():
        with Image.open(file) as mask:
            mask.getchannel("A").save(file)


def many_greys(root):
    for number in range(5):
        put(root / f"images/{number}.png", photo_of(np.repeat([[0] * 24 + [1] * 24], 40, axis=0)))
        ramp = np.repeat(np.linspace(0, 255, 48)[None].astype(np.uint8), 40, axis=0)
        put(root / f"masks/{number}.png", Image.fromarray(ramp))


def class_file(text):
    def write(root):
        (root / "classes.toml").write_bytes(text.encode())

    return write


@pytest.mark.parametrize(
    ("make", "said", "remedy", "settings", "classes"),
    [
        (gaps_and_void, "255", None, {"ignore_index": 255}, 3),
        (numbers_and_void, "255", class_file("ignore = 255"), {}, 3),
        (numbers_and_void, "255", class_file("\ufeffa = 0\nb = 1\nc = '2'\nignore = '250-255'\n"), {}, 3),
        (void_colour, "e0e0c0", class_file("ignore = [224, 224, 192]"), {}, 3),
        (two_codings, "two codings", class_file("background = 0\nforeground = '1, 255'"), {}, 2),
        (instances, "numbers of instances", class_file("background = 0\nobject = '1-255'"), {}, 2),
        (instances_at_random, "numbers of instances", class_file("background = 0\nobject = '1-255'"), {}, 2),
        (instances_with_gaps, "numbers of instances", class_file("background = 0\nobject = '1-255'"), {}, 2),
        (alpha_alone, "only one value", save_alpha, {}, 2),
        (many_greys, "soft edges", class_file("background = '0-127'\nforeground = '128-255'"), {}, 2),
    ],
)
def test_values_of_two_meanings_are_refused_and_the_remedy_works(
    tmp_path, make, said, remedy, settings, classes
):
    make(tmp_path)
    with pytest.raises(DataError, match=said) as caught:
        opened(tmp_path, SampleKind.MASK)
    assert caught.value.exit_code == 3
    if remedy is not None:
        remedy(tmp_path)
    dataset, _ = assert_right(tmp_path, *((5, 1) if make is two_codings else (4, 1)), **settings)
    assert len(dataset.classes) == classes


def test_a_class_has_several_colours(tmp_path):
    colours = np.array([(0, 0, 0), (0, 0, 255)], np.uint8)
    for number in range(5):
        classes_HW = classes_of(number)
        put(tmp_path / f"images/{number}.png", photo_of(classes_HW))
        rgb_HW3 = colours[classes_HW]
        rgb_HW3[:3][classes_HW[:3] == 0] = (9, 9, 9)
        put(tmp_path / f"masks/{number}.png", Image.fromarray(rgb_HW3))
    (tmp_path / "classes.toml").write_text("ground = [[0, 0, 0], [9, 9, 9]]\ncell = [[0, 0, 255]]\n")
    assert assert_right(tmp_path, 4, 1)[0].classes == ("ground", "cell")


def test_coloured_masks_saved_with_loss_are_refused_until_they_are_png(tmp_path):
    colours = np.array([(0, 0, 0), (255, 0, 0)], np.uint8)
    for number in range(5):
        classes_HW = classes_of(number)
        put(tmp_path / f"images/{number}.png", photo_of(classes_HW))
        put(tmp_path / f"masks/{number}.jpg", Image.fromarray(colours[classes_HW]), quality=95)
    with pytest.raises(DataError, match=r"saved with loss|values"):
        opened(tmp_path, SampleKind.MASK)
    for file in list((tmp_path / "masks").iterdir()):
        file.unlink()
        put(file.with_suffix(".png"), Image.fromarray(colours[classes_of(int(file.stem))]))
    assert_right(tmp_path, 4, 1)


# -- orientation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("upright", [True, False])
def test_photographs_turned_by_a_quarter_say_how_all_masks_lie(tmp_path, upright):
    turned_pairs(tmp_path, (1, 6, 8, 3, 2, 6), upright=upright)
    dataset, _ = opened(tmp_path, SampleKind.MASK)
    _assert_masks_lie_on_their_objects(dataset)
    assert ("as it is shown" if upright else "as it is stored") in dataset.reading.orientation


@pytest.mark.parametrize("square", [True, False])
@pytest.mark.parametrize("upright", [True, False])
def test_photographs_that_do_not_say_are_refused_and_the_setting_decides(tmp_path, upright, square):
    turned_pairs(tmp_path, (6, 6, 6, 6) if square else (3, 3, 3, 1), upright=upright, square=square)
    with pytest.raises(DataError, match="stored turned") as caught:
        opened(tmp_path, SampleKind.MASK)
    setting = "upright" if upright else "stored"
    assert f"data.mask_orientation={setting}" in caught.value.hint
    _assert_masks_lie_on_their_objects(opened(tmp_path, SampleKind.MASK, mask_orientation=setting)[0])


def _assert_masks_lie_on_their_objects(dataset):
    for split in (dataset.train, dataset.val):
        for index in range(len(split)):
            sample = split.request(index).read()
            assert np.mean(sample.mask_HW == right_mask(sample.image_HWC)) > 0.97


# -- files that are no masks --------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["images", "masks"])
def test_a_stack_is_refused_until_its_pages_are_files(tmp_path, folder):
    for number in range(4):
        classes_HW = classes_of(number)
        for name, picture in (
            ("images", photo_of(classes_HW)),
            ("masks", mask_of(classes_HW, {0: 0, 1: 255})),
        ):
            stack = {"save_all": True, "append_images": [picture]} if name == folder else {}
            put(tmp_path / name / f"{number}.tif", picture, **stack)
    with pytest.raises(DataError, match="a stack of 2 pages"):
        opened(tmp_path, SampleKind.MASK)
    for file in (tmp_path / folder).iterdir():
        with Image.open(file) as pages:
            pages.seek(1)
            page = pages.copy()
        page.save(file)
    assert_right(tmp_path, 3, 1)


def coco(root):
    (root / "annotations").mkdir()
    (root / "annotations" / "instances_train.json").write_text(
        json.dumps({"images": [], "annotations": [], "categories": []})
    )


def yolo(root):
    (root / "labels").mkdir()
    for number in range(5):
        (root / "labels" / f"{number}.txt").write_text("0 0.5 0.5 0.25 0.25\n")


def labelme(root):
    for number in range(5):
        (root / "images" / f"{number}.json").write_text(
            json.dumps({"version": "5", "shapes": [{"points": []}], "imagePath": "0.png"})
        )


def voc_boxes(root):
    (root / "Annotations").mkdir()
    (root / "Annotations" / "0.xml").write_text("<annotation><object><bndbox/></object></annotation>")


@pytest.mark.parametrize(
    ("annotate", "name"), [(coco, "COCO"), (yolo, "YOLO"), (labelme, "LabelMe"), (voc_boxes, "VOC boxes")]
)
def test_annotations_are_recognized_and_masks_drawn_from_them_are_read(tmp_path, annotate, name):
    for number in range(5):
        put(tmp_path / f"images/{number}.png", photo_of(classes_of(number)))
    annotate(tmp_path)
    with pytest.raises(DataError, match=name) as caught:
        opened(tmp_path, SampleKind.MASK)
    assert "DATA/masks" in caught.value.hint
    pairs(tmp_path, "images/{}.png", "masks/{}.png")
    if annotate is not labelme:
        shutil.rmtree(next(each for each in tmp_path.iterdir() if each.name not in ("images", "masks")))
    assert_right(tmp_path, 4, 1)
