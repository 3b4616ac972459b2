"""The numerics screen: the worst layer first, its exponents with the ranges of formats, the advice."""

import re

import pytest

from mptui.events import Numerics, NumericsLayer, PrecisionChanged
from mptui.runs.view.words import numerics_advice
from mptui.tui.keys import heard_on
from tests.tui.events import START, demo_source, finished
from tests.tui.frames import frame, put, put_below, seen


def layer(name="layer3.0.conv1", part="gradient", **changes) -> NumericsLayer:
    values = {
        "name": name,
        "part": part,
        "fault": "",
        "values": 100_000,
        "zeros": 0.1,
        "smallest": 3.1e-8,
        "largest": 2.2e-2,
        "zeroed": 0.1,
        "subnormal": 0.21,
        "overflow": 0.0,
        "lost": 0.31,
        "lost_unscaled": 0.9,
        "first_exponent": -40,
        "exponents": [1, 5, 0, 60, 120, 200, 240, 200, 100, 40, 14, 10],
    }
    return NumericsLayer(**{**values, **changes})


def looked(**changes) -> Numerics:
    values = {
        "time": START + 9000,
        "step": 14_300,
        "mode": "summary",
        "precision": "fp16",
        "eager": False,
        "loss_scale": 1024.0,
        "best_scale": 65536.0,
        "lost": 0.31,
        "lost_at_best": 0.002,
        "cost_s": 0.012,
        "every_s": 30.0,
        "layers": [
            layer("layer4.2.conv3", fault="underflow", lost=0.62, zeroed=0.4, subnormal=0.22),
            layer(),
            layer("fc", "forward", lost=0.0, zeroed=0.0, subnormal=0.0, smallest=4.4e-5, largest=1.9),
        ],
        "others": 150,
        "others_at_fault": 2,
        "others_lost": 0.04,
    }
    return Numerics(**{**values, **changes})


@pytest.mark.parametrize(
    "sizes",
    [
        [(80, 24), (60, 16), (200, 60)],
        pytest.param([(80, 24), (120, 36), (60, 16), (200, 60)], marks=pytest.mark.slow),
    ],
)
async def test_the_worst_layer_its_exponents_and_the_advice_are_shown(stage, sizes):
    async with stage.live(demo_source(looked()), (80, 24)) as (app, pilot):
        await pilot.press("n")
        for width, height in sizes:
            await pilot.resize_terminal(width, height)
            await pilot.pause()
            text = frame(app)
            for words in (
                "layers by risk · step 14,300",
                "layer4.2.conv3",
                "✗ 62.0 %",
                "31.0 %",
                "and 150 more (2 at fault), losing up to 4.0 %",
                "layer4.2.conv3 · gradients",
                "2^-40",
                "fp16 ",
                "bf16 ",
            ):
                assert words in text, text
            if width >= 80:
                assert "a loss scale of 1,024 loses 31.0 % of the gradients; 65,536 is" in text
                assert "in fp16, scale 1,024: 40.0 % to zero, 22.0 % losing bits, " in text
                assert "% too large" in text
                assert re.search(r"recommendation[^…]*$", text)
                words = r"a look cost 12.0 ms, one step in \d+: 0.0 % of the time; f: at most 5.0 %"
                assert re.search(words, text)
            assert len(text.splitlines()) == height
            assert all(len(line) <= width for line in text.splitlines())
        # a wide table has the figures beside the names
        row = next(row for row in frame(app).splitlines() if "▸ layer4.2.conv3" in row)
        assert " " * 20 not in row.partition("%")[0]


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
async def test_what_a_bf16_run_has_not_lost_is_said_to_be_lost_in_fp16_alone(stage, size):
    event = looked(precision="bf16", loss_scale=None, lost=None)
    async with stage.live(demo_source(event), size) as (app, pilot):
        await pilot.press("n")
        text = frame(app)
        assert "and 150 more (2 at fault); up to 4.0 % would be lost in fp16" in text
        (heading,) = [line for line in text.splitlines() if "largest" in line]
        assert "largest would be lost in fp16 " in heading or "largest fp16 loses " in heading
        assert not re.search(r"(?<!be )\blost\b|losing up", text)


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
async def test_each_layer_stands_where_fp16_has_its_values(stage, size):
    """Gradients under a loss scale of 2^10, and outputs, which have none."""
    at = {"zero": ("gradient", -70), "loses bits": ("gradient", -30), "inf": ("forward", 17)}
    event = looked(
        layers=[
            layer(name, part, first_exponent=first, exponents=[500, 500])
            for name, (part, first) in at.items()
        ]
    )
    async with stage.live(demo_source(event), size) as (app, pilot):
        app.theme = "ansi"
        await pilot.press("n")
        await pilot.pause()
        for name in at:
            lines = frame(app).splitlines()
            heading = next(line for line in lines if " lost " in line)
            row = next(line for line in lines if f"▸ {name}" in line)
            begin = heading.index("lost") + 6
            ruler, strip = heading[begin:].rstrip("│ "), row[begin:].rstrip("│ ")
            assert {"zero", "exact"} <= {*re.findall(r"\w+", ruler)}
            places = {
                "zero": range(ruler.index("zero") + 4),
                "loses bits": range(ruler.index("zero") + 4, ruler.index("exact")),
                "inf": range(ruler.index("exact") + 5, len(ruler)),
            }
            assert {strip.index("█"), strip.rindex("█")} <= {*places[name]}
            bars = next(line for line in lines if "█" in line and "▸" not in line and "%" not in line)
            below = next(line for line in lines if "fp16  " in line)
            edges = {
                "zero": (0, below.index("zero") + 4),
                "loses bits": (below.index("zero") + 4, below.index("exact")),
                "inf": (below.index("exact") + 5, len(below)),
            }
            assert edges[name][0] <= bars.index("█") <= edges[name][1]
            await pilot.press("down")


