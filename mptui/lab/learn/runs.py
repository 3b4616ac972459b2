"""What autocast keeps in fp32, operation by operation, on a network.

The network passes one batch forward as tensors without storage (FakeTensorMode), which are said to be on a
GPU, so that CUDA's rules are seen on machines that have none. Operations are those of torch's kernels, after
autocast has cast their inputs.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from mptui.engine.memory.step_trace import UncountableError, autocast_as_there, no_storage
from mptui.engine.numerics.watched_operations import WatchedOperations
from mptui.engine.precision.amp import DTYPES
from mptui.errors import ConfigError
from mptui.lab.learn.lesson import Lesson, Line, Tone, plain, quiet
from mptui.lab.learn.small_runs import small_request
from mptui.models.zoo import build, input_shape
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.planning.trust import import_own_code
from mptui.tasks.build_task import build_task
from mptui.text import clean

Where = Literal["fp32", "mixed", "16 bits"]
"""Where an operation computes: fp32 inputs or, by type promotion, an fp32 result; a 16-bit result from 16
bits and fp32 weights or statistics; 16 bits throughout."""

LOSS = "the loss"
_CLASSES = 10
_BATCH = 2
_WORDS: dict[str, tuple[str, Tone]] = {
    "fp32": ("computed in fp32", "warn"),
    "mixed": ("16 bits in and out, weights and statistics in fp32", "accent"),
    "16 bits": ("computed in 16 bits", "good"),
}
_COPIES = ("detach", "clone", "alias", "copy_", "lift_fresh", "_unsafe_view")
_MADE = ("empty", "zeros", "ones", "full", "new_", "rand")


@dataclass(frozen=True, slots=True)
class OperationRule:
    """An operation of the network in one combination of dtypes."""

    operation: str
    where: Where
    calls: int
    layer: str
    """The first layer that has it; "" is the network itself."""


@dataclass(frozen=True, slots=True)
class AutocastLesson(Lesson):
    """All operations of a forward pass and its loss."""

    model: str
    device: str
    precision: str
    operations: list[OperationRule]
    casts: int
    """Casts between fp32 and 16 bits."""

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out the operations by where they compute, fp32 first."""
        shown: list[Line] = [
            [
                (f"{self.model}, {self.precision}, autocast as on {self.device}", ""),
                (f"; {self.casts} casts between the formats", "quiet"),
            ]
        ]
        for where, (words, tone) in _WORDS.items():
            rules = [rule for rule in self.operations if rule.where == where]
            if rules:
                shown += [plain(), [(words, tone)]]
            for rule in rules:
                layer = rule.layer or "the network"
                shown.append(
                    [(f"  {rule.operation:<34}", ""), (f"{rule.calls:>5}×", ""), (f"  from {layer}", "quiet")]
                )
        if not self.operations:
            shown.append(quiet("no operations"))
        return shown

    def document(self) -> dict[str, Any]:
        """Return the operations."""
        return asdict(self)


def autocast_lesson(request: Request, *, device: str, precision: str) -> AutocastLesson:
    """Trace a network under autocast.

    Args:
        request: The person's request.
        device: cuda or cpu: whose rules.
        precision: bf16 or fp16.

    Raises:
        ConfigError: The model does not exist, not for this data, or can't be traced.
    """
    plan = plan_run(small_request(request))
    config, task = plan.config, plan.task
    import_own_code(config)
    side, bands = int(config.data.image_size or 0), config.data.channels
    classes = [str(number) for number in range(_CLASSES)]
    learnt = build_task(task, classes, config.training)
    watch = _Rules()
    try:
        with no_storage(), torch.device(device):
            network = build(config.model, num_classes=_CLASSES, task=task, side=side, bands=bands).train()
            shape = _BATCH, *input_shape(config.model, bands, side)
            batch = learnt.made_up_batch(torch.zeros(shape, device=device))
            autocast = autocast_as_there(device, DTYPES[precision])
            with watch.layers_of(network), autocast, _attention_as_one(watch), watch:
                outputs = network(*batch.inputs)
                watch.layer = LOSS
                learnt.loss(outputs, batch, batch.valid, batch.size)
    except UncountableError as error:
        reason = str(error.__cause__).partition("\n")[0]
        raise ConfigError(
            f"{config.model.name} can't be traced without values: {clean(reason)}",
            hint="choose another network with --model",
        ) from error
    return AutocastLesson(str(config.model.name), device, precision, watch.rules(), watch.casts)


class _Rules(WatchedOperations):  # type: ignore[no-untyped-call]
    """Counts operations by the dtypes of their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.casts = 0
        self.inside = False
        """Inside an operation that counts as one."""
        self._calls: Counter[tuple[str, Where]] = Counter()
        self._layers: dict[tuple[str, Where], str] = {}

    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """See `WatchedOperations.watched`."""
        result = func(*args, **kwargs)
        if self.inside or func.namespace == "prim":
            return result
        dtypes = _dtypes((args, kwargs))
        if func is torch.ops.aten._to_copy.default:
            self.casts += bool(dtypes) and result.is_floating_point() and {result.dtype} != dtypes
        elif dtypes and not _is_copy(func):
            self.count(func.overloadpacket.__name__, dtypes, result)
        return result

    def count(self, operation: str, dtypes: set[torch.dtype], result: Any) -> None:  # noqa: ANN401 - a tree
        """Count an operation with floating inputs of `dtypes`; the first tensor of `result` is its output."""
        where: Where = "fp32" if torch.float32 in dtypes else "16 bits"
        if len(dtypes) > 1 and next(iter(tree_leaves(result))).dtype != torch.float32:
            where = "mixed"
        self._calls[operation, where] += 1
        self._layers.setdefault((operation, where), self.layer)

    def rules(self) -> list[OperationRule]:
        """Return the operations, most frequent first."""
        return [
            OperationRule(name, where, calls, self._layers[name, where])
            for (name, where), calls in self._calls.most_common()
        ]


@contextmanager
def _attention_as_one(rules: _Rules) -> Iterator[None]:
    """Count an attention as one operation: its kernel is chosen on the device, by the model of that.

    Without a device, torch takes the formula in fp32, which no GPU does. The function is replaced, as torch's
    modules call it where no TorchFunctionMode sees it.
    """
    own = torch.nn.functional.scaled_dot_product_attention

    def counted(*args: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401 - torch's arguments
        rules.inside = True
        result = own(*args, **named)
        rules.inside = False
        rules.count(own.__name__, {result.dtype}, result)
        return result

    torch.nn.functional.scaled_dot_product_attention = counted
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = own


def _dtypes(values: Any) -> set[torch.dtype]:  # noqa: ANN401 - a tree of tensors
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()}


def _is_copy(operator: Any) -> bool:  # noqa: ANN401 - an operator
    """Whether an operator computes nothing: it copies, makes a tensor, or gives a view."""
    name = operator.overloadpacket.__name__
    return name in _COPIES or name.startswith(_MADE) or operator.is_view
