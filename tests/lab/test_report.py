"""`mptui report`: one file that loads nothing, small for a run of any length; no text in it acts."""

import re
from html.parser import HTMLParser

import pytest

from mptui.cli.main import _exit_code
from mptui.events import Step
from tests.tui.events import demo, finished
from tests.tui.test_runs_screen import a_run

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


def test_a_page_has_curves_facts_settings_and_loads_nothing(tmp_path):
    a_run(tmp_path, "one", events=[*demo(), finished()])
    text = report(tmp_path, "one")
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
    lines = re.findall(r'class="line c1" d="M([^"]+)"', text)
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
        a_run(tmp_path, f"run-{number}", lr=number + 1.0, events=demo()[:120])
    text = report(tmp_path, *(f"run-{number}" for number in range(8)))
    page = Page(text)
    assert "Differences" in page.words
    assert "training.lr" in page.words
    loss = text.split("loss · train</figcaption>")[0] if "loss · train</figcaption>" in text else text
    assert {f'class="line c{number}"' in loss for number in range(1, 9)} == {True}
    assert len(text.encode()) < LARGEST


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


def test_markdown_has_the_same_facts(tmp_path):
    a_run(tmp_path, "one", events=[*demo(), finished()])
    text = report(tmp_path, "one", "--format", "md")
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
