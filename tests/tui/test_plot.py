import math
import random
from dataclasses import replace

import pytest

from mptui.runs.view.history import History
from mptui.runs.view.state import Mark
from mptui.tui.terminal.graphics import to_ascii
from mptui.tui.widgets.chart import moved, nearest, panned, zoomed
from mptui.tui.widgets.plot import (
    GUTTER,
    Drawing,
    Plot,
    Series,
    StepWindow,
    linear_axis,
    log_axis,
    smoothed,
    step_ticks,
)


def history(values, every=1):
    made = History()
    for i, value in enumerate(values):
        made.append(i * every, value)
    return made


def drawn(*series, width=80, height=20, **options):
    plot = Plot([Series(f"s{n}", values) for n, values in enumerate(series)], **options)
    return ["".join(text for text, _ in row) for row in Drawing(plot, width, height).rows()]


def dots(line):
    return [i for i, c in enumerate(line) if 0x2800 < ord(c) < 0x2900]


@pytest.mark.parametrize("mode", ["braille", "block", "ascii"])
@pytest.mark.parametrize("size", [(80, 20), (120, 40), (30, 6), (5, 2), (1, 1)])
def test_each_line_has_exactly_the_width_asked_for(mode, size):
    rows = drawn(history([math.sin(i / 9) for i in range(500)]), width=size[0], height=size[1], mode=mode)
    assert [len(row) for row in rows] == [size[0]] * size[1]


def test_one_point_spike_among_twenty_thousand_reaches_the_top():
    rows = drawn(history([50.0 if i == 9_000 else 1.0 for i in range(20_000)]))
    column = GUTTER + round(9_000 / 20_000 * (80 - GUTTER))
    assert "▲" in rows[1][column - 1 : column + 2]  # larger than the axis
    for row in rows[2:10]:
        assert any(abs(i - column) <= 1 for i in dots(row))


def test_a_far_too_large_first_value_is_marked_and_does_not_flatten_the_others():
    training = history([2.3 - i / 1000 for i in range(2000)])
    validation = history([300.0, 2.2, 1.9, 1.5, 1.2, 1.1, 1.0, 0.9, 0.8, 0.8], every=200)
    rows = drawn(training, validation)
    assert {"1.0", "2.0"} <= {row[:GUTTER].strip() for row in rows}
    assert [(y, row.index("▲")) for y, row in enumerate(rows) if "▲" in row] == [(1, GUTTER)]
    assert "".join(rows).count("▲") == 1
    log = "".join(drawn(training, validation, log_y=True))
    assert "100" in log
    assert "▲" not in log


def test_a_far_too_large_value_of_a_noisy_curve_is_marked_in_its_band():
    values = history([300.0 if i == 500 else 1.0 + i % 2 for i in range(1000)])
    rows = Drawing(Plot([Series("loss", values, noisy=True)]), 80, 20).rows()
    assert [part for text, part in rows[1] if "▲" in text] == ["axis"]
    assert "1.4" in {"".join(text for text, _ in row)[:GUTTER].strip() for row in rows}


def test_a_fitted_axis_shows_the_last_four_fifths_and_says_what_the_first_one_reached():
    values = history([9.0 - i / 40 for i in range(200)] + [4.0 - i / 1000 for i in range(800)])
    whole, fitted = drawn(values), drawn(values, fitted=True)
    assert "8" in {row[:GUTTER].strip() for row in whole}
    assert {row[:GUTTER].strip() for row in fitted if row[:GUTTER].strip()} >= {"3.4", "4.0"}
    assert "▲9.0" in fitted[1]
    assert not any(dots(row)[:1] == [GUTTER] for row in fitted)
    for axis in ({"log_y": True}, {"from_zero": True}):
        assert "▲" not in "".join(drawn(values, fitted=True, **axis))


def test_what_is_below_a_fitted_axis_is_marked_at_its_lower_edge_in_ascii_too():
    accuracy = [0.1, 0.2, *(0.7 + i / 100 for i in range(10))]
    for mode in ("braille", "ascii"):
        points = Series("validation", history(accuracy, every=100), points=True)
        plot = Plot([points], percent=True, fitted=True, mode=mode)
        rows = ["".join(text for text, _ in row) for row in Drawing(plot, 80, 14).rows()]
        assert rows[-2][GUTTER:].startswith("▾10 % ▾")
        assert "40 %" not in "".join(row[:GUTTER] for row in rows)
    assert to_ascii("▾10 %") == "v10 %"


