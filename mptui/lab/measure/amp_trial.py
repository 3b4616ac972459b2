"""Runs a few batches through a network in one precision: losses, outputs, and gradients by layer.

Weights and buffers (BatchNorm's statistics) are restored afterwards. The network runs eagerly, with the same
random numbers in every trial.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch.utils._pytree import tree_leaves

from mptui.data.core.batch import Batch
from mptui.engine.guards.nan_localizer import LOSS, FirstNonFinite
from mptui.engine.guards.oom_errors import is_memory_full
from mptui.engine.job import Job
from mptui.engine.numerics.probe import Probe
from mptui.engine.numerics.ranking import PartStatistics
from mptui.engine.optim.freezing import FrozenLayers, frozen_at_last
from mptui.engine.precision.amp import DTYPES
from mptui.engine.precision.fp32_layers import apply_fp32_layers
from mptui.engine.torch_setup import StepSeeds
from mptui.errors import DataError
from mptui.lab.amp.first_difference import RecordedOperation, RecordedOperations
from mptui.lab.amp.lines_in_fp32 import LinesInFp32
from mptui.lab.amp.local_errors import LocalErrors
from mptui.lab.amp.operations import Found, OperationCheck
from mptui.registry import own_code

Change = Callable[[torch.Tensor], torch.Tensor]
"""A change of images and weights."""

_SHAKEN = 2.0**-21


@dataclass(slots=True)
class PrecisionTrial:
    """The result of a trial; gradients are unscaled."""

    precision: str
    loss: float
    outputs: torch.Tensor
    """Outputs of all batches: float32, flat, on the device."""
    gradients: dict[str, torch.Tensor]
    """Layer -> gradients of its weights: float32, flat, summed over the batches."""
    scale: float | None
    seen: list[PartStatistics]
    first_bad: str
    """The layer of the first operation whose result was not finite, or that raised an error; "" if none."""
    operation: str = ""
    """That operation, and what it made of which values."""
    refused: str = ""
    """Line and error of the person's code that doesn't compute in this precision; the rest is empty then."""
    operations: Found = field(default_factory=dict)
    """What of the person's network doesn't follow autocast."""

    @property
    def finite(self) -> bool:
        """Whether the loss and all gradients are finite."""
        return math.isfinite(self.loss) and all(bool(g.isfinite().all()) for g in self.gradients.values())


class TrialSetup:
    """A network and the batches of its trials.

    Args:
        job: Network, task and device.
        batches: Batches on the device.
    """

    def __init__(self, job: Job, batches: Sequence[Batch]) -> None:
        self.job, self.batches = job, batches
        self.model = job.model
        self._saved = [(t, t.detach().clone()) for t in (*self.model.parameters(), *self.model.buffers())]
        self._seeds = StepSeeds(job.config.training.seed, job.device)

    def run(
        self,
        precision: str,
        *,
        scale: float | None = None,
        fp32_layers: Sequence[str] = (),
        fp32_lines: Sequence[str] = (),
        look: bool = False,
    ) -> PrecisionTrial:
        """Run one precision.

        Args:
            precision: fp32, bf16 or fp16.
            scale: Loss scale.
            fp32_layers: Layers that compute in fp32.
            fp32_lines: Lines of the person's code that do.
            look: Also record the numerics of each layer.
        """
        with self._set_up(fp32_layers), self._lines_in_fp32(fp32_lines):
            if look:
                counter = Probe(self.model, self.job.device)
                with counter.hooks():
                    trial = self._run(precision, scale)
                counter.add_weights()
                trial.seen = counter.seen(counter.rows.cpu())
            else:
                trial = self._run(precision, scale)
            trial.gradients = self._gradients(scale or 1.0)
        if trial.first_bad and not trial.refused:
            self._name_origin(trial, fp32_layers)
        return trial

    def run_scaled(
        self,
        scale: float,
        fp32_layers: Sequence[str],
        check_stop: Callable[[], None],
        fp32_lines: Sequence[str] = (),
    ) -> PrecisionTrial:
        """Run fp16 with the loss scale that a scaler would reach, `scale` or less."""
        scaler = self.job.config.precision.grad_scaler
        while True:
            check_stop()
            trial = self.run("fp16", scale=scale, fp32_layers=fp32_layers, fp32_lines=fp32_lines)
            lower = scale * scaler.backoff_factor
            if trial.finite or trial.first_bad or trial.refused or lower < scaler.min_scale:
                return trial
            scale = lower

    def local_errors(self, precision: str, fp32_layers: Sequence[str]) -> LocalErrors:
        """Return how far each module is from fp32 with its inputs in `precision`."""
        local = LocalErrors(self.job.device)
        with self._set_up(fp32_layers), local.watching(self.model), torch.no_grad():
            for number, batch in enumerate(self.batches):
                self._seeds.set(0, number)
                with self._autocast(precision):
                    self.model.forward(*batch.inputs)
        return local

    def operations(
        self,
        precision: str,
        scale: float | None,
        number: int,
        *,
        fp32_layers: Sequence[str] = (),
        fp32_lines: Sequence[str] = (),
        change: Change | None = None,
    ) -> list[RecordedOperation]:
        """Record the operations of a step of one batch.

        Args:
            precision: fp32, bf16 or fp16.
            scale: Loss scale.
            number: Of the batch, from 0.
            fp32_layers: Layers that compute in fp32.
            fp32_lines: Lines of the person's code that do.
            change: Changes images and weights first.
        """
        recorded, batch = RecordedOperations(), self.batches[number]
        changed = nullcontext() if change is None else self._with_changed(change)
        with self._set_up(fp32_layers), changed, recorded.layers_of(self.model):
            self._seeds.set(0, number)
            with self._autocast(precision), self._lines_in_fp32(fp32_lines), recorded:
                outputs = self.model.forward(*batch.inputs)
                recorded.layer = LOSS
                loss = self.job.task.loss(outputs, batch, batch.valid, batch.size)
            recorded.where, recorded.layer = "backward", LOSS
            with recorded:
                torch.autograd.backward(loss * (scale or 1.0))
        return recorded.operations

    def _lines_in_fp32(self, lines: Sequence[str]) -> AbstractContextManager[object]:
        return LinesInFp32(lines, self.job.device) if lines else nullcontext()

    @contextmanager
    def _set_up(self, fp32_layers: Sequence[str]) -> Iterator[None]:
        """Let layers compute in fp32, and put everything back afterwards."""
        regions = apply_fp32_layers(self.model, fp32_layers, self.job.device)
        frozen = FrozenLayers(self.model, frozen_at_last(self.job.config.training))
        try:
            yield
        finally:
            frozen.thaw()
            for region in regions:
                region.remove()
            self.model.zero_grad(set_to_none=True)
            self._put_back()

    def _name_origin(self, trial: PrecisionTrial, fp32_layers: Sequence[str]) -> None:
        """Name the first operation with a non-finite result in place of the module that it came out of."""
        found = FirstNonFinite()
        with self._set_up(fp32_layers), found.layers_of(self.model), torch.no_grad():
            for number, batch in enumerate(self.batches):
                self._seeds.set(0, number)
                with self._autocast(trial.precision), found:
                    outputs = self.model.forward(*batch.inputs)
                    found.layer = LOSS
                    self.job.task.loss(outputs, batch, batch.valid, batch.size)
                if found.origin is not None:
                    break
        if found.origin is not None:
            trial.first_bad = found.origin.layer or trial.first_bad
            trial.operation = f"{found.origin.operation}: {found.origin.detail}"

    def _autocast(self, precision: str) -> torch.autocast:
        dtype = DTYPES.get(precision)
        return torch.autocast(self.job.device.type, dtype=dtype, enabled=dtype is not None)

    def rounded(self, precision: str) -> PrecisionTrial:
        """Run fp32 on images and weights rounded to `precision`, the unavoidable error of a 16-bit run.

        If rounding alone changes the gradients this much, the network is so sensitive on these batches that
        the precision isn't at fault.
        """
        return self._changed(rounding_to(precision))

    def shaken(self) -> PrecisionTrial:
        """Run fp32 on images and weights that differ by some of its own roundings.

        A gradient that this turns is nothing but rounding: in exact numbers it is zero, as that of the scale
        of a BatchNorm before another.
        """
        return self._changed(lambda values: values * (1 + _SHAKEN))

    def _changed(self, change: Change) -> PrecisionTrial:
        """Run fp32 on changed images and weights."""
        with self._with_changed(change):
            return self.run("fp32")

    @contextmanager
    def _with_changed(self, change: Change) -> Iterator[None]:
        """Change images and weights; a run puts the weights back."""
        images = [batch.images_BCHW for batch in self.batches]
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.copy_(change(weight))
        for batch in self.batches:
            batch.images_BCHW = change(batch.images_BCHW)
        try:
            yield
        finally:
            for batch, before in zip(self.batches, images, strict=True):
                batch.images_BCHW = before

    def _run(self, precision: str, scale: float | None) -> PrecisionTrial:
        if precision not in DTYPES or not own_code.allowed():
            return self._passes(precision, scale, None)
        check = OperationCheck(precision, self.job.device)
        try:
            with check.layers_of(self.model):
                trial = self._passes(precision, scale, check)
        except Exception as error:
            refused = check.refused(error)
            if not refused or is_memory_full(error):
                raise
            nothing = torch.empty(0, device=self.job.device)
            trial = PrecisionTrial(precision, math.nan, nothing, {}, scale, [], check.layer, refused=refused)
        trial.operations = check.found
        return trial

    def _passes(self, precision: str, scale: float | None, check: OperationCheck | None) -> PrecisionTrial:
        losses, outputs_of = [], []
        watching = nullcontext if check is None else check.watching
        with _first_bad(self.model) as bad:
            for number, batch in enumerate(self.batches):
                self._seeds.set(0, number)
                with self._autocast(precision):
                    with watching():
                        outputs = self.model.forward(*batch.inputs)
                    loss = self.job.task.loss(outputs, batch, batch.valid, batch.size)
                if check is not None:
                    check.functions_of(loss)
                with watching():
                    torch.autograd.backward(loss * (scale or 1.0))
                losses.append(float(loss.detach()))
                outputs_of.append(outputs.detach().float().flatten())
        mean = sum(losses) / len(losses)
        if not bad and not math.isfinite(mean):
            bad.append(LOSS)
        first_bad = bad[0] if bad else ""
        return PrecisionTrial(precision, mean, torch.cat(outputs_of), {}, scale, [], first_bad)

    def _gradients(self, scale: float) -> dict[str, torch.Tensor]:
        gradients = {}
        for name, module in self.model.named_modules():
            own = [p.grad.float().flatten() for p in module.parameters(recurse=False) if p.grad is not None]
            if own:
                gradients[name] = torch.cat(own) / scale
        return gradients

    @torch.no_grad()
    def _put_back(self) -> None:
        for tensor, saved in self._saved:
            tensor.copy_(saved)


@contextmanager
def _first_bad(model: torch.nn.Module) -> Iterator[list[str]]:
    """Record the modules whose outputs are not finite, in order."""
    bad: list[str] = []
    handles = []
    for name, module in model.named_modules():

        def check(_module: torch.nn.Module, _inputs: object, outputs: object, name: str = name) -> None:
            values = (value for value in tree_leaves(outputs) if isinstance(value, torch.Tensor))
            if any(not bool(value.isfinite().all()) for value in values):
                bad.append(name)

        handles.append(module.register_forward_hook(check))
    try:
        yield bad
    finally:
        for handle in handles:
            handle.remove()


def first_batches(job: Job, count: int) -> list[Batch]:
    """Return copies of the first batches of a run, and close its loaders.

    Raises:
        DataError: No batch has anything to learn.
    """
    taken: list[Batch] = []
    try:
        for window in job.train_loader.windows(0, 1):
            taken += [_own(batch) for batch in window if batch.valid]
            if len(taken) >= count:
                break
    finally:
        job.train_loader.close()
        job.val_loader.close()
    if not taken:
        raise DataError(
            "no batch has anything to learn: all that it shows is ignored", hint="check data.ignore_index"
        )
    return taken[:count]


def _own(batch: Batch) -> Batch:
    """Copy a batch, so that it stays valid when the next one is read."""
    return replace(batch, images_BCHW=batch.images_BCHW.clone(), targets=batch.targets.clone())


def rounding_to(precision: str) -> Change:
    """Return the rounding of values to a 16-bit precision."""
    return partial(_rounded, dtype=DTYPES[precision])


def moving_by(share: float) -> Change:
    """Return a change of each value by this share of it, up or down at random and the same each time."""

    def moved(values: torch.Tensor) -> torch.Tensor:
        chance = torch.Generator(values.device).manual_seed(0)
        ups = torch.empty_like(values).bernoulli_(0.5, generator=chance)
        return values * (1 + share * (2 * ups - 1))

    return moved


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to a format; what is beyond its range stays."""
    rounded = values.to(dtype).to(values.dtype)
    return torch.where(rounded.isfinite(), rounded, values)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine similarity of two gradients; 1 if both are zero, NaN if one is not finite."""
    one, other = one.double(), other.double()
    norms = float(one.norm() * other.norm())
    if norms == 0:
        return 1.0 if float(one.norm()) == float(other.norm()) else 0.0
    return float(one @ other) / norms
