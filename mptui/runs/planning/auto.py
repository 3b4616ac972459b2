"""Chooses `auto` settings by measurement before a run starts; choices are recorded and reused on a resume."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, get_args

import torch

from mptui.config.schema import PrecisionMode
from mptui.data.types import Dataset
from mptui.engine.choose import (
    OUT_OF_TIME,
    SHARE,
    Candidates,
    MeasuringTime,
    Selection,
    StepTimer,
    Timer,
    choose,
    layouts,
    precisions,
    step_words,
    updates,
)
from mptui.engine.compile import CachedResult, facts_of
from mptui.engine.optim.optimizers import supports_fused
from mptui.engine.time_budget import assumed_steps
from mptui.events import Event, PhaseChanged
from mptui.hardware.advice import measurable_precisions
from mptui.io.cache import load_json
from mptui.io.files import Guard
from mptui.registry.names import LOSS_SCALED
from mptui.runs.planning.plan import Plan
from mptui.runs.store.choices import kept_sources, sources_document
from mptui.runs.store.directory import CHOICES, VERSION, write_json
from mptui.tasks.build_task import build_task
from mptui.text import clean, read_duration

BUSY = 0.2
"""Fraction of the time that others may use a GPU on which settings are chosen by measured time."""


@dataclass(frozen=True, slots=True)
class Decider:
    """Chooses the `auto` settings of one run.

    Args:
        run: The run directory.
        again: Whether the run is resumed: its recorded choices are reused, without measurements.
        emit: Receives a phase event for each candidate that is measured.
        check_stop: Called before each measured step and before the record is written; may raise Stopped.
        guard: Context around the change of the record.
        measure_costs: Whether to measure the cost of a slow requested precision, to warn about it.
        clock: Returns the time in seconds.
    """

    run: Path
    again: bool
    emit: Callable[[Event], None]
    check_stop: Callable[[], None]
    guard: Guard = contextlib.nullcontext
    measure_costs: bool = True
    clock: Callable[[], float] = time.monotonic

    def decide(self, plan: Plan, model: torch.nn.Module, dataset: Dataset) -> Plan:
        """Return the plan with all `auto` settings chosen; a deterministic run uses the table of devices.

        Args:
            plan: The plan with choices from the table of devices.
            model: The model on the host or the device; it is copied.
            dataset: The data set.

        Raises:
            Stopped: From `check_stop`.
            DiskError: The choices can't be recorded.
        """
        sources = kept_sources(self.run) if self.again else sources_document(plan.resolved)
        if plan.config.training.deterministic:
            if not self.again:
                write_json(self.run / CHOICES, {"version": VERSION, **sources}, self.guard)
            return plan
        if self.again and (taken := choices_taken(plan, self.run)) is not None:
            return taken
        device = torch.device(plan.device.torch_name)
        learns, counts = plan.config.model.task, dataset.class_counts
        task = build_task(plan.task, dataset.classes, plan.config.training, learns, counts=counts)
        trial = StepTimer(model, task, plan.config, device)
        with contextlib.closing(trial):
            decided = self._measured(plan, trial, dataset)
        self.check_stop()
        choices = {
            "version": VERSION,
            "device": plan.device.name,
            "channels_last": decided.channels_last,
            "fused": decided.fused,
            **sources,
        }
        if plan.config.precision.mode == "auto":  # a requested one is no choice for a later auto
            choices["precision"] = {"used": decided.precision.used, "reason": decided.precision.reason}
        write_json(self.run / CHOICES, choices, self.guard)
        return decided

    def _measured(self, plan: Plan, trial: StepTimer, dataset: Dataset) -> Plan:
        busy = plan.device.gpu.utilisation if plan.device.gpu is not None else None
        if busy is not None and busy >= BUSY:  # before this run has begun: its times would be those of others
            words = f"nothing is measured here: others keep {plan.device.name} {busy:.0%} busy"
            return replace(plan, notes=(*plan.notes, words))
        measure = _Measurement(self, plan, dataset)
        plan = _choose_precision(plan, trial, measure, costs=self.measure_costs)
        plan = _choose_layout(plan, trial, measure)
        plan = _choose_update(plan, trial, measure)
        if not measure.unmeasured:
            return plan
        return replace(plan, notes=(*plan.notes, f"{', '.join(measure.unmeasured)}: {OUT_OF_TIME}"))


def choices_taken(plan: Plan, run: Path) -> Plan | None:
    """Return the plan with the choices that a run recorded; None if they were made for another device."""
    recorded = load_json(run / CHOICES)
    return _taken_again(plan, recorded) if _of_this_device(plan, recorded) else None


class _Measurement:
    """Measures sets of candidates for a run, or returns cached results."""

    def __init__(self, decider: Decider, plan: Plan, dataset: Dataset) -> None:
        self._decider = decider
        self._steps = _micro_batches(plan, dataset)
        limit = plan.config.training.time
        self._limit = MeasuringTime(inf if limit is None else SHARE * read_duration(limit), decider.clock)
        self.unmeasured: list[str] = []
        self._facts = {
            **facts_of(plan.config, plan.device.name, len(dataset.classes)),
            "task": plan.task,
            "micro_batch": plan.config.memory.micro_batch,
        }

    def __call__(
        self,
        kind: str,
        candidates: Candidates,
        timers: Callable[[str], Timer],
        facts: Mapping[str, object],
    ) -> Selection:
        """Choose among `candidates`: `facts` are added to the cache's key."""

        def started(name: str) -> Timer:
            detail = f"measuring {clean(candidates.words[name])}"
            self._decider.emit(PhaseChanged(phase="preparing", detail=detail))
            return timers(name)

        cached = CachedResult(kind, {**self._facts, **facts})
        check_stop = self._decider.check_stop
        choice = choose(
            candidates, cached, started, steps=self._steps, limit=self._limit, check_stop=check_stop
        )
        if choice.reason == OUT_OF_TIME:
            self.unmeasured.append(kind)
        elif choice.reason and kind != "precision":  # which is told of however it is chosen
            found = f"{kind}: {candidates.words[choice.name]}, {choice.reason}"
            self._decider.emit(PhaseChanged(phase="preparing", found=clean(found)))
        return choice


