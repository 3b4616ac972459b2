"""A network on the whole validation set."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from mptui.data.batch import Batch
from mptui.data.loader import Loader
from mptui.engine.compile import outputs_of
from mptui.engine.precision import Precision
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.events import Progress, Validated
from mptui.tasks.base import Metrics, Task
from mptui.tasks.own_loss import OwnTask

# Evaluates a network on the whole validation set
# -----------------------------------------------

PROGRESS_S = 0.25
MOST_CLASSES = 32
"""Largest number of classes in an event: the journal has one of each validation."""

InPieces = Callable[[Batch, Callable[[Batch], None]], None]
Watch = Callable[[torch.Tensor, Batch], None]
Network = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """Result of a pass over the validation set.

    Attributes:
        loss: Mean loss.
        metrics: Fractions of 1; the primary one is the first.
        primary: The metric that decides which epoch is best.
        per_class: Metrics of each class, as `Metrics.per_class`.
        confusion: The confusion matrix, as `Metrics.confusion`.
        seconds: Duration of the pass.
        loss_terms: What the loss has in it beside its plain form: label smoothing, class weights.
        waited_s: Seconds of it in which data was waited for.
    """

    loss: float
    metrics: dict[str, float]
    primary: str
    per_class: dict[str, dict[str, float | None]]
    confusion: torch.Tensor | None
    seconds: float
    loss_terms: tuple[str, ...] = ()
    waited_s: float = 0.0

    def event(self, step: int, epoch: int, *, best: bool) -> Validated:
        """Build the event that reports the result."""
        return Validated(
            step=step,
            epoch=epoch,
            loss=self.loss,
            loss_terms=list(self.loss_terms),
            metrics=self.metrics,
            primary=self.primary,
            per_class=worst_classes(self.per_class, MOST_CLASSES),
            seconds=self.seconds,
            best=best,
        )


def worst_classes(
    per_class: dict[str, dict[str, float | None]], count: int
) -> dict[str, dict[str, float | None]]:
    """Return the metrics of at most `count` classes: if there are more, those worst in the first metric."""
    deciding = next(iter(per_class.values()), {})
    if len(deciding) <= count:
        return per_class
    present = {name: value for name, value in deciding.items() if value is not None}
    worst = sorted(present, key=present.__getitem__)[:count]
    return {metric: {name: values[name] for name in worst} for metric, values in per_class.items()}


@contextlib.contextmanager
def in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Restore the mode of each module when the block ends: BatchNorm of a frozen layer has its own."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    task: Task,
    loader: Loader,
    precision: Precision,
    *,
    device: torch.device,
    on_progress: Callable[[Progress], None],
    check_stop: Callable[[], None],
    in_pieces: InPieces,
    outputs_stay: bool,
    watch: Sequence[Watch] = (),
    metrics: Metrics | None = None,
    network: Network | None = None,
    ranks: Ranks = ALONE,
) -> ValidationResult:
    """Evaluate `model` on all of `loader`, in eval mode and in the training precision.

    `in_pieces` calls its second argument with the batch, or with its micro-batches if it does not fit.
    `outputs_stay` is False if each forward pass overwrites the previous outputs, as with CUDA graphs. `watch`
    are called with them. `metrics` are new ones; None: of the task. `network` is what is called in place of
    `model`, and wraps it. Each of `ranks` has its own samples.

    Raises:
        Stopped: From `check_stop`, called before each batch.
    """
    told = started = time.perf_counter()
    waited_s = 0.0
    metrics = metrics or task.metrics(device)
    # over items, over samples, the items' weights, and samples
    totals = torch.zeros(4, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def counts(batch: Batch) -> bool:
        """Whether a person's own loss is asked: without a target it may be NaN, as in training."""
        return batch.valid > 0 or not isinstance(task, OwnTask)

    def measure(batch: Batch) -> None:
        if not counts(batch):
            return
        with precision.forward_context():
            outputs = outputs_of(network or model, batch, model=model)
            sums = task.loss_sums(outputs, batch)
        for look in watch:
            look(outputs, batch)
        metrics.update(outputs if outputs_stay else outputs.clone(), batch)
        totals[:2] += sums

    with in_eval_mode(model):
        for window in loader.windows(epoch=0, accumulate=1):
            check_stop()
            waited_s += window.wait_s
            totals[2] += task.window_weight(window)
            for batch in window:
                in_pieces(batch, measure)
                totals[3] += batch.size if counts(batch) else 0
            now = time.perf_counter()
            if now - told >= PROGRESS_S:
                told = now
                on_progress(Progress(phase="validating", done=window.index + 1, total=loader.batches))
    if not ranks.is_alone:
        metrics.load_state_dict(summed_state(metrics, ranks, device))
    over_items, over_samples, weight, samples = ranks.sum_(totals).tolist()
    return ValidationResult(
        loss=(over_items / weight if weight else 0.0) + (over_samples / samples if samples else math.nan),
        metrics=dict(sorted(metrics.compute().items(), key=lambda each: each[0] != task.primary)),
        primary=task.primary,
        per_class=metrics.per_class(),
        confusion=metrics.confusion(),
        seconds=time.perf_counter() - started,
        loss_terms=tuple(getattr(task, "loss_terms", ())),  # a person's own task has none
        waited_s=waited_s,
    )


