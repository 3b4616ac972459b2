"""`docs/speed.md`: generated from the available results, with each figure next to its goal."""

import json
from pathlib import Path

import pytest

from benchmarks.speed_page import page

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
OVER_BARE = "ResNet-18: `mptui run` over a bare loop, images/s"


def test_the_page_is_made_of_the_results():
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m benchmarks.speed_page > docs/speed.md"


@pytest.fixture
def row_of(tmp_path):
    def row(what, **results):
        for name, (date, document) in results.items():
            machine = {"cpu": "a processor", "gpu": None, "torch": "9", "date": date}
            path = tmp_path / f"{name.replace('_', '-')}.json"
            path.write_text(json.dumps({"machine": machine, **document}))
        return next(line for line in page(tmp_path).splitlines() if line.startswith(f"| {what} |"))

    return row


def over_bare(middle):
    ratio = {"median": middle, "min": middle - 0.1, "max": middle + 0.1}
    return {"cases": {"resnet18": {"ratios": {"bare": ratio}}}}


def test_a_figure_without_a_result_is_not_measured(row_of):
    assert "| not measured yet | ≥ 0.99 |  |" in row_of(OVER_BARE)


@pytest.mark.parametrize(("middle", "reached"), [(0.99, "yes"), (0.98, "no")])
def test_a_figure_stands_beside_its_goal(row_of, tmp_path, middle, reached):
    row = row_of(OVER_BARE, peers_resnet18=("2026-01-01", over_bare(middle)))
    bounds = f"{middle - 0.1:.3g} to {middle + 0.1:.3g}"
    assert f"| {middle} ({bounds}) | ≥ 0.99 | {reached} | a processor, torch 9, 2026-01-01 |" in row
    assert (f"Missed: {OVER_BARE}." in page(tmp_path)) == (reached == "no")


def test_a_goal_of_at_most_is_reached_from_below(row_of):
    share = {"tiny": {"share": 0.02}}
    row = row_of("Tiny network: the guards' share of a step", guards=("2026-01-01", share))
    assert "| 2 % | ≤ 1 % | no |" in row


def test_the_newer_of_a_part_and_the_whole_counts(row_of):
    results = {"peers": ("2026-01-03", over_bare(1.5)), "peers_resnet18": ("2026-01-02", over_bare(0.5))}
    assert "| 1.5 (" in row_of(OVER_BARE, **results)
