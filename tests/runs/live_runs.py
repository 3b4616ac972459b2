"""Runs in which a setting changes, and what was seen of them."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from mptui.engine.checkpoint.saver import Saver
from mptui.engine.job import ProfileSwitch
from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.reporting.observers import observers
from mptui.engine.trainer import Trainer
from mptui.events import CommandAnswered, Event, PresetSwitched, Recovered, Step
from mptui.runs.planning.build import PreparedRun, prepare
from mptui.runs.planning.change import build_switch
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run

CHANGED_AFTER = 2
"""Steps before the change."""
BASE = {
    "model.name": "unet",
    "model.width": 4,
    "model.depth": 1,
    "data.name": "shapes",
    "data.image_size": 16,
    "data.samples": 32,
    "data.workers": 0,
    "precision.mode": "fp32",
    "training.batch_size": 8,
    "training.epochs": 2,
    "training.optimizer": "sgd",
    "speed.channels_last": False,
    "speed.fused": False,
    "logging.step_interval_s": 0,
    "logging.pictures": 0,
    "guards.numerics": "off",
    "hardware.device": "cpu",
}


@dataclass
class Ran:
    """What was seen of a run.

    Attributes:
        events: All events.
        weights: The weights at the end.
        error: The exception that ended it; None: none.
        rows: Samples of each forward pass in training.
        layer_calls: Calls of layers in each training step that was taken.
        matmul: torch's precision of products in each forward pass in training.
        processes: Running data workers at each step.
        compiled: Whether compiled code has run.
        files: Names of the files in the run's directory, if it has one.
        noted: What a fault has counted.
    """

    events: list[Event] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None
    rows: list[int] = field(default_factory=list)
    layer_calls: list[int] = field(default_factory=list)
    matmul: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    compiled: bool = False
    files: set[str] = field(default_factory=set)
    noted: list[int] = field(default_factory=list)

    def of(self, kind: type[Event]) -> list[Event]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def steps(self) -> list[Step]:
        """The steps, one event each."""
        return [event for event in self.events if isinstance(event, Step)]

    @property
    def losses(self) -> list[float]:
        """The losses of the steps."""
        return [step.loss for step in self.steps]

    @property
    def scales(self) -> list[float]:
        """The loss scales of the steps."""
        return [step.loss_scale or 1.0 for step in self.steps]

    def assert_changed(self) -> None:
        """Assert that the change was made, and only once."""
        switches = self.of(PresetSwitched)
        assert len(switches) == 1, [switches, self.of(CommandAnswered), self.of(Recovered)]


Fault = Callable[[Trainer, Ran], None]
"""Makes a run fail in some way, from the first step on that is no trial of the change."""


def plan_of(settings: dict[str, object]) -> Plan:
    """Return the plan of a small run; a setting that is None is left out."""
    given = {key: ("test", value) for key, value in (BASE | settings).items() if value is not None}
    return plan_run(Request(None, given, (), os.environ, trust_code=True))


def trained(settings: dict[str, object], change: str, fault: Fault | None, folder: Path) -> Ran:
    """Train in this thread, with a change of a setting after the second step."""
    plan, ran, mailbox = plan_of(settings), Ran(), Mailbox()
    waiting = [Command("set", change)]

    def emit(event: Event) -> None:
        ran.events.append(event)
        if isinstance(event, Step):
            ran.processes.append(len(running(trainer.context.job.train_loader.worker_pids)))
            if event.step == CHANGED_AFTER and waiting:
                mailbox.post(waiting.pop())

    forced = settings.get("speed.compile", "off") != "off" or change.startswith("speed.compile")
    made = prepare(plan, emit=emit, mailbox=mailbox, on_bad=lambda _: None, force_compile=forced)
    plans = [made.loaders.plan]
    with Saver(folder, lambda: plans[-1].config.checkpoint, emit) as saver:

        def rebuild(command: Command) -> ProfileSwitch:
            fresh, switch = build_switch(
                plans[-1], made, trainer.context.job, command, folder=folder, emit=emit
            )
            return replace(switch, accept=lambda: plans.append(fresh))

        trainer = Trainer(
            made.job, emit=emit, mailbox=mailbox, saver=saver, rebuild=rebuild, observers=observers()
        )
        watch(made, ran)
        if fault is not None:
            fault(trainer, ran)
        try:
            trainer.train()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ran.error = error
        finally:
            trainer.close()
    ran.compiled = trainer.context.parts.compiler.has_run("training")
    ran.weights = {name: each.clone() for name, each in trainer.context.model.state_dict().items()}
    return ran


def running(pids: list[int]) -> list[int]:
    """Return those of the processes that run."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            found.append(pid)
    return found


def watch(made: PreparedRun, ran: Ran) -> None:
    """Look at the forward passes of the network in training."""
    model = made.job.model

    def called(*_: object) -> None:
        if model.training and torch.is_grad_enabled() and ran.layer_calls:
            ran.layer_calls[-1] += 1

    def begins(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if model.training and torch.is_grad_enabled():
            ran.layer_calls.append(0)
            ran.rows.append(len(inputs[0]))
            ran.matmul.append(torch.get_float32_matmul_precision())

    model.register_forward_pre_hook(begins)
    for layer in model.modules():
        if not any(layer.children()):
            layer.register_forward_hook(called)


def recorded(settings: dict[str, object], change: str, folder: Path) -> Ran:
    """Train in a session, with a change after the second step, and two saves later on."""
    run = create_run(folder, "test", "unet", None)
    session, ran = Session(plan_of(settings), run), Ran()
    waiting = {CHANGED_AFTER: ("set", change), 4: ("checkpoint", None), 6: ("checkpoint", None)}
    emit = session._emit

    def noted(event: Event) -> None:
        emit(event)
        ran.events.append(event)
        if isinstance(event, Step) and event.step in waiting:
            session.mailbox.post(Command(*waiting.pop(event.step)))

    session._emit = noted  # type: ignore[method-assign]
    session.start()
    session.wait()
    ran.error = session.result.error
    ran.files = {str(path.relative_to(run)) for path in run.rglob("*")}
    return ran