def _choose_precision(plan: Plan, trial: StepTimer, measure: _Measurement, *, costs: bool) -> Plan:
    """Choose the precision for `auto`; measure the cost of a requested one that is slow here."""
    used, automatic = plan.precision.used, plan.config.precision.mode == "auto"
    may_be_slow = costs and plan.device.native.get(used, "native") != "native"
    if not automatic and not may_be_slow:
        return plan
    names = measurable_precisions(plan.device) if automatic else ["fp32", used]
    choice = measure(
        "precision",
        precisions(names, used),
        lambda name: trial.step(name, channels_last=plan.channels_last),
        {"channels_last": plan.channels_last, **({} if automatic else {"asked": used})},
    )
    if automatic:
        return _with_precision(plan, choice.name, choice.reason)
    return _with_cost(plan, choice.seconds)


def _choose_layout(plan: Plan, trial: StepTimer, measure: _Measurement) -> Plan:
    if plan.config.speed.channels_last != "auto" or plan.device.kind == "mps":
        return plan
    candidates, precision = layouts(_word(plan.channels_last)), plan.precision.used
    choice = measure(
        "layout",
        candidates,
        lambda name: trial.step(precision, channels_last=name == "true"),
        {"precision": precision},
    )
    return _noted(replace(plan, channels_last=choice.name == "true"), candidates, choice)


def _choose_update(plan: Plan, trial: StepTimer, measure: _Measurement) -> Plan:
    device, optimizer = torch.device(plan.device.torch_name), plan.config.training.optimizer
    if plan.config.speed.fused != "auto" or not supports_fused(optimizer, device):
        return plan
    candidates, channels_last = updates(), plan.channels_last
    choice = measure(
        "update",
        candidates,
        lambda name: trial.update(channels_last=channels_last, fused=name == "true"),
        {"channels_last": channels_last},
    )
    return _noted(replace(plan, fused=choice.name == "true"), candidates, choice)


def _noted(plan: Plan, candidates: Candidates, choice: Selection) -> Plan:
    """Return the plan with the reason of a choice in its notes, if it was measured."""
    note = f"{candidates.words[choice.name]}: {choice.reason}"
    return replace(plan, notes=(*plan.notes, note)) if choice.reason not in {"", OUT_OF_TIME} else plan


def _word(value: bool) -> str:
    return "true" if value else "false"


def _micro_batches(plan: Plan, dataset: Dataset) -> int:
    """Return the number of micro-batches of the run."""
    training = plan.config.training
    if training.time is not None:
        return assumed_steps(training) * training.accumulate
    each = training.batch_size * training.accumulate
    steps = training.epochs * -(-len(dataset.train) // each)
    return min(steps, training.max_steps or steps) * training.accumulate


def _with_precision(plan: Plan, used: str, reason: str) -> Plan:
    if not reason:
        return plan
    mode: PrecisionMode = next(mode for mode in get_args(PrecisionMode) if mode == used)
    choice = replace(plan.precision, used=mode, reason=reason, grad_scaler=mode in LOSS_SCALED)
    return replace(plan, precision=choice)


def _of_this_device(plan: Plan, recorded: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Whether the record is of the device of `plan`, or doesn't name a device."""
    name = plan.device.name
    return not isinstance(recorded, dict) or recorded.get("device", name) == name


def _with_cost(plan: Plan, seconds: Mapping[str, float]) -> Plan:
    """Return the plan with the measured cost of the requested precision instead of the known one."""
    used = plan.precision.used
    if not {"fp32", used} <= seconds.keys():
        return plan
    factor = seconds[used] / seconds["fp32"]
    figures = f"({step_words(seconds[used])} per step against {step_words(seconds['fp32'])})"
    words = f"{used} takes {factor:.2g} times fp32's time here {figures}"
    choice = replace(plan.precision, reason="requested", warning=words if factor > 1 else None)
    return replace(plan, precision=choice)


def _taken_again(plan: Plan, recorded: Any) -> Plan:  # noqa: ANN401 - any JSON value
    """Return the plan with recorded choices for settings that are still `auto`."""
    if not isinstance(recorded, dict):
        return plan
    speed, precision = plan.config.speed, recorded.get("precision")
    if plan.config.precision.mode == "auto" and isinstance(precision, dict):
        used, reason = precision.get("used"), precision.get("reason")
        if used in measurable_precisions(plan.device) and isinstance(reason, str):
            plan = _with_precision(plan, used, clean(reason))
    if speed.channels_last == "auto" and isinstance(recorded.get("channels_last"), bool):
        plan = replace(plan, channels_last=recorded["channels_last"])
    if speed.fused == "auto" and isinstance(recorded.get("fused"), bool):
        plan = replace(plan, fused=recorded["fused"])
    return plan
