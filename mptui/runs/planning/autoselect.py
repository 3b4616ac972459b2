"""What a run leaves to its card: measured before it begins, written down, and taken again on a resume."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch

from mptui.config.schema import PrecisionMode
from mptui.data.core.types import Dataset
from mptui.data.loading.loader import Loader
from mptui.engine.autotune.result_cache import CachedResult, facts_of
from mptui.engine.autotune.select import (
    Candidates,
    Selection,
    Timer,
    choose,
    decoders,
    layouts,
    precisions,
    step_words,
    updates,
)
from mptui.engine.autotune.step_timer import StepTimer
from mptui.engine.optim.optimizer import supports_fused
from mptui.events import Event, PhaseChanged
from mptui.hardware.advice import measurable_precisions
from mptui.io.atomic import Guard
from mptui.io.user_cache import load_json
from mptui.runs.planning.build import LoaderMaker
from mptui.runs.planning.decoders import BATCHES, Readings, facts_of_files, may_decode, with_decoder
from mptui.runs.planning.plan import Plan
from mptui.runs.store.directory import CHOICES, VERSION, write_json
from mptui.tasks.registry import build_task
from mptui.text import clean


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides for one run.

    Args:
        run: Its directory.
        again: It is resumed: what it had is taken, and nothing is measured.
        emit: Told what is being measured.
        check_stop: Asked before each step of a measurement, and before it is written; may raise Stopped.
        guard: Entered around the change of what is written down.
        measure_costs: Measure what a slow precision that was asked for costs, to warn of it.
    """

    run: Path
    again: bool
    emit: Callable[[Event], None]
    check_stop: Callable[[], None]
    guard: Guard = contextlib.nullcontext
    measure_costs: bool = True

    def decide(self, plan: Plan, model: torch.nn.Module, dataset: Dataset) -> Plan:
        """The plan with nothing left to the card. A deterministic run is decided by the table of cards.

        Args:
            plan: What will be done, as the table has it.
            model: On the host or on the device; it is copied.
            dataset: What it is trained on.

        Raises:
            Stopped: From `check_stop`.
            DiskError: The decision can't be written down.
        """
        if plan.config.training.deterministic:
            return plan
        if self.again and _of_this_device(plan, recorded := load_json(self.run / CHOICES)):
            return _taken_again(plan, recorded)
        device = torch.device(plan.device.torch_name)
        task = build_task(plan.task, dataset.classes, plan.config.training)
        trial = StepTimer(model, task, plan.config, device)
        with contextlib.closing(trial):
            decided = self._measured(plan, trial, dataset)
        self.check_stop()
        write_json(
            self.run / CHOICES,
            {
                "version": VERSION,
                "device": plan.device.name,
                "precision": {"used": decided.precision.used, "reason": decided.precision.reason},
                "channels_last": decided.channels_last,
                "fused": decided.fused,
            },
            self.guard,
        )
        return decided

    def _measured(self, plan: Plan, trial: StepTimer, dataset: Dataset) -> Plan:
        config, device = plan.config, torch.device(plan.device.torch_name)
        steps = _micro_batches(plan, dataset)
        facts = {**facts_of(config, plan.device.name, len(dataset.classes)), "task": plan.task}
        facts["micro_batch"] = config.memory.micro_batch

        def chosen(
            kind: str,
            candidates: Candidates,
            timers: Callable[[str], Timer],
            *,
            timed: int = 1,
            **more: object,
        ) -> Selection:
            def told(name: str) -> Timer:
                words = clean(candidates.words[name])
                self.emit(PhaseChanged(phase="preparing", detail=f"measuring {words}"))
                return timers(name)

            kept = CachedResult(kind, {**facts, **more})
            return choose(candidates, kept, told, steps=steps // timed, check_stop=self.check_stop)

        notes = []
        if config.precision.mode == "auto":
            names = measurable_precisions(plan.device)
            choice = chosen(
                "precision",
                precisions(names, plan.precision.used),
                lambda name: trial.step(name, channels_last=plan.channels_last),
                channels_last=plan.channels_last,
            )
            plan = _with_precision(plan, choice.name, choice.reason)
        elif self.measure_costs and plan.device.native.get(plan.precision.used, "native") != "native":
            choice = chosen(
                "precision",
                precisions(["fp32", plan.precision.used], plan.precision.used),
                lambda name: trial.step(name, channels_last=plan.channels_last),
                channels_last=plan.channels_last,
                asked=plan.precision.used,
            )
            plan = _with_cost(plan, choice.seconds)
        if config.speed.channels_last == "auto" and plan.device.kind != "mps":
            candidates = layouts(_word(plan.channels_last))
            choice = chosen(
                "layout",
                candidates,
                lambda name: trial.step(plan.precision.used, channels_last=name == "true"),
                precision=plan.precision.used,
            )
            plan = replace(plan, channels_last=choice.name == "true")
            notes.append(_note(candidates, choice))
        if config.speed.fused == "auto" and supports_fused(config.training.optimizer, device):
            candidates = updates()
            choice = chosen(
                "update",
                candidates,
                lambda name: trial.update(channels_last=plan.channels_last, fused=name == "true"),
                channels_last=plan.channels_last,
            )
            plan = replace(plan, fused=choice.name == "true")
            notes.append(_note(candidates, choice))
        if may_decode(plan, dataset):
            candidates = decoders()
            with contextlib.closing(self._readings(plan, trial, dataset)) as readings:
                choice = chosen(
                    "decoding",
                    candidates,
                    readings.timer,
                    timed=1 + BATCHES,
                    precision=plan.precision.used,
                    channels_last=plan.channels_last,
                    **facts_of_files(plan, dataset),
                )
            plan = with_decoder(plan, choice) if choice.reason else plan
            notes.append(_note(candidates, choice))
        return replace(plan, notes=(*plan.notes, *filter(None, notes)))

    def _readings(self, plan: Plan, trial: StepTimer, dataset: Dataset) -> Readings:
        def make(on_device: bool) -> Loader:
            asked = with_decoder(plan, Selection("device" if on_device else "cpu"))
            # what can't be read is told by the run's own loader
            loaders = LoaderMaker(asked, dataset, lambda _: None, lambda _: None, self.check_stop)
            return loaders.make(dataset.train, train=True)

        def step() -> Timer:
            return trial.step(plan.precision.used, channels_last=plan.channels_last)

        return Readings(make, step, torch.device(plan.device.torch_name))


def _note(candidates: Candidates, choice: Selection) -> str:
    """What people read of a choice; empty where nothing was measured."""
    return f"{candidates.words[choice.name]}: {choice.reason}" if choice.reason else ""


def _word(value: bool) -> str:
    return "true" if value else "false"


def _micro_batches(plan: Plan, dataset: Dataset) -> int:
    """How many the run takes."""
    training = plan.config.training
    each = training.batch_size * training.accumulate
    steps = training.epochs * -(-len(dataset.train) // each)
    return min(steps, training.max_steps or steps) * training.accumulate


def _with_precision(plan: Plan, used: str, reason: str) -> Plan:
    if not reason:
        return plan
    mode: PrecisionMode = next(mode for mode in get_args(PrecisionMode) if mode == used)
    choice = replace(plan.precision, used=mode, reason=reason, grad_scaler=mode == "fp16")
    return replace(plan, precision=choice)


def _of_this_device(plan: Plan, recorded: Any) -> bool:  # noqa: ANN401 - any JSON value
    """Whether what was recorded was measured on the device of `plan`, as far as it says."""
    name = plan.device.name
    return not isinstance(recorded, dict) or recorded.get("device", name) == name


def _with_cost(plan: Plan, seconds: Mapping[str, float]) -> Plan:
    """The plan with the measured cost of the precision that was asked for, in place of the known one."""
    used = plan.precision.used
    if not {"fp32", used} <= seconds.keys():
        return plan
    factor = seconds[used] / seconds["fp32"]
    figures = f"({step_words(seconds[used])} a step against {step_words(seconds['fp32'])})"
    words = f"{used} takes {factor:.2g} times fp32's time here {figures}"
    choice = replace(plan.precision, reason="asked for", warning=words if factor > 1 else None)
    return replace(plan, precision=choice)


def _taken_again(plan: Plan, recorded: Any) -> Plan:  # noqa: ANN401 - any JSON value
    """What the run was begun with, where it is still left to the card; else as the table has it."""
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