def test_the_value_that_is_cut_is_said_in_the_next_line_where_signs_are_close():
    first = [9.0 - i / 40 for i in range(200)]
    train = history(first + [4.0 - i / 1000 for i in range(800)])
    points = Series("validation", history([6.0, 5.0, *[3.9] * 8], every=100), points=True)
    plot = Plot([Series("train", train), points], fitted=True)
    rows = ["".join(text for text, _ in row) for row in Drawing(plot, 30, 12).rows()]
    assert rows[1][GUTTER:].startswith("▲ ▲")
    assert rows[2][GUTTER:].startswith("9")


def test_the_value_that_is_cut_is_said_beside_its_sign_over_the_noise_of_a_smoothed_curve():
    noise = random.Random(0)
    spread = [0.3] * 150 + [0.12] * 170
    values = [0.4 + 1.8 * math.exp(-i / 60) + noise.gauss(0, each) for i, each in enumerate(spread)]
    plot = Plot([Series("train", history(values), noisy=True)], fitted=True)
    rows = ["".join(text for text, _ in row) for row in Drawing(plot, 70, 8).rows()]
    assert any(f"▲{figure}" in rows[1] for figure in range(10))


def test_the_best_and_few_values_are_on_a_fitted_axis():
    values = history([1.0 + i / 40 for i in range(160)] + [5.0 + i / 1000 for i in range(840)])
    assert "▾1.0" in "".join(drawn(values, fitted=True))
    rows = drawn(values, fitted=True, best=("lowest", 0, 1.0))
    assert "▾" not in "".join(rows)
    assert "● lowest 1.00" in rows[-2]
    assert "▲" not in "".join(drawn(history([9.0, 3.0, 2.0, 1.0]), fitted=True))


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ([1.0] * 99 + [50.0], "40"),  # it may diverge
        ([300.0, 2.0, 1.0], "200"),  # too few to tell
        ([5.0 - i / 20 for i in range(100)], "4"),
    ],
)
def test_the_latest_value_and_few_and_ordinary_values_are_all_on_the_axis(values, label):
    rows = drawn(history(values), history([0.5] * 3))
    assert label in {row[:GUTTER].strip() for row in rows}
    assert "▲" not in "".join(rows)


def test_a_validation_far_above_the_training_is_all_on_the_axis():
    rows = drawn(history([1.0 - i / 1000 for i in range(900)]), history([30.0, 31.0, 33.0], every=300))
    assert "▲" not in "".join(rows)
    assert "30" in {row[:GUTTER].strip() for row in rows}


def test_nan_is_a_gap_with_a_mark_at_the_bottom():
    rows = drawn(history([math.nan if 400 <= i < 600 else 1.0 + i / 1000 for i in range(1000)]))
    marked = [i for i, c in enumerate(rows[-2]) if c == "✗"]
    middle = GUTTER + (80 - GUTTER) // 2
    assert middle in marked
    assert not any(middle in dots(row) for row in rows)
    assert any(GUTTER + 5 in dots(row) for row in rows)


def test_a_lone_value_between_nans_still_shows():
    rows = drawn(history([math.nan, 3.0, math.nan]))
    assert any(dots(row) for row in rows)


