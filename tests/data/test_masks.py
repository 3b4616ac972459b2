import io

import numpy as np
import pytest
from PIL import Image

from mptui.data.mask_classes import find_coding
from mptui.data.masks import MaskSurvey
from mptui.data.pictures import EXTRA, HIT, MISSED, bright, legend
from mptui.data.types import IGNORE, BadSampleError
from mptui.errors import DataError
from tests.data.opening import opened_masks

from .images import SHARED, pairs, photo, save_oriented, stripes


def masks_of(dataset):
    """Return the classes along the middle row of each mask, by file name."""
    found = {}
    for split in (dataset.train, dataset.val):
        for index in range(len(split)):
            request = split.request(index)
            mask_HW = request.read().mask_HW
            assert mask_HW.dtype == np.int16
            found[request.name.rpartition("/")[2]] = mask_HW[mask_HW.shape[0] // 2]
    return [found[name].tolist() for name in sorted(found)]


def runs(row):
    """Return a row without repetitions."""
    return [value for index, value in enumerate(row) if index == 0 or row[index - 1] != value]


@pytest.mark.parametrize("values", [(0, 255), (0, 1)])
def test_binary_masks_are_background_and_foreground(tmp_path, values):
    dataset = opened_masks(pairs(tmp_path, [stripes(*values), stripes(values[1], values[0])]))
    assert dataset.classes == ("background", "foreground")
    assert [runs(row) for row in masks_of(dataset)] == [[0, 1], [1, 0]]


def test_one_bit_rgb_and_alpha_masks_are_binary_too(tmp_path):
    grey = Image.fromarray(stripes(0, 255))
    masks = [grey.convert("1"), grey.convert("RGB"), grey.convert("RGBA"), grey.convert("LA")]
    dataset = opened_masks(pairs(tmp_path, masks))
    assert dataset.classes == ("background", "foreground")
    assert [runs(row) for row in masks_of(dataset)] == [[0, 1]] * 4


def test_jpeg_masks_are_cut_in_the_middle(tmp_path):
    pairs(tmp_path, [stripes(0, 255)] * 2)
    for index in range(2):
        path = tmp_path / "masks" / f"{index}.png"
        Image.open(path).save(path.with_suffix(".jpg"), quality=60)
        path.unlink()
    dataset = opened_masks(tmp_path)
    assert dataset.classes == ("background", "foreground")
    assert [runs(row) for row in masks_of(dataset)] == [[0, 1]] * 2


def test_index_masks_keep_their_numbers(tmp_path):
    dataset = opened_masks(pairs(tmp_path, [stripes(0, 1, 4), stripes(2, 0)]))
    assert dataset.classes == ("class_0", "class_1", "class_2", "class_3", "class_4")
    assert [runs(row) for row in masks_of(dataset)] == [[0, 1, 4], [2, 0]]
    assert any("class_3" in warning for warning in dataset.warnings)


def test_16_bit_and_spread_values_are_classes_in_order(tmp_path):
    dataset = opened_masks(pairs(tmp_path, [stripes(0, 1000, 500, dtype=np.uint16)] * 2))
    assert dataset.classes == ("class_0", "class_500", "class_1000")
    assert runs(masks_of(dataset)[0]) == [0, 2, 1]


def test_palette_masks_are_their_indices(tmp_path):
    mask = Image.fromarray(stripes(0, 2, 1)).convert("P")
    mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    dataset = opened_masks(pairs(tmp_path, [mask, mask]))
    assert dataset.classes == ("class_0", "class_1", "class_2")
    assert runs(masks_of(dataset)[0]) == [0, 2, 1]


def test_palettes_that_disagree_are_read_by_colour(tmp_path):
    masks = []
    for palette, values in (([0, 0, 0, 200, 0, 0], (0, 1)), ([200, 0, 0, 0, 0, 0], (1, 0))):
        mask = Image.fromarray(stripes(*values)).convert("P")
        mask.putpalette(palette)
        masks.append(mask)
    dataset = opened_masks(pairs(tmp_path, masks))
    assert dataset.classes == ("#000000", "#c80000")
    assert [runs(row) for row in masks_of(dataset)] == [[0, 1], [0, 1]]


def coloured(*colours):
    return Image.fromarray(np.array(colours, np.uint8)[stripes(*range(len(colours)))])


def test_coloured_masks_have_a_class_for_each_colour_of_the_set(tmp_path):
    red, green, black = (255, 0, 0), (0, 255, 0), (0, 0, 0)
    dataset = opened_masks(pairs(tmp_path, [coloured(black, red), coloured(green, black), coloured(black)]))
    assert dataset.classes == ("#000000", "#00ff00", "#ff0000")
    assert [runs(row) for row in masks_of(dataset)] == [[0, 2], [1, 0], [0]]


def test_a_class_file_names_colours_and_order(tmp_path):
    pairs(tmp_path, [coloured((0, 0, 0), (255, 0, 0))] * 2)
    (tmp_path / "classes.toml").write_text("road = [255, 0, 0]\nsky = [0, 0, 255]\nvoid = [0, 0, 0]\n")
    dataset = opened_masks(tmp_path)
    assert dataset.classes == ("road", "sky", "void")
    assert runs(masks_of(dataset)[0]) == [2, 0]


def test_a_class_file_names_values_and_a_mask_with_another_is_bad(tmp_path):
    pairs(tmp_path, [stripes(0, 7)] * 3 + [stripes(0, 9)])
    (tmp_path / "classes.toml").write_text("car = 7\nground = 0\n")
    dataset = opened_masks(tmp_path, budget=0.5)
    assert dataset.classes == ("ground", "car")
    assert [(p.path.rpartition("/")[2], p.reason) for p in dataset.problems] == [
        ("3.png", "value 9 of the mask is none of the classes")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("road = ", "classes.toml"),
        ("road = 'red'\nsky = 1", "road"),
        ("road = [1, 300, 2]\nsky = 1", "road"),
        ("road = true\nsky = 1", "road"),
        ("road = 1", "two or more"),
        ("road = 1\nsky = [1, 2, 3]", "all by value or all by colour"),
        ("road = 1\nsky = 1", "same value"),
    ],
)
def test_a_wrong_class_file_is_refused(tmp_path, text, said):
    pairs(tmp_path, [stripes(0, 1)] * 2)
    (tmp_path / "classes.toml").write_text(text)
    with pytest.raises(DataError, match=said):
        opened_masks(tmp_path)


