"""Small real runs: a conv net with BatchNorm, and a complete trainer around it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from mptui.config.schema import RunConfig
from mptui.data.cache_policy import CacheMode
from mptui.data.loader import Loader
from mptui.data.sampler import Share
from mptui.engine.checkpoint.saver import NonPrimarySaver, Saver
from mptui.engine.job import Job
from mptui.engine.mailbox import Mailbox, Stopped
from mptui.engine.ranks.group import ALONE, Ranks
from mptui.engine.ranks.replica import placed
from mptui.engine.ranks.sync import RanksMailbox
from mptui.engine.reporting.first_batch import OnData
from mptui.engine.reporting.observers import observers
from mptui.engine.reporting.pictures import OnImages, OnPictures
from mptui.engine.trainer import Trainer
from mptui.events import Event, Step
from mptui.models.diffusion_unet import DiffusionUNet
from mptui.registry.tasks import TASKS
from mptui.tasks.build_task import build_task
from tests.engine.blots import CLASSES, SIDE, Blot, Samples
from tests.made.loaders import built_loader

CPU = torch.device("cpu")

AnyEvent = TypeVar("AnyEvent", bound=Event)


def small_net(norm: bool = True, seed: int = 0, dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 8, 3, padding=1, bias=not norm)]
    if norm:
        layers.append(torch.nn.BatchNorm2d(8))
    layers += [
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(8 * (SIDE // 2) ** 2, len(CLASSES)),
    ]
    return torch.nn.Sequential(*layers)


def mask_net(seed: int = 0) -> torch.nn.Module:
    """Return a network of two-class logits per pixel, without normalization."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 2, 3, padding=1)
    )


def diffusion_net(seed: int = 0) -> torch.nn.Module:
    """Return a minimal but complete diffusion U-Net."""
    torch.manual_seed(seed)
    return DiffusionUNet(width=8, depth=1)


class NoiseNet(torch.nn.Module):
    """One convolution for the noise of an image, moved by the timestep."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.mix = torch.nn.Conv2d(3, 3, 3, padding=1)
        self.time = torch.nn.Linear(1, 3)

    def forward(self, noisy_BCHW: torch.Tensor, timesteps_B: torch.Tensor) -> torch.Tensor:
        moved_BC = self.time(timesteps_B[:, None] / 1000)
        answer_BCHW: torch.Tensor = self.mix(noisy_BCHW) + moved_BC[:, :, None, None]
        return answer_BCHW


def config(**tables: dict[str, object]) -> RunConfig:
    base: dict[str, dict[str, object]] = {
        "training": {"epochs": 2, "batch_size": 8, "lr": 0.05},
        "logging": {"step_interval_s": 0.0},
        "speed": {"channels_last": False},
        "checkpoint": {"every_minutes": 60.0},
        "guards": {"numerics": "off"},
    }
    for name, values in tables.items():
        base[name] = {**base.get(name, {}), **values}
    return RunConfig.model_validate(base)


class Recorder(list[Event]):
    """Stores every event, and calls `then` on each."""

    def __init__(self) -> None:
        super().__init__()
        self.then: Callable[[Event], None] | None = None

    def handle(self, event: Event) -> None:
        self.append(event)
        if self.then is not None:
            self.then(event)


def build_trainer(
    run: RunConfig,
    folder: Path,
    *,
    precision: str = "fp32",
    model: torch.nn.Module | None = None,
    train: int = 40,
    val: int = 8,
    kind: type[Blot] = Blot,
    workers: int = 0,
    force_compile: bool = False,
    fallbacks: tuple[str, ...] = ("bf16", "fp32"),
    cache: CacheMode = "off",
    reads_as: type[Blot] | None = None,
    device: torch.device = CPU,
    task: str | None = None,
    ranks: Ranks = ALONE,
    on_images: OnImages | None = None,
    on_pictures: OnPictures | None = None,
    on_data: OnData | None = None,
    seconds: Callable[[], float] | None = None,
) -> tuple[Trainer, Recorder]:
    """Build a complete trainer over `train` samples of a kind (read as another kind with `reads_as`)."""
    task = task or ("classification" if kind is Blot else "segmentation")
    classes = CLASSES if kind is Blot else ("background", "bright")

    def loader(count: int, first: int, is_train: bool) -> Loader:
        return built_loader(
            Samples(count, first, reads_as or kind),
            kind=TASKS[task].sample,
            batch_size=run.training.batch_size,
            side=SIDE,
            num_classes=len(classes),
            device=device,
            train=is_train,
            augment=is_train and run.data.augment != "none",
            names=tuple(run.data.augment) if isinstance(run.data.augment, list) else (),
            seed=run.training.seed,
            channels_last=bool(run.speed.channels_last),
            mixup_alpha=run.data.mixup_alpha,
            workers=workers,
            cache=cache,
            share=Share(ranks.rank, ranks.world_size),
        )

    if model is None:
        model = small_net() if kind is Blot else mask_net()
    job = Job(
        config=run,
        model=placed(model, run, ranks, device),
        task=build_task(task, classes, run.training),
        num_classes=len(classes),
        device=device,
        precision=precision,
        train_loader=loader(train, 0, True),
        val_loader=loader(val, 10_000, False),
        fallbacks=fallbacks,
        force_compile=force_compile,
        ranks=ranks,
        val_split=Samples(val, 10_000, reads_as or kind),
    )
    events = Recorder()
    folder.parent.mkdir(parents=True, exist_ok=True)  # the run's directory, which a saver does not make
    saver = (Saver if ranks.is_first else NonPrimarySaver)(folder, lambda: run.checkpoint, events.handle)
    mailbox = Mailbox() if ranks.is_alone else RanksMailbox(ranks, Mailbox())
    looking_on = observers(on_images=on_images, on_pictures=on_pictures, on_data=on_data)
    trainer = Trainer(
        job, emit=events.handle, mailbox=mailbox, saver=saver, seconds=seconds, observers=looking_on
    )
    return trainer, events


def end(trainer: Trainer) -> None:
    """Write pending data, and end threads and workers."""
    trainer.context.saver.close()
    trainer.close()


def losses(events: list[Event]) -> list[float]:
    """The loss of each step, in order."""
    return [event.loss for event in events if isinstance(event, Step)]


def of(events: list[Event], kind: type[AnyEvent]) -> list[AnyEvent]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def until_stopped(trainer, pieces):
    """Train until that many pieces have passed, then stop between two of them."""
    seen = 0
    whole = trainer.context.parts.precision.backward

    def stop_in_the_middle(loss):
        nonlocal seen
        whole(loss)
        seen += 1
        if seen == pieces:
            trainer.context.mailbox.stop(None)

    vars(trainer.context.parts.precision)["backward"] = stop_in_the_middle
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
