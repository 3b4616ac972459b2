"""Exercises that train: overflow, loss scaling, BatchNorm, autocast's rules, three formats."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from mptui import text as fmt
from mptui.data.batch import Batch
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Mailbox
from mptui.engine.memory.ledger import footprint
from mptui.engine.memory.tape import UncountableError, autocast_as_there, no_storage
from mptui.engine.numerics import Probe
from mptui.engine.precision import DTYPES
from mptui.engine.progress import StepSeeds
from mptui.engine.reporting.reporter import StepRow
from mptui.engine.spectrum import BINS, Shares, Spectrum, WatchedOperations
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError
from mptui.lab.learn.formats import Lesson, Line, StepCurve, Tone, plain, power, quiet
from mptui.lab.measure.core import NoCheckpoints
from mptui.models.zoo import build, input_shape
from mptui.registry.names import PRECISIONS
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Request, import_own_code, plan_run
from mptui.tasks.build_task import build_task
from mptui.text import clean

# What autocast keeps in fp32, operation by operation, on a network
# -----------------------------------------------------------------
# The network passes one batch forward as tensors without storage (FakeTensorMode), which are said to be on
# a GPU, so that CUDA's rules are seen on machines that have none. Operations are those of torch's kernels,
# after autocast has cast their inputs.

Where = Literal["fp32", "mixed", "16 bits"]
"""Where an operation computes: fp32 inputs or, by type promotion, an fp32 result; a 16-bit result from 16
bits and fp32 weights or statistics; 16 bits throughout."""

LOSS = "the loss"
_CLASSES = 10
_RULES_BATCH = 2
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
            shape = _RULES_BATCH, *input_shape(config.model, bands, side)
            batch = learnt.dummy_batch(torch.zeros(shape, device=device))
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

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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


# The BatchNorm that a skipped step poisons in a plain loop, and not in mptui
# ---------------------------------------------------------------------------
# Before one step all images are multiplied by 1e6, as one broken file could do: in fp16 the first products
# are infinite. GradScaler skips the step, so that the weights stay; but the forward pass has changed
# BatchNorm's running statistics already, which are NaN from then on, and so is every later validation.
# mptui's step changes weights and statistics together, or neither.

AT_STEP = 12
FACTOR = 1e6


@dataclass(slots=True)
class LoopState:
    """What a loop has after its steps so far."""

    steps: int = 0
    skipped: int = 0
    loss: float = math.nan
    finite_weights: bool = True
    norms: int = 0
    poisoned: int = 0
    """BatchNorm layers whose running statistics aren't finite."""
    evaluation_loss: float | None = None
    """Loss in evaluation mode after the last step; None before it."""


@dataclass(slots=True)
class BatchNormLesson(Lesson):
    """Both loops."""

    model: str
    dataset: str
    mptui: LoopState
    plain: LoopState

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out both loops beside each other."""
        rows: list[Line] = [
            plain(f"{self.model} on {self.dataset} in fp16: step {self.mptui.steps} of {STEPS}"),
            quiet(f"at step {AT_STEP} the images are {FACTOR:,.0f} times too large: the products overflow"),
            plain(),
            quiet(f"{'':<30}{'plain loop':>14}{'mptui':>14}"),
        ]
        pairs = (self.plain, self.mptui)
        rows += [
            _row("steps skipped", [f"{state.skipped}" for state in pairs], ["", ""]),
            _row(
                "weights",
                ["finite" if state.finite_weights else "NaN" for state in pairs],
                ["good" if state.finite_weights else "bad" for state in pairs],
            ),
            _row(
                "BatchNorm layers with NaN",
                [f"{state.poisoned} of {state.norms}" for state in pairs],
                ["bad" if state.poisoned else "good" for state in pairs],
            ),
            _row("training loss", [fmt.figure(state.loss) for state in pairs], ["", ""]),
            _row(
                "loss in evaluation",
                [fmt.figure(state.evaluation_loss).replace("nan", "NaN") for state in pairs],
                ["good" if math.isfinite(state.evaluation_loss or 0.0) else "bad" for state in pairs],
            ),
        ]
        if self.plain.poisoned:
            rows += [
                plain(),
                plain("Both loops skip the step. The plain one has changed the running statistics"),
                plain("in the forward pass: training goes on unharmed, each validation is NaN."),
            ]
        return rows

    def document(self) -> dict[str, Any]:
        """Return both loops."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "broken_step": AT_STEP,
            "factor": FACTOR,
            "mptui": asdict(self.mptui),
            "plain": asdict(self.plain),
        }


