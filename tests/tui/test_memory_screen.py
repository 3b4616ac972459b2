"""The screen of the memory: the parts of the prediction, and what is measured beside it."""

import re

import pytest

from mptui import text as fmt
from mptui.config.resolve import to_toml
from mptui.config.schema import RunConfig
from mptui.events import DeviceSample, MemorySample
from mptui.runs.store.directory import CONFIG
from tests.tui.events import demo_source, footprint_of
from tests.tui.frames import frame, put_below

GIB = 1 << 30
CUDA = {"allocated": GIB, "peak": 3 * GIB, "reserved": 4 * GIB, "gaps": GIB // 2, "process": 2 * GIB}


def line(text, start):
    return next(words for words in text.splitlines() if words.strip("│ ").startswith(start))


def row_of(text, words):
    """Return the line with these words, whatever stands beside them."""
    return next(row for row in text.splitlines() if words in row)


def bar_cells(text, label):
    """Return the cells of a bar without its label and its figure."""
    return next(part for part in line(text, label).split() if "█" in part)


async def counted_screen(app, pilot):
    """Open the screen, and return it once the prediction is counted."""
    await pilot.press("m")
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()
    return frame(app)


async def test_the_parts_of_the_prediction_stand_above_what_is_measured(stage, tmp_path):
    config = RunConfig.model_validate(
        {"model": {"name": "small_cnn"}, "data": {"image_size": 32}, "training": {"batch_size": 64}}
    )
    (tmp_path / CONFIG).write_text(to_toml(config))
    source = demo_source()
    source.run = tmp_path
    started = source.view.started
    assert started is not None
    counted = footprint_of(config, started)
    async with stage.live(source, (80, 24)) as (app, pilot):
        await counted_screen(app, pilot)
        for size in ((80, 24), (120, 36)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            text = frame(app)
            assert "100 images at once" in text
            assert fmt.size(counted.total) in line(text, "total")
            assert fmt.size(counted.activations) in row_of(text, "a activations")
            assert fmt.size(counted.optimizer) in row_of(text, "o optimizer")
        await put_below(app, pilot, MemorySample(time=source.view.time, step=1, **CUDA))
        for size in ((120, 36), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            text = frame(app)
            assert f"{CUDA['peak'] / counted.allocated:.2f} of the prediction" in row_of(text, "peak   ")
            assert "gaps 512 MiB, 12 %" in row_of(text, "reserved  ")
        await pilot.resize_terminal(140, 45)
        await pilot.pause()
        text = frame(app)
        layer, most = max(counted.by_module.items(), key=lambda each: each[1])
        assert re.search(rf"│ {re.escape(layer)} +{fmt.size(most)} ", text)
        double = counted.total + started.batch_size * counted.per_sample
        assert re.search(rf"200 images +{fmt.size(double)} ", text)
        assert "memory GiB" in text
        await pilot.press("m")
        await pilot.pause()
        assert "╭─ loss" in frame(app)


async def test_on_a_cpu_the_process_is_measured_and_nothing_is_made_up(stage):
    async with stage.live(demo_source(MemorySample(step=3, process=2 * GIB))) as (app, pilot):
        text = await counted_screen(app, pilot)
        assert "the run has no directory yet" in text
        assert "2.0 GiB" in line(text, "process")
        assert "reserved" not in text


async def test_a_run_that_can_not_be_counted_says_why(stage, tmp_path):
    (tmp_path / CONFIG).write_text('[model]\nname = "timm/regnetx_002"\n[data]\nimage_size = 32\n')
    source = demo_source()
    source.run = tmp_path
    async with stage.live(source) as (app, pilot):
        assert "timm/regnetx_002 can't be counted" in await counted_screen(app, pilot)


@pytest.mark.parametrize(("size", "no_color"), [((80, 24), True), ((120, 35), False)])
async def test_predicted_and_measured_are_bars_on_one_axis_with_the_limit_across(
    stage, tmp_path, monkeypatch, size, no_color
):
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    config = RunConfig.model_validate({"model": {"name": "small_cnn"}, "data": {"image_size": 32}})
    (tmp_path / CONFIG).write_text(to_toml(config))
    card = DeviceSample(step=1, name="card", memory_total=8 * GIB, memory_own=5 * GIB)
    source = demo_source(card, MemorySample(step=1, **CUDA))
    source.run = tmp_path
    async with stage.live(source, size) as (app, pilot):
        text = await counted_screen(app, pilot)
        predicted, measured = (bar_cells(text, label) for label in ("predicted", "measured"))
        assert len(predicted) == len(measured)
        limit = measured.index("┃")
        assert predicted.index("┃") == limit == len(measured) - 1
        # tensors, reserve and libraries begin with their signs, at 0, 3 and 4 of 8 GiB
        starts = [measured.index(sign) / len(measured) for sign in "prl"]
        assert starts == pytest.approx([0, 3 / 8, 4 / 8], abs=0.03)
        assert pytest.approx(len(measured.rstrip("┃─")) / len(measured), abs=0.03) == 5 / 8
        assert "limit 8.0 GiB ┃" in text
        assert "5.0 GiB measured, limit 8.0 GiB" in line(text, "total")


async def test_a_limit_far_off_makes_no_slivers_of_the_bars(stage):
    card = DeviceSample(step=1, name="card", memory_total=800 * GIB)
    async with stage.live(demo_source(card, MemorySample(step=1, **CUDA)), (80, 24)) as (app, pilot):
        text = await counted_screen(app, pilot)
        assert "─" not in bar_cells(text, "measured")
        assert "limit 800.0 GiB ▶" in text


async def test_the_parts_of_a_bar_are_told_in_ascii(stage):
    card = DeviceSample(step=1, name="card", memory_total=8 * GIB, memory_own=5 * GIB)
    source = demo_source(card, MemorySample(step=1, **CUDA))
    async with stage.live(source, (80, 24), ascii_only=True) as (app, pilot):
        text = await counted_screen(app, pilot)
        assert "measured: p tensors | r reserve" in text
        assert re.search("p#+r#+l#+", text)
