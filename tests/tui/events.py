"""Events of a realistic run, and a source in memory that plays them and records its commands."""

import copy
import math
import random
from collections.abc import Iterator
from functools import cache

from mptui.config.keys import with_values
from mptui.events import (
    Advice,
    CheckpointSaved,
    CommandAnswered,
    DeviceSample,
    EpochFinished,
    EpochStarted,
    Event,
    PhaseChanged,
    PresetSwitched,
    Progress,
    RankRow,
    RanksSampled,
    RunFinished,
    RunStarted,
    Step,
    StepSkipped,
    Validated,
)
from mptui.runs.view.run_view import RunView

START = 1_790_000_000.0
GIB = 1 << 30
STEPS_PER_EPOCH, EPOCHS, PER_EVENT = 1267, 100, 12


def run_started(**changes) -> RunStarted:
    values = {
        "time": START,
        "run": "20261120-101500-fast-resnet50",
        "directory": "runs/20261120-101500-fast-resnet50",
        "profile": "stable",
        "task": "classification",
        "model": "resnet50",
        "parameters": 25_557_032,
        "dataset": "imagenet100",
        "train_samples": 126_689,
        "val_samples": 5_000,
        "classes": [f"class {n}" for n in range(100)],
        "device": "cuda:0",
        "device_name": "NVIDIA H200",
        "precision_requested": "fp16",
        "precision": "fp16",
        "precision_reason": "requested; native here",
        "tf32": True,
        "channels_last": True,
        "compile_mode": "max-autotune",
        "image_size": 224,
        "batch_size": 100,
        "accumulate": 1,
        "epochs": EPOCHS,
        "steps_per_epoch": STEPS_PER_EPOCH,
        "val_batches": 50,
        "total_steps": EPOCHS * STEPS_PER_EPOCH,
        "planned_lr": [[0, 0.0], [2000, 0.1], [EPOCHS * STEPS_PER_EPOCH, 0.0]],
    }
    return RunStarted(**{**values, **changes})


def device_sample(time: float, step: int, chance: random.Random) -> DeviceSample:
    return DeviceSample(
        time=time,
        step=step,
        name="NVIDIA H200",
        utilisation=0.97 - 0.04 * chance.random(),
        memory_used=int(52.1 * GIB),
        memory_total=int(140.4 * GIB),
        memory_own=int(50.8 * GIB),
        power_w=600 + 20 * chance.random(),
        power_limit_w=700.0,
        temperature_c=64.0,
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
    )


def rank_row(rank: int, **changes) -> RankRow:
    values = {
        "rank": rank,
        "host": f"node{rank // 8}",
        "utilisation": 0.97,
        "memory_used": int(52.1 * GIB),
        "memory_total": int(140.4 * GIB),
        "temperature_c": 64.0,
        "throttle": [],
        "data_s": 0.001,
        "forward_s": 0.031,
        "backward_s": 0.046,
        "wait_s": 0.004,
        "slowest": 0,
        "silent_s": 1.2,
    }
    return RankRow(**{**values, **changes})


def ranks_sampled(rows: list[RankRow], **changes) -> RanksSampled:
    return RanksSampled(**{"time": START + 9000, "step": 14_300, "rows": rows, "steps": 50, **changes})


def step_event(step: int, time: float, chance: random.Random, **changes) -> Step:
    loss = 1.1 + 3.5 * math.exp(-step / 2600) + chance.gauss(0, 0.05)
    values = {
        "time": time,
        "step": step,
        "epoch": step // STEPS_PER_EPOCH + 1,
        "epoch_step": step % STEPS_PER_EPOCH,
        "steps": PER_EVENT,
        "samples_seen": step * 100,
        "loss": loss,
        "loss_min": loss - 0.08,
        "loss_max": loss + 0.08,
        "lr": 0.1 * min(1.0, (step + 1) / 2000),
        "grad_norm": 1.8 + chance.gauss(0, 0.3),
        "loss_scale": 65536.0,
        "samples_per_second": 1187 + chance.gauss(0, 15),
        "step_time_s": 0.0842,
        "data_wait_fraction": 0.012 + 0.01 * chance.random(),
        "split": {
            "data": 0.001,
            "copy": 0.0004,
            "forward": 0.031,
            "backward": 0.046,
            "optimizer": 0.004,
            "logging": 0.0002,
            "saving": 0.0,
            "other": 0.0016,
        },
        "bound_by": "compute",
        "ceilings": {"steps": 1210.0, "data": 5300.0},
    }
    return Step(**{**values, **changes})


def beginning() -> list[Event]:
    """Yield events up to the first step: scanning and compiling."""
    return [
        run_started(),
        PhaseChanged(time=START + 1, phase="scanning", total=126_689),
        Progress(time=START + 2, phase="scanning", done=48_210, total=126_689),
        PhaseChanged(time=START + 20, phase="compiling", detail="max-autotune"),
        PhaseChanged(time=START + 95, phase="warming_up"),
    ]