def _row(label: str, values: Sequence[str], tones: Sequence[Tone]) -> Line:
    return [(f"{label:<30}", "quiet"), *((f"{v:>14}", tone) for v, tone in zip(values, tones, strict=True))]


def batch_norm_lesson(request: Request, report: Callable[[BatchNormLesson], None]) -> BatchNormLesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model has no BatchNorm, does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    with SmallRun(request, {"precision.mode": "fp16"}) as run:
        if not _norms(run.job.model):
            raise ConfigError(
                f"{run.job.config.model.name} has no BatchNorm", hint="choose another, such as --model unet"
            )
        lesson = BatchNormLesson(str(run.job.config.model.name), run.dataset, LoopState(), LoopState())
        batches = run.batches(STEPS)
        last = batches[-1]
        broken = batches[AT_STEP - 1]
        broken.images_BCHW = broken.images_BCHW * FACTOR
        plainly = run.train_plainly(batches, lambda step: None, guarded=True)
        now = 0

        def before(_trainer: Trainer, step: int) -> None:
            nonlocal now
            now = step

        def scaled(_model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (inputs[0] * FACTOR, *inputs[1:]) if now == AT_STEP and _model.training else inputs

        def after(trainer: Trainer, row: StepRow) -> None:
            step = next(plainly)
            _note(lesson.mptui, trainer.context.model, row.loss, row.refused)
            _note(lesson.plain, run.plain_model, step.loss, step.skipped)
            report(lesson)

        handle = run.job.model.register_forward_pre_hook(scaled)
        trainer = run.train(before, after)
        handle.remove()
        lesson.mptui.evaluation_loss = run.evaluate(trainer.context.model, last)
        lesson.plain.evaluation_loss = run.evaluate(run.plain_model, last)
        report(lesson)
        return lesson


def _norms(model: torch.nn.Module) -> list[torch.nn.modules.batchnorm._NormBase]:
    norms = (m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._NormBase))
    return [norm for norm in norms if norm.running_mean is not None]


def _note(state: LoopState, model: torch.nn.Module, loss: float, skipped: bool) -> None:
    norms = _norms(model)
    state.steps += 1
    state.skipped += skipped
    state.loss = loss
    state.finite_weights = all(bool(p.isfinite().all()) for p in model.parameters())
    state.norms = len(norms)
    state.poisoned = sum(not bool(torch.isfinite(norm.running_mean).all()) for norm in norms)  # type: ignore[arg-type] # not None


# Loss scaling on real gradients: their exponents, and what fp16 loses of them at each scale
# ------------------------------------------------------------------------------------------
# A network takes one batch forward and backward in fp32. The gradients counted are those that fp16 training
# computes in fp16: of the outputs of all layers and of their weights. Scales are powers of two, so that all
# shares are exact (`mptui.engine.spectrum`), as if each gradient had been cast.

DOUBLINGS = range(0, 25, 3)
"""Scales of the table, as exponents of 2."""
_HEIGHT = 5
_LEVELS = " ▁▂▃▄▅▆▇█"
_SUBNORMAL, _NORMAL, _TOP = -24, -14, 15
_FROM, _TO = -44, 16
"""Exponents of the histogram; those outside are added to its ends."""


