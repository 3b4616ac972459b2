from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from mptui.events import (
    Advice,
    CommandAnswered,
    DeviceSample,
    Diagnosed,
    LossScale,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Progress,
    Recovered,
    RunFinished,
    Warned,
)
from tests import hostile
from tests.tui.events import (
    START,
    MemorySource,
    beginning,
    demo_source,
    device_sample,
    finished,
    run_started,
    step_event,
)
from tests.tui.frames import frame, put, seen


async def test_large_screen_shows_every_panel(stage):
    async with stage.live(demo_source()) as (app, _):
        text = frame(app)
    for words in (
        "mptui  fast · resnet50",
        "● training",
        "epoch  12/100",
        "step  14,297",
        " left   ends ",
        "mp: 🚀 on   fp16",
        "TF32 on",
        "channels last · compiled (max-autotune)",
        "65,536",
        "2^16",
        "of 14,297  0.01 %",
        "cuda:0  NVIDIA H200",
        "ours 50.8   others  1.3   free  88.3 GiB",
        "of 700 W",
        "84.2 ms",
        "images/s",
        "bound by compute; data could 5,300/s",
        "─ top-1  val 77.5 % · best 77.5 % in epoch 11 ─",
        "▼ stable → fast",
        "lowest 1.22",
        "epoch 11  train 1.27  val 1.22  top-1 77.5 %  ✓ best, saved",
        "advice: waiting for data 11 %",
        "space pause",
        "q leave",
    ):
        assert words in text
    assert len(text.splitlines()) == 36


async def test_small_screen_folds_the_panels_and_tab_turns_to_them(stage):
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        first = frame(app)
        await pilot.press("tab")
        second = frame(app)
        await pilot.press("tab")
        third = frame(app)
        await pilot.press("tab")
        again = frame(app)
    assert "╭─ loss" in first
    assert "epoch  12/100 step  14,297" in first
    assert " min left" in first
    assert "x stop" in first
    assert "mp: 🚀 fp16" in first.splitlines()[0]
    assert "top-1 val 77.5 % · best 77.5 % in epoch 11   loss train  1.09 · val 1.22" in first
    assert "lowest 1.22" in first
    assert "busy  9" in first
    assert "step  84.2 ms    1,1" in first
    assert "╭─ top-1" in second
    assert "╭─ mixed precision" in third
    assert "╭─ time per step" in third
    assert "╭─ loss" in again