def training(epochs: int = 11, extra_steps: int = 360) -> Iterator[Event]:
    """Yield `epochs` epochs and a bit, with usual events: a skip, a profile, advice, validation."""
    chance = random.Random(0)
    time = START + 100.0
    for epoch in range(1, epochs + 2):
        first = (epoch - 1) * STEPS_PER_EPOCH
        yield EpochStarted(time=time, step=first, epoch=epoch, epochs=EPOCHS, steps=STEPS_PER_EPOCH)
        last = first + (STEPS_PER_EPOCH if epoch <= epochs else extra_steps)
        for step in range(first + PER_EVENT, last + 1, PER_EVENT):
            time += 0.0842 * PER_EVENT
            yield from _happens(step, time)
            yield step_event(step, time, chance)
            yield device_sample(time, step, chance)
        if epoch <= epochs:
            time += 24
            yield from _epoch_end(epoch, last, time, chance)


def _happens(step: int, time: float) -> Iterator[Event]:
    near = range(step - PER_EVENT, step)
    if 600 in near:
        yield StepSkipped(time=time, step=600, count=2, total=2, streak=2, loss_scale=32768.0)
    if 4000 in near:
        for state, detail in (("asked", "fast"), ("taken", ""), ("done", "")):
            yield CommandAnswered(time=time, step=4000, command="preset", state=state, detail=detail)
        changes = {"speed.compile": ["default", "max-autotune"]}
        yield PresetSwitched(time=time, step=4000, profile="fast", previous="stable", changes=changes)
        yield PhaseChanged(time=time, step=4000, phase="compiling", detail="max-autotune")
        yield PhaseChanged(time=time, step=4000, phase="training")
    if 14_000 in near:
        yield Advice(
            time=time,
            step=14_000,
            code="data_wait",
            message="waiting for data 11 % of each step: more workers would help",
            setting="data.workers=12",
        )


def _epoch_end(epoch: int, step: int, time: float, chance: random.Random) -> Iterator[Event]:
    loss = 1.2 + 3.2 * math.exp(-step / 2400) + chance.gauss(0, 0.02)
    metrics = {"acc1": 0.8 * (1 - math.exp(-step / 4000)), "acc5": 0.95 * (1 - math.exp(-step / 1800))}
    yield Validated(time=time, step=step, epoch=epoch, loss=loss, metrics=metrics, seconds=24.0, best=True)
    yield EpochFinished(
        time=time,
        step=step,
        epoch=epoch,
        epochs=EPOCHS,
        train_loss=loss + 0.05,
        train_metrics={},
        val_loss=loss,
        val_metrics=metrics,
        lr=0.1,
        seconds=130.0,
        best=True,
    )
    yield CheckpointSaved(
        time=time, step=step, path="checkpoints/best", reason="best", seconds=0.8, size_bytes=195 << 20
    )


def demo() -> list[Event]:
    """Return a run in its twelfth epoch."""
    return list(_demo())


@cache
def _demo() -> tuple[Event, ...]:
    return (*beginning(), *training())


def finished(step: int = 14_297) -> RunFinished:
    return RunFinished(time=START + 3000, step=step, status="completed", exit_code=0, seconds=3000.0)


class MemorySource:
    """A run in memory: yields its events at the first poll, later ones as they are put; records commands."""

    def __init__(
        self, events=(), profiles=("fast", "stable", "memory-limited", "debug"), can_detach=False, hosted=True
    ):
        self.run = self.request = None
        self.view = RunView()
        self.waiting = list(events)
        self.profiles = list(profiles)
        self.given: list[str] = []
        self.can_detach, self.hosted = can_detach, hosted
        self.finished = False
        self.sent: list[tuple[str, str | None]] = []

    def poll(self) -> list[Event]:
        events, self.waiting = self.waiting, []
        return events

    def send(self, command: str, argument: str | None = None) -> None:
        self.sent.append((command, argument))


def footprint_of(config, started):
    """Count the memory of a run of classes in bf16 on a GPU, with the batch that it began with."""
    from mptui.engine.memory.ledger import footprint  # of torch, which most users of this module do without

    config = with_values(config, {"training.batch_size": started.batch_size})
    classes = len(started.classes)
    return footprint(config, "classification", device="cuda", precision="bf16", classes=classes)


def demo_source(*later: Event, **options) -> MemorySource:
    """Return a run in its twelfth epoch, as `MemorySource(demo())` once it is read; yields `later` then."""
    source = MemorySource(later, **options)
    source.view = copy.deepcopy(_demo_view())
    return source


@cache
def _demo_view() -> RunView:
    view = RunView()
    for event in _demo():
        view.handle(event)
    return view


def switched(step: int, *, undone: bool = False) -> PresetSwitched:
    """A switch from stable to fast, or its undo."""
    then, before = ("stable", "fast") if undone else ("fast", "stable")
    return PresetSwitched(
        time=START + step,
        step=step,
        profile=then,
        previous=before,
        changes={"training.clip_grad_norm": ["0.5", "1.0"] if undone else ["1.0", "0.5"]},
        undone=undone,
    )


def left(step: int) -> CheckpointSaved:
    """The checkpoint of what an undo leaves."""
    return CheckpointSaved(time=START + step, step=step, path="p", reason="left", seconds=0.1, size_bytes=1)