@dataclass(frozen=True, slots=True)
class ScalingLesson(Lesson):
    """The gradients of one batch of a network."""

    model: str
    dataset: str
    gradients: int
    zeros: float
    """Share of gradients that are zero in fp32 already; other shares are of the rest."""
    first_exponent: int
    exponents: list[int]
    """Shares per mille of the gradients in [2^e, 2^(e+1)), from `first_exponent` on."""
    at_scale: dict[int, Shares]
    """Exponent of 2 of the loss scale -> shares lost."""

    @property
    def best(self) -> int:
        """Exponent of the scale that loses least; of equal ones the smallest."""
        return min(self.at_scale, key=lambda doublings: (_loss(self.at_scale[doublings]), doublings))

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out the histogram at the best scale times 2^(3 focus), and the table of scales."""
        chosen = self.best + DOUBLINGS.step * focus
        named = f"{self.gradients:,} gradients of {self.model} on {self.dataset}"
        under = f"; exponents under a loss scale of 2^{chosen}"
        table = [self._row(doublings, doublings == chosen) for doublings in DOUBLINGS]
        return [
            [(named, ""), (under, "quiet")],
            *self._histogram(chosen, width),
            quiet(f"{'loss scale':<20}{'to zero':>10}{'lose bits':>11}{'overflow':>10}"),
            *table,
        ]

    def _row(self, doublings: int, chosen: bool) -> Line:
        shares = self.at_scale[doublings]
        best = "  loses least" if doublings == self.best else ""
        tone: Tone = "good" if doublings == self.best else "bad" if shares.overflow else ""
        zeroed, lost, over = (_percent(s) for s in (shares.zeroed, shares.subnormal, shares.overflow))
        skipped = "  the step is skipped" if shares.overflow and not best else ""
        figures = f"{zeroed:>10}{lost:>11}{over:>10}"
        mark: tuple[str, Tone] = ("▸ " if chosen else "  ", "accent")
        return [mark, (f"{power(doublings):<18}", ""), (figures, tone), (best or skipped, "quiet")]

    def _histogram(self, doublings: int, width: int) -> list[Line]:
        heights = [0] * (_TO - _FROM + 1)
        for number, share in enumerate(self.exponents):
            place = self.first_exponent + number + doublings - _FROM
            heights[min(max(place, 0), len(heights) - 1)] += share
        most = max(1, *heights)
        lines: list[Line] = []
        for row in range(_HEIGHT):
            spans: list[tuple[str, Tone]] = [("  ", "")]
            for place, share in enumerate(heights):
                eighths = -(-share * _HEIGHT * 8 // most) - 8 * (_HEIGHT - 1 - row)
                spans.append((_LEVELS[min(max(eighths, 0), 8)], _tone(place + _FROM)))
            lines.append(spans)
        normal = "━" * (_TOP - _NORMAL + 1)
        ruler = f"  {'zero':<{_SUBNORMAL - _FROM}}{'╌' * (_NORMAL - _SUBNORMAL)}{normal}"
        ticks = (
            f"  {'':<{_SUBNORMAL - _FROM}}{'2^-24':<{_NORMAL - _SUBNORMAL}}{'2^-14  fp16, all bits':<26}2^15"
        )
        return [*lines, quiet(ruler), quiet(ticks[:width])]

    def limited(self, focus: int) -> int:
        """Return the steps from the best scale that stay in the table."""
        step = DOUBLINGS.step
        return min(max(focus, (DOUBLINGS[0] - self.best) // step), (DOUBLINGS[-1] - self.best) // step)

    def document(self) -> dict[str, Any]:
        """Return the histogram and the shares at each scale."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "gradients": self.gradients,
            "zeros": self.zeros,
            "first_exponent": self.first_exponent,
            "exponents_per_mille": self.exponents,
            "scales": [
                {
                    "scale": 2.0**doublings,
                    "to_zero": shares.zeroed,
                    "subnormal": shares.subnormal,
                    "overflow": shares.overflow,
                }
                for doublings, shares in self.at_scale.items()
            ],
            "best_scale": 2.0**self.best,
        }