# Metrics over the samples of all ranks
# -------------------------------------

SCORES = "scores"
"""The part of a metric's state that has a row for each sample: those of ranks follow each other."""


class SummedMetrics(Metrics):
    """The metrics of all ranks: each adds its own samples, and each gets the result of all.

    Everything but `update` and `reset` waits for the other ranks.

    Args:
        make: Makes the metrics of one process, on `device`.
        ranks: The ranks.
        device: The device.

    Attributes:
        own: The metrics of this process.
    """

    def __init__(self, make: Callable[[], Metrics], ranks: Ranks, device: torch.device) -> None:
        self.own = make()
        self._whole = make()
        self._ranks = ranks
        self._device = device

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        self.own.update(outputs, batch)

    @override
    def compute(self) -> dict[str, float]:
        return self._summed().compute()

    @override
    def per_class(self) -> dict[str, dict[str, float | None]]:
        return self._summed().per_class()

    @override
    def confusion(self) -> torch.Tensor | None:
        return self._summed().confusion()

    @override
    def reset(self) -> None:
        self.own.reset()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the sums over all ranks."""
        return summed_state(self.own, self._ranks, self._device)

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore the sums: rank 0 has them all, the others none."""
        self.own.reset()
        if self._ranks.is_first:
            self.own.load_state_dict(state)

    def _summed(self) -> Metrics:
        self._whole.load_state_dict(self.state_dict())
        return self._whole


def summed_state(metrics: Metrics, ranks: Ranks, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the state of the metrics of all ranks, from those of this rank on `device`.

    A rank that has had no sample may lack a sum that others have, where a task finds its metrics by them.
    """
    state = metrics.state_dict()
    ranks.sync_status()
    for forms in ranks.exchange({name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}):
        for name, (shape, dtype) in forms.items():
            state.setdefault(name, torch.zeros(shape, dtype=dtype, device=device))
    names = sorted(state)  # the order of the others
    sums = {name: state[name].to(device, copy=True) for name in names if name != SCORES}
    ranks.sum_all_(sums.values())
    return {
        name: sums[name].to(state[name].device)
        if name in sums
        else torch.cat(ranks.exchange(state[name].cpu())).to(state[name].device)
        for name in names
    }


def metrics_of(make: Callable[[], Metrics], ranks: Ranks, device: torch.device) -> Metrics:
    """Return metrics over the samples of all ranks; `make` makes those of one."""
    return make() if ranks.is_alone else SummedMetrics(make, ranks, device)
