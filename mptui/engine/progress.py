"""Position, best, outcome; torch's switches and seeds by position."""

import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from mptui.config.schema import RunConfig, TrainingConfig
from mptui.hardware.devices import CONTEXT_BYTES
from mptui.registry.tasks import VAL_LOSS

# Progress of a run: position in the data, best validation, figures for the summary
# ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Cursor:
    """Position between two optimizer steps. `epoch` counts from 0; `sample` is in the epoch's own order.

    `measured_at` is the step (of all tried) of a validation in mid-epoch, where `max_steps` ended the run;
    -1: none. A resume with more steps continues from there.
    """

    epoch: int = 0
    sample: int = 0
    epoch_step: int = 0
    measured_at: int = -1

    def next_epoch(self) -> None:
        """Move to the start of the next epoch."""
        self.epoch = self.epoch + 1
        self.sample = 0
        self.epoch_step = 0
        self.measured_at = -1

    def recount(self, training: TrainingConfig) -> None:
        """Recompute the step in this epoch for the window size of these settings."""
        self.epoch_step = self.sample // (training.batch_size * training.accumulate)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position from `state_dict`."""
        self.epoch = state_dict["epoch"]
        self.sample = state_dict["sample"]
        self.epoch_step = state_dict["epoch_step"]
        self.measured_at = state_dict.get("measured_at", -1)


@dataclass(slots=True)
class Best:
    """The best validation metric so far; larger is better, but for `val_loss`. Only finite values count."""

    metric: str
    value: float = -math.inf
    epoch: int = 0
    epochs_since: int = 0

    def offer(self, value: float, epoch: int, *, whole: bool = True) -> bool:
        """Record `value` of `epoch` (from 1) if it is better; returns whether it is.

        `whole` is False in mid-epoch, which does not count towards early stopping.
        """
        better = value < self.value if self.metric == VAL_LOSS else value > self.value
        is_best = better or not math.isfinite(self.value)
        if is_best and math.isfinite(value):
            self.value = value
            self.epoch = epoch
            self.epochs_since = 0
            return True
        self.epochs_since += whole
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the best validation."""
        return asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the best validation from `state_dict`."""
        self.metric = state_dict["metric"]
        self.value = float(state_dict["value"])
        self.epoch = state_dict["epoch"]
        self.epochs_since = state_dict["epochs_since"]


@dataclass(slots=True)
class Outcome:
    """Figures for the summary that only the loop has."""

    epochs: int = 0
    final: dict[str, float] = field(default_factory=dict)
    first_step_s: float | None = None


# Sets torch's global switches, before the first model is built; no other module does
# -----------------------------------------------------------------------------------

_64_BITS = 2**64 - 1


def prepare_torch(config: RunConfig, device: torch.device) -> None:
    """Set determinism, the seed and the switches of a run; call once, before the model is built."""
    # also for a run that is not deterministic: torch reads it once, and a later run of this process may be
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(config.training.deterministic)
    torch.backends.cudnn.benchmark = not config.training.deterministic
    torch.manual_seed(config.training.seed)
    _seed_others(config.training.seed)  # a person's network may begin with weights that these draw
    if device.type == "cuda":
        torch.cuda.set_device(device)
    set_switches(config)


def set_switches(config: RunConfig) -> None:
    """Set the switches that may change during a run: TF32 and autograd's anomaly mode.

    TF32 is set by the older setters, which can't be mixed with the `fp32_precision` ones of torch 2.9.
    """
    torch.set_float32_matmul_precision(config.precision.matmul)
    torch.backends.cudnn.allow_tf32 = config.precision.tf32
    torch.autograd.set_detect_anomaly(config.guards.detect_anomaly)


def limit_memory(budget_gib: float | None, device: torch.device) -> None:
    """Let torch allocate no more than a budget on a CUDA device, whose libraries count, too; None: all of it.

    What doesn't fit is then out of memory, as on a smaller device.
    """
    if device.type != "cuda":
        return
    total = torch.cuda.get_device_properties(device).total_memory
    room = total if budget_gib is None else budget_gib * (1 << 30) - CONTEXT_BYTES["cuda"]
    # by index: torch refuses a device without one here, and takes None as the current device
    torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, room / total)), device.index)


class StepSeeds:
    """Seeds generators from the position in the run alone: the same numbers after a resume or a retry.

    Each process of a run draws other numbers: equal ones would give samples of different parts of a batch the
    same dropout masks. Those of rank 0 are those of a process that is alone.

    Args:
        seed: Of the run.
        device: Of the run.
        rank: Of this process.
        others: Seed those of `random` and NumPy, too, which a person's network or loss may use.
    """

    def __init__(self, seed: int, device: torch.device, rank: int = 0, *, others: bool = False) -> None:
        self._seed = seed
        self._of_rank = rank * 0xD1B54A32D192ED03
        self._seeders: list[Callable[[int], object]] = [torch.default_generator.manual_seed]
        if others:
            self._seeders.append(_seed_others)
        if device.type == "mps":
            self._seeders.append(torch.mps.manual_seed)
        elif device.type != "cpu":
            module = torch.get_device_module(device)
            self._seeders.append(module.default_generators[device.index or 0].manual_seed)

    def set(self, epoch: int, sample: int) -> None:
        """Seed random operations, such as dropout, of the optimizer step that begins at this position.

        The seed does not depend on the step count: a batch that is left out must not affect later ones.
        """
        place = (epoch << 40) + sample
        # SplitMix64's finalizer (Steele, Lea and Flood 2014): torch's CPU generator uses only the lower 32
        # bits, and each of them must depend on the epoch
        mixed = (self._seed * 0x9E3779B97F4A7C15 + self._of_rank + place) & _64_BITS
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _64_BITS
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _64_BITS
        position = (mixed ^ mixed >> 31) >> 1
        for seeder in self._seeders:
            seeder(position)


def _seed_others(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # it takes no more bits