async def test_a_cpu_shows_how_busy_it_is_and_who_keeps_it_busy(stage):
    sample = DeviceSample(time=START, step=1, name="A CPU", utilisation=0.93, utilisation_own=0.5)
    async with stage.live(demo_source(sample)) as (app, pilot):
        large = frame(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        small = frame(app)

    assert "93 %" in large
    assert "busy with: ours  50 %   others  43 %" in large
    assert "busy  93 % (ours  50 %)" in small


async def test_smallest_screen_keeps_the_figures(stage):
    async with stage.live(demo_source(), (60, 16)) as (app, _):
        text = frame(app)
    for words in ("● training", "step  14,297", "╭─ loss", "mp: 🚀 fp16", "busy  9", "84.2 ms", "q leave"):
        assert words in text


@pytest.mark.parametrize("size", [(50, 10), (50, 40), (120, 12)])
async def test_a_smaller_one_says_what_it_needs_and_nothing_else(stage, size):
    async with stage.live(demo_source(), size) as (app, pilot):
        for where, opens in (("live", ""), ("numerics", "n")):
            await pilot.press(*opens)
            assert await seen(app, pilot, "mptui needs 60x16 cells")
            assert app.screen.where == where
            assert [line.strip() for line in frame(app).splitlines() if line.strip()] == [
                "mptui needs 60x16 cells,",
                f"this terminal has {size[0]}x{size[1]}.",
                "The run continues.",
            ]
        await pilot.press("escape")
        await pilot.resize_terminal(120, 36)
        assert await seen(app, pilot, "╭─ loss")


async def test_what_is_not_measured_is_blank_and_is_printed_in_its_place_later(stage):
    first = PhaseChanged(time=START + 40, phase="training")
    async with stage.live(MemorySource([*beginning(), first]), (120, 36)) as (app, pilot):
        frames = [frame(app)]
        for event in (step_event(1, START + 41, Random(0)), device_sample(START + 42, 1, Random(0))):
            await put(app, pilot, event)
            frames.append(frame(app))
    assert "–" not in frames[0] + frames[1].partition("NVIDIA H200")[2]
    assert len({each.index(" step ") for each in frames}) == 1
    for label in ("busy  ", "memory  ", "power  "):
        assert frames[1].count(label) == 1
        assert frames[1].index(label) == frames[2].index(label)


async def test_waiting_is_visible_and_nothing_is_a_dash(stage):
    async with stage.live(MemorySource(beginning())) as (app, pilot):
        text = frame(app)
        assert "● first step" in text
        assert "no data yet" not in text
        assert "–" not in text
        await put(app, pilot, PhaseChanged(time=START + 96, phase="scanning"))
        await put(app, pilot, Progress(time=START + 97, phase="scanning", done=3210, total=126_689))
        assert "● scanning 3,210 of 126,689" in frame(app)
        await put(app, pilot, PhaseChanged(time=START + 98, phase="compiling", expected_s=110.0))
        assert "● compiling" in frame(app)
        assert "of about 1 min 50 s" in frame(app)


async def test_the_cache_that_was_filled_meanwhile_hides_no_phase(stage):
    async with stage.live(MemorySource()) as (app, pilot):
        for phase, words in (
            ("compiling", "● compiling"),
            ("warming_up", "● first step"),
            ("training", "● training"),
        ):
            told = PhaseChanged(time=START, phase=phase, expected_s=110.0 if phase == "compiling" else None)
            app.screen.follow(MemorySource([run_started(), told]))
            await put(app, pilot, Progress(time=START + 1, phase="preparing", done=500, total=1000))
            assert "● preparing 500 of 1,000" in frame(app)
            await put(app, pilot, Progress(time=START + 2, phase="preparing", done=1000, total=1000))
            assert words in frame(app)
            assert "preparing" not in frame(app).splitlines()[0]
            assert ("of about 1 min 50 s" in frame(app)) == (phase == "compiling")


async def test_how_loss_scaling_fares_and_what_was_found_is_told(stage):
    health = LossScale(
        time=START,
        step=14_300,
        scale=65536.0,
        lowest=1024.0,
        highest=131072.0,
        growths=3,
        backoffs=2,
        skipped=2,
        streak=0,
        longest_streak=2,
        skip_rate=0.01,
    )
    found = Diagnosed(
        time=START,
        step=14_300,
        problem="overflow",
        epoch=12,
        precision="fp16",
        where="backward",
        layer="layer4.2.conv3",
        operation="convolution",
        detail="",
        advice=["a lower learning rate"],
    )
    async with stage.live(demo_source(health, found)) as (app, _):
        text = frame(app)
    assert "2^16  ↑3 ↓2" in text
    assert "overflow: first in backward layer4.2.conv3 convolution" in text
    assert "try: a lower learning rate" in text
    assert "▼ overflow in backward" in text or "overflow in backward ▼" in text


async def test_fp32_has_its_own_icon(stage, chance):
    started = run_started(precision="fp32", tf32=False)
    async with stage.live(MemorySource([started, step_event(12, START, chance, loss_scale=None)])) as (
        app,
        _,
    ):
        text = frame(app)
    assert "mp: 📊 fp32" in text
    assert "TF32 off" in text
    assert "not needed in fp32" in text


async def test_log_takes_the_room_of_the_charts(stage):
    async with stage.live(demo_source()) as (app, pilot):
        await pilot.press("l")
        await pilot.pause()
        assert "╭─ top-1" not in frame(app)
        assert "compiling max-autotune" in frame(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "╭─ top-1" in frame(app)


async def test_log_scrolls_back_in_a_small_place(stage):
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        app.screen.query_one("#log").focus()
        assert "advice:" in frame(app)
        await pilot.press(*["pageup"] * 8)
        await pilot.pause()
        assert "25.56M parameters" in frame(app)
        assert "advice:" not in frame(app)


async def test_the_screen_of_an_ended_run_offers_no_key_that_does_nothing(stage):
    async with stage.live(demo_source()) as (app, pilot):
        assert "space pause" in frame(app)
        await put(app, pilot, finished())
        for size in ((120, 36), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            keys = frame(app).splitlines()[-1]
            for word in ("pause", "1-9 profile", "checkpoint", "stop", "validate", "advice", "detach"):
                assert word not in keys
            for word in ("n numerics", "l log", "q leave"):
                assert word in keys


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_the_log_does_not_say_again_what_the_end_of_the_run_says(stage, size):
    hint = "what would help most: more epochs"
    async with stage.live(demo_source(replace(finished(), hint=hint)), size) as (app, pilot):
        assert frame(app).count("more epochs") == 1
        assert "completed after" in frame(app)
        await pilot.resize_terminal(60, 16)
        await pilot.press("l")
        await pilot.pause()
        assert frame(app).count("more epochs") == 1  # in the log, where that has the room of both


async def test_each_fault_of_a_run_has_a_line_of_its_own(stage):
    ended = RunFinished(time=START, status="failed", exit_code=2, message="one\ntwo", hint="see a\nsee b")
    async with stage.live(demo_source(ended)) as (app, _):
        text = frame(app)
        assert "x0a" not in text
    lines = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert [line.split(maxsplit=1)[1] for line in lines if line.endswith(("one", "two", "a", "b"))][-4:] == [
        "one",
        "two",
        "see a",
        "see b",
    ]


async def test_a_failure_before_the_first_step_takes_the_middle_of_the_screen(stage):
    message = "data.path: no such folder\nmodel.name: there is no network"
    ended = RunFinished(time=START, status="failed", exit_code=2, message=message, hint="see `mptui --help`")
    source = MemorySource([PhaseChanged(time=START, phase="starting"), ended])
    async with stage.live(source) as (app, pilot):
        for size in ((120, 36), (80, 24), (60, 16)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            text = frame(app)
            for words in (
                "✗ the run did not start",
                "no such folder",
                "there is no network",
                "see `mptui",
                "q leave",
            ):
                assert words in text
            for words in ("loss", "no data yet", "images/s", "pause", "checkpoint", "stop"):
                assert words not in text


async def test_a_failure_after_the_first_step_leaves_the_curves(stage):
    ended = RunFinished(time=START, step=14_297, status="failed", exit_code=1, message="broken", hint="")
    async with stage.live(demo_source(ended)) as (app, _):
        assert "╭─ loss" in frame(app)
        assert "did not start" not in frame(app)


@pytest.mark.slow
async def test_every_theme_colours_every_part(stage):
    async with stage.live(demo_source()) as (app, pilot):
        frames, colours = set(), []
        for _ in range(3):
            frames.add(frame(app))
            styles = [part.style for line in app.screen._compositor.render_strips() for part in line]
            colours.append({colour for style in styles for colour in (style.color, style.bgcolor) if colour})
            await pilot.press("ctrl+t")
            await pilot.pause()
    assert len(frames) == 1
    assert not any(one & other for one, other in combinations(colours, 2))


async def test_ascii_mode_shows_ascii_alone(stage):
    async with stage.live(demo_source(), ascii_only=True) as (app, pilot):
        for size in ((120, 36), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            text = frame(app)
            assert text.isascii()
            assert "mp:on" in text
        await pilot.press("question_mark")
        await pilot.pause()
        assert frame(app).isascii()


def told_of(name):
    """A run in which every name is this one."""
    named = ("run", "directory", "profile", "model", "dataset", "device_name", "compile_mode")
    switch = {"profile": name, "previous": f"old {name}", "changes": {name: [name, name]}}
    return [
        PhaseChanged(time=START, phase="scanning", detail=name),
        run_started(**dict.fromkeys((*named, "precision_reason"), name), classes=[name], notes=[name]),
        Warned(time=START, step=12, code="w", message=name),
        Advice(time=START, step=12, code="a", message=name, setting=name),
        Recovered(time=START, step=12, problem=name, action=name),
        Diagnosed(
            time=START,
            step=12,
            epoch=1,
            **dict.fromkeys(("problem", "precision", "where", "layer", "operation", "detail"), name),
            files=[name],
            advice=[name],
        ),
        PrecisionChanged(time=START, step=12, precision="bf16", previous=name, reason=name),
        PresetSwitched(time=START, step=12, **switch),
        CommandAnswered(time=START, step=12, command=name, state="refused", detail=name),
    ]


@pytest.mark.parametrize(
    ("ascii_only", "names"),
    [
        (False, hostile.NAMES[::3]),
        pytest.param(False, hostile.NAMES, marks=pytest.mark.slow),
        pytest.param(True, hostile.NAMES, marks=pytest.mark.slow),
    ],
)
async def test_hostile_names_neither_act_nor_break_the_frame(stage, ascii_only, names, chance):
    source = MemorySource(profiles=hostile.NAMES[:6])
    frames = []
    async with stage.live(source, ascii_only=ascii_only) as (app, pilot):
        for name in names:
            await put(app, pilot, *told_of(name), step_event(12, START, chance, metrics={name: 1.0}))
            frames.append(frame(app))
        for keys in (("9",), ("l",), ("escape", "slash", *"e["), ("enter", "question_mark"), ("escape", "q")):
            await pilot.press(*keys)
            await pilot.pause()
            frames.append(frame(app))
        await pilot.press("escape")
        for name in names:
            ended = RunFinished(time=START, status="failed", exit_code=1, message=name, hint=name)
            await put(app, pilot, ended)
            frames.append(frame(app))
        assert app.is_running
        assert not app.has_left
    for each in frames:
        assert not hostile.acts(each)
        assert not hostile.overflows(each, 120)


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
async def test_an_ended_run_says_what_came_of_it_and_what_to_do_next(stage, size):
    undone = PresetSwitched(time=START + 2000, step=13_000, profile="stable", previous="fast", undone=True)
    ended = RunFinished(
        time=START + 3000,
        step=13_100,
        status="stopped",
        exit_code=0,
        directory="runs/a run",
        seconds=600.0,
        total_s=3000.0,
    )
    async with stage.live(demo_source(), size) as (app, pilot):
        assert "end of the run" not in frame(app)
        await put(app, pilot, undone, step_event(13_100, START + 2100, Random(0)), ended)
        text = frame(app)
    for words in (
        "end of the run",
        "stopped       13,100 of 126,700 steps, 2 skipped, 1 undo",
        "time          50 min 0 s, 10 min 0 s of it in the last session",
        "best          top-1 76.6 % at step 12,670",
        "resume        mptui resume 'runs/a run'",
    ):
        assert words in text


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (140, 45)])
async def test_what_to_do_after_a_failure_is_said_to_its_last_word(stage, size):
    hint = (
        "try a lower learning rate (--lr); clip gradients (--set training.clip_grad_norm=1.0); warm up LAST"
    )
    message = "training diverged: the loss was far too high for 20 steps in a row"
    ended = RunFinished(time=START + 3000, status="diverged", exit_code=5, message=message, hint=hint)
    async with stage.live(demo_source(), size) as (app, pilot):
        await put(app, pilot, ended)
        text = frame(app)
        assert "next          try a lower" in text
        assert any("LAST" in line and line.startswith(("│  ", "  ")) for line in text.splitlines())
        assert "diverged: training" not in text
        await pilot.press("l")
        assert "clip_grad_norm=1.0" in frame(app).partition(" log ")[2]


async def test_the_log_begins_with_the_beginning_of_a_line(stage):
    ended = RunFinished(time=START + 3000, status="failed", exit_code=1, message="word " * 100)
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        await put(app, pilot, ended)
        await pilot.press("h")
        first = frame(app).partition(" log ")[2].splitlines()[1]
    assert first.split()[1].count(":") == 2
    assert "…" in first


async def test_a_small_screen_prints_nothing_that_is_not_measured(stage, chance):
    cpu = run_started(device="cpu", device_name="EPYC")
    busy = DeviceSample(time=START + 100, step=1, name="EPYC", utilisation=0.5)
    unknown = step_event(20, START + 101, chance, split={}, bound_by=None, ceilings={})
    async with stage.live(MemorySource([cpu, unknown, busy]), (80, 24)) as (app, _):
        folded = str(app.screen.query_one("#folded").render()).splitlines()
        assert [line.split() for line in folded[1:]] == [
            ["busy", "50", "%"],
            ["step", "84.2", "ms", *folded[2].split()[3:4], "images/s"],
        ]