async def test_the_precision_panel_tells_the_health_of_the_numbers(stage):
    async with stage.live(demo_source()) as (app, pilot):
        for precision, changes, words in (
            ("fp16", {}, "✗ 3 layers don't fit fp16 (n)"),
            ("fp16", {"layers": [layer()], "others_at_fault": 0}, "▲ 31.0 % of gradients lost"),
            (
                "fp16",
                {"layers": [layer()], "others_at_fault": 0, "lost": 0.0002},
                "✓ under 0.1 % of gradients lost",
            ),
            ("fp16", {"layers": [layer()], "others_at_fault": 0, "lost": 0.0}, "✓ no underflow"),
            ("bf16", {"loss_scale": None, "lost": None}, "✓ no underflow"),
        ):
            app.screen.follow(demo_source(PrecisionChanged(precision=precision, previous=None, reason="")))
            await pilot.pause()
            assert "health      –" in frame(app)
            await put(app, pilot, looked(precision=precision, **changes))
            assert f"health      {words}" in frame(app)


def test_another_loss_scale_is_named_only_if_it_is_larger_and_without_what_it_would_lose():
    words = "a loss scale of 1,024 loses 1.0 % of the gradients"
    assert numerics_advice(looked(lost=0.01, best_scale=1024.0)) == words
    assert numerics_advice(looked(lost=0.01)) == words + "; 65,536 is the largest that they allow"


async def test_arrows_choose_a_layer_and_tab_a_part(stage):
    async with stage.live(demo_source(looked()), (80, 24)) as (app, pilot):
        await pilot.press("n", "down")
        assert "layer3.0.conv1 · gradients" in frame(app)
        await pilot.press("down", "down", "down")
        assert "fc · outputs" in frame(app)
        assert "in fp16: 0.0 % to zero" in frame(app)
        await pilot.press("tab")
        assert "· outputs" in frame(app)
        assert "layer4.2.conv3" not in frame(app)
        await pilot.press("tab", "tab")
        assert "no values to show" in frame(app)
        await pilot.press("tab", "up")
        assert "layer4.2.conv3 · gradients" in frame(app)


@pytest.mark.parametrize("size", [(60, 16), (80, 24)])
async def test_layers_are_searched_and_n_goes_to_the_next_match(stage, size):
    async with stage.live(demo_source(looked()), size) as (app, pilot):
        await pilot.press("n", "slash", *"Conv")
        assert frame(app).splitlines()[-1].strip() == "Conv"  # the last line, and nothing is scrolled
        await pilot.press("enter")
        text = frame(app)
        assert "· /conv" in text
        assert "layer4.2.conv3" in text
        assert "fc" not in text
        await pilot.press("n")
        assert "▸ layer4.2.conv3" not in frame(app)
        await pilot.press("N")
        assert "▸ layer4.2.conv3" in frame(app)
        await pilot.press("slash", *"qq", "enter")
        assert "no layer has these words: esc shows all" in frame(app)
        await pilot.press("escape")
        assert "· /" not in frame(app)
        await pilot.press("end")
        assert "fc" in frame(app)
        await pilot.press("n")
        assert app.screen.where == "live"


async def test_a_chosen_layer_stays_chosen_when_another_sample_orders_them_anew(stage):
    def sample(*names):
        return looked(layers=[layer(name) for name in names])

    async with stage.live(demo_source(sample("a", "b", "c")), (80, 24)) as (app, pilot):
        await pilot.press("n", "down")
        for names, chosen in (("bac", "b"), ("cab", "b"), ("ca", "a"), ("cd", "d"), ("ced", "d"), ("c", "c")):
            await put_below(app, pilot, sample(*names))
            assert f"▸ {chosen} " in frame(app)
            assert f"{chosen} · gradients" in frame(app)
        await pilot.press("up", "up")
        await put_below(app, pilot, sample("e", "c"))  # nobody has chosen: it is the worst one
        assert "e · gradients" in frame(app)