def test_log_axis_spreads_decades_evenly_and_marks_what_has_no_place():
    values = history([10.0 ** (-i // 100) for i in range(400)] + [0.0] * 100)
    linear, log = drawn(values, height=24), drawn(values, log_y=True, height=24)
    assert {"0.1", "1"} <= {row[: GUTTER - 1].strip() for row in log}
    assert sum(bool(dots(row)) for row in log) > sum(bool(dots(row)) for row in linear) / 2
    assert "▁" in log[-2][-20:]
    assert "▁" not in linear[-2]


def test_only_nan_is_no_crash_and_no_curve():
    rows = drawn(history([math.nan] * 5))
    assert "✗" in rows[-2]
    assert not any(dots(row) for row in rows)
    assert "no data yet" in "\n".join(drawn(History()))


def test_labels_are_round_and_right_aligned():
    rows = drawn(history([1.1 + i / 300 for i in range(1000)]), height=14)
    labels = [row[: GUTTER - 1] for row in rows[1:-1] if row[: GUTTER - 1].strip()]
    assert {"2", "3", "4"} <= {label.strip() for label in labels}
    assert all(label == label.strip().rjust(GUTTER - 1) for label in labels)
    assert rows[-1][GUTTER] == "0"
    assert "400" in rows[-1]


def test_marks_and_the_best_are_told_on_the_curve():
    values = history([5.0 - i / 250 for i in range(1000)])
    marks = [Mark(300, "stable → fast"), Mark(600, "rolled back", "warn")]
    text = "\n".join(drawn(values, marks=marks, best=("lowest", 900, 1.4)))
    for words in ("▼ stable → fast", "▼ rolled back", "●", "lowest 1.40"):
        assert words in text


def test_a_mark_without_room_for_words_keeps_its_sign():
    rows = drawn(history([1.0] * 100), width=20, marks=[Mark(50, "a label longer than the plot")])
    assert "▼" in "".join(rows)


def test_cursor_says_the_values_under_it():
    rows = drawn(history([float(i) for i in range(1000)]), history([7.0] * 1000), cursor=500)
    assert rows[0].strip() == "step 500  s0 500  s1 7.00"


def test_cursor_stands_only_at_steps_that_there_are():
    few = Plot([Series("validation", history([3.0, 2.0, 1.0], every=600))])
    stops = [moved(few, None, -1, 73)]
    stops += [moved(few, stops[0], n, 73) for n in (-1, -2, -3, 1)]
    assert stops == [1200, 600, 0, 0, 1200]
    assert [nearest(few, cell, 73) for cell in (0, 30, 72)] == [0, 600, 1200]
    assert moved(Plot([Series("nothing", History())]), None, -1, 73) is None


def test_each_column_of_a_dense_curve_is_one_place():
    dense = Plot([Series("loss", history([1.0] * 14_297))])
    step, seen = moved(dense, None, -1, 73), set()
    while step not in seen:
        seen.add(step)
        step = moved(dense, step, -1, 73)
    assert len(seen) in {70, 71, 72, 73}
    assert max(each for each in seen if each is not None) < 14_297


def test_cursor_stays_at_its_step_while_the_axis_grows():
    growing = history([float(i) for i in range(1000)])
    before = drawn(growing, cursor=700)
    for i in range(1000, 4000):
        growing.append(i, float(i))
    after = drawn(growing, cursor=700)
    assert before[0].strip() == after[0].strip() == "step 700  s0 700"
    assert after[1].index("┊") < before[5].index("┊")


def test_every_series_is_named_where_there_is_little_room():
    series = [Series(f"top-{n} {of}", history([1.0, 2.0])) for n in (1, 5) for of in ("train", "validation")]
    wide, narrow = (
        "".join(text for text, _ in Drawing(Plot(series), width, 12).rows()[0]) for width in (120, 71)
    )
    assert all(each.label in wide for each in series)
    assert all(words in narrow for words in ("top-1 train", "top-1 val", "top-5 train", "top-5 val"))


def test_a_noisy_curve_is_a_smooth_line_before_a_band_with_its_spikes():
    values = history([5.0 if i == 500 else 1.0 + i % 2 for i in range(1000)])
    rows = Drawing(Plot([Series("loss", values, noisy=True)]), 80, 20).rows()
    assert any(part == "raw" and text.strip() for text, part in rows[1])
    assert not any(part == "series-1" and text.strip() for text, part in rows[1])
    lines = [y for y, row in enumerate(rows[1:-1]) if any(p == "series-1" and t.strip() for t, p in row)]
    assert max(lines) - min(lines) <= 2


def test_a_smoothed_line_lies_on_a_straight_descent_and_does_not_lag():
    values = history([1000.0 - i for i in range(1000)])
    columns = values.columns(0, 1000, 140)
    assert abs(smoothed(columns.mean)[20:-20] - columns.mean[20:-20]).max() < 5


def test_a_few_points_are_a_line_alone():
    few = History()
    for step in range(12, 72, 12):
        few.append(step, 4.0, 3.0, 5.0)
    rows = Drawing(Plot([Series("loss", few, noisy=True)]), 80, 20).rows()
    assert not any(part == "raw" for row in rows for _, part in row)
    assert any(part == "series-1" for row in rows[1:] for _, part in row)


def test_planned_values_are_drawn_from_the_last_step_to_the_end():
    done = history([i / 100 for i in range(100)])
    rows = drawn(done, planned=[(0, 0.0), (100, 1.0), (400, 0.0)])
    assert max(max(dots(row), default=0) for row in rows) > 70
    assert "400" in rows[-1]


def test_a_window_shows_its_steps_and_follows_the_run():
    values = history([float(i) for i in range(1000)])
    followed = drawn(values, window=StepWindow(100))
    assert {"920", "980"} <= set(followed[-1].split())
    assert {"900", "980"} & {row[:GUTTER].strip() for row in followed}
    apart = drawn(values, window=StepWindow(100, 300), best=("lowest", 900, 1.0), cursor=900)
    assert {"220", "280"} <= set(apart[-1].split())
    assert "best" not in "".join(apart)
    assert "┊" not in "".join(apart)


def test_zooming_in_and_out_visits_round_spans_and_ends_with_all_steps():
    window, spans = None, []
    for _ in range(4):
        window = zoomed(window, 14_297, closer=True)
        spans.append(window)
    assert spans == [StepWindow(5000), StepWindow(2000), StepWindow(1000), StepWindow(500)]
    earlier = panned(window, 14_297, -0.5)
    assert earlier == StepWindow(500, 14_047)
    assert panned(earlier, 14_297, 0.5) == StepWindow(500)
    assert panned(StepWindow(500, 600), 14_297, -3) == StepWindow(500, 500)
    while window is not None:
        window = zoomed(window, 14_297, closer=False)
    assert zoomed(None, 14_297, closer=False) is None
    assert zoomed(None, 1000, closer=True, centre=250) == StepWindow(500, 625)


def test_zooming_in_ends_at_a_few_steps():
    window = None
    for _ in range(20):
        window = zoomed(window, 900, closer=True)
    assert window == StepWindow(10)


@pytest.mark.parametrize(
    ("first", "last"), [(0, 6), (0, 10), (37, 49), (1_234_500, 1_235_000), (0, 1e9), (99_990, 100_010)]
)
def test_ticks_of_steps_are_whole_and_have_labels_of_their_own(first, last):
    ticks = step_ticks(first, last, 73)
    assert len(ticks) >= 2
    assert all(step == int(step) for step, _ in ticks)
    assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize("high", [4.4, 0.1, 3e-4, 2.5e-5, 0.0123, 1200, 31_000, 1.0])
def test_ticks_of_values_are_distinct_and_have_the_same_digits(high):
    axis = linear_axis(high / 2, high, 12)
    labels = [axis.label(tick) for tick in axis.ticks]
    assert len(set(labels)) == len(labels)
    assert all(len(label) < GUTTER for label in labels)


@pytest.mark.parametrize(("low", "high"), [(0.7652, 0.7751), (0.985, 1.0), (0.001, 0.0012), (0.0, 0.8)])
def test_ticks_of_percentages_have_the_same_digits(low, high):
    axis = linear_axis(low, high, 12, percent=True)
    labels = [axis.label(tick) for tick in axis.ticks if tick not in (0, 1)]
    assert len(set(labels)) == len(labels) > 1
    assert len({len(label.partition(".")[2].rstrip(" %")) for label in labels}) == 1
    assert all(len(label) < GUTTER for label in labels)


def test_an_axis_of_rates_begins_at_zero_and_one_of_percentages_ends_at_a_hundred():
    assert "0" in {row[:GUTTER].strip() for row in drawn(history([900.0, 1000.0]), from_zero=True)}
    labels = [row[:GUTTER].strip() for row in drawn(history([0.2, 0.99]), percent=True, from_zero=True)]
    assert {"0 %", "100 %"} <= set(labels)
    assert not any(label.startswith("1") and label != "100 %" for label in labels)


@pytest.mark.parametrize("value", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_an_axis_of_one_percentage_stays_within_0_and_100(value):
    labels = [row[:GUTTER].strip() for row in drawn(history([value] * 9), percent=True)]
    shown = [float(label.removesuffix("%")) for label in labels if label.endswith("%")]
    assert len(shown) > 1
    assert min(shown) >= 0
    assert max(shown) <= 100


def test_ascii_mode_is_ascii_and_tells_series_apart():
    rows = drawn(history([1.0] * 50), history([2.0] * 50), mode="ascii")
    curves = "".join(row[GUTTER:] for row in rows[1:-1])
    assert curves.isascii()
    assert {"*", "o"} <= set(curves)


def test_wide_and_zero_width_labels_do_not_break_the_frame():
    rows = drawn(history([1.0, 2.0]), marks=[Mark(0, "模型\u0301 → b")])
    assert {len(row) for row in rows} == {80}
    assert "▼ ??" in "".join(rows)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 0), (1e-9, 1e9), (5, 5), (-3, -1), (0.1, 0.1000001), (1e300, 2e300)]
)
def test_axes_cover_the_data(low, high):
    axis = linear_axis(low, high, 20)
    assert axis.low <= low
    assert axis.high >= high
    if low > 0:
        log = log_axis(low, high)
        assert log.low <= math.log10(low) + 1e-3
        assert log.high >= math.log10(high) - 1e-3


def test_a_curve_behind_is_quiet_has_one_label_and_sets_no_steps():
    values = history([2.0 - i / 1000 for i in range(1000)])
    parent = history([1.3] * 2000)
    parent.append(1999, math.nan)
    behind = [
        Series(f"parent's {name}", parent, noisy=True, behind="parent") for name in ("train", "validation")
    ]
    plot = Plot([Series("train", values, noisy=True), *behind])
    rows = Drawing(plot, 80, 20).rows()
    text = ["".join(text for text, _ in row) for row in rows]
    assert list(plot.steps) == [0, 1000]
    assert text[0].split() == ["──", "train", "──", "parent"]
    line = [part for row in rows[10:18] for text, part in row if any(0x2800 < ord(c) < 0x2900 for c in text)]
    assert "axis" in line
    assert not {"series-2", "series-3", "bad"} & {part for row in rows for _, part in row}
    assert {"1.0", "2.0"} <= {row[:GUTTER].strip() for row in text}
    said = "".join(text for text, _ in Drawing(replace(plot, cursor=500), 80, 20).rows()[0])
    assert "train 1.50  parent's train 1.30" in said
    ascii_rows = [
        "".join(text for text, _ in row) for row in Drawing(replace(plot, mode="ascii"), 80, 20).rows()
    ]
    assert ascii_rows[0].split() == ["*", "train", "-", "parent"]
    assert any("---" in row for row in ascii_rows[1:])
    narrow = "".join(text for text, _ in Drawing(replace(plot, cursor=500), 60, 20).rows()[0])
    assert narrow.strip() == "step 500  train 1.50  parent's train 1.30"
    assert moved(plot, None, 0, 73) in {*range(1000)}


def test_labels_of_marks_have_a_gap_and_no_sign_lies_on_a_label():
    marks = [Mark(step, "fp16 → bf16") for step in range(200, 800, 60)]
    rows = drawn(history([1.0] * 1000), width=60, height=9, marks=marks)
    labels = [row for row in rows if "fp16" in row]
    assert labels
    assert sum(row.count("▼") for row in rows) <= len(marks)
    for row in labels:
        assert row.count("fp16 → bf16") == row.count("→") == row.count("bf16")
        assert "bf16fp16" not in row


def test_without_colours_a_sign_tells_each_series_apart():
    both = Plot([Series("IoU", history([1.0] * 100)), Series("Dice", history([2.0] * 100))], signed=True)
    rows = ["".join(text for text, _ in row) for row in Drawing(both, 80, 12).rows()]
    assert rows[0].split() == ["──", "IoU", "─o", "Dice"]
    (high,) = (row for row in rows[1:-1] if "o" in row)
    assert 5 < high.count("o") < 12
    assert rows.index(high) < next(n for n, row in enumerate(rows[1:-1], 1) if dots(row) and row != high)


def test_without_colours_no_band_hides_the_line():
    noisy = Series("loss", history([1.0 + number % 7 for number in range(4000)]), noisy=True)
    drawings = [Drawing(Plot([noisy], signed=signed), 80, 12).rows() for signed in (False, True)]
    banded, plain = (sum(len(dots("".join(text for text, _ in row))) for row in rows) for rows in drawings)
    assert plain < 0.5 * banded


def test_the_legend_of_eight_runs_names_them_all_in_a_small_terminal():
    rows = drawn(*(history([1.0, 2.0, 3.0]) for _ in range(8)), width=56)
    assert rows[0].split() == [word for n in range(8) for word in ("──", f"s{n}")]


def test_validation_is_a_point_an_epoch_which_shares_no_cell_with_the_line_of_training():
    train = Series("train", history([5.0 - i / 300 for i in range(1000)]), role="train")
    validation = Series("validation", history([4.0, 3.0, 2.0], every=300), role="validation", points=True)
    rows = Drawing(Plot([train, validation]), 80, 20).rows()
    points = [text for row in rows[1:] for text, part in row if part == "validation"]
    assert points == ["●"] * 3
    assert not any("●" in text for row in rows for text, part in row if part == "train")
    assert "".join(text for text, _ in rows[0]).split() == ["──", "train", "●", "validation"]
