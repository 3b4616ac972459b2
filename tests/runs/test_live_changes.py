"""A setting that is changed during a run acts from then on: one test for each that may change.

Each run is compared with one in which a setting that acts on nothing is changed at the same step, so that the
change of settings as such makes no difference.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch

from mptui.config.change import fixed_because
from mptui.config.keys import SETTINGS
from mptui.data.open import MASK_CLASSES
from mptui.engine.memory.ledger import footprint
from mptui.errors import DataError, DivergedError, MemoryExhaustedError
from mptui.events import CheckpointSaved, EpochFinished, Numerics, Recovered, Step
from mptui.hardware.devices import USABLE
from mptui.runs.session.watchdog import NAME as STACKS
from tests.runs import live_faults as faults
from tests.runs.live_runs import CHANGED_AFTER, Fault, Ran, plan_of, recorded, trained

INERT = "guards.hang_minutes=60"

RUNS: dict[str, dict[str, object]] = {
    "sgd": {},
    "longer": {"training.epochs": 3},
    "snapping": {"training.epochs": 3, "guards.snapshot_every": 1},
    "scaled": {"training.lr_batch_size": 64},
    "adamw": {"training.optimizer": "adamw", "training.lr": 1e-3},
    "uncached": {"data.cache": "off"},
    "kept": {"checkpoint.keep": 1},
    "group": {"model.norm": "group"},
    "still": {"training.lr": 1e-30, "training.epochs": 4, "model.norm": "group"},
    "bf16": {"precision.mode": "bf16"},
    "fp16": {"precision.mode": "fp16", "precision.grad_scaler.init_scale": 16.0},
    "growing": {
        "precision.mode": "fp16",
        "precision.grad_scaler.init_scale": 16.0,
        "precision.grad_scaler.growth_interval": 1,
    },
    "overflowing": {
        "precision.mode": "fp16",
        "precision.grad_scaler.init_scale": 2.0**60,
        "guards.on_nan": "ignore",
    },
    "classes": {
        "model.name": "small_cnn",
        "model.width": None,
        "model.depth": None,
        "data.samples": 16,
        "training.batch_size": 4,
        "training.epochs": 1,
    },
    "files": {"data.bad_sample_budget": 0.0, "training.epochs": 3},
    "reads": {"data.workers": 1, "data.prefetch": 1, "training.epochs": 1},
    "stuck": {},
}
MADE: dict[str, Callable[[Path], dict[str, object]]] = {
    "files": faults.image_files,
    "reads": faults.noted_reads,
    "stuck": faults.stuck_network,
}
"""Runs of data or code of their own -> what writes it and returns its settings."""


def weights_differ(changed: Ran, unchanged: Ran) -> bool:
    assert changed.losses[:CHANGED_AFTER] == unchanged.losses[:CHANGED_AFTER]
    return any(not torch.equal(each, unchanged.weights[name]) for name, each in changed.weights.items())


@dataclass(frozen=True)
class Change:
    """A change of a setting.

    Attributes:
        value: The new value.
        run: The run, a key of `RUNS`.
        acts: Whether it acts, by the run with it and by the one without.
        fault: What goes wrong in both runs.
        by_session: Whether a session makes the runs: it reads the setting itself.
        slow: Whether the runs take seconds.
    """

    value: str | Callable[[], str]
    run: str = "sgd"
    acts: Callable[[Ran, Ran], bool] = weights_differ
    fault: Fault | None = None
    by_session: bool = False
    slow: bool = False

    @property
    def runs(self) -> "Runs":
        """What the run with it and the one without have in common."""
        return Runs(self.run, self.fault, self.by_session, is_short=self.acts is weights_differ)


class Runs(NamedTuple):
    """Runs that a change is tried in; weights differ after few steps, or never."""

    name: str
    fault: Fault | None
    by_session: bool
    is_short: bool


def factors(ran: Ran) -> list[float]:
    """Return the factors of the loss scale from each of the first steps to the next; the first is before the
    change.
    """
    return [after / before for before, after in zip(ran.scales[:5], ran.scales[1:5], strict=False)]


def recoveries(ran: Ran) -> list[int]:
    """Return the steps that recoveries from divergence have gone back to."""
    return [each.step for each in ran.events if isinstance(each, Recovered) and each.problem == "divergence"]


def saves(ran: Ran, reason: str) -> int:
    return sum(isinstance(each, CheckpointSaved) and each.reason == reason for each in ran.events)


def checkpoints(ran: Ran) -> int:
    return sum(name.count("/") == 1 and name.startswith("checkpoints/") for name in ran.files)


def fails(error: type[Exception], words: str = "") -> Callable[[Ran, Ran], bool]:
    """Return whether the run with the change alone has failed so."""
    return lambda changed, unchanged: (
        isinstance(changed.error, error) and words in str(changed.error) and unchanged.error is None
    )


def room_for_three() -> str:
    """Return the memory in GiB that three samples of the run `group` take."""
    config = plan_of(RUNS["group"] | {"memory.micro_batch": 3}).config
    masks = len(MASK_CLASSES)
    total = footprint(config, "segmentation", device="cpu", precision="fp32", classes=masks).total
    return str(total / USABLE / (1 << 30) + 1e-7)


SCALER = "precision.grad_scaler"
CHANGES = {
    "training.batch_size": Change("4", slow=True),
    "training.accumulate": Change("2", slow=True),
    "training.lr": Change("0.02"),
    "training.lr_scaling": Change("sqrt", "scaled", slow=True),
    "training.lr_batch_size": Change("32", "scaled", slow=True),
    "training.layer_decay": Change("0.5", slow=True),
    "training.head_lr_scale": Change("3"),
    "training.momentum": Change("0.5", slow=True),
    "training.nesterov": Change("true", slow=True),
    "training.weight_decay": Change("0.1"),
    "training.betas": Change("[0.5, 0.9]", "adamw", slow=True),
    "training.eps": Change("0.1", "adamw", slow=True),
    "training.clip_grad_norm": Change("0.001", slow=True),
    "training.freeze": Change("backbone"),
    "training.loss": Change("dice"),
    "training.class_weights": Change("[1.0, 4.0, 1.0, 1.0]", slow=True),
    "training.label_smoothing": Change("0.3", "classes", slow=True),
    "training.time": Change(  # it is over, at the end of the next step
        "0.001s",
        acts=lambda changed, unchanged: len(changed.of(Step)) < len(unchanged.of(Step)),
    ),
    "training.early_stopping_patience": Change(
        "1", "still", lambda *runs: [len(ran.of(EpochFinished)) for ran in runs] == [2, 4], slow=True
    ),
    "precision.mode": Change("bf16"),
    "precision.fp32_layers": Change('["*"]', "bf16", slow=True),
    "precision.matmul": Change(
        "medium",
        acts=lambda *runs: [[*dict.fromkeys(ran.matmul)] for ran in runs] == [["high", "medium"], ["high"]],
        slow=True,
    ),
    f"{SCALER}.init_scale": Change("64.0", "fp16", lambda changed, _: factors(changed) == [1, 4, 1, 1]),
    f"{SCALER}.growth_factor": Change(
        "4.0", "growing", lambda changed, _: factors(changed) == [2, 4, 4, 4], slow=True
    ),
    f"{SCALER}.growth_interval": Change(
        "9", "growing", lambda changed, _: factors(changed) == [2, 1, 1, 1], slow=True
    ),
    f"{SCALER}.backoff_factor": Change(
        "0.25", "overflowing", lambda changed, _: factors(changed) == [0.5, 0.25, 0.25, 0.25], slow=True
    ),
    f"{SCALER}.min_scale": Change(
        str(2.0**56), "overflowing", lambda *runs: [ran.scales[-1] for ran in runs] == [2.0**56, 2.0**52]
    ),
    "speed.compile": Change(
        "default", acts=lambda *runs: [ran.compiled for ran in runs] == [True, False], slow=True
    ),
    "memory.micro_batch": Change("3"),
    "memory.budget_gib": Change(
        room_for_three,
        "group",
        lambda *runs: [max(ran.rows[CHANGED_AFTER:]) for ran in runs] == [3, 8],
        slow=True,
    ),
    "memory.activation_checkpointing": Change(
        "true", acts=lambda changed, unchanged: changed.layer_calls[-1] > unchanged.layer_calls[-1]
    ),
    "data.augment": Change("none"),
    "data.sampler": Change("balanced", "classes", slow=True),
    "data.mixup_alpha": Change("0.5", "classes", slow=True),
    "data.cutmix_alpha": Change("0.5", "classes", slow=True),
    "data.workers": Change(
        "2", "uncached", lambda *runs: [max(ran.processes) for ran in runs] == [2, 0], slow=True
    ),
    "data.prefetch": Change(
        "8",
        "reads",
        lambda *runs: [ran.noted[1] - ran.noted[0] >= faults.AHEAD for ran in runs] == [True, False],
        faults.read_ahead,
        slow=True,
    ),
    "data.bad_sample_budget": Change(
        "0.5",
        "files",
        lambda changed, unchanged: changed.error is None and isinstance(unchanged.error, DataError),
        faults.damaged_files,
        slow=True,
    ),
    "checkpoint.every_steps": Change(
        "2",
        acts=lambda *runs: [saves(ran, "steps") > 0 for ran in runs] == [True, False],
        by_session=True,
        slow=True,
    ),
    "checkpoint.every_minutes": Change(
        "1e-9",
        acts=lambda *runs: [saves(ran, "time") > 0 for ran in runs] == [True, False],
        by_session=True,
        slow=True,
    ),
    "checkpoint.keep": Change(
        "all",
        "kept",
        lambda changed, unchanged: checkpoints(changed) > checkpoints(unchanged),
        by_session=True,
        slow=True,
    ),
    "guards.on_nan": Change("stop", "longer", fails(DivergedError), faults.nan_outputs(4), slow=True),
    "guards.on_oom": Change("stop", acts=fails(MemoryExhaustedError), fault=faults.little_memory, slow=True),
    "guards.snapshot_every": Change(
        "1",
        "longer",
        lambda changed, unchanged: recoveries(changed) > recoveries(unchanged) == [0],
        faults.nan_outputs(3),
        slow=True,
    ),
    "guards.max_recoveries": Change(
        "1",
        "snapping",
        lambda changed, unchanged: len(recoveries(changed)) == 1 < len(recoveries(unchanged)),
        faults.nan_outputs(1000),
        slow=True,
    ),
    "guards.max_skipped_streak": Change(
        "2",
        acts=lambda *runs: [len(recoveries(ran)) for ran in runs] == [1, 0],
        fault=faults.nan_outputs(2),
        slow=True,
    ),
    "guards.detect_anomaly": Change(
        "true", acts=fails(RuntimeError, "returned nan values"), fault=faults.nan_gradient(), slow=True
    ),
    "guards.check_batches": Change("true", acts=fails(DivergedError), fault=faults.nan_outputs(1), slow=True),
    "guards.numerics": Change(
        "full", acts=lambda *runs: [ran.of(Numerics) != [] for ran in runs] == [True, False], slow=True
    ),
    "guards.hang_minutes": Change(
        "1e-4", "stuck", lambda changed, _: STACKS in changed.files, by_session=True, slow=True
    ),
    "logging.pictures": Change(
        "3",
        acts=lambda *runs: ["predictions" in ran.files for ran in runs] == [True, False],
        by_session=True,
        slow=True,
    ),
    "logging.step_interval_s": Change(
        "3600.0",
        acts=lambda changed, unchanged: len(changed.of(Step)) < len(unchanged.of(Step)),
        by_session=True,
        slow=True,
    ),
}


def run_with(runs: Runs, setting: str) -> Ran:
    """Return such a run with a setting changed."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        settings = MADE.get(runs.name, lambda _: {})(folder) | RUNS[runs.name]
        if runs.is_short:
            settings |= {"training.max_steps": CHANGED_AFTER + 2}
        if runs.by_session:
            ran = recorded(settings, setting, folder)
        else:
            ran = trained(settings, setting, runs.fault, folder / "checkpoints")
    ran.assert_changed()
    return ran


@cache
def unchanged(runs: Runs) -> Ran:
    return run_with(runs, INERT)


@pytest.mark.parametrize(
    "key",
    [pytest.param(key, marks=pytest.mark.slow if change.slow else ()) for key, change in CHANGES.items()],
)
def test_a_change_acts_on_the_steps_after_it(key):
    change = CHANGES[key]
    value = change.value if isinstance(change.value, str) else change.value()
    with_it = run_with(change.runs, f"{key}={value}")
    without = with_it if change.run == "stuck" else unchanged(change.runs)
    assert change.acts(with_it, without)


def test_each_setting_that_may_change_has_its_effect_tested():
    assert set(CHANGES) == {key for key in SETTINGS if not fixed_because(key)}


def test_a_change_that_acts_on_no_weight_changes_none():
    runs = Change("").runs
    assert not weights_differ(run_with(runs, "checkpoint.keep=4"), unchanged(runs))
