"""Exercises on small runs: autocast's rules, the scale of gradients, two loops at a fault, three formats."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count, islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import torch
from typing_extensions import Self, override

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
from mptui.engine.spectrum import Shares, Spectrum, WatchedOperations, computes_nothing
from mptui.engine.trainer import Trainer
from mptui.errors import ConfigError
from mptui.lab.learn.formats import LearnChoices, Lesson, Line, Report, Tone, plain, power, quiet
from mptui.lab.measure.amp_trial import own_batch
from mptui.lab.measure.core import NoCheckpoints
from mptui.models.zoo import build, input_shape
from mptui.registry.names import PRECISIONS
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Request, import_own_code, plan_run
from mptui.tasks.build_task import build_task
from mptui.text import clean
from mptui.torch_private import TO_COPY, NormBase, floats_in, tensors_in

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
FP16 = {"precision.mode": "fp16"}
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
        prepared = prepare(plan, mailbox=self._mailbox)
        self.job = prepared.job
        self.task = plan.task
        self.names = {"model": str(self.job.config.model.name), "dataset": prepared.dataset.name}
        self.title = " on ".join(self.names.values())

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the loaders."""
        self.job.train_loader.close()
        self.job.val_loader.close()

    def batches(self, number: int) -> list[Batch]:
        """Return copies of the first batches that the trainer sees."""
        windows = (window for epoch in count() for window in self.job.train_loader.windows(epoch, 1))
        batches = (own_batch(batch) for window in windows for batch in window if batch.valid)
        return list(islice(batches, number))

    def train(self, on_begin: Callable[[Trainer, int], None], on_row: Callable[[StepRow], None]) -> None:
        """Train with mptui's trainer.

        Args:
            on_begin: Called before each step, with its number from 1 on.
            on_row: Called with the figures of each step.
        """
        checkpoint = self.job.config.checkpoint
        with NoCheckpoints(Path(), lambda: checkpoint, _nothing) as saver:
            trainer = Trainer(self.job, emit=_nothing, mailbox=self._mailbox, saver=saver)
            trainer.context.hooks.add("learn", _Watch(trainer, on_begin, on_row))
            trainer.train()

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.job.task.loss(model(*batch.inputs), batch, batch.valid, batch.size)

    def evaluate(self, model: torch.nn.Module, batch: Batch) -> float:
        """Return the loss of a batch in evaluation mode, as a validation has it."""
        with torch.no_grad():
            return float(self.loss(model.eval(), batch))


@dataclass
class _Watch(Hook):
    trainer: Trainer
    on_begin: Callable[[Trainer, int], None]
    on_row: Callable[[StepRow], None]

    @override
    def step_begins(self) -> None:
        self.on_begin(self.trainer, self.trainer.state.step + 1)

    @override
    def rows_read(self, rows: Sequence[StepRow]) -> None:
        for row in rows:
            self.on_row(row)


def _nothing(*_values: Any) -> None:  # noqa: ANN401 - whatever is reported
    """Drop events."""


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
_WORDS: dict[Where, tuple[str, Tone]] = {
    "fp32": ("computed in fp32", "warn"),
    "mixed": ("16 bits in and out, weights and statistics in fp32", "accent"),
    "16 bits": ("computed in 16 bits", "good"),
}


@dataclass(frozen=True, slots=True)
class OperationRule:
    """An operation of the network in one combination of dtypes."""

    operation: str
    where: Where
    calls: int
    layer: str
    """The first layer that has it; "" is the network itself."""