def _tone(exponent: int) -> Tone:
    if exponent < _SUBNORMAL or exponent > _TOP:
        return "bad"
    return "warn" if exponent < _NORMAL else "accent"


def _percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.0005 else fmt.percent(share)


def _loss(shares: Shares) -> float:
    """Return the share that a scale loses; 1 if any gradient overflows, which skips the step."""
    return 1.0 if shares.overflow else shares.lost


def scaling_lesson(request: Request) -> ScalingLesson:
    """Count the gradients of the first batch of a run.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    with SmallRun(request, {"precision.mode": "fp32"}) as run:
        job = run.job
        probe = Probe(job.model, job.device)
        StepSeeds(job.config.training.seed, job.device).set(0, 0)
        job.model.train()
        (batch,) = run.batches(1)
        with probe.hooks():
            outputs = job.model(*batch.inputs)
            torch.autograd.backward(job.task.loss(outputs, batch, batch.valid, batch.size))
        probe.add_weights()
        rows = probe.rows.cpu()
        parts = [seen.part for seen in probe.seen(rows)]
        gradients = [row for row, part in zip(rows, parts, strict=True) if part != "forward"]
        spectrum = Spectrum(_sum(gradients).numpy())
        first, bars = spectrum.bars()
        return ScalingLesson(
            model=str(job.config.model.name),
            dataset=run.dataset,
            gradients=spectrum.values,
            zeros=spectrum.zeros / max(spectrum.values, 1),
            first_exponent=first,
            exponents=bars,
            at_scale={doublings: spectrum.shares(doublings) for doublings in DOUBLINGS},
        )


def _sum(rows: list[torch.Tensor]) -> torch.Tensor:
    """Return one row for the values of all: counts add up, of the extremes the outermost remains."""
    every = torch.stack(rows)
    whole = every.sum(dim=0)
    whole[BINS], whole[BINS + 1] = every[:, BINS].min(), every[:, BINS + 1].max()
    return whole


# An overflow made on purpose in fp16, and its repair
# ---------------------------------------------------
# mptui's trainer and a plain loop with a constant loss scale take the same steps. Before one of them the
# scale of both is set far too high, so that gradients overflow. The trainer skips steps and halves the
# scale until they fit; the plain loop takes the step, and its weights are NaN from then on.

TOO_HIGH = 40
"""Exponent of 2 of the loss scale that is set before `AT_STEP`."""


@dataclass(frozen=True, slots=True)
class ScaledStep:
    """A step of mptui's trainer, and the loss of the plain loop's."""

    loss: float
    loss_scale: float
    skipped: bool
    plain_loss: float


@dataclass(slots=True)
class OverflowLesson(Lesson):
    """The steps so far."""

    model: str
    dataset: str
    steps: list[ScaledStep] = field(default_factory=list)

    @property
    def skipped(self) -> list[int]:
        """Numbers of the skipped steps, from 1 on."""
        return [number for number, step in enumerate(self.steps, 1) if step.skipped]

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out what happened."""
        lines: list[Line] = [
            plain(f"{self.model} on {self.dataset} in fp16: step {len(self.steps)} of {STEPS}"),
            quiet(f"before step {AT_STEP} the loss scale is set to {power(TOO_HIGH)}: gradients overflow"),
        ]
        if len(self.steps) < AT_STEP:
            return lines
        skipped, last = self.skipped, self.steps[-1]
        repaired = not last.skipped
        found = f"{len(skipped)} steps skipped, each halves the scale"
        lines.append([(f"mptui: {found}", "warn" if not repaired else "")])
        if repaired:
            after = f"scale {last.loss_scale:,.0f}, loss {fmt.figure(last.loss)}"
            lines.append([(f"repaired at step {max(skipped, default=0) + 1}: ", "good"), (after, "")])
        if not math.isfinite(last.plain_loss):
            words = "plain loop, constant scale: weights and loss are NaN from then on"
            lines.append([(words, "bad")])
        return lines

    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """Return the losses, and the loss scale as an exponent of 2."""
        return {
            "loss": [
                StepCurve("mptui", [step.loss for step in self.steps]),
                StepCurve("plain loop", [step.plain_loss for step in self.steps]),
            ],
            "loss scale, log2": [StepCurve("mptui", [math.log2(step.loss_scale) for step in self.steps])],
        }

    def document(self) -> dict[str, Any]:
        """Return all steps."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "overflow_before_step": AT_STEP,
            "set_loss_scale": 2.0**TOO_HIGH,
            "skipped_steps": self.skipped,
            "steps": [asdict(step) for step in self.steps],
        }


def overflow_lesson(request: Request, report: Callable[[OverflowLesson], None]) -> OverflowLesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    with SmallRun(request, {"precision.mode": "fp16"}) as run:
        lesson = OverflowLesson(str(run.job.config.model.name), run.dataset)
        plainly = run.train_plainly(
            run.batches(STEPS), lambda step: 2.0**TOO_HIGH if step == AT_STEP else None, guarded=False
        )

        def before(trainer: Trainer, step: int) -> None:
            if step == AT_STEP:
                trainer.context.parts.precision.set_scale(2.0**TOO_HIGH)

        def after(_trainer: Trainer, row: StepRow) -> None:
            lesson.steps.append(ScaledStep(row.loss, row.loss_scale, row.refused, next(plainly).loss))
            report(lesson)

        run.train(before, after)
        return lesson


# Short runs of the exercises: some steps with mptui's own trainer, and the same steps with a plain loop
# ------------------------------------------------------------------------------------------------------

STEPS = 40
_BATCH = 4
_SMALL: dict[str, object] = {
    "model.name": "unet",
    "data.image_size": 16,
    "training.batch_size": _BATCH,
    "training.lr": 0.05,
}
"""Settings that the person may replace."""
_UNET: dict[str, object] = {"model.width": 4, "model.depth": 2}
_SHAPES: dict[str, object] = {"data.name": "shapes", "data.samples": STEPS * _BATCH}
_FORCED: dict[str, object] = {
    "training.max_steps": STEPS,
    "training.epochs": STEPS,
    "training.schedule": "constant",
    "training.warmup_epochs": 0,
    "speed.compile": "off",
    "data.cache": "off",
    "guards.on_nan": "ignore",
    "guards.numerics": "off",
    "logging.step_interval_s": 0.0,
}


def small_request(request: Request, settings: Mapping[str, object] = {}) -> Request:
    """Return the person's request with small values for what it leaves open, and `settings` in any case."""
    given = request.flags
    small = dict(_SMALL)
    if given.get("model.name", ("", "unet"))[1] == "unet":
        small |= _UNET
    if not {"data.name", "data.path"} & set(given):
        small |= _SHAPES
    flags = {key: ("mptui learn", value) for key, value in small.items()}
    forced = {key: ("mptui learn", value) for key, value in {**_FORCED, **settings}.items()}
    return replace(request, flags={**flags, **given, **forced})


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A step of the plain loop."""

    loss: float
    loss_scale: float
    skipped: bool


class SmallRun:
    """A network, its data and `STEPS` windows of one sample order; a context that closes the loaders.

    Args:
        request: The person's request.
        settings: Settings of the exercise.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """

    def __init__(self, request: Request, settings: Mapping[str, object] = {}) -> None:
        plan = replace(plan_run(small_request(request, settings)), workers=0)
        self._mailbox = Mailbox()
        prepared = prepare(plan, emit=_nothing, mailbox=self._mailbox, on_bad=_nothing, force_compile=False)
        self.job = prepared.job
        self.dataset = prepared.dataset.name
        self.task = plan.task
        self.plain_model = deepcopy(self.job.model)

    def __enter__(self) -> "SmallRun":
        """Return itself."""
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Close the loaders."""
        self.job.train_loader.close()
        self.job.val_loader.close()

    def batches(self, count: int) -> list[Batch]:
        """Return copies of the first batches that the trainer sees."""
        taken: list[Batch] = []
        epoch = 0
        while len(taken) < count:
            for window in self.job.train_loader.windows(epoch, 1):
                taken += [_copied(batch) for batch in window if batch.valid][: count - len(taken)]
                if len(taken) == count:
                    break
            epoch += 1
        return taken

    def train(
        self, before: Callable[[Trainer, int], None], after: Callable[[Trainer, StepRow], None]
    ) -> Trainer:
        """Train `STEPS` steps with mptui's trainer.

        Args:
            before: Called before each step, with its number from 1 on.
            after: Called with the figures of each step.
        """
        checkpoint = self.job.config.checkpoint
        with NoCheckpoints(Path(), lambda: checkpoint, _nothing) as saver:
            trainer = Trainer(self.job, emit=_nothing, mailbox=self._mailbox, saver=saver)
            trainer.context.hooks.add("learn", _Watch(trainer, before, after))
            trainer.train()
        return trainer

    def train_plainly(
        self, batches: Sequence[Batch], before: Callable[[int], float | None], *, guarded: bool
    ) -> Iterator[PlainStep]:
        """Train the same steps by a plain loop with torch.amp.

        Args:
            batches: One for each step.
            before: Called before each step; returns a loss scale to set, or None.
            guarded: Use GradScaler, as in PyTorch's recipe; else scale by a constant factor and take every
                step.
        """
        model, device, task = self.plain_model.train(), self.job.device, self.job.task
        config = self.job.config
        training = config.training
        optimizer = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum or 0.9)
        scale = config.precision.grad_scaler.init_scale
        scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=guarded)
        for step, batch in enumerate(batches, 1):
            asked = before(step)
            if asked is not None:
                scale = asked
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=DTYPES["fp16"]):
                loss = task.loss(model(*batch.inputs), batch, batch.valid, batch.size)
            torch.autograd.backward(scaler.scale(loss) if guarded else loss * scale)
            old = scaler.get_scale() if guarded else scale
            if not guarded:
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= scale
            scaler.step(optimizer)
            scaler.update()
            yield PlainStep(float(loss.detach()), old, guarded and scaler.get_scale() < old)

    def evaluate(self, model: torch.nn.Module, batch: Batch) -> float:
        """Return the loss of a batch in evaluation mode, as a validation has it."""
        model.eval()
        with torch.no_grad():
            return float(self.job.task.loss(model(*batch.inputs), batch, batch.valid, batch.size))


