"""The differences between runs: no figure is cut and no line is too wide, at any width."""

from pathlib import Path

import pytest

from mptui.tui.screens.compare import difference_heading, difference_lines
from mptui.tui.widgets.run_list import differing_words

RUNS = [Path(f"20261120-10150{number}-fast-resnet50") for number in range(8)]
FIGURES = {"best_value": [0.0933] * 8, "samples_per_second": [20344.0] * 8, "status": ["completed"] * 8}


@pytest.mark.parametrize("width", [53, 73, 93, 133, 193])
def test_no_figure_of_eight_runs_is_cut(width):
    lines = dict(difference_lines({"figures": FIGURES, "settings": {}, "environment": {}}, width))
    heading = difference_heading(RUNS, width)
    assert {line.cell_length for line in lines.values()} == {heading.cell_length}
    assert heading.cell_length <= width
    shown = set(lines["best_value"].plain.split()[1:] + lines["samples_per_second"].plain.split()[1:])
    assert shown == {"0.0933", "20,344"}


def test_the_heading_names_the_runs_where_there_is_room():
    assert difference_heading(RUNS, 73).plain.split() == [str(number) for number in range(1, 9)]
    assert " 8 fast-resnet50" in difference_heading(RUNS, 193).plain


def test_runs_of_one_name_are_told_by_their_times_where_there_is_room():
    runs = [Path(f"20261120-10150{number}-fast-unet") for number in range(2)]
    assert " 2 20261120-101501-fast-unet" in difference_heading(runs, 100).plain
    assert " 2 fast-unet" in difference_heading(runs, 60).plain


def test_settings_that_differ_are_named_as_a_person_would():
    keys = ["model.name", "data.name", "data.path", "training.lr"]
    assert differing_words(keys, 2, 40) == "these differ: model, data, lr"
    assert differing_words(keys, 2, 20) == "3 settings differ"


@pytest.mark.parametrize(("width", "typed"), [(73, False), (113, True), (193, True)])
def test_settings_have_words_and_where_there_is_room_what_is_typed(width, typed):
    settings = {"training.lr_batch_size": [64, 8], "model.name": ["unet", "resnet18"]}
    lines = dict(difference_lines({"figures": {}, "settings": settings, "environment": {}}, width))
    assert lines["training.lr_batch_size"].plain.startswith("lr batch size ")
    assert lines["model.name"].plain.startswith("model ")
    assert ("training.lr_batch_size" in lines["training.lr_batch_size"].plain) == typed


def test_a_folder_is_whole_where_there_is_room():
    folders = ["/data/of/the/lab/fashion-mini", "/data/of/the/lab/nuclei-of-cells-2018"]
    found = {"figures": {}, "settings": {"data.path": folders}, "environment": {}}
    assert all(each in dict(difference_lines(found, 193))["data.path"].plain for each in folders)


def test_runs_without_a_column_are_counted():
    assert difference_heading(RUNS, 53).plain.split() == ["3", "runs", "hidden", "1", "2", "3", "4", "5"]
