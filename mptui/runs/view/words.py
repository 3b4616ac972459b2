"""Lines of the log, and the wording that several of them share."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from operator import is_not
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from mptui import text as fmt
from mptui.events import Event, Numerics, PhaseChanged, RunFinished, Step
from mptui.registry.tasks import TASKS, metric_spec, metric_word
from mptui.text import clean, clean_lines, shell_word

# Lines of the log, and the wording that several of them share
# ------------------------------------------------------------

Tone = Literal["plain", "quiet", "good", "warn", "bad"]


@dataclass(slots=True)
class LogLine:
    """A line of the log. `text` is safe to show; the line of a command grows with its state."""

    time: float
    text: str
    tone: Tone = "plain"


def rate_words(lr: Sequence[float], batch: Sequence[int], ramp_steps: int) -> list[str]:
    """Describe the changes of the effective learning rate and batch, each given before and after."""
    words = []
    if len(lr) == 2 and lr[0] != lr[1]:
        ramp = f" in {ramp_steps} steps" if ramp_steps else ""
        words.append(f"effective lr {lr[0]:.3g} → {lr[1]:.3g}{ramp}")
    if len(batch) == 2 and batch[0] != batch[1]:
        words.append(f"effective batch {batch[0]:,} → {batch[1]:,}")
    return words


def profile_words(profile: str, changed: Sequence[str]) -> str:
    """Name the profile of a run, and what people have set beside it: `stable + 2 settings`."""
    return f"{profile} + {fmt.counted(len(changed), 'setting')}" if changed else profile


def time_words(session_s: float | None, total_s: float | None) -> str:
    """Format the time of a run over all its sessions, and that of the last one if there were others."""
    session, total = fmt.duration(session_s), fmt.duration(total_s)
    if total_s is None:
        return session
    return total if total == session else f"{total}, {session} of it in the last session"


def steps_words(steps: int, total: object) -> str:
    """Format the steps of a run, and those that it was to have if they are more: `1,200 of 5,000`."""
    return f"{steps:,} of {total:,}" if isinstance(total, int) and total > steps else f"{steps:,}"


def metric_words(metrics: dict[str, float]) -> list[str]:
    """Format each metric with its value: `top-1 76.4 %`."""
    words = []
    for name, value in metrics.items():
        figure = fmt.percent(value) if metric_spec(name).fraction else fmt.figure(value)
        words.append(f"{metric_word(name)} {figure}")
    return words


WOULD_BE_LOST = "would be lost in fp16"
"""What a numerics probe says of values that another precision than fp16 holds."""


def numerics_advice(event: Numerics) -> str:
    """Describe the best loss scale, next to the one in use."""
    if event.best_scale is None:
        if event.loss_scale is not None:
            return "the gradients of this step overflowed: the step was skipped, the loss scale is lowered"
        return "these gradients don't fit fp16 with any loss scale; bf16 has the range"
    if event.loss_scale is not None:
        now = f"a loss scale of {event.loss_scale:,.0f} loses {fmt.percent(event.lost)} of the gradients"
        largest = f"; {event.best_scale:,.0f} is the largest that they allow"
        return now + largest if event.best_scale > event.loss_scale else now
    best = f"{event.best_scale:,.0f} would lose {fmt.percent(event.lost_at_best)}"
    return f"in fp16 a scale of {best} of the gradients; {clean(event.precision, 8)} needs no loss scale"


# The last line of a run in the shell: directory, best result, next command
# -------------------------------------------------------------------------


def closing_line(run: Path, summary: dict[str, Any]) -> str:
    """Describe the end of a run in one line, with the next command.

    Args:
        run: The run directory.
        summary: The summary from `mptui.runs.store.directory.status_of`.
    """
    status, steps = str(summary["status"]), summary.get("optimizer_steps")
    after = f" after step {steps_words(steps, summary.get('total_steps'))}" if isinstance(steps, int) else ""
    spent = summary.get("time") or {}
    if after and "session_s" in spent:  # earlier versions have noted the time of the last session alone
        after += f" in {fmt.duration(spent.get('total_s'))}"
    best = summary.get("best") or {}
    value = best.get("value")
    best_text = (
        f", best {metric_word(str(best['metric']))} {value:.4f} in epoch {best.get('epoch')}"
        if isinstance(value, float)
        else ""
    )
    doubts = "".join(f", doubtful: {words}" for words in summary.get("concerns") or [])
    return clean(f"{run}: {status}{after}{best_text}{doubts}; {next_command(run, status)}", limit=4096)


def next_command(run: Path, status: str) -> str:
    """Return what to do next with a run of this status, as a phrase and a command."""
    word = shell_word(run)
    if status == "running":
        return f"watch it: mptui attach {word}"
    if status == "completed":
        return f"train longer: mptui resume {word} --epochs N"
    return f"resume: mptui resume {word}"


# Names of metrics and phases on screens
# --------------------------------------

TRAIN, VALIDATION = "train", "validation"
LOSS = "loss"
LR = "learning rate"
GRADIENT_NORM = "gradient norm"
DEVICE = "device"
MEMORY = "memory GiB"

FROM_ZERO = frozenset({LR, "speed", DEVICE, MEMORY})
"""Charts of rates, whose axis begins at 0."""

NOISY = frozenset({GRADIENT_NORM, "speed", DEVICE})
"""Charts whose values vary from step to step, as losses and metrics of training do."""


PHASE_WORDS = {
    "warming_up": "first step",
}

BUSY_PHASES = frozenset(
    {"starting", "restarting", "scanning", "preparing", "warming_up", "compiling", "sampling", "saving"}
)
"""Phases without figures; the screen shows their elapsed seconds instead."""


_PREPARATION = {
    "starting": "start",
    "restarting": "start again",
    "scanning": "read",
    "preparing": "prepare",
    "warming_up": "first step",
    "compiling": "compile",
}


def preparation_words(event: PhaseChanged) -> str:
    """Describe what a run does before its first step: `read ~/data/flowers`, `measuring channels last`."""
    word = _PREPARATION.get(event.phase, event.phase)
    if event.phase == "preparing" and event.detail:
        return clean(event.detail)
    if event.phase == "compiling" and event.detail:
        return clean(f"{word} ({event.detail})")
    return clean(f"{word} {event.detail}".rstrip())


def ranks_words(ranks: int, nodes: int) -> str:
    """Describe the processes of a run: `8 ranks on 2 nodes`; "" for a single one."""
    where = f" on {nodes:,} nodes" if nodes > 1 else ""
    return f"{ranks:,} ranks{where}" if ranks > 1 else ""


def is_percent(chart: str) -> bool:
    """Whether all metrics of a chart are fractions of 1."""
    metrics = [metric for spec in TASKS.values() for metric in spec.metrics.values() if metric.chart == chart]
    return chart == DEVICE or (bool(metrics) and all(metric.fraction for metric in metrics))


def is_noisy(chart: str, series: str) -> bool:
    """Whether a curve varies from step to step, so that its trend is easier to see when it is smoothed."""
    return chart in NOISY or series.endswith(TRAIN)


# Makes the texts of events and files safe to show, as they come from files, libraries and users
# ----------------------------------------------------------------------------------------------

_DEEPEST = 16
"""Tables and lists inside each other; a summary of ours has three. Deeper ones would exhaust the stack."""

_NUMBERS = frozenset({int, float, bool, NoneType})
"""What most fields hold."""

_LARGEST_BITS = 63
"""Of a whole number; a larger one is no count of ours, and can't be used with floats."""


