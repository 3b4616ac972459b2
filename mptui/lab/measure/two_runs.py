"""Finds the first operation of a step at which two runs of one seed part.

Both train a step of the same batch from the same weights, each with its own settings, eagerly. What acts
outside of a step, such as the learning rate, can't be seen there: it is named where nothing else differs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mptui.config.keys import acts, said, training_of
from mptui.config.resolve import values_of
from mptui.config.schema import RunConfig
from mptui.data.batch import Batch
from mptui.engine.checkpoint.files import Snapshot, read_checkpoint
from mptui.engine.job import Job
from mptui.engine.mailbox import Mailbox
from mptui.engine.precision import DTYPES
from mptui.engine.progress import prepare_torch
from mptui.errors import ConfigError
from mptui.lab.measure.amp_trial import Change, TrialSetup, first_batches, moving_by
from mptui.lab.measure.first_difference import (
    FirstDifference,
    RecordedOperation,
    Rounding,
    first_difference,
    first_unmatched,
    matched,
    place_words,
)
from mptui.lab.use.trained import MODEL, Flags, load_weights, planned_again
from mptui.registry.own_code import is_own
from mptui.runs.listing.forks import find_checkpoint
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Plan
from mptui.runs.store.directory import read_summary

_FP32, _TF32, _BF16 = 2.0**-18, 2.0**-10, 2.0**-7
"""Relative spacings; that of fp32 is 32 times as large, since the order of a long sum changes more bits."""
_FP32_AFTER = 2.0**-14
"""That of fp32 after a difference: values near zero change sides of a ReLU, and equal ones, of a maximum."""
_OF_THE_DATA = (
    *("training.seed", "data.name", "data.path", "data.samples", "data.val_fraction", "data.split_seed"),
    *("data.image_size", "data.bands", "data.class_folders"),
)
_AS_FIRST = ("training.batch_size", "data.sampler")
"""Settings that choose the samples of a batch, which are those of the first run."""
_OF_NO_CURVE = ("logging.", "checkpoint.", "sampling.", "code.")


@dataclass(frozen=True, slots=True)
class PartingPlace:
    """Where two runs part in a step.

    Attributes:
        reference: Name of the run that computes in the finer format; differences are relative to it.
        other: Name of the other run.
        step: Optimizer step of the checkpoint whose weights both begin with; 0: those of their seed.
        samples: Names of the samples of the batch.
        compared: Number of operations that both have.
        passed_over: Number of operations that only one of them has.
        unmatched: The first of these, if it is before those that differ, in words; "" if there is none.
        bits: The first operation that differs in any bit; None if none does.
        rounding: The first one that differs by more than rounding explains; None if none does.
    """

    reference: str
    other: str
    step: int
    samples: list[str]
    compared: int
    passed_over: int
    unmatched: str
    bits: FirstDifference | None
    rounding: FirstDifference | None

    def sentences(self, settings: Mapping[str, list[Any]], environment: Mapping[str, list[Any]]) -> list[str]:
        """Describe it.

        Args:
            settings: What differs in the settings of both.
            environment: What differs in their versions.
        """
        counted = f"{self.compared:,} operations"
        if self.passed_over:
            counted += f", {self.passed_over:,} that only one run has are passed over"
        start = f"from the weights of step {self.step:,}" if self.step else "from the weights of their seed"
        told = [f"a step {start}, not compiled: {counted}; {self.other} compared with {self.reference}"]
        if self.unmatched:
            told.append(f"the first that only one run has: {self.unmatched}")
        others = {key: pair for key, pair in settings.items() if not key.startswith(_OF_NO_CURVE)}
        if self.bits is None:
            why = ", ".join(filter(None, (_pairs(others), _pairs(environment))))
            reason = f"for another reason: {why or 'neither settings nor versions differ'}"
            if self.passed_over:
                return [*told, f"no operation of both differs in any bit: the curves part there, or {reason}"]
            return [*told, f"no operation differs in any bit: the curves part {reason}"]
        told.append(f"the first that differs in its bits: {self.bits.words(self.reference)}")
        if self.rounding is None:
            told.append("no operation differs by more than rounding")
        elif self.rounding.number == self.bits.number:
            told.append("rounding doesn't explain that")
        else:
            told.append(
                f"the first that differs by more than rounding: {self.rounding.words(self.reference)}"
            )
        if not others:
            told.append(
                "the settings are the same: unless training.deterministic is on, bits differ each time"
            )
        return told


@dataclass(frozen=True, slots=True)
class _Side:
    """A run whose step is recorded."""

    name: str
    setup: TrialSetup

    @property
    def job(self) -> Job:
        return self.setup.job

    @property
    def config(self) -> RunConfig:
        return self.job.config

    @property
    def spacing(self) -> float:
        """The relative spacing of the format of its products."""
        dtype = DTYPES.get(self.job.precision)
        return max(self.fp32_spacing, _FP32_AFTER) if dtype is None else torch.finfo(dtype).eps

    @property
    def fp32_spacing(self) -> float:
        """The same where it computes in fp32."""
        matmul, on_gpu = self.config.precision.matmul, self.job.device.type == "cuda"
        return _BF16 if matmul == "medium" else _TF32 if matmul == "high" and on_gpu else _FP32

    def scale(self, mailbox: Mailbox) -> float | None:
        """Return the loss scale that its scaler would reach; None without one."""
        if self.job.precision != "fp16":
            return None
        start, layers = self.config.precision.grad_scaler.init_scale, self.config.precision.fp32_layers
        prepare_torch(self.config, self.job.device)
        return self.setup.run_scaled(start, layers, mailbox.check_stop).scale

    def operations(self, scale: float | None, change: Change | None = None) -> list[RecordedOperation]:
        """Record a step, with the batch before it."""
        prepare_torch(self.config, self.job.device)
        layers = self.config.precision.fp32_layers
        recorded = self.setup.operations(self.job.precision, scale, 0, fp32_layers=layers, change=change)
        return [*_of_batch(self.setup.batches[0]), *recorded]


def parting_place(
    runs: Sequence[Path], mailbox: Mailbox, *, at: str | None = None, trust_code: bool = False
) -> PartingPlace:
    """Compare a step of two runs.

    Args:
        runs: The directories of both.
        mailbox: Where a stop is requested.
        at: The checkpoint of the first run whose weights both begin with: last, best, or its step; None: the
            weights that both begin to train with.
        trust_code: Whether the person's own code may run.

    Raises:
        ConfigError: They are not of one network, data and seed, their code is not trusted, or the device is
            missing.
        RunDirectoryError: A run or the checkpoint is missing or damaged.
        DataError: The data is missing or broken.
        Stopped: A stop was requested.
    """
    off: Flags = {"data.cache": ("one step", "off"), "data.workers": ("one step", 0)}
    first = planned_again(runs[0], off, read_summary(runs[0]).get("task"), trust_code=trust_code)
    values = values_of(first.config)
    training = training_of(first.config, first.task)
    same: Flags = {key: ("the first run", values[key]) for key in _AS_FIRST if acts(key, training)}
    second = planned_again(runs[1], {**off, **same}, first.task, trust_code=trust_code)
    _check(runs, values, values_of(second.config))
    snapshot = None
    if at is not None:
        snapshot = read_checkpoint(find_checkpoint(runs[0], at).path, (MODEL,))
    one, samples = _side(runs[0], first, mailbox, snapshot)
    two, _ = _side(runs[1], second, mailbox, None, like=one)
    scale = min((s for s in (one.scale(mailbox), two.scale(mailbox)) if s is not None), default=None)
    reference, other = (one, two) if one.spacing <= two.spacing else (two, one)
    return _place(reference, other, scale, samples, step=0 if snapshot is None else snapshot.step)


def _place(
    reference: _Side, other: _Side, scale: float | None, samples: list[str], *, step: int
) -> PartingPlace:
    ours, theirs = other.operations(scale), reference.operations(scale)
    find = partial(
        first_difference,
        0,
        ours,
        theirs,
        _rounding(reference, scale, other.spacing),
        alone=_rounding(reference, scale, max(reference.fp32_spacing, other.fp32_spacing)),
        same_format=reference.job.precision == other.job.precision,
    )
    pairs, bits = matched(ours, theirs), find(by_bits=True)
    unmatched, words = first_unmatched(ours, theirs), ""
    differs_at = math.inf if bits is None else bits.number
    if unmatched is not None and unmatched[0] < differs_at:
        _, operation, is_ours = unmatched
        whose = other.name if is_ours else reference.name
        words = f"{place_words(operation.name, operation.layer, operation.where)}, of {whose}"
    return PartingPlace(
        reference=reference.name,
        other=other.name,
        step=step,
        samples=samples,
        compared=len(pairs),
        passed_over=len(ours) + len(theirs) - 2 * len(pairs),
        unmatched=words,
        bits=bits,
        rounding=find(),
    )


def _side(
    run: Path, plan: Plan, mailbox: Mailbox, snapshot: Snapshot | None, *, like: _Side | None = None
) -> tuple[_Side, list[str]]:
    """Prepare a step of a run, with the weights of a checkpoint or of the first run, if given."""
    job = prepare(plan, mailbox=mailbox, goes_on=snapshot is not None).job
    if snapshot is not None:
        load_weights(job.model, snapshot, run)
    if like is not None:
        _copy_weights(like.job.model, job.model)
    batches = first_batches(job, 1)
    samples = job.train_loader.names(batches[0].sample_indices)
    if like is not None and not np.array_equal(
        batches[0].sample_indices, like.setup.batches[0].sample_indices
    ):
        raise ConfigError(
            f"{like.name} and {run.name} begin with other samples",
            hint="restore the data as it was, and the same list of unreadable files",
        )
    return _Side(run.name, TrialSetup(job, batches)), samples


def _copy_weights(source: torch.nn.Module, target: torch.nn.Module) -> None:
    try:
        target.load_state_dict(source.state_dict())
    except RuntimeError as error:
        raise ConfigError(
            "\n".join(("the networks of these runs have other weights", *str(error).splitlines()[1:4])),
            hint="compare two runs of one network",
        ) from None


def _check(runs: Sequence[Path], one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    """Check that two runs are of one network, data and seed.

    Raises:
        ConfigError: They are not: one line per setting.
    """
    own = is_own(one["model.name"]) and is_own(two["model.name"])
    free = {"model.vae_precision", "model.name" if own else ""}  # latents are compared, and own weights later
    keys = [key for key in one if key.startswith("model.") and key not in free]
    faults = [
        f"{key} = {one[key]} in {runs[0].name}, {two[key]} in {runs[1].name}"
        for key in (*keys, *_OF_THE_DATA)
        if one[key] != two[key]
    ]
    if faults:
        raise ConfigError(
            "\n".join(faults),
            hint="a step is compared of two runs of one network, data and seed; leave out --where",
        )


def _rounding(reference: _Side, scale: float | None, spacing: float) -> Rounding:
    """Return what rounding to a format explains: in the root mean square it moves values by a quarter."""
    return Rounding(spacing, reference.operations(scale, moving_by(spacing / 4)))


def _of_batch(batch: Batch) -> list[RecordedOperation]:
    """Return the tensors of a batch as operations before the step."""
    parts = {
        "images": batch.images_BCHW,
        "targets": batch.targets,
        "mixed targets": batch.mixed_targets,
        "timesteps": batch.timesteps,
        "labels": batch.labels,
    }
    return [
        RecordedOperation.of("", "the batch", name, [part])
        for name, part in parts.items()
        if part is not None
    ]


def _pairs(differing: Mapping[str, list[Any]]) -> str:
    return ", ".join(f"{key} {said(one)} and {said(two)}" for key, (one, two) in differing.items())