def test_255_beside_class_numbers_must_be_explained(tmp_path):
    pairs(tmp_path, [stripes(0, 1, 2, 255)] * 2)
    with pytest.raises(DataError) as caught:
        opened_masks(tmp_path)
    assert "data.ignore_index=255" in caught.value.hint
    dataset = opened_masks(tmp_path, ignore_index=255)
    assert dataset.classes == ("class_0", "class_1", "class_2")
    assert runs(masks_of(dataset)[0]) == [0, 1, 2, IGNORE]
    assert dataset.has_ignored
    assert dataset.class_counts == (6 * 16, 6 * 16, 6 * 16)


def test_an_ignored_value_may_lie_beside_binary_classes(tmp_path):
    dataset = opened_masks(pairs(tmp_path, [stripes(0, 1, 255)] * 2), ignore_index=255)
    assert dataset.classes == ("background", "foreground")
    assert runs(masks_of(dataset)[0]) == [0, 1, IGNORE]


@pytest.mark.parametrize(
    ("masks", "settings", "said"),
    [
        ([stripes(0)] * 2, {}, "only one value"),
        ([np.arange(24 * 16, dtype=np.uint8).reshape(16, 24)] * 2, {}, "soft edges"),
        ([coloured((0, 0, 0), (9, 0, 0))] * 2, {"ignore_index": 255}, "coloured"),
        ([stripes(*range(300), dtype=np.uint16, size=(300, 4))] * 2, {}, "more than 256 values"),
    ],
)
def test_masks_that_mean_nothing_are_refused(tmp_path, masks, settings, said):
    size = (300, 4) if "more than" in said else (24, 16)
    with pytest.raises(DataError, match=said):
        opened_masks(pairs(tmp_path, masks, size=size), **settings)


