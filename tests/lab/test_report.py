"""`mptui report`: one file that loads nothing, small for a run of any length; no text in it acts."""

import random
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

import mptui.lab.report
from mptui.cli.main import _exit_code
from mptui.events import LossScale, MemorySample, PrecisionChanged, Recovered, Step, Validated
from mptui.lab.report.pictures import CurveLine, figure_of
from mptui.runs.store.directory import ENVIRONMENT, write_json
from mptui.runs.view.history import History
from tests.tui.events import GIB, START, demo, finished, step_event
from tests.tui.test_numerics import looked
from tests.tui.test_runs_screen import a_run

slow = partial(pytest.param, marks=pytest.mark.slow)

LARGEST = 3_000_000


class Page(HTMLParser):
    """The tags and attributes of a page; those that are left open are a fault."""

    VOID = frozenset({"meta", "link", "img", "br", "path"})

    def __init__(self, text):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag in self.VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def report(folder, *words):
    out = folder / "out"
    assert _exit_code(["report", *words, "--runs-dir", str(folder), "-o", str(out)], debug=False) == 0
    return out.read_text(encoding="utf-8")


def chart(text, title):
    """The HTML of one chart of a page."""
    (found,) = re.findall(rf"<figure class=.chart[^>]*><figcaption>{title}<.*?</figure>", text, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def run_of_demo(tmp_path_factory):
    """A folder with a run that has ended."""
    folder = tmp_path_factory.mktemp("runs")
    a_run(folder, "one", events=[*demo(), finished()])
    return folder


@pytest.fixture(scope="module")
def page_of_demo(run_of_demo):
    return report(run_of_demo, "one")


def test_a_page_has_curves_facts_settings_and_loads_nothing(page_of_demo):
    text = page_of_demo
    page = Page(text)
    words = " ".join(page.words)
    for said in (
        "loss",
        "learning rate",
        "completed",
        "top-1 50.0 % in epoch 2",
        "100.0",
        "What happened",
        "lr = 0.1",
    ):
        assert said in words
    links = [str(value) for name, value in page.attributes if name in {"src", "href"}]
    assert all(link.startswith("data:") for link in links)
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|https?://", text)
    assert "prefers-color-scheme: dark" in text
    lines = re.findall(r'class="line c1" d="M([^"]+)" data-label="train"', text)
    places = [tuple(map(float, point.split())) for point in lines[0].split("L")]
    assert len(places) > 100
    assert all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y in places)
    assert [x for x, _ in places] == sorted(x for x, _ in places)
    assert places[0][1] < places[-1][1]  # the loss falls, and y grows downwards


def test_a_hundred_thousand_steps_stay_small(tmp_path):
    steps = [event for event in demo() if isinstance(event, Step)]
    many = [
        type(event)(
            **{name: getattr(event, name) for name in event.__slots__} | {"step": number, "time": event.time}
        )
        for number in range(1, 100_001, 40)
        for event in [steps[number % len(steps)]]
    ]
    a_run(tmp_path, "long", events=[demo()[0], *many])
    assert 50_000 < len(report(tmp_path, "long").encode()) < LARGEST


def test_several_runs_are_drawn_over_each_other_with_their_differences(tmp_path):
    for number in range(8):
        run = a_run(tmp_path, f"run-{number}", lr=number + 1.0, events=demo()[:120])
        write_json(run / ENVIRONMENT, {"python": "3.11", "packages": {"torch": f"2.{number}"}})
    text = report(tmp_path, *(f"run-{number}" for number in range(8)))
    page = Page(text)
    assert "Differences" in page.words
    assert {"training.lr", "torch", "2.7"} <= set(page.words)
    assert "python" not in page.words  # the same in all
    assert {"state", "images/s"} <= set(page.words)
    assert not {"status", "samples_per_second", "total_s", "best_value"} & set(page.words)
    assert re.search(r"<span>[\d.]+ %</span>", text)  # the device's load, as for one run
    for title in ("loss · train", "speed · images/s"):
        drawn = re.findall(r'class="line c(\d)" d="[^"]+" data-label="run-(\d)"', chart(text, title))
        assert drawn == [(str(number + 1), str(number)) for number in range(8)]
    assert len(text.encode()) < LARGEST


