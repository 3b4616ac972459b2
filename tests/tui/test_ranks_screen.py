"""The screen of the ranks: a row each, what is usual and worst, and who is slow; for 8 ranks, and for 64."""

import pytest

from mptui.runs.view.run_view import RunView
from mptui.tui.keys import heard_on
from mptui.tui.screens.ranks import RankTable
from tests.tui.events import demo_source, rank_row, ranks_sampled
from tests.tui.frames import frame, seen

VERDICT = (
    "rank 5 was the slowest in 47 of 50 measured steps, 149.9 ms behind the median: "
    "it waits 151.0 ms for data, the median 1.0 ms, its clocks are reduced (heat)"
)


def eight():
    rows = [rank_row(rank, host="node0") for rank in range(8)]
    slow = {"data_s": 0.151, "wait_s": 0.0006, "slowest": 47, "temperature_c": 91.0, "throttle": ["heat"]}
    rows[5] = rank_row(5, host="node0", **slow)
    return ranks_sampled(rows, verdict=VERDICT, slow=[5])


def many():
    rows = [rank_row(rank, data_s=0.001 * rank, utilisation=1 - rank / 100) for rank in range(64)]
    rows[63] = rank_row(63, data_s=None, silent_s=31.0)
    return ranks_sampled(rows)


def line(text, start):
    return next(words for words in text.splitlines() if words.strip("│ ").startswith(start))


def figures(text, start):
    return " ".join(line(text, start).split()[1:-1])


async def test_eight_ranks_are_read_at_a_glance_in_a_small_terminal(stage):
    async with stage.live(demo_source(eight()), (80, 24)) as (app, pilot):
        assert "R ranks" in frame(app)
        await pilot.press("R")
        await pilot.pause()
        text = frame(app)
        assert "ranks · 8 by rank · step 14,300" in text
        for heading in ("busy", "memory", "°C", "clocks", "data", "forward", "backward", "others", "slowest"):
            assert heading in line(text, "rank ")
        assert figures(text, "0 ") == "0 97 % 52.1 GiB 64 ok 1.0 ms 31 ms 46 ms 4.0 ms 0 % 1 s"
        assert figures(text, "▸") == "▸ 5 97 % 52.1 GiB 91 heat 151 ms 31 ms 46 ms 0.6 ms 94 % 1 s"
        assert "1.0 ms   31 ms    46 ms 4.0 ms" in line(text, "median")
        assert "151 ms" in line(text, "worst")
        assert "150 ms" in line(text, "spread")
        assert VERDICT in " ".join(words.strip("│ ") for words in text.splitlines())
        await pilot.press("R")
        await pilot.pause()
        assert "╭─ loss" in frame(app)


async def test_a_verdict_that_is_longer_than_its_panel_says_so(stage):
    async with stage.live(demo_source(eight()), (60, 16)) as (app, pilot):
        await pilot.press("R")
        assert await seen(app, pilot, "rank 5 was the slowest in 47 of 50")
        assert "for data, the …" in frame(app)


@pytest.mark.parametrize(
    "size", [(80, 24), *(pytest.param(size, marks=pytest.mark.slow) for size in [(60, 16), (140, 45)])]
)
async def test_sixty_four_ranks_are_sorted_and_scrolled(stage, size):
    async with stage.live(demo_source(many()), size) as (app, pilot):
        await pilot.press("R")
        await pilot.pause()
        text = frame(app)
        assert " of 64 by rank" in text
        assert line(text, "0 ")
        assert all(line(text, words) for words in ("median", "worst", "spread"))
        await pilot.press(*["pagedown"] * 12)
        await pilot.pause()
        text = frame(app)
        assert "-64 of 64 by rank" in text
        assert "31 s" in line(text, "63 ")
        await pilot.press("up")
        await pilot.pause()
        assert "-63 of 64 by rank" in frame(app)
        await pilot.press("s", "s")
        await pilot.pause()
        rows = frame(app).split("beat")[1].splitlines()[1:]
        assert " of 64 by data" in frame(app)
        assert [words.strip("│ ").split()[0] for words in rows[:3]] == ["62", "61", "60"]
        await pilot.press(*["pagedown"] * 12)
        await pilot.pause()
        assert line(frame(app), "63 ")  # not known: last


async def test_ranks_are_searched_by_their_host_and_clocks(stage):
    async with stage.live(demo_source(eight()), (80, 24)) as (app, pilot):
        await pilot.press("R", "slash", *"heat", "enter")
        text = frame(app)
        assert "ranks · 1 by rank · step 14,300 · /heat" in text
        assert figures(text, "▸").startswith("▸ 5 97 %")
        await pilot.press("slash", *"qq", "enter")
        assert "no rank has these words: esc shows all" in frame(app)
        await pilot.press("escape")
        assert line(frame(app), "0 ")


async def test_reports_that_come_while_it_is_open_are_shown(stage):
    source = demo_source(eight())
    async with stage.live(source, (120, 36)) as (app, pilot):
        await pilot.press("R")
        await pilot.pause()
        assert "node0" in frame(app)
        source.waiting.append(ranks_sampled([rank_row(0), rank_row(1)], step=14_400, steps=9))
        assert await seen(app, pilot, "no rank was behind the others in 9 measured steps")
        assert "2 by rank · step 14,400" in frame(app)
        source.waiting.append(ranks_sampled([rank_row(0), rank_row(1)], step=14_500, sharded=True))
        assert await seen(app, pilot, "by its data; in each pass, ranks wait for each other")


async def test_a_run_of_one_process_has_no_such_screen(stage):
    async with stage.live(demo_source(), (80, 24)) as (app, pilot):
        assert "R ranks" not in frame(app)
        await pilot.press("R")
        assert await seen(app, pilot, "this run trains in one process")
        assert "╭─ loss" in frame(app)


async def test_a_rank_that_has_not_reported_is_shown_as_unknown(stage):
    times = ("data_s", "forward_s", "backward_s", "wait_s", "silent_s")
    device = ("utilisation", "memory_used", "memory_total", "temperature_c")
    silent = rank_row(1, **dict.fromkeys((*device, *times)))
    async with stage.live(demo_source(ranks_sampled([rank_row(0), silent], steps=0))) as (
        app,
        pilot,
    ):
        await pilot.press("R")
        await pilot.pause()
        assert figures(frame(app), "1 ").startswith("1 " + " ".join("–" * 10))
    assert {"ranks.sort", "ranks.close"} < {key.id for key in heard_on("ranks")}


@pytest.mark.parametrize(("silent_s", "styles"), [(0.4, []), (31.0, ["31 s"])])
def test_of_a_rank_that_is_silent_for_long_the_age_of_its_beat_is_red_and_nothing_else(silent_s, styles):
    view = RunView()
    view.handle(ranks_sampled([rank_row(0, silent_s=silent_s)]))
    row = RankTable().lines(view, 80)[1]
    assert [row.plain[at.start : at.end].strip() for at in row.spans if at.style == "$text-error"] == styles


async def test_a_wide_table_keeps_together_what_is_compared(stage):
    async with stage.live(demo_source(eight()), (200, 60)) as (app, pilot):
        await pilot.press("R")
        await pilot.pause()
        lines = frame(app).splitlines()
    heading = next(row for row in lines if " busy " in row)
    assert " " * 20 not in heading[: heading.index("beat")]
    last = next(number for number, row in enumerate(lines) if row.strip("│ ").startswith("7 "))
    assert "median" in lines[last + 2]