def autocast(choices: LearnChoices, _report: Report) -> Lesson:
    """Trace a network under autocast.

    Raises:
        ConfigError: The model does not exist, not for this data, or can't be traced.
    """
    plan = plan_run(small_request(choices.request))
    config, device, precision = plan.config, choices.rules_of, choices.precision
    import_own_code(config)
    side, bands = int(config.data.image_size or 0), config.data.channels
    learnt = build_task(plan.task, [str(number) for number in range(_CLASSES)], config.training)
    watch = _Rules()
    try:
        with no_storage(), torch.device(device):
            network = build(
                config.model, num_classes=_CLASSES, task=plan.task, side=side, bands=bands
            ).train()
            shape = _RULES_BATCH, *input_shape(config.model, bands, side)
            batch = learnt.dummy_batch(torch.zeros(shape, device=device))
            as_there = autocast_as_there(device, DTYPES[precision])
            with watch.layers_of(network), as_there, _attention_as_one(watch), watch:
                outputs = network(*batch.inputs)
                watch.layer = LOSS
                learnt.loss(outputs, batch, batch.valid, batch.size)
    except UncountableError as error:
        reason = str(error.__cause__).partition("\n")[0]
        raise ConfigError(
            f"{config.model.name} can't be traced without values: {clean(reason)}",
            hint="choose another network with --model",
        ) from error
    rules = watch.rules()
    document = {
        "model": str(config.model.name),
        "device": device,
        "precision": precision,
        "operations": [asdict(rule) for rule in rules],
        "casts": watch.casts,
    }
    title = f"{config.model.name}, {precision}, autocast as on {device}"
    heading: Line = [(title, ""), (f"; {watch.casts} casts between the formats", "quiet")]
    return Lesson(document, lambda *_: [heading, *_rule_lines(rules)])


def _rule_lines(rules: Sequence[OperationRule]) -> Iterator[Line]:
    """Lay out the operations by where they compute, fp32 first."""
    for where, heading in _WORDS.items():
        within = [rule for rule in rules if rule.where == where]
        if within:
            yield from (plain(), [heading])
        for rule in within:
            layer = rule.layer or "the network"
            yield [(f"  {rule.operation:<34}{rule.calls:>5}×", ""), (f"  from {layer}", "quiet")]
    if not rules:
        yield quiet("no operations")


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
        dtypes = {each.dtype for each in floats_in((args, kwargs))}
        if func is TO_COPY.default:
            self.casts += bool(dtypes) and result.is_floating_point() and {result.dtype} != dtypes
        elif dtypes and not computes_nothing(func):
            self.count(func.overloadpacket.__name__, dtypes, result)
        return result

    def count(self, operation: str, dtypes: set[torch.dtype], result: Any) -> None:  # noqa: ANN401 - a tree
        """Count an operation with floating inputs of `dtypes`; the first tensor of `result` is its output."""
        where: Where = "fp32" if torch.float32 in dtypes else "16 bits"
        if len(dtypes) > 1 and tensors_in(result)[0].dtype != torch.float32:
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


def scaling(choices: LearnChoices, _report: Report) -> Lesson:
    """Count the gradients of the first batch of a run."""
    with SmallRun(choices.request, {"precision.mode": "fp32"}) as run:
        spectrum = _gradients(run)
    first, bars = spectrum.bars()
    scales = {doublings: spectrum.shares(doublings) for doublings in DOUBLINGS}
    # an overflow skips the step: all is lost; of equal scales the smallest is best
    lost = {doublings: 1.0 if shares.overflow else shares.lost for doublings, shares in scales.items()}
    best = min(DOUBLINGS, key=lambda doublings: (lost[doublings], doublings))

    def lines(width: int, focus: int) -> list[Line]:
        chosen = best + DOUBLINGS.step * focus
        under = f"; exponents under a loss scale of 2^{chosen}"
        return [
            [(f"{spectrum.values:,} gradients of {run.title}", ""), (under, "quiet")],
            *_histogram(bars, first + chosen, width),
            quiet(f"{'loss scale':<20}{'to zero':>10}{'lose bits':>11}{'overflow':>10}"),
            *(_scale_line(each, scales[each], chosen=each == chosen, best=each == best) for each in scales),
        ]

    document = {
        **run.names,
        "gradients": spectrum.values,
        "zeros": spectrum.zeros / max(spectrum.values, 1),
        "first_exponent": first,
        "exponents_per_mille": bars,
        "scales": [
            {
                "scale": 2.0**doublings,
                "to_zero": shares.zeroed,
                "subnormal": shares.subnormal,
                "overflow": shares.overflow,
            }
            for doublings, shares in scales.items()
        ],
        "best_scale": 2.0**best,
    }
    at = DOUBLINGS.index(best)
    return Lesson(document, lines, focuses=range(-at, len(DOUBLINGS) - at))