class _Watch(Hook):
    def __init__(
        self,
        trainer: Trainer,
        before: Callable[[Trainer, int], None],
        after: Callable[[Trainer, StepRow], None],
    ) -> None:
        self._trainer = trainer
        self._before = before
        self._after = after

    def step_begins(self) -> None:
        self._before(self._trainer, self._trainer.state.step + 1)

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        for row in rows:
            self._after(self._trainer, row)


def _copied(batch: Batch) -> Batch:
    return replace(batch, images_BCHW=batch.images_BCHW.clone(), targets=batch.targets.clone())


def _nothing(*_values: Any) -> None:  # noqa: ANN401 - whatever is reported
    """Drop events."""


# The same training in fp32, fp16 and bf16: from one seed, with the same batches
# ------------------------------------------------------------------------------

FORMAT_STEPS = 20
_SKIPPED_TIMES = 5
"""First steps, which are slower."""
_MEMORY_DEVICE = "cuda"


@dataclass(slots=True)
class FormatRun:
    """A training in one format.

    Attributes:
        losses: Of each step.
        skipped: Number of skipped steps.
        step_s: Median seconds of a step on this device.
        evaluation_loss: Loss of the last batch in evaluation mode, computed in fp32.
        activations: Bytes of the activations at the peak of a step's memory, counted as on a GPU; None: can't
            be counted.
    """

    losses: list[float] = field(default_factory=list)
    skipped: int = 0
    step_s: float | None = None
    evaluation_loss: float | None = None
    activations: int | None = None


