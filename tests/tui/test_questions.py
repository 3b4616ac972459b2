"""What a person asks of a run is answered on the live screen without a key, in each situation and size."""

import re

import pytest

from mptui.events import Alert
from tests.tui.events import MemorySource, demo, finished, run_started
from tests.tui.frames import frame
from tests.tui.test_preparing import preparation

BEST = r"best +(top-1 )?77.5 %"
DIVERGING = Alert(
    time=0.0, step=14_300, code="diverging", message="the run is diverging: its loss is 31 times its best"
)
NOW, HOW_LONG, WRONG, BOUND, KEYS = (
    "the accuracy now",
    "how long yet",
    "what is wrong",
    "the bound",
    "the keys",
)

SITUATIONS = {
    "preparing": (
        lambda: [run_started(), *preparation()],
        {
            "what it does": r"▸ compile \(default\)",
            "how long it takes": "of about 1 min",
            "what it has found": "✓ 1,000 [+] 200 images, 10 classes",
            WRONG: "▲ two classes have few images",
            KEYS: "x stop",
        },
    ),
    "training": (
        demo,
        {
            NOW: r"val 77.5 %",
            "the best": BEST,
            HOW_LONG: "3 h 13 min left",
            WRONG: "▲ waiting for data 11 % of each step",
            BOUND: "bound by compute",
            KEYS: "space pause",
        },
    ),
    "diverging": (
        lambda: [*demo(), DIVERGING],
        {
            NOW: r"val 77.5 %",
            "the best": BEST,
            WRONG: "▲ 1 of 2  the run is diverging: its loss is 31",
            BOUND: "bound by compute",
            "its numbers": r"65,536|fp16",
            KEYS: "u undo|x stop|[?] more",
        },
    ),
    "ended": (
        lambda: [*demo(), finished()],
        {
            "how it ended": "✓ completed",
            "the best": BEST,
            "how many steps": "14,297",
            "what next": "mptui|picker|resume",
            KEYS: "q leave",
        },
    ),
}


@pytest.mark.parametrize("size", [(80, 24), (120, 35)])
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_what_a_person_asks_is_on_the_screen(stage, situation, size):
    events, answers = SITUATIONS[situation]
    async with stage.live(MemorySource(events()), size) as (app, pilot):
        await pilot.pause()
        text = frame(app)
        assert [question for question, answer in answers.items() if not re.search(answer, text)] == [], text