def _gradients(run: SmallRun) -> Spectrum:
    """Return the exponents of the gradients of all outputs and weights; extremes are not those of all."""
    job = run.job
    probe = Probe(job.model, job.device)
    StepSeeds(job.config.training.seed, job.device).set(0, 0)
    (batch,) = run.batches(1)
    with probe.hooks():
        torch.autograd.backward(run.loss(job.model.train(), batch))
    probe.add_weights()
    rows = probe.rows.cpu()
    kept = torch.tensor([seen.part != "forward" for seen in probe.seen(rows)])
    return Spectrum(rows[kept].sum(dim=0).numpy())


def _scale_line(doublings: int, shares: Shares, *, chosen: bool, best: bool) -> Line:
    tone: Tone = "good" if best else "bad" if shares.overflow else ""
    zeroed, lost, over = (_percent(share) for share in (shares.zeroed, shares.subnormal, shares.overflow))
    remark = "  loses least" if best else "  the step is skipped" if shares.overflow else ""
    mark = "▸ " if chosen else "  "
    figures = f"{zeroed:>10}{lost:>11}{over:>10}"
    return [(mark, "accent"), (f"{power(doublings):<18}", ""), (figures, tone), (remark, "quiet")]


def _percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.0005 else fmt.percent(share)


def _histogram(shares: Sequence[int], first: int, width: int) -> list[Line]:
    """Lay out shares of the exponents from `first` on, above the range of fp16."""
    heights = [0] * (_TO - _FROM + 1)
    for exponent, share in enumerate(shares, first):
        heights[min(max(exponent, _FROM), _TO) - _FROM] += share
    most = max(1, *heights)
    lines: list[Line] = []
    for below in range(8 * (_HEIGHT - 1), -1, -8):
        eighths = [-(-share * _HEIGHT * 8 // most) - below for share in heights]
        bars = [_LEVELS[min(max(height, 0), 8)] for height in eighths]
        lines.append([("  ", ""), *((bar, _tone(exponent)) for exponent, bar in enumerate(bars, _FROM))])
    zero, subnormal = _SUBNORMAL - _FROM, _NORMAL - _SUBNORMAL
    ruler = f"  {'zero':<{zero}}{'╌' * subnormal}{'━' * (_TOP - _NORMAL + 1)}"
    ticks = f"  {'':<{zero}}{'2^-24':<{subnormal}}{'2^-14  fp16, all bits':<26}2^15"
    return [*lines, quiet(ruler), quiet(ticks[:width])]


def _tone(exponent: int) -> Tone:
    if exponent < _SUBNORMAL or exponent > _TOP:
        return "bad"
    return "warn" if exponent < _NORMAL else "accent"


# mptui's trainer and a plain loop in fp16, which meet the same fault
# -------------------------------------------------------------------

AT_STEP = 12


@dataclass(frozen=True, slots=True)
class LoopFault:
    """What both loops meet at `AT_STEP`.

    Attributes:
        loss_scale: The loss scale is set to it before the step; the plain loop keeps it, and takes every
            step. None: the plain loop has a GradScaler, as in PyTorch's recipe.
        factor: Images are multiplied by it.
    """

    loss_scale: float | None = None
    factor: float = 1.0


@dataclass(slots=True)
class Loop:
    """A loop and its steps so far: their losses and loss scales, and the numbers of those skipped."""

    model: torch.nn.Module
    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    evaluation_loss: float | None = None
    """Loss in evaluation mode after the last step; None before it."""

    def add(self, loss: float, scale: float, *, skipped: bool) -> None:
        """Add a step."""
        self.losses.append(loss)
        self.scales.append(scale)
        if skipped:
            self.skipped.append(len(self.losses))


def _train_both(
    run: SmallRun, fault: LoopFault, lesson: Callable[[Loop, Loop], Lesson], report: Report
) -> Lesson:
    """Train with mptui's trainer and with a plain loop; report the lesson of both after each step."""
    ours, plain_loop = Loop(run.job.model), Loop(deepcopy(run.job.model))
    batches = run.batches(STEPS)
    broken = batches[AT_STEP - 1]
    broken.images_BCHW = broken.images_BCHW * fault.factor
    plain_steps = _plain_steps(run, plain_loop, batches, fault)
    now = 0

    def on_begin(trainer: Trainer, step: int) -> None:
        nonlocal now
        now = step
        if step == AT_STEP and fault.loss_scale is not None:
            trainer.context.parts.precision.set_scale(fault.loss_scale)

    def scaled(model: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        is_broken = now == AT_STEP and model.training
        return (inputs[0] * fault.factor, *inputs[1:]) if is_broken else inputs

    def on_row(row: StepRow) -> None:
        ours.add(row.loss, row.loss_scale, skipped=row.refused)
        next(plain_steps)
        report(lesson(ours, plain_loop))

    handle = ours.model.register_forward_pre_hook(scaled)
    run.train(on_begin, on_row)
    handle.remove()
    for loop in (ours, plain_loop):
        loop.evaluation_loss = run.evaluate(loop.model, batches[-1])
    return lesson(ours, plain_loop)


def _plain_steps(run: SmallRun, loop: Loop, batches: Sequence[Batch], fault: LoopFault) -> Iterator[None]:
    """Train by a plain loop with torch.amp: with GradScaler, or with a constant scale."""
    device, config, guarded = run.job.device.type, run.job.config, fault.loss_scale is None
    first_scale, momentum = config.precision.grad_scaler.init_scale, config.training.momentum or 0.9
    optimizer = torch.optim.SGD(loop.model.parameters(), lr=config.training.lr, momentum=momentum)
    scaler = torch.amp.GradScaler(device, init_scale=first_scale, enabled=guarded)
    constant = 1.0 if guarded else first_scale
    for step, batch in enumerate(batches, 1):
        if step == AT_STEP and fault.loss_scale is not None:
            constant = fault.loss_scale
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = run.loss(loop.model.train(), batch)
        torch.autograd.backward(scaler.scale(loss * constant))
        for parameter in loop.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= constant
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        loop.add(float(loss.detach()), scale, skipped=scaler.get_scale() < scale)
        yield


# An overflow made on purpose in fp16, and its repair
# ---------------------------------------------------
# Before one step the scale of both loops is set far too high, so that gradients overflow. The trainer skips
# steps and halves the scale until they fit; the plain loop takes the step, and its weights are NaN from then
# on.

TOO_HIGH = 40
"""Exponent of 2 of the loss scale that is set."""


def overflow(choices: LearnChoices, report: Report) -> Lesson:
    """Run the exercise; `report` gets the lesson after each step."""
    with SmallRun(choices.request, FP16) as run:
        return _train_both(run, LoopFault(loss_scale=2.0**TOO_HIGH), partial(_overflow_lesson, run), report)


def _overflow_lesson(run: SmallRun, ours: Loop, other: Loop) -> Lesson:
    steps = enumerate(zip(ours.losses, ours.scales, other.losses, strict=True), 1)
    document = {
        **run.names,
        "overflow_before_step": AT_STEP,
        "set_loss_scale": 2.0**TOO_HIGH,
        "skipped_steps": ours.skipped[:],
        "steps": [
            {"loss": loss, "loss_scale": scale, "skipped": step in ours.skipped, "plain_loss": plain_loss}
            for step, (loss, scale, plain_loss) in steps
        ],
    }
    losses = {"mptui": ours.losses[:], "plain loop": other.losses[:]}
    scales = {"mptui": [math.log2(scale) for scale in ours.scales]}
    lines = [
        plain(f"{run.title} in fp16: step {len(ours.losses)} of {STEPS}"),
        quiet(f"before step {AT_STEP} the loss scale is set to {power(TOO_HIGH)}: gradients overflow"),
        *(_repair_lines(ours, other) if len(ours.losses) >= AT_STEP else ()),
    ]
    return Lesson(document, lambda *_: lines, {"loss": losses, "loss scale, log2": scales})


def _repair_lines(ours: Loop, other: Loop) -> Iterator[Line]:
    last = max(ours.skipped, default=0)
    is_repaired = last < len(ours.losses)
    words = f"mptui: {len(ours.skipped)} steps skipped, each halves the scale"
    yield [(words, "" if is_repaired else "warn")]
    if is_repaired:
        after = f"scale {ours.scales[-1]:,.0f}, loss {fmt.figure(ours.losses[-1])}"
        yield [(f"repaired at step {last + 1}: ", "good"), (after, "")]
    if not math.isfinite(other.losses[-1]):
        yield [("plain loop, constant scale: weights and loss are NaN from then on", "bad")]


# The BatchNorm that a skipped step poisons in a plain loop, and not in mptui
# ---------------------------------------------------------------------------
# Before one step all images are multiplied by 1e6, as one broken file could do: in fp16 the first products
# are infinite. GradScaler skips the step, so that the weights stay; but the forward pass has changed
# BatchNorm's running statistics already, which are NaN from then on, and so is every later validation.
# mptui's step changes weights and statistics together, or neither.

FACTOR = 1e6


def batchnorm(choices: LearnChoices, report: Report) -> Lesson:
    """Run the exercise; `report` gets the lesson after each step.

    Raises:
        ConfigError: The model has no BatchNorm, does not exist, or not for this data.
    """
    with SmallRun(choices.request, FP16) as run:
        if not _running_means(run.job.model):
            raise ConfigError(
                f"{run.names['model']} has no BatchNorm", hint="choose another, such as --model unet"
            )
        return _train_both(run, LoopFault(factor=FACTOR), partial(_batchnorm_lesson, run), report)


def _running_means(model: torch.nn.Module) -> list[torch.Tensor]:
    norms = (m for m in model.modules() if isinstance(m, NormBase))
    return [norm.running_mean for norm in norms if norm.running_mean is not None]


def _batchnorm_lesson(run: SmallRun, ours: Loop, other: Loop) -> Lesson:
    states = {"mptui": _state(ours), "plain": _state(other)}
    document = {**run.names, "broken_step": AT_STEP, "factor": FACTOR, **states}
    rows = zip(_state_cells(states["plain"]), _state_cells(states["mptui"]), _STATE_LABELS, strict=True)
    lines = [
        plain(f"{run.title} in fp16: step {len(ours.losses)} of {STEPS}"),
        quiet(f"at step {AT_STEP} the images are {FACTOR:,.0f} times too large: the products overflow"),
        plain(),
        quiet(f"{'':<30}{'plain loop':>14}{'mptui':>14}"),
        *([(f"{label:<30}", "quiet"), theirs, own] for theirs, own, label in rows),
    ]
    if states["plain"]["poisoned"]:
        lines += [
            plain(),
            plain("Both loops skip the step. The plain one has changed the running statistics"),
            plain("in the forward pass: training goes on unharmed, each validation is NaN."),
        ]
    return Lesson(document, lambda *_: lines)


def _state(loop: Loop) -> dict[str, Any]:
    """Return what a loop has after its steps so far; poisoned: BatchNorm layers with NaN in statistics."""
    means = _running_means(loop.model)
    return {
        "steps": len(loop.losses),
        "skipped": len(loop.skipped),
        "loss": loop.losses[-1],
        "finite_weights": all(map(_is_finite, loop.model.parameters())),
        "norms": len(means),
        "poisoned": sum(not _is_finite(mean) for mean in means),
        "evaluation_loss": loop.evaluation_loss,
    }


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


_STATE_LABELS = "steps skipped", "weights", "BatchNorm layers with NaN", "training loss", "loss in evaluation"


def _state_cells(state: Mapping[str, Any]) -> list[tuple[str, Tone]]:
    """Return a cell for each label, in the tone of its verdict."""
    weights, evaluation = state["finite_weights"], state["evaluation_loss"]
    cells: list[tuple[object, bool | None]] = [
        (state["skipped"], None),
        ("finite" if weights else "NaN", weights),
        (f"{state['poisoned']} of {state['norms']}", not state["poisoned"]),
        (fmt.figure(state["loss"]), None),
        (fmt.figure(evaluation).replace("nan", "NaN"), math.isfinite(evaluation or 0.0)),
    ]
    tones: dict[bool | None, Tone] = {None: "", True: "good", False: "bad"}
    return [(f"{text:>14}", tones[is_good]) for text, is_good in cells]


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


def training(choices: LearnChoices, report: Report) -> Lesson:
    """Run the exercise; `report` gets the lesson after each step."""
    formats = {name: FormatRun() for name in PRECISIONS}
    for name in formats:
        settings = {"precision.mode": name, "training.max_steps": FORMAT_STEPS}
        with SmallRun(choices.request, settings) as run:
            _train_format(run, name, formats, report)
    return _training_lesson(run, formats)


def _train_format(run: SmallRun, name: str, formats: Mapping[str, FormatRun], report: Report) -> None:
    found, begun = formats[name], list[float]()

    def on_row(row: StepRow) -> None:
        found.losses.append(row.loss)
        found.skipped += row.refused
        report(_training_lesson(run, formats))

    last = run.batches(FORMAT_STEPS)[-1]
    run.train(lambda *_: begun.append(time.perf_counter()), on_row)
    found.step_s = median(later - earlier for earlier, later in pairwise(begun[_SKIPPED_TIMES:]))
    found.evaluation_loss = run.evaluate(run.job.model, last)
    found.activations = _activations(run, name)


def _activations(run: SmallRun, precision: str) -> int | None:
    classes = run.job.num_classes
    try:
        counted = footprint(
            run.job.config, run.task, device=_MEMORY_DEVICE, precision=precision, classes=classes
        )
    except UncountableError:
        return None
    return counted.activations


def _training_lesson(run: SmallRun, formats: Mapping[str, FormatRun]) -> Lesson:
    device = run.job.device.type
    begun = {name: found.losses[:] for name, found in formats.items() if found.losses}
    apart = {
        name: [loss - own for loss, own in zip(losses, begun["fp32"], strict=False)]
        for name, losses in begun.items()
        if name != "fp32"
    }
    lines = [
        plain(f"{run.title}, {FORMAT_STEPS} steps from one seed"),
        quiet(f"{'loss':>16}{'evaluation':>12}{'skipped':>9}{f'a step, {device}':>16}{'activations':>14}"),
        *(_format_line(*each) for each in formats.items()),
    ]
    runs = {name: asdict(found) for name, found in formats.items()}
    document = {**run.names, "device": device, "runs": runs}
    return Lesson(document, lambda *_: lines, {"loss": begun, "loss minus fp32's": apart})


def _format_line(name: str, found: FormatRun) -> Line:
    loss = fmt.figure(found.losses[-1] if found.losses else None)
    step = fmt.UNKNOWN if found.step_s is None else f"{1000 * found.step_s:.1f} ms"
    memory = fmt.UNKNOWN if found.activations is None else f"{found.activations / 2**20:.2f} MiB"
    figures = f"{fmt.figure(found.evaluation_loss):>12}{found.skipped:>9}{step:>16}{memory:>14}"
    return plain(f"{name:<6}{loss:>10}{figures}")