@dataclass(slots=True)
class TrainingLesson(Lesson):
    """The trainings so far."""

    model: str
    dataset: str
    device: str
    runs: dict[str, FormatRun]

    def lines(self, width: int, focus: int) -> list[Line]:
        """Lay out a line for each format."""
        named = f"{self.model} on {self.dataset}, {FORMAT_STEPS} steps from one seed"
        head = (
            f"{'loss':>16}{'evaluation':>12}{'skipped':>9}{f'a step, {self.device}':>16}{'activations':>14}"
        )
        return [[(named, "")], quiet(head), *(self._row(name, run) for name, run in self.runs.items())]

    def _row(self, name: str, run: FormatRun) -> Line:
        loss = fmt.figure(run.losses[-1] if run.losses else None)
        step = fmt.UNKNOWN if run.step_s is None else f"{1000 * run.step_s:.1f} ms"
        memory = fmt.UNKNOWN if run.activations is None else f"{run.activations / 2**20:.2f} MiB"
        figures = f"{fmt.figure(run.evaluation_loss):>12}{run.skipped:>9}{step:>16}{memory:>14}"
        return plain(f"{name:<6}{loss:>10}{figures}")

    def curves(self) -> Mapping[str, Sequence[StepCurve]]:
        """Return the losses, and how far those in 16 bits are from fp32's."""
        reference = self.runs["fp32"].losses
        apart = [
            StepCurve(name, [loss - own for loss, own in zip(run.losses, reference, strict=False)])
            for name, run in self.runs.items()
            if run.losses and name != "fp32"
        ]
        losses = [StepCurve(name, run.losses) for name, run in self.runs.items() if run.losses]
        return {"loss": losses, "loss minus fp32's": apart}

    def document(self) -> dict[str, Any]:
        """Return all steps in each format."""
        return asdict(self)


