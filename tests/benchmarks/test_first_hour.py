"""The order, the limits and the page of the first hour on a GPU."""

import json
import subprocess
import sys
import time

import pytest

from benchmarks.first_hour import Hour, go, page
from benchmarks.hour_checks import CHECKS, Check, Found, two_gpus


def hour(folder, *, gpus=0, seconds=100.0):
    return Hour(folder, time.monotonic() + seconds, gpus, folder)


def verdicts(scene, *checks):
    return [(check.name, found.verdict, found.words) for check, found, _ in go(scene, checks)]


def test_what_needs_more_gpus_or_more_time_is_named_and_the_rest_is_tried(tmp_path):
    right = Check("right", lambda _: Found("right", "well"))
    long = Check("long", right.run, least_s=500)
    assert verdicts(hour(tmp_path, gpus=1), long, right, Check("ranks", two_gpus, gpus=2)) == [
        ("long", "not tried", "needs some 500 s; 95 s were left"),
        ("right", "right", "well"),
        ("ranks", "not tried", "needs 2 GPUs; here: 1"),
    ]


def test_a_check_that_fails_ends_the_hour_only_where_the_next_tell_nothing(tmp_path):
    def fails(_):
        raise ValueError("no such card")

    after = Check("after", lambda _: Found("right", "well"))
    failed = ("broken", "failed", "ValueError: no such card")
    assert verdicts(hour(tmp_path), Check("broken", fails), after)[:2] == [failed, ("after", "right", "well")]
    assert verdicts(hour(tmp_path), Check("broken", fails, ends=True), after) == [
        failed,
        ("after", "not tried", "tells nothing after broken has failed"),
    ]


def test_a_command_is_logged_whole_and_killed_at_the_end_of_the_time(tmp_path):
    said = hour(tmp_path).command("said", ["python", "-c", "print('a'); print('b')"])
    assert (said.code, said.output) == (0, "a\nb\n")
    assert (tmp_path / "logs" / "said.log").read_text().endswith("\na\nb\n")
    assert hour(tmp_path, seconds=0).command("hangs", ["sleep", "600"]).code is None


def test_the_page_has_each_check_its_figures_and_what_explains_a_failure():
    rows = [
        {
            "name": "loops",
            "verdict": "right",
            "words": "1.01 | of bare",
            "seconds": 3.2,
            "figures": {"r": 1.01},
        },
        {"name": "tests", "verdict": "failed", "words": "1 failed", "seconds": 60.0, "figures": {}},
    ]
    for row, quoted in zip(rows, ([], ["FAILED test_graphs"]), strict=True):
        row["quoted"] = quoted
    told = page({"machine": {"gpu": "H100"}, "checks": rows, "commands": []})
    assert "gpu H100" in told
    assert "| loops | right | 1.01 \\| of bare | 3 |" in told
    assert '"r": 1.01' in told
    assert "FAILED test_graphs" in told


@pytest.mark.slow
def test_it_runs_to_the_end_without_a_gpu(tmp_path):
    only = "identity,waits,default,deterministic,ranks"
    words = [sys.executable, "-m", "benchmarks.first_hour", "--only", only, "--out", str(tmp_path / "hour")]
    subprocess.run(words, check=True)
    rows = json.loads((tmp_path / "hour" / "report.json").read_text())["checks"]
    assert [row["name"] for row in rows] == [check.name for check in CHECKS if check.name in only.split(",")]
    assert {row["verdict"] for row in rows} >= {"right", "not tried"}