async def test_full_is_on_while_it_is_asked_for_and_ends_with_the_screen(stage):
    source = demo_source(looked())
    async with stage.live(source, (80, 24)) as (app, pilot):
        await pilot.press("n", "f")
        assert source.sent == [("numerics", "full")]
        await put_below(app, pilot, looked(mode="full", cost_s=0.1, every_s=5.0, eager=True, step=14_400))
        text = frame(app)
        assert "step 14,400" in text
        assert re.search(r"a look cost 100.0 ms, one step in \d+: 2.0 % of the time · not compiled", text)
        await pilot.press("escape")
        assert source.sent == [("numerics", "full"), ("numerics", None)]
        assert "╭─ loss" in frame(app)
        await pilot.press("n", "n")
        assert len(source.sent) == 2
        assert "╭─ loss" in frame(app)


async def test_a_look_whose_cost_is_not_measured_yet_says_so(stage):
    async with stage.live(demo_source(looked(cost_s=None)), (80, 24)) as (app, pilot):
        await pilot.press("n")
        assert re.search(r"a look, one step in \d+, has no known cost yet; f: at most 5.0 %", frame(app))


async def test_leaving_from_it_asks_as_on_the_live_screen(stage):
    source = demo_source(looked())
    async with stage.live(source, (80, 24)) as (app, pilot):
        await pilot.press("n", "f", "q")
        await pilot.pause()
        assert await seen(app, pilot, "save, stop")
    assert source.sent == [("numerics", "full"), ("numerics", None)]


async def test_the_end_of_a_long_name_is_shown_wherever_it_stands(stage):
    name = "encoder.layers.encoder_layer_11.self_attention.out_proj.attention.weight"
    event = looked(layers=[layer(name)])
    async with stage.live(demo_source(event), (80, 24)) as (app, pilot):
        await pilot.press("n")
        assert await seen(app, pilot, "attention.weight · ")
        assert frame(app).count("attention.weight") == 2


async def test_before_the_first_look_it_says_what_looking_costs(stage):
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        await pilot.press("n")
        text = frame(app)
    assert "no numerics sample yet" in text
    assert "at most 5.0 % of the time" in text


async def test_a_run_that_ended_is_asked_for_nothing(stage):
    source = demo_source(looked(), finished())
    async with stage.live(source, (80, 24)) as (app, pilot):
        await pilot.press("n", "f", "escape")
        assert "layers by risk" not in frame(app)
    assert source.sent == []


async def test_names_from_outside_cannot_command_the_terminal(stage):
    hostile = "\x1b[31mred\x1b[0m\nnew\u202eline" + "x" * 300
    names = ["\x1b[31mr\u202ed", hostile, "[bold]b[/]"]
    event = looked(layers=[layer(name) for name in names], mode=hostile, precision=hostile)
    async with stage.live(demo_source(event), (80, 24)) as (app, pilot):
        await pilot.press("n")
        text = frame(app)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]b[/]" in text
    assert r"\x1b[31mr\u202ed" in text
    assert len(text.splitlines()) == 24


ODD: list[dict[str, object]] = [
    {"layers": [], "others": 0},
    {"layers": [layer(exponents=[], first_exponent=0)]},
    {"layers": [layer(exponents=[1000], first_exponent=127, overflow=1.0, lost=1.0, fault="overflow")]},
    {"layers": [layer(exponents=[1] * 255, first_exponent=-127)]},
    {"best_scale": None, "lost_at_best": None, "lost": 1.0},
    {"loss_scale": None, "lost": None, "precision": "bf16"},
    {"loss_scale": None, "best_scale": None, "lost_at_best": None, "lost": None},
    {"every_s": 0.0},
    {"layers": [layer(smallest=float("nan"), largest=float("inf"), lost=float("nan"))]},
    {"loss_scale": float("inf"), "best_scale": 1e30},
    {"loss_scale": float("nan"), "cost_s": float("nan")},
    {"layers": [layer(first_exponent=2**60)]},
    {"layers": [layer(exponents=[-5, 0, 10**18])]},
]


async def test_odd_looks_are_shown_too(stage):
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        await pilot.press("n")
        for odd in ODD:
            await put_below(app, pilot, looked(**odd))
            await pilot.press("down", "tab", "tab")
            assert "recommendation" in frame(app)
            await pilot.press("up", "tab", "tab")


async def test_it_reads_in_ascii(stage):
    async with stage.live(demo_source(looked()), (80, 24), ascii_only=True) as (app, pilot):
        await pilot.press("n")
        assert "layer4.2.conv3" in frame(app)


def test_its_keys_are_in_the_table():
    assert {"numerics.full", "numerics.part", "numerics.close"} <= {key.id for key in heard_on("numerics")}
