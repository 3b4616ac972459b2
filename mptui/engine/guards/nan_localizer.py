"""The first layer that is not finite."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from typing_extensions import override

from mptui.data.batch import Batch, Window
from mptui.data.types import IGNORE
from mptui.engine.compile import eagerly
from mptui.engine.context import TrainContext
from mptui.engine.guards.detector import WindowPosition
from mptui.engine.precision import Precision
from mptui.engine.ranks.group import shard_of
from mptui.engine.spectrum import WatchedOperations
from mptui.errors import DataError, DivergedError, OwnCodeError
from mptui.registry.own_code import defining_line
from mptui.text import dtype_name
from mptui.torch_private import floats_in

# Finds the layer and operation where a batch's numbers stop being finite, by recomputation
# -----------------------------------------------------------------------------------------
# The batch passes through the network again, forward and backward, eagerly and in the run's own precision,
# with every operation checked. The origin is the first operation that turns finite values into non-finite
# ones. The state of the run is unchanged: gradients are dropped and buffers restored.

LOSS = "the loss"
# operations that create values, or produce infinite ones on purpose
_MEANT = ("empty", "new_empty", "full", "fill", "masked_fill", "where", "zeros", "scalar_tensor")


@dataclass(frozen=True, slots=True)
class NanLocation:
    """Where the numbers of a batch stop being finite.

    `where` is input, weights, forward, loss, backward, or empty if all were finite this time.
    """

    where: str = ""
    layer: str = ""
    operation: str = ""
    detail: str = ""
    files: list[str] = field(default_factory=list)
    also_in_fp32: bool = False
    """The number format is not the cause: the batch fails in fp32 too, or all numbers are finite."""
    finite: bool = False
    """All numbers are finite, but the loss is far too high."""

    @property
    def is_layer(self) -> bool:
        """Whether the fault is in a submodule, not in the loss or the network's own forward."""
        return self.where in {"forward", "backward"} and self.layer not in {"", LOSS}

    @property
    def _place(self) -> str:
        if self.layer in {"", LOSS}:
            return self.layer or "the network"
        return f'layer "{self.layer}"'

    def words(self) -> str:
        """Describe the finding in a clause."""
        if self.finite:
            return "all values are finite, but the loss is far too high"
        if self.where == "input":
            return "the images are not finite"
        if self.where == "weights":
            return f"the weights of {self._place} are not finite"
        if not self.where:
            return "all values were finite when the step was repeated"
        half = "backward" if self.where == "backward" else "forward"
        how = f" ({self.operation}: {self.detail})" if self.operation else ""
        return f"{self._place} is the first that is not finite, in the {half} pass{how}"


def locate(context: TrainContext, place: WindowPosition) -> NanLocation:
    """Recompute the window at `place`, and find the first value that is not finite.

    Raises:
        DataError: The samples can't be read any more.
    """
    loader = context.job.train_loader
    accumulate = context.job.config.training.accumulate
    with loader.window_at(place.epoch, accumulate, place.sample) as window:
        try:
            return _locate(context, window, place)
        finally:
            context.parts.updater.forget()


def _locate(context: TrainContext, window: Window, place: WindowPosition) -> NanLocation:
    names: list[str] = []
    bad: list[str] = []
    for batch in window:
        files = context.job.train_loader.names(batch.sample_indices)
        names += files
        finite = torch.isfinite(batch.images_BCHW).flatten(1).all(dim=1).tolist()
        bad += [name for name, ok in zip(files, finite, strict=False) if not ok]
    if bad:
        return NanLocation("input", files=bad, detail=f"{len(bad)} of {len(names)} images are not finite")
    named = context.model.named_parameters()
    sick = [name for name, p in named if not bool(torch.isfinite(shard_of(p)).all())]
    if sick:
        layer = sick[0].rpartition(".")[0]
        return NanLocation("weights", layer, files=names, detail=", ".join(sick[:8]), also_in_fp32=True)
    # the own part of several processes stands for all: a constant factor of the loss
    weight = context.task.window_weight(window) * context.ranks.world_size or 1
    found = _first(context, window, weight, place, precision=context.parts.precision)
    if found is None:
        return NanLocation(files=names)
    context.parts.updater.forget()
    in_fp32 = _first(context, window, weight, place, precision=Precision("fp32", context.device))
    return replace(found, files=names, also_in_fp32=in_fp32 is not None)