def training_lesson(request: Request, report: Callable[[TrainingLesson], None]) -> TrainingLesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model does not exist, or not for this data.
        DataError: The data is missing or unreadable.
    """
    lesson = TrainingLesson("", "", "", {name: FormatRun() for name in PRECISIONS})
    for name, found in lesson.runs.items():
        with SmallRun(request, {"precision.mode": name, "training.max_steps": FORMAT_STEPS}) as run:
            lesson.model = str(run.job.config.model.name)
            lesson.dataset = run.dataset
            lesson.device = run.job.device.type
            _train(run, found, lambda: report(lesson))
            found.activations = _activations(run, name)
    report(lesson)
    return lesson


def _train(run: SmallRun, found: FormatRun, report: Callable[[], None]) -> None:
    begun: list[float] = []

    def before(_trainer: Trainer, _step: int) -> None:
        begun.append(time.perf_counter())

    def after(_trainer: Trainer, row: StepRow) -> None:
        found.losses.append(row.loss)
        found.skipped += row.refused
        report()

    last = run.batches(FORMAT_STEPS)[-1]
    trainer = run.train(before, after)
    found.step_s = median(later - earlier for earlier, later in pairwise(begun[_SKIPPED_TIMES:]))
    found.evaluation_loss = run.evaluate(trainer.context.model, last)


def _activations(run: SmallRun, precision: str) -> int | None:
    try:
        return footprint(
            run.job.config,
            run.task,
            device=_MEMORY_DEVICE,
            precision=precision,
            classes=run.job.num_classes,
        ).activations
    except UncountableError:
        return None
