"""What a network keeps beside its weights is a part of the step: a refused one leaves it as it was."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.engine.blots import CLASSES, SIDE
from tests.engine.guards.sick import poison
from tests.engine.small import build_trainer, config, end
from tests.engine.updates import FINITE, backward, take_step

SHARE = 0.1


class Keeping(nn.Module):
    """A network that divides by a running statistic of its own; subclasses keep it in different ways."""

    size: torch.Tensor
    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, len(CLASSES))
        self.keep()

    def keep(self) -> None:
        self.register_buffer("size", torch.ones(4))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.conv(images)).mean(dim=(2, 3))
        if self.training:
            with torch.no_grad():
                self.note(features.detach().abs().amax(0).float())
        logits: torch.Tensor = self.head(features / (self.kept()[0] + 1.0))
        return logits

    def note(self, size: torch.Tensor) -> None:
        self.size.mul_(1 - SHARE).add_(size, alpha=SHARE)
        self.batches += 1

    def kept(self) -> list[torch.Tensor]:
        return [self.size, self.batches]


class ThroughData(Keeping):
    def note(self, size: torch.Tensor) -> None:
        self.size.data.lerp_(size, SHARE)
        self.batches.data.add_(1)


class Assigned(Keeping):
    def note(self, size: torch.Tensor) -> None:
        self.size = (1 - SHARE) * self.size + SHARE * size
        self.batches = self.batches + 1


class Growing(Keeping):
    """Its buffer has a row more after each batch, as a queue that fills."""

    rows: torch.Tensor

    def keep(self) -> None:
        self.register_buffer("rows", torch.ones(1, 4))

    def note(self, size: torch.Tensor) -> None:
        self.rows = torch.cat([self.rows, size[None]])

    def kept(self) -> list[torch.Tensor]:
        return [self.rows.mean(0)]


class Late(Keeping):
    """Its buffer is made by the first batch."""

    size: torch.Tensor | None  # type: ignore[assignment]

    def keep(self) -> None:
        self.register_buffer("size", None)

    def note(self, size: torch.Tensor) -> None:
        self.size = size if self.size is None else (1 - SHARE) * self.size + SHARE * size

    def kept(self) -> list[torch.Tensor]:
        return [torch.ones(4) if self.size is None else self.size]


class Codebook(Keeping):
    """A parameter that no gradient trains, as that of a quantizer; in a layout of its own."""

    def keep(self) -> None:
        self.codes = nn.Parameter(torch.ones(4, 4).t()[:2].t(), requires_grad=False)

    def note(self, size: torch.Tensor) -> None:
        self.codes.data.mul_(1 - SHARE).add_(size[:, None], alpha=SHARE)

    def kept(self) -> list[torch.Tensor]:
        return [self.codes[:, 0], self.codes]


class AssigningNorm(nn.BatchNorm1d):
    """A BatchNorm whose statistics are new tensors after each batch, as those of some synchronized ones."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            assert self.running_mean is not None
            self.running_mean = (1 - SHARE) * self.running_mean + SHARE * features.detach().float().mean(0)
        return nn.functional.batch_norm(features, None, None, training=True)


class Normed(Keeping):
    def keep(self) -> None:
        self.norm = AssigningNorm(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(torch.relu(self.conv(images)).mean(dim=(2, 3))))
        return logits

    def kept(self) -> list[torch.Tensor]:
        assert self.norm.running_mean is not None
        return [self.norm.running_mean]


KINDS = [Keeping, ThroughData, Assigned, Growing, Late, Codebook, Normed]


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_is_not_finite_leaves_no_trace_in_a_network_of_ones_own(tmp_path, kind):
    def trained(bad):
        model = kind()
        trainer, _ = build_trainer(config(training={"epochs": 1}), tmp_path, model=model)
        poison(trainer.context.job.train_loader, bad, value=torch.inf)
        trainer.train()
        end(trainer)
        assert trainer.context.reporter.totals.skipped == len(bad)
        return model

    model = trained({(0, 16)})
    assert all(kept.isfinite().all() for kept in model.kept())
    assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize("asks", [True, False], ids=["asking the device", "without asking"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_step_leaves_what_a_network_keeps_as_it_was(
    tmp_path, kind: Callable[[], Keeping], asks: bool
):
    """The twin never saw the refused batches."""
    trainers = []
    for _ in range(2):
        trainer, _ = build_trainer(config(training={"epochs": 4}), tmp_path, model=kind())
        trainer.context.parts.updater.buffers.sync = asks
        trainers.append(trainer)
    sick, twin = trainers
    for number, bad in enumerate(["nan image", None, None, "nan image", "overflowing loss", None]):
        take_step(sick, number, bad)
        if bad is None:
            take_step(twin, number)
        backward(sick, 50 + number)  # a step that is given up, as when memory is full
        sick.context.parts.updater.forget()
        states = [trainer.context.model.state_dict() for trainer in trainers]
        assert states[0].keys() == states[1].keys()
        for name, value in states[0].items():
            assert torch.equal(value, states[1][name]), name


def test_constants_that_are_not_finite_stay(tmp_path):
    class Masked(Keeping):
        mask: torch.Tensor

        def keep(self):
            super().keep()
            self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1), persistent=False)

    model = Masked()
    trainer, _ = build_trainer(config(training={"ema_decay": 0.9}), tmp_path, model=model)
    before = model.mask.clone()
    for number, bad in enumerate([None, "nan image", None]):
        take_step(trainer, number, bad)
    assert torch.equal(model.mask, before)


def test_a_network_without_any_takes_its_steps(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, len(CLASSES)))
    trainer, _ = build_trainer(config(), tmp_path, model=model)
    backward(trainer, 0)
    trainer.context.parts.updater.step(FINITE)
    assert trainer.context.parts.updater.position() == 1