def test_branches_that_a_run_has_left_are_listed_and_drawn_behind_also_beside_others(tmp_path):
    events = demo()[:120]
    middle = events[60]
    back = Recovered(time=events[-1].time + 1, step=middle.step, problem="divergence", action="back")
    a_run(tmp_path, "one", events=[*events, back, *events[61:90]])
    a_run(tmp_path, "straight", events=events)
    alone, both = report(tmp_path, "one"), report(tmp_path, "one", "straight")
    left, now = f"{events[-1].step:,}", f"{events[89].step:,}"
    assert {"Branches", left, now, f"{middle.step:,}", "ended by rollback", "in force"} <= set(
        Page(alone).words
    )
    behind = r'class="line c0" [^>]*data-label="([^"]*)"'
    assert "train, abandoned" in re.findall(behind, alone)
    assert re.findall(behind, chart(both, "loss · train")) == ["one, abandoned"]
    assert "Branches" not in Page(report(tmp_path, "straight")).words
    assert "### Branches" in report(tmp_path, "one", "--format", "md")


def test_a_loss_is_drawn_with_what_is_in_it(tmp_path):
    events = demo()[:300]
    a_run(tmp_path, "plain", events=events)
    terms = ["label smoothing 0.1", "class weights"]
    told = [replace(each, loss_terms=terms) if isinstance(each, Validated) else each for each in events]
    a_run(tmp_path, "smoothed", events=told)
    words = "with label smoothing 0.1, class weights"
    assert 'data-label="train"' in chart(report(tmp_path, "smoothed"), f"loss {words}")
    beside = report(tmp_path, "plain", "smoothed")
    labels = re.findall('data-label="([^"]+)"', chart(beside, "loss · train"))
    assert labels == ["plain", f"smoothed {words}"]


def heights(text, title, label):
    """The heights of a curve on the page, from 0 at the top of the axis to 1000 at its bottom."""
    (points,) = re.findall(rf'class="line c1" d="M([^"]+)" data-label="{label}"', chart(text, title))
    return [float(point.split()[1]) for point in points.split("L")]


def test_a_curve_of_one_value_is_in_the_middle_of_its_chart():
    history = History()
    for step in range(5):
        history.append(step, 0.5)
    shown = figure_of("loss", "loss", [CurveLine("train", history, 1)], single=True)
    assert 'data-low="0.25" data-high="0.75"' in shown


@pytest.mark.parametrize("others", [(), slow(("other",))])
def test_a_spike_does_not_flatten_a_chart_and_is_told(tmp_path, others):
    events = demo()[:400]
    at, found = next((n, each) for n, each in enumerate(events) if n > 200 and isinstance(each, Step))
    spike = replace(found, loss=900.0, loss_min=900.0, loss_max=1000.0)
    a_run(tmp_path, "one", events=[*events[:at], spike, *events[at + 1 :]])
    for name in others:
        a_run(tmp_path, name, events=events)
    text = report(tmp_path, "one", *others)
    title, label = ("loss · train", "one") if others else ("loss", "train")
    drawn = heights(text, title, label)
    assert min(drawn) < -1000  # far above the axis, where a zoom finds it
    inside = [height for height in drawn if height >= 0]
    assert len(inside) > len(drawn) - 5
    assert max(inside) - min(inside) > 500
    told = re.search(r"above the axis: (?:\w+ )?up to ([\d,]+) near step ([\d,]+)[,<]", chart(text, title))
    assert told is not None
    assert told[1] == ("900" if others else "1,000")
    assert abs(int(told[2].replace(",", "")) - spike.step) <= events[-1].step / 300
    assert chart(text, title).count('class="above c1"') == 1
    assert text.count("above the axis") == 1  # also none by rounding, as of a constant rate
    Page(text)


@pytest.mark.parametrize(
    "odd",
    [
        {
            "best": {"value": 0.5},
            "dataset": {"name": ["a", "b"], "train_samples": {"of": 3}},
            "memory": {"peak_allocated_bytes": [1]},
        },
        {
            "best": {"epoch": 2, "metric": ["acc1"], "value": 0.5},
            "precision": {"used": ["fp16"], "reason": {}},
            "recoveries": [3, {"kind": []}],
            "warnings": ["x"],
        },
        {
            "best": {"epoch": [], "metric": "acc1", "value": {}},
            "time": {"total_s": [1.0], "data_wait_fraction": "half"},
            "energy": {"watt_hours": "much"},
            "forked_from": {"run": ["a"]},
            "cost": "dear",
        },
    ],
)
def test_an_odd_summary_is_reported_as_far_as_it_goes(tmp_path, odd):
    a_run(tmp_path, "one", events=demo()[:40], **odd)
    a_run(tmp_path, "other", events=demo()[:40])
    for words in (["one"], ["one", "--format", "md"], ["one", "other"]):
        assert "resnet18" in report(tmp_path, *words)


