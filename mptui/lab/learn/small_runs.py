"""Short runs of the exercises: some steps with mptui's own trainer, and the same steps with a plain loop."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from mptui.data.core.batch import Batch
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Mailbox
from mptui.engine.precision.amp import DTYPES
from mptui.engine.reporting.device_buffer import StepRow
from mptui.engine.trainer import Trainer
from mptui.lab.bench.unsaved import NoCheckpoints
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Request, plan_run

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
        self.job, self.dataset, self.task = prepared.job, prepared.dataset.name, plan.task
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
        self._trainer, self._before, self._after = trainer, before, after

    def step_begins(self) -> None:
        self._before(self._trainer, self._trainer.state.step + 1)

    def rows_read(self, rows: Sequence[StepRow]) -> None:
        for row in rows:
            self._after(self._trainer, row)


def _copied(batch: Batch) -> Batch:
    return replace(batch, images_BCHW=batch.images_BCHW.clone(), targets=batch.targets.clone())


def _nothing(*_values: Any) -> None:  # noqa: ANN401 - whatever is reported
    """Drop events."""
