"""The screen of `mptui learn`: six exercises, each run in the background and drawn as it goes."""

import threading
from dataclasses import dataclass, field, replace
from functools import partial

from textual import work
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from mptui.errors import MptuiError
from mptui.lab.learn.exercises import EXERCISES, run_exercise
from mptui.lab.learn.formats import LearnChoices, Lesson, Line, parsed
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

    def content(self, width: int) -> Content:
        """Return its lines, cut at `width`."""
        if self.error:
            return Content.styled(clean_lines(self.error), "$text-error")
        if self.lesson is None:
            return Content.styled("running …", "$quiet")
        lines = map(_content, self.lesson.lines(width, self.focus))
        return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)

    def series(self) -> dict[str, list[Series]]:
        """Return the curves of each chart, the first as a solid line."""
        if self.lesson is None or self.error:
            return {}
        charts: dict[str, list[Series]] = {}
        for title, curves in self.lesson.curves.items():
            series = charts[title] = []
            for label, values in curves.items():
                history = self.histories.setdefault((title, label), History())
                for step in range(history.version, len(values)):
                    history.append(step + 1, values[step])
                series.append(Series(label, history, dashed=bool(series)))
        return charts


class LearnScreen(Page):
    """Shows one exercise at a time; results stay until they are run again.

    Args:
        choices: Model, data and the rest that the person has chosen.
        first: Name of the first exercise.
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
    }
    """

    def __init__(
        self,
        choices: LearnChoices,
        first: str,
        *,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        self._choices = choices
        self._current = first
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

        def run() -> None:
            with self._turn:
                if self._attempts.get(name) is attempt:  # else the person has chosen otherwise
                    attempt.lesson = run_exercise(name, choices, partial(setattr, attempt, "lesson"))

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
        said = self._choices.model if EXERCISES[self._current].uses_model else ""
        self._top.show_message(Content.styled(clean(said), "$quiet"))
        self.query_one("#lines", Static).update(attempt.content(max(1, self.size.width - 4)))
        curves = attempt.series()
        charts = EXERCISES[self._current].charts if not attempt.error else ()
        self.set_class(bool(charts), "-curves")  # from the first frame on, to be filled
        for chart, title in zip(self._charts, charts, strict=False):
            chart.entitle(title)
            chart.show(curves.get(title, []))

    def action_exercise(self, number: int) -> None:
        """Show an exercise, from 1 on."""
        self._enter(list(EXERCISES)[number - 1])

    def action_move(self, by: int) -> None:
        """Move what the exercise has to be moved: the number, the loss scale, or the lines."""
        attempt = self._attempts.get(self._current)
        lesson = None if attempt is None else attempt.lesson
        if attempt is not None and lesson is not None and len(lesson.focuses) > 1:
            attempt.focus = lesson.limited(attempt.focus + by)
            self.show()
        else:
            self.query_one("#lesson").scroll_relative(y=-by, animate=False)

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
            self._choose(replace(self._choices, number=parsed(text)), "formats")
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
        concerned = (name for name, exercise in EXERCISES.items() if exercise.uses_model)
        self._choose(self._choices.with_model(text.strip()), "autocast", *concerned)
        return None

    def action_precision(self) -> None:
        """Change between bf16 and fp16 under autocast."""
        other = "bf16" if self._choices.precision == "fp16" else "fp16"
        self._choose(replace(self._choices, precision=other), "autocast")

    def action_rules(self) -> None:
        """Change between autocast's rules of a GPU and those of a CPU."""
        other = "cpu" if self._choices.rules_of == "cuda" else "cuda"
        self._choose(replace(self._choices, rules_of=other), "autocast")

    def _choose(self, choices: LearnChoices, *concerned: str) -> None:
        """Take choices, and show an exercise that they concern: the present one, or else the first."""
        self._choices = choices
        for name in concerned:
            self._attempts.pop(name, None)
        self._enter(self._current if self._current in concerned else concerned[0])


def _content(line: Line) -> Content:
    return Content.assemble(*((clean(text), _STYLES[tone]) for text, tone in line))


def _number_fault(text: str) -> str | None:
    try:
        parsed(text)
    except MptuiError as error:
        return error.message
    return None
