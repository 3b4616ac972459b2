"""What a person asks of a run is answered on the live screen without a key, in each situation and size."""

import re

import pytest

from mptui.events import Advice, Alert
from tests.tui.events import MemorySource, demo, finished, run_started
from tests.tui.frames import frame
from tests.tui.test_preparing import preparation

DIVERGING = Alert(
    time=0.0, step=14_300, code="diverging", message="the run is diverging: its loss is 31 times its best"
)
LOWER = Advice(time=0.0, step=14_300, code="diverging", message="lower the rate", setting="training.lr=0.01")
NOW, BEST, HOW_LONG, WRONG, BOUND, KEYS = (
    "what is the validation accuracy now",
    "the best and when",
    "how long yet",
    "is anything wrong",
    "what bounds the step",
    "what can I press",
)
ASKED = {NOW, BEST, HOW_LONG, WRONG, BOUND, KEYS}
NOT_YET = {NOW, BEST, BOUND}
"""What no run knows before its first step."""

GOING = {
    NOW: "val 77.5 %",
    BEST: "best 77.5 % in epoch 11",
    HOW_LONG: "3 h 13 min left",
    BOUND: "bound by compute",
    KEYS: "space pause .*x stop .*[?] (more|help)",
}
SITUATIONS = {
    "preparing": (
        lambda: [run_started(), *preparation()],
        {
            "what it does": r"▸ compile \(default\)",
            "what it has found": "✓ 1,000 [+] 200 images, 10 classes",
            HOW_LONG: "of about 1 min",
            WRONG: "▲ two classes have few images",
            KEYS: "space pause .*x stop .*[?] (more|help)",
        },
    ),
    "training": (demo, GOING | {WRONG: "▲ waiting for data 11 % of each step.*a data.workers=12"}),
    "diverging": (
        lambda: [*demo(), DIVERGING, LOWER],
        GOING | {WRONG: "(?s)▲ diverging.*the run is diverging.* a training.lr=0.01"},
    ),
    "ended": (
        lambda: [*demo(), finished()],
        {
            NOW: "val 77.5 % at the end",
            BEST: "best +top-1 77.5 % at step 13,937",
            HOW_LONG: "✓ completed .*epoch +12/100",
            WRONG: "completed +14,297 of 126,700 steps, 2 skipped",
            BOUND: "50 min 0 s, bound by compute",
            KEYS: "f fork .*n numerics .*[?] more .*q leave",
        },
    ),
}


@pytest.mark.parametrize("size", [(80, 24), (120, 35)])
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_what_a_person_asks_is_on_the_screen(stage, situation, size):
    events, answers = SITUATIONS[situation]
    assert answers.keys() >= ASKED - (NOT_YET if situation == "preparing" else set())
    async with stage.live(MemorySource(events()), size) as (app, pilot):
        await pilot.pause()
        text = frame(app)
        assert [question for question, answer in answers.items() if not re.search(answer, text)] == [], text