@pytest.mark.parametrize("kind", ["html", "md"])
def test_text_of_files_does_not_act(tmp_path, kind):
    hostile = '<script>alert(1)</script> | "x" \u001b[2J'
    run = a_run(tmp_path, "one", model=hostile, dataset={"name": hostile}, events=demo()[:9])
    (run / "run.toml").write_text("# ```\n# <script>alert(1)</script>\n[training]\nlr = 0.1\n")
    text = report(tmp_path, "one", "--format", kind)
    assert "\x1b" not in text
    if kind == "html":
        assert text.count("<script>") == 1  # ours
        Page(text)
    else:
        assert "| network | \\<script\\>" in text


def test_markdown_has_the_same_facts(run_of_demo):
    text = report(run_of_demo, "one", "--format", "md")
    assert text.startswith("# one\n")
    assert "| best | top-1 50.0 % in epoch 2 |" in text
    assert "```toml" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["one", "--format", "pdf"], 2, "use html or md"),
        (["gone"], 6, "no such run"),
        (["one"] * 9, 2, "at most 8"),
    ],
)
def test_what_cant_be_reported_is_refused(tmp_path, capsys, words, code, said):
    a_run(tmp_path, "one")
    assert _exit_code(["report", *words, "--runs-dir", str(tmp_path)], debug=False) == code
    assert said in capsys.readouterr().err


def test_the_page_has_the_timeline_of_the_run(page_of_demo):
    text = page_of_demo
    page = Page(text)
    words = [word for word in page.words if word]
    for lane in ("state", "precision", "loss scale", "device busy", "events", "time", "step"):
        assert lane in words
    for state in ("preparing", "compiling", "training"):
        assert f'<rect class="s-{state}"' in text
        assert any(re.fullmatch(rf"{state} .+ \(\d+\.\d %\)", word) for word in words)
    titles = [str(value) for name, value in page.attributes if name == "title"]
    assert any("1 × switch" in title and "→ fast at step 4,000" in title for title in titles)
    assert any("1 × best" in title for title in titles)
    assert 'class="skip"' in text
    places = [float(left) for left in re.findall(r'<i class="g-\w+" style="left:([\d.]+)%', text)]
    assert places == sorted(places)
    assert 0 <= places[0] < places[-1] <= 100


def test_precision_scale_memory_and_numerics_have_tables(tmp_path):
    later = START + 4000
    events = [
        *demo(),
        LossScale(
            time=later,
            step=14_300,
            scale=32768.0,
            lowest=1024.0,
            highest=65536.0,
            growths=3,
            backoffs=4,
            skipped=4,
            streak=0,
            longest_streak=2,
            skip_rate=0.0004,
        ),
        MemorySample(time=later, step=14_300, peak=50 * GIB, reserved=52 * GIB, gaps=GIB),
        looked(time=later),
        PrecisionChanged(time=later + 1, step=14_300, precision="fp32", previous="fp16", reason="asked"),
        step_event(14_400, later + 400, random.Random(0)),
    ]
    a_run(tmp_path, "one", events=events)
    text = report(tmp_path, "one", "--format", "md")
    for row in (
        "| fp16 | 0 to 14,297 |",
        "| fp32 | 14,297 to 14,400 |",
        "| range | 1,024 to 65,536 |",
        "| skipped steps | 4 (0.04 %), at most 2 in a row |",
        "| peak, allocated | 50.0 GiB |",
        "| layer4.2.conv3 | gradient |",
        "65,536 is the largest that they allow; 150 more layers lose up to 4.0 %",
    ):
        assert row in text, text
    page = report(tmp_path, "one")
    assert page.count('<path class="bar bad"') == 3
    assert "layer4.2.conv3 · gradient" in Page(page).words


def test_pictures_of_any_folder_are_in_the_page_as_far_as_it_stays_small(tmp_path):
    run = a_run(tmp_path, "one", events=demo()[:120])
    for name in ("samples/epoch-0002", "samples/epoch-0010", "samples/epoch-0011", "validation/epoch-0011"):
        (run / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(run / f"{name}.png")
    (run / "validation" / "epoch-0012.png").write_bytes(b"no picture")
    (run / "validation" / "epoch-0013.png").symlink_to(run / "samples" / "epoch-0002.png")
    (run / "huge").mkdir()
    (run / "huge" / "epoch-0001.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(LARGEST))
    page = Page(report(tmp_path, "one"))
    shown = [value for name, value in page.attributes if name == "alt"]
    assert shown == ["samples, epoch-0011", "samples, epoch-0010", "validation, epoch-0011"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_script_of_the_page_has_no_fault_of_syntax():
    script = Path(mptui.lab.report.__file__).with_name("page.js")
    subprocess.run(["node", "--check", script], check=True)