def cleaned(event: Event) -> Event:
    """Return the event with all texts made safe to show."""
    if isinstance(event, Step) and _is_plain(event):
        return event
    made: Event = _cleaned(event)
    if isinstance(event, RunFinished) and isinstance(made, RunFinished):
        made = replace(made, message=clean_lines(event.message), hint=clean_lines(event.hint))
    return made


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - any value of an event's field
    """Return a value with its texts made safe; the same one if they are, as nearly all."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        items = [_cleaned(item) for item in value]
        return items if any(map(is_not, items, value)) else value
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    names = _fields(value.__class__)
    old = {name: item for name in names if type(item := getattr(value, name)) not in _NUMBERS}
    changed = {name: made for name, item in old.items() if (made := _cleaned(item)) is not item}
    return replace(value, **changed) if changed else value


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def _is_plain(event: Step) -> bool:
    """Whether a step's texts need no cleaning, which is usual; most events are steps."""
    return all(map(str.isidentifier, (event.bound_by or "x", *event.split, *event.ceilings, *event.metrics)))


def cleaned_json(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any JSON value
    """Make a value safe to show and to write again; None for values that no run writes."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, int) and value.bit_length() > _LARGEST_BITS:
        return None
    if not isinstance(value, dict | list):
        return value
    if depth == _DEEPEST:
        return None
    if isinstance(value, dict):
        return {clean(key): cleaned_json(item, depth + 1) for key, item in value.items()}
    return [cleaned_json(item, depth + 1) for item in value]