def test_a_smaller_mask_of_the_same_shape_is_enlarged_and_another_shape_is_bad(tmp_path):
    pairs(tmp_path, [stripes(0, 1), stripes(0, 1, size=(12, 8)), stripes(0, 1, size=(16, 24)), stripes(0, 1)])
    dataset = opened_masks(tmp_path, budget=0.5)
    assert [len(row) for row in masks_of(dataset)] == [24, 24, 24]
    assert masks_of(dataset)[1] == [0] * 12 + [1] * 12
    assert [p.reason for p in dataset.problems] == ["the mask has 16x24 pixels, its image 24x16"]


@pytest.mark.parametrize("orientation", [1, 2, 3, 6, 8])
def test_a_mask_is_turned_with_its_image(tmp_path, orientation):
    """A mask drawn over the stored pixels is rotated with them; one drawn over the upright image is not."""
    pairs(tmp_path, [stripes(0, 1)] * 2)
    upright = photo(24, 16)
    mask = Image.fromarray(stripes(0, 1, 2))
    save_oriented(tmp_path / "images" / "0.jpg", orientation, upright)
    stored_mask = io.BytesIO()
    save_oriented(stored_mask_path := tmp_path / "stored.png", orientation, mask)
    with Image.open(stored_mask_path) as turned:
        Image.fromarray(np.asarray(turned)).save(stored_mask, "PNG")
    (tmp_path / "masks" / "0.png").write_bytes(stored_mask.getvalue())
    shows = orientation in {1, 6, 8}
    settings = {} if shows else {"mask_orientation": "stored"}
    assert runs(masks_of(opened_masks(tmp_path, **settings))[0]) == [0, 1, 2]
    mask.save(tmp_path / "masks" / "0.png")
    settings = {} if shows else {"mask_orientation": "upright"}
    assert runs(masks_of(opened_masks(tmp_path, **settings))[0]) == [0, 1, 2]


def test_a_mask_follows_a_jpeg_that_is_decoded_smaller(tmp_path):
    dataset = opened_masks(pairs(tmp_path, [stripes(0, 1, size=(480, 320))] * 2, size=(480, 320)))
    decoded = dataset.train.request(0).read(side_hint=80)
    assert decoded.image_HWC.shape[:2] == decoded.mask_HW.shape == (80, 120)
    assert (decoded.mask_HW[:, :60] == 0).all()
    assert (decoded.mask_HW[:, 60:] == 1).all()


def test_a_mask_that_changed_after_the_scan_is_a_bad_sample(tmp_path):
    dataset = opened_masks(pairs(tmp_path, [stripes(0, 1, 2)] * 2))
    request = dataset.train.request(0)
    Image.fromarray(stripes(0, 77)).save(request.mask_path)
    with pytest.raises(BadSampleError, match="value 77"):
        request.read()


def test_real_masks(tmp_path):
    """The nuclei next to the repository, or two generated masks like them."""
    root = SHARED / "nuclei-mini"
    dataset = opened_masks(root if root.exists() else pairs(tmp_path, [stripes(0, 255)] * 2))
    assert dataset.classes == ("background", "foreground")
    assert all(set(row) <= {0, 1} for row in masks_of(dataset))
    assert dataset.class_counts[0] > 0
    assert dataset.class_counts[1] > 0


def test_more_classes_than_a_mask_can_number_are_refused():
    surveys = [MaskSurvey("grey", (first, first + 1), (1, 1)) for first in range(0, 40_000, 2)]
    with pytest.raises(DataError, match="40,000 values"):
        find_coding(surveys, None, None)


def test_the_names_of_many_classes_stand_below_each_other():
    places = [place for place, *_ in legend([f"class {number}" for number in range(30)], 400)]
    assert places == sorted(places, key=lambda place: (place[1], place[0]))
    assert len(set(places)) == 30
    assert min(min(place) for place in places) > 0
    assert max(left for left, _ in places) < 400


def test_colours_of_masks_and_of_errors_are_legible_on_black_and_told_apart_by_their_light():
    """3:1 is what WCAG 2.2 asks of what is no text."""
    light = [_luminance(colour) for colour in bright(("background", *"abcdefgh")).tolist()[1:40]]
    assert min(light) + 0.05 >= 3 * 0.05
    hit, missed, extra = sorted(map(_luminance, (HIT, MISSED, EXTRA)))
    assert (missed + 0.05) / (hit + 0.05) > 1.5
    assert (extra + 0.05) / (missed + 0.05) > 1.5


def _luminance(colour):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