def _first(
    context: TrainContext,
    window: Window,
    weight: torch.Tensor | float,
    place: WindowPosition,
    *,
    precision: Precision,
) -> NanLocation | None:
    """Find the first operation of the window's step in `precision` with a non-finite result."""
    context.seeds.set(place.epoch, place.sample)
    watcher = FirstNonFinite()
    with watcher.layers_of(context.model):
        for batch in window:
            for piece in context.micro_batches.split(batch):
                _pass(context, piece, weight, window.size, precision=precision, watcher=watcher)
                if watcher.origin is not None:
                    return watcher.origin
    return None


def _pass(
    context: TrainContext,
    batch: Batch,
    weight: torch.Tensor | float,
    size: int,
    *,
    precision: Precision,
    watcher: "FirstNonFinite",
) -> None:
    with watcher:
        with precision.forward_context():
            with eagerly(context.model):  # compiled code hides single operations
                outputs = context.model(*batch.inputs)
            watcher.layer = LOSS
            loss = context.task.loss(outputs, batch, weight, size)
        if watcher.origin is None and not bool(torch.isfinite(loss)):
            watcher.origin = NanLocation("loss", LOSS)
        watcher.where = "backward"
        watcher.layer = LOSS
        if watcher.origin is None:
            precision.backward(loss)


class FirstNonFinite(WatchedOperations):  # type: ignore[no-untyped-call]
    """Finds the first operation that turns finite values into non-finite ones.

    Attributes:
        where: forward or backward, set by whoever runs the passes.
        origin: The operation; None as long as there is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.where = "forward"
        self.origin: NanLocation | None = None

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.origin is not None:
            return func(*args, **kwargs)
        sound, largest = _finite(args), _largest(args)  # before it runs: it may overwrite them
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        is_origin = sound and not name.startswith(_MEANT) and not _finite(result)
        if is_origin:
            self.origin = NanLocation(self.where, self.layer, name, _describe(result, largest))
        return result


def _floats(values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - a tree of tensors
    return [each.detach() for each in floats_in(values) if each.numel()]


def _finite(values: Any) -> bool:  # noqa: ANN401 - a tree of tensors
    return all(bool(torch.isfinite(t).all()) for t in _floats(values))


def _largest(values: Any) -> float:  # noqa: ANN401 - a tree of tensors
    return max((float(t.abs().max()) for t in _floats(values)), default=0.0)


def _describe(result: Any, largest: float) -> str:  # noqa: ANN401 - a tree of tensors
    outputs = _floats(result)
    kind = "NaN" if any(bool(torch.isnan(t).any()) for t in outputs) else "infinity"
    return f"{kind} in {dtype_name(outputs[0].dtype)} from values of up to {largest:.3g}"


# Checks of batches and losses for debugging (`guards.check_batches`), which sync; and of outputs
# -----------------------------------------------------------------------------------------------


def check_batch(batch: Batch, num_classes: int, step: int) -> None:
    """Raise DataError if a batch holds values that no network can learn from.

    Args:
        batch: Images must be finite; targets must be below `num_classes`, ignored, or noise.
        num_classes: Number of classes of the task; 0: there are no labels.
        step: Optimizer steps tried so far, for the message.
    """
    where = f"step {step + 1}, samples {batch.sample_indices.tolist()[:8]}"
    if not bool(torch.isfinite(batch.images_BCHW).all()):
        raise DataError(f"{where}: an image has values that are not finite", hint="check these files")
    if batch.timesteps is not None or not num_classes:
        return  # the targets are noise, or the images
    low, high = int(batch.targets.min()), int(batch.targets.max())
    if low < IGNORE or high >= num_classes:
        raise DataError(
            f"{where}: targets from {low} to {high}, but there are {num_classes} classes",
            hint="check the labels or masks of these files; data.ignore_index sets a value to ignore",
        )


def check_outputs(outputs: object, model: torch.nn.Module) -> None:
    """Raise OwnCodeError if a network in training mode returns no tensor, or one without a gradient."""
    if isinstance(outputs, torch.Tensor) and outputs.requires_grad:
        return
    if isinstance(outputs, torch.Tensor):
        fault, remedy = (
            "without a gradient",
            "leave out detach(), .data, torch.no_grad() and NumPy in forward",
        )
    else:
        fault, remedy = type(outputs).__name__, "return one tensor from forward, also if self.training"
    code = getattr(type(model).forward, "__code__", None)
    place = "" if code is None else defining_line(code)
    words = f"the network returned outputs {fault} in training"
    raise OwnCodeError("\n".join([words, *([f"  {place}"] if place else [])]), hint=remedy)


def check_loss(loss: torch.Tensor, step: int) -> None:
    """Raise DivergedError at the first loss that is not finite."""
    if not bool(torch.isfinite(loss)):
        raise DivergedError(
            f"step {step + 1}: the loss is {float(loss)}",
            hint="try a lower learning rate (--lr), or --precision fp32",
        )
