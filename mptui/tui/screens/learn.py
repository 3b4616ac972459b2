"""The screen of `mptui learn`: six exercises, each run in the background and drawn as it goes."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from mptui.errors import MptuiError
from mptui.lab.learn.exercises import EXERCISES, LearnChoices, with_model
from mptui.lab.learn.formats import Lesson, Line, parsed
from mptui.registry.own_code import fault_of
from mptui.runs.view.history import History
from mptui.text import clean, clean_lines
from mptui.tui.dialogs.questions import AskDialog
from mptui.tui.keys import bindings
from mptui.tui.screens.page import Page, TooSmall
from mptui.tui.widgets.basics import KeyBar, TopLine
from mptui.tui.widgets.chart import Chart
from mptui.tui.widgets.plot import Series
from mptui.tui.work import in_background

POLLS_PER_SECOND = 4
_CHARTS = 2
_STYLES = {
    "": "",
    "quiet": "$quiet",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "$text-error",
    "accent": "$text-accent",
    "strong": "bold",
}


@dataclass(slots=True)
class _Attempt:
    """One run of an exercise: its lesson so far, or the words of its error."""

    lesson: Lesson | None = None
    error: str = ""
    histories: dict[tuple[str, str], History] = field(default_factory=dict)
    focus: int = 0


class LearnScreen(Page):
    """Shows one exercise at a time; results stay until they are run again.

    Args:
        choices: Model, data and the rest that the person has chosen.
        first: Name of the first exercise.
        keymap: The user's keys.
        ascii_only: Draw in ASCII.
    """

    where = "learn"
    BINDINGS = bindings("learn")
    DEFAULT_CSS = """
    LearnScreen {
        #exercises { height: 1; padding: 0 1; text-wrap: nowrap; }
        #explanation { height: auto; padding: 0 1; color: $quiet; }
        #lesson { height: 1fr; padding: 1 1 0 1; scrollbar-size: 1 1; }
        #lines { text-wrap: nowrap; height: auto; }
        Chart {
            display: none;
            height: 1fr;
            min-height: 5;
            border: round $frame;
            border-title-color: $quiet;
            padding: 0 1;
            &:focus { border: round $accent; border-title-color: $text-accent; }
        }
        &.-curves {
            Chart { display: block; }
            #lesson { height: auto; }
        }
        &.-short {
            #lesson { padding: 0 1; }
            #explanation { display: none; }
            #chart-1 { display: none; }
        }
        &.-tiny, &.-flat {
            TopLine, #exercises, #explanation, #lesson, Chart, KeyBar { display: none; }
        }
    }
    """

    def __init__(
        self,
        choices: LearnChoices,
        first: str,
        *,
        keymap: Mapping[str, str] | None = None,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        self._choices = choices
        self._current = first
        self._keymap = keymap or {}
        self._attempts: dict[str, _Attempt] = {}
        self._turn = threading.Lock()  # one at a time: they share torch's random numbers
        self._top = TopLine()
        self._charts = [
            Chart(mode="ascii" if ascii_only else "braille", id=f"chart-{n}") for n in range(_CHARTS)
        ]

    def compose(self) -> ComposeResult:
        """Lay out the exercises, the lesson, its charts and the keys."""
        yield self._top
        yield Static(id="exercises", markup=False)
        yield Static(id="explanation", markup=False)
        with VerticalScroll(id="lesson", can_focus=False):
            yield Static(id="lines", markup=False)
        yield from self._charts
        yield KeyBar(self.where, self._keymap)
        yield TooSmall()

    def on_mount(self) -> None:
        """Begin the first exercise."""
        self.call_after_refresh(self._enter, self._current)
        self.set_interval(1 / POLLS_PER_SECOND, self.show)

    def _enter(self, name: str) -> None:
        self._current = name
        tabs = [
            (f"{number} {each}", "bold $text-accent" if each == name else "$quiet")
            for number, each in enumerate(EXERCISES, 1)
        ]
        line = Content("  ").join(Content.styled(words, style) for words, style in tabs)
        self.query_one("#exercises", Static).update(line)
        self.query_one("#explanation", Static).update(Content(EXERCISES[name].explanation))
        self.query_one("#lesson").scroll_home(animate=False)
        if name not in self._attempts:
            self._run(name)
        self.show()

    def _run(self, name: str) -> None:
        """Run an exercise with the present choices; an earlier run of it is forgotten."""
        attempt = self._attempts[name] = _Attempt()
        self._work(name, attempt)

    @work
    async def _work(self, name: str, attempt: _Attempt) -> None:
        choices = self._choices

        def report(lesson: Lesson) -> None:
            attempt.lesson = lesson

        def run() -> None:
            with self._turn:
                if self._attempts.get(name) is attempt:  # else the person has chosen otherwise
                    report(EXERCISES[name].run(choices, report))

        try:
            await in_background(run)
        except Exception as error:
            told = error if isinstance(error, MptuiError) else fault_of(error)
            if told is None:
                raise
            attempt.error = f"{told.message}\n{told.hint}"
        self.show()

    def show(self) -> None:
        """Draw the exercise as far as it is."""
        attempt = self._attempts.get(self._current)
        if attempt is None or not self.is_running:
            return
        lesson = attempt.lesson
        said = self._choices.model if EXERCISES[self._current].uses_model else ""
        self._top.say(Content.styled(clean(said), "$quiet"))
        curves = {} if lesson is None or attempt.error else lesson.curves()
        self.set_class(bool(curves), "-curves")
        lines = self.query_one("#lines", Static)
        if attempt.error:
            lines.update(Content.styled(clean_lines(attempt.error), "$text-error"))
        elif lesson is None:
            lines.update(Content.styled("running …", "$quiet"))
        else:
            width = max(1, self.size.width - 4)
            drawn = [
                _content(line).truncate(width, ellipsis=True) for line in lesson.lines(width, attempt.focus)
            ]
            lines.update(Content("\n").join(drawn))
        for chart, (title, each) in zip(self._charts, curves.items(), strict=False):
            series = []
            for number, curve in enumerate(each):
                history = attempt.histories.setdefault((title, curve.label), History())
                for step in range(history.version, len(curve.values)):
                    history.append(step + 1, curve.values[step])
                series.append(Series(curve.label, history, dashed=number > 0))
            chart.entitle(title)
            chart.show(series)

    def action_exercise(self, number: int) -> None:
        """Show an exercise, from 1 on."""
        self._enter(list(EXERCISES)[number - 1])

    def action_move(self, by: int) -> None:
        """Move what the exercise has to be moved: the number, the loss scale, or the lines."""
        attempt = self._attempts.get(self._current)
        if not EXERCISES[self._current].moves:
            self.query_one("#lesson").scroll_relative(y=-by, animate=False)
        elif attempt is not None and attempt.lesson is not None:
            attempt.focus = attempt.lesson.limited(attempt.focus + by)
            self.show()

    def action_scroll(self, by: int) -> None:
        """Scroll the lesson by half a screen."""
        lesson = self.query_one("#lesson")
        lesson.scroll_relative(y=by * max(1, lesson.size.height // 2), animate=False)

    def action_again(self) -> None:
        """Run the exercise again."""
        self._run(self._current)
        self.show()

    def action_number(self) -> None:
        """Ask for the number of the first exercise."""
        explanation = "A number to see in all formats: 0.1, 65520, 1e-8 or 2^-24."
        text = f"{self._choices.number:.9g}"
        self.app.push_screen(
            AskDialog("number", explanation, text, check=_number_fault, on_answer=self._take_number)
        )

    def _take_number(self, text: str) -> str | None:
        fault = _number_fault(text)
        if fault is None:
            self._choices = replace(self._choices, number=parsed(text))
            self._forget("formats")
            self._enter("formats")
        return fault

    def action_model(self) -> None:
        """Ask for the network of all exercises but the first."""
        explanation = "The network: unet, resnet18, vit_b_16, timm/NAME, …"
        self.app.push_screen(
            AskDialog(
                "model", explanation, self._choices.model, check=lambda _: None, on_answer=self._take_model
            )
        )

    def _take_model(self, text: str) -> str | None:
        if not text.strip():
            return "write the name of a network"
        self._choices = with_model(self._choices, text.strip())
        self._forget(*(name for name, exercise in EXERCISES.items() if exercise.uses_model))
        self._enter("autocast" if self._current == "formats" else self._current)
        return None

    def action_precision(self) -> None:
        """Change between bf16 and fp16 under autocast."""
        now = self._choices.precision
        self._choices = replace(self._choices, precision="bf16" if now == "fp16" else "fp16")
        self._forget("autocast")
        self._enter("autocast")

    def action_rules(self) -> None:
        """Change between autocast's rules of a GPU and those of a CPU."""
        now = self._choices.rules_of
        self._choices = replace(self._choices, rules_of="cpu" if now == "cuda" else "cuda")
        self._forget("autocast")
        self._enter("autocast")

    def _forget(self, *names: str) -> None:
        for name in names:
            self._attempts.pop(name, None)


def _content(line: Line) -> Content:
    return Content.assemble(*((clean(text), _STYLES[tone]) for text, tone in line))


def _number_fault(text: str) -> str | None:
    try:
        parsed(text)
    except MptuiError as error:
        return error.message
    return None
