"""A task of the person's own: a loss of outputs and targets, and metrics if they like.

The loss of an accumulation window is the mean over its samples, however it is split into micro-batches.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from typing_extensions import override

from mptui.data.batch import Batch
from mptui.errors import ConfigError, OwnCodeError
from mptui.registry.own_code import call, defining_line, load
from mptui.tasks.base import MeanTask, Metrics, Task

Measure = Callable[[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]]


def build_own_task(name: str, base: Task, num_classes: int) -> Task:
    """Build the task that `name` stands for.

    It is a function `loss(outputs, targets)`, or a class with that method; one whose `__init__` takes
    `num_classes` is given it. The loss is a mean over the samples (0-dim), or has one value a sample. A class
    may have `metrics(outputs, targets)`, which returns name -> values as the loss does, and then names the
    one that decides which epoch is best as `primary`; larger is better. Without it, the metrics of `base` are
    measured. A class with `loss_sums` is a complete `mptui.tasks.base.Task` and used as it is.

    Args:
        name: `package.module:name`.
        base: The task of the data.
        num_classes: Number of classes.

    Raises:
        ConfigError: There is no such thing, it has no loss, or it has parameters of its own to train.
        Exception: Whatever the person's code raises.
    """
    code: Any = load(name)
    if inspect.isclass(code):
        make: Callable[..., Any] = code
        takes = "num_classes" in inspect.signature(make).parameters
        code = call(name, make, num_classes=num_classes) if takes else call(name, make)
    _refuse_parameters(name, code)
    if hasattr(code, "loss_sums"):
        return cast(Task, code)
    loss = getattr(code, "loss", code)
    if not callable(loss):
        raise ConfigError(f"{name} has no loss", hint="define loss(outputs, targets)")
    measure: Measure | None = getattr(code, "metrics", None)
    if measure is not None and not isinstance(getattr(code, "primary", None), str):
        raise ConfigError(
            f"{name} has metrics, but none is the primary one",
            hint='name the one that decides which epoch is best: primary = "NAME"',
        )
    primary = base.primary if measure is None else str(code.primary)
    module = code if isinstance(code, torch.nn.Module) else None
    return OwnTask(name, loss, measure, primary, base=base, module=module)


def _refuse_parameters(name: str, code: object) -> None:
    """Refuse a loss with parameters: the optimizer, the average and checkpoints hold those of the network."""
    held = {"": code} if isinstance(code, torch.nn.Module) else getattr(code, "__dict__", {})
    trained = [
        ".".join(filter(None, (attribute, parameter)))
        for attribute, part in held.items()
        for parameter, weight in (
            part.named_parameters() if isinstance(part, torch.nn.Module) else [("", part)]
        )
        if isinstance(weight, torch.nn.Parameter) and weight.requires_grad
    ]
    if trained:
        raise ConfigError(
            f"{name}: parameters of a loss are not trained: {', '.join(trained)}",
            hint="make them a part of the network, whose outputs the loss is given; or constants: "
            "register_buffer, or requires_grad_(False)",
        )


class OwnTask(MeanTask):
    """Learn by a loss of the person's own, on data of `base`.

    Args:
        name: Its name in messages.
        function: The loss of outputs and targets.
        measure: The metrics of outputs and targets; None: those of `base`.
        primary: The metric that decides which epoch is best.
        base: The task of the data.
        module: Holds the buffers of the loss, such as weights of classes.
    """

    chance = math.inf
    """Unknown: no loss is far above it."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        measure: Measure | None,
        primary: str,
        *,
        base: Task,
        module: torch.nn.Module | None,
    ) -> None:
        self._name = name
        self._function = function
        self._measure = measure
        self.primary = self._first = primary
        self._base = base
        self._module = module

    @override
    def mean(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The person's loss is given float32 outputs. A batch without a target adds 0."""
        real = outputs[: batch.size].float()
        if batch.valid == 0:
            return real.sum() * 0.0
        mean = self._loss_of(real, batch.targets[: batch.size])
        if batch.mixed_targets is None:
            return mean
        mixed = self._loss_of(real, batch.mixed_targets[: batch.size])
        return batch.lam * mean + (1 - batch.lam) * mixed

    @override
    def dummy_batch(self, images_BCHW: torch.Tensor) -> Batch:
        return self._base.dummy_batch(images_BCHW)

    @override
    def metrics(self, device: torch.device, *, training: bool = False) -> Metrics:
        if self._measure is None:
            return self._base.metrics(device, training=training)
        return OwnMetrics(self._name, self._measure, self._first, device, finite_only=training)

    def _loss_of(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._module is not None:
            self._module.to(outputs.device)
        with torch.autocast(outputs.device.type, enabled=False):
            values = call(self._name, self._function, outputs, targets)
        mean = mean_of(values, len(outputs), f"{self._name}: the loss")
        if outputs.requires_grad and not mean.requires_grad:
            raise self._no_gradient()
        return mean

    def _no_gradient(self) -> OwnCodeError:
        code = getattr(getattr(self._function, "__func__", self._function), "__code__", None)
        place = defining_line(code) if code is not None else ""
        words = f"{self._name}: the loss has no gradient"
        return OwnCodeError(
            "\n".join([words, *([f"  {place}"] if place else [])]),
            hint="compute it from the outputs, without detach(), .item(), argmax() or torch.no_grad()",
        )


def mean_of(values: object, size: int, what: str) -> torch.Tensor:
    """Return the mean over samples, 0-dim float32, of a mean or of one value a sample.

    Raises:
        OwnCodeError: It is neither.
    """
    if isinstance(values, torch.Tensor) and values.shape in {(), (size,)}:
        return values.float().mean()
    told = f"a tensor {list(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
    raise OwnCodeError(
        f"{what} of {size} samples is {told}",
        hint=f"return its mean over the samples, a 0-dim tensor, or one value a sample, [{size}]",
    )


class OwnMetrics(Metrics):
    """The person's metrics: means over all samples.

    Args:
        name: The task, in messages.
        measure: Returns name -> values of a batch.
        primary: The metric that it has at least.
        device: Device of the sums.
        finite_only: Leave out batches whose metrics are not finite.
    """

    def __init__(
        self, name: str, measure: Measure, primary: str, device: torch.device, *, finite_only: bool
    ) -> None:
        self._name = name
        self._measure = measure
        self._primary = primary
        self._device = device
        self._finite_only = finite_only
        self._sums: dict[str, torch.Tensor] = {}
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._count = torch.zeros((), dtype=wide, device=device)

    @override
    def update(self, outputs: torch.Tensor, batch: Batch) -> None:
        size = batch.size
        found = call(self._name, self._measure, outputs[:size].float(), batch.targets[:size])
        sums = {key: mean_of(value, size, f"{self._name}: {key}") * size for key, value in found.items()}
        if self._primary not in sums:
            raise OwnCodeError(
                f"{self._name}: metrics have no {self._primary!r}, the primary one",
                hint="return it, or name another: primary",
            )
        count = torch.full_like(self._count, size)
        if self._finite_only:
            finite = torch.stack(list(sums.values())).isfinite().all()
            sums = {key: torch.where(finite, value, 0.0) for key, value in sums.items()}
            count = torch.where(finite, count, 0.0)
        self._sums = {key: self._sums.get(key, 0.0) + value.to(count.dtype) for key, value in sums.items()}
        self._count = self._count + count

    @override
    def compute(self) -> dict[str, float]:
        count = float(self._count)
        if not count or not self._sums:
            return {self._primary: math.nan}
        means = {key: float(value) / count for key, value in self._sums.items()}
        return {self._primary: means[self._primary], **means}  # the first one is shown as the best

    @override
    def reset(self) -> None:
        self._sums = {}
        self._count = torch.zeros_like(self._count)

    @override
    def state_dict(self) -> dict[str, torch.Tensor]:
        """States of several processes add up."""
        return {"count": self._count.clone(), **{f"sum.{k}": v.clone() for k, v in self._sums.items()}}

    @override
    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._count = state["count"].to(self._device)
        sums = {key.removeprefix("sum."): value for key, value in state.items() if key != "count"}
        self._sums = {key: value.to(self._device) for key, value in sums.items()}
