"""Small runs of one rank, for `in_group`: each function returns what JSON can hold."""

from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from mptui.data.address import status_of
from mptui.data.loader import Loader
from mptui.data.open import open_dataset
from mptui.data.types import BadSampleError, Decoded
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.epochs import report, validate
from mptui.engine.mailbox import Command, Mailbox, Stopped
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.ranks.group import full_tensor
from mptui.engine.ranks.sync import mailbox_of
from mptui.engine.trainer import Trainer
from mptui.errors import DataError, MptuiError
from mptui.events import (
    CommandAnswered,
    EpochFinished,
    Event,
    Paused,
    Recovered,
    Resumed,
    Step,
    Validated,
)
from mptui.processes.rank_place import RankPlace
from mptui.runs.planning import find_data
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session.member import Member
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from tests.data.caching import chosen, dataset
from tests.engine.blots import SIDE, Blot, Scene
from tests.engine.compilers import compiler_for, probe
from tests.engine.small import Recorder, build_trainer, config, end, losses, of
from tests.made.runs import UNET, plan_of
from tests.ranks.groups import own_device


class Double(torch.nn.Module):
    """Turns images, which are float32, into float64."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.to(torch.float64)


class Residual(torch.nn.Module):
    """A block of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = images + self.second(self.first(images).relu())
        return outputs


def net(outputs: int, flat: bool, blocks: int = 0) -> torch.nn.Module:
    """A network with GroupNorm, and with so many blocks."""
    torch.manual_seed(3)
    layers: list[torch.nn.Module] = [
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        *(Residual() for _ in range(blocks)),
        torch.nn.Conv2d(8, outputs, 3, padding=1),
    ]
    if flat:
        layers += [torch.nn.Flatten(), torch.nn.Linear(outputs * SIDE**2, outputs)]
    return torch.nn.Sequential(*layers)


@dataclass(frozen=True)
class Torn(Blot):
    """A blot; one of nine can't be read."""

    def read(self, side_hint: int | None = None) -> Decoded:
        if self.index % 9 == 4:
            raise BadSampleError(self.name, "truncated")
        return super().read(side_hint)


def built(
    ranks,
    folder,
    *,
    masks=False,
    train=40,
    val=21,
    precision="fp32",
    blocks=0,
    reads_as=None,
    force_compile=False,
    on_pictures=None,
    **tables,
):
    settings = config(data={"image_size": SIDE}, **tables)
    model = net(2 if masks else 3, not masks, blocks)
    if torch.get_default_dtype() == torch.float64:
        model = torch.nn.Sequential(Double(), model)
    return build_trainer(
        settings,
        Path(folder) / "checkpoints",
        model=model,
        train=train,
        val=val,
        precision=precision,
        ranks=ranks,
        kind=Scene if masks else Blot,
        reads_as=reads_as,
        force_compile=force_compile,
        device=own_device(),
        on_pictures=on_pictures,
    )


def train(ranks, folder, options):
    """Train, and return the losses, the validations and a checksum of the weights."""
    trainer, events = built(ranks, folder, **options)
    trainer.train()
    end(trainer)
    return told(trainer, events)


def told(trainer: Trainer, events: Recorder):
    weights = [full_tensor(p.detach()).flatten().double() for p in trainer.context.model.parameters()]
    powers = [torch.cat(weights).pow(power).sum() for power in (1, 2, 3)]
    return {
        "losses": losses(events),
        "scales": [each.loss_scale for each in of(events, Step)],
        "validations": [each.metrics for each in of(events, Validated)],
        "val_losses": [each.loss for each in of(events, Validated)],
        "weights": [float(power) for power in powers],
        "skipped": max((each.skipped_steps for each in of(events, Step)), default=0),
        "others": [
            getattr(each, "action", getattr(each, "code", ""))
            for each in events
            if type(each).__name__ in {"Recovered", "Warned"}
        ],
    }


def train_both_ways(ranks, folder, forms):
    """Train in each form with replicated and with sharded weights; return both results of each form."""
    folders = (Path(folder) / str(number) for number in range(2 * len(forms)))
    return {
        name: [
            train(ranks, next(folders), {**form, "memory": {**form.get("memory", {}), "shard": s}})
            for s in (False, True)
        ]
        for name, form in forms.items()
    }


def dropout_masks(ranks, folder):
    """Train 2 steps; return which values of this rank a dropout layer has kept, by step."""
    kept: list[list[bool]] = []

    class Keeping(torch.nn.Dropout):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            outputs = super().forward(values)
            if self.training:
                kept.append((outputs != 0).flatten().tolist())
            return outputs

    layers = torch.nn.Flatten(), torch.nn.Linear(3 * SIDE**2, 16), torch.nn.Sigmoid(), Keeping(0.5)
    trainer, _ = build_trainer(
        config(data={"image_size": SIDE}, training={"max_steps": 2}),
        Path(folder) / "checkpoints",
        model=torch.nn.Sequential(*layers, torch.nn.Linear(16, 3)),
        ranks=ranks,
    )
    trainer.train()
    end(trainer)
    return kept


def resume_in_a_window(ranks, folder, options):
    """Go on from the checkpoint in a folder to the end of the epoch; return the training metrics."""
    trainer, events = built(ranks, folder, **options)
    snapshots.restore(trainer.state, read_newest(Path(folder) / "checkpoints")[0])
    counts: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, EpochFinished):
            sums.update(event.train_metrics)

    sums: dict[str, float] = {}
    events.then = note
    reset = trainer.state.metrics.reset
    state = trainer.state.metrics.state_dict

    def note_count() -> None:
        counts.append(int(state()["count"]))
        reset()

    vars(trainer.state.metrics)["reset"] = note_count
    trainer.train()
    end(trainer)
    return [counts, sums]


def take_pictures(ranks, folder):
    """Validate a classifier, then a segmenter; return what rank 0 has of their pictures."""
    found = []

    def take(pictures):
        rows = {
            name: [
                [each.index, each.truth, each.predicted, each.error, int(each.pixels_HWC.sum())]
                for each in them
            ]
            for name, them in pictures.groups.items()
        }
        found.append([rows, pictures.confusion.tolist()])
        return ""

    for masks in (False, True):
        on_pictures = take if ranks.is_first else None
        training = {"batch_size": 8}
        trainer, _ = built(
            ranks, Path(folder) / str(masks), masks=masks, on_pictures=on_pictures, training=training
        )
        report(trainer.context, validate(trainer.context), 1, best=True)
        end(trainer)
    return found


def train_in_float64(ranks, folder, options):
    """Train with weights, losses and reports in float64, which no precision of a run is."""
    torch.set_default_dtype(torch.float64)
    real = torch.Tensor.float
    torch.Tensor.float = lambda tensor: tensor if tensor.dtype == torch.float64 else real(tensor)  # type: ignore[method-assign, assignment, return-value]
    return train(ranks, folder, options)  # in a process of its own


class Fault(torch.nn.Module):
    """Goes wrong once, in the forward or the backward pass of one rank."""

    def __init__(self, kind: str, at: int) -> None:
        super().__init__()
        self._kind, self._left = kind, at

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._left -= self.training
        if self._left != 0:
            return images
        self._left = -1
        if self._kind == "no memory":
            raise torch.OutOfMemoryError("out of memory")
        if self._kind == "bug":
            raise KeyError("a bug")
        if self._kind == "data":
            raise DataError("a broken file", hint="repair it")
        if self._kind in _IN_BACKWARD:
            outputs = images * 1.0
            outputs.register_hook(_IN_BACKWARD[self._kind])
            return outputs
        return images * float("nan")


def _broken_at(at, windows):
    """Return `windows` that break before window number `at` of all epochs."""
    left = [at]

    def broken(*place):
        for window in windows(*place):
            left[0] -= 1
            if left[0] == 0:
                raise DataError("a broken file", hint="repair it")
            yield window

    return broken


def _no_memory(_gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("out of memory")


def _overflow(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * float("inf")


_IN_BACKWARD = {"no memory backward": _no_memory, "overflow": _overflow}


def train_with_a_fault(ranks, folder, kind, at, options):
    """Train with a fault on the last rank, in its forward pass number `at`; tell how it ended."""
    trainer, events = built(ranks, folder, **options)
    layers = trainer.context.model
    assert isinstance(layers, torch.nn.Sequential)
    if ranks.rank == ranks.world_size - 1:
        layers[1] = torch.nn.Sequential(layers[1], Fault(kind, at))
        if kind == "reading":
            loader = trainer.context.job.train_loader
            loader.windows = _broken_at(at, loader.windows)
    error = None
    try:
        trainer.train()
    except (MptuiError, KeyError) as caught:
        reason = ranks.reason(caught) if isinstance(caught, MptuiError) else caught
        error = [type(reason).__name__, str(reason)]
    end(trainer)
    left = told(trainer, events) if error is None else {}
    return {**left, "error": error, "step": trainer.state.step}


def obey_commands(ranks, folder):
    """Train, with commands for rank 0 after step 2, and a stop for rank 1 after step 6."""
    trainer, events = built(ranks, folder, train=40, training={"epochs": 20, "batch_size": 8})
    own = trainer.context.mailbox._own

    def command(event: Event) -> None:
        if isinstance(event, Step) and event.step == 2 and ranks.is_first:
            for name in ("checkpoint", "validate", "set", "pause", "resume"):
                own.post(Command(name, "training.accumulate=2" if name == "set" else None))
        if isinstance(event, Step) and event.step == 6 and not ranks.is_first:
            own.save()
            own.stop(15)

    events.then = command
    ended = None
    try:
        trainer.train()
    except Stopped as stop:
        ended = stop.signal
    end(trainer)
    kept = (CommandAnswered, Validated, Paused, Resumed)
    heard = [[event.step, type(event).__name__] for event in events if isinstance(event, kept)]
    return {"ended": ended, "step": trainer.state.step, "heard": heard}


def find_files(ranks, folder, gone):
    """Find the files of a folder, which may be gone on the last rank; tell them, and how often it looked."""
    patch, scan = pytest.MonkeyPatch(), Mock(side_effect=open_dataset)
    patch.setattr(find_data, "open_dataset", scan)
    if gone and not ranks.is_first:
        patch.setattr(find_data, "status_of", lambda address: status_of(f"{address}.gone"))
    flags = {"data.path": ("test", folder), "data.image_size": ("test", 16)}
    plan = plan_run(Request(None, flags), place=RankPlace(ranks.rank, ranks.rank, 2, 2))
    try:
        dataset, _ = find_data.find_data(plan, lambda event: None, mailbox_of(ranks, Mailbox()), ranks)
    except DataError as error:
        ranks.fail(error)
        return error.message
    files = [dataset.train.request(index).name for index in range(len(dataset.train))]
    return [files, dataset.classes, len(dataset.val), scan.call_count]


def choose_precision(ranks, folder):
    """Switch to `auto` where rank 0 alone has bf16; return the precision and those to fall back to."""
    of_ranks = {"data.samples": 16, "training.batch_size": 4, "training.epochs": 1}
    settings = {**UNET, "model.depth": 2, "model.norm": "group", "precision.mode": "fp32", **of_ranks}
    place = RankPlace(ranks.rank, ranks.rank, ranks.world_size, ranks.world_size)
    plan = plan_of(settings, None, place=place)
    plan.device.native["bf16"] = "native" if ranks.is_first else "emulated"
    trainers: list[Trainer] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(Trainer, "close", lambda trainer: trainers.append(trainer))
    if ranks.is_first:
        session = Session(plan, create_run(Path(folder), "test", "unet", "a"), ranks=ranks)
        session.mailbox.post(Command("set", "precision.mode=auto"))
        session.start()
        while not session.wait(1.0):
            pass
        assert session.result.exit_code == 0, session.result
    else:
        assert Member(plan, ranks, force_compile=False).run() == 0
    patch.undo()
    trainers[0].close()
    job = trainers[0].context.job
    return [job.precision, job.fallbacks]


def decide(ranks, folder):
    """Decide what depends on memory, time and the compiler, of all of which the last rank has less."""
    poor, gib, patch = ranks.rank == ranks.world_size - 1, 1 << 30, pytest.MonkeyPatch()
    free = (8 if poor else 60) * gib
    patch.setattr("mptui.data.cache_policy.host_memory", lambda: (64 * gib, free))
    patch.setattr("mptui.engine.guards.rollback.host_memory", lambda: (64 * gib, 9 if poor else free))
    patch.setattr("mptui.engine.guards.memory._fits", lambda *given: given[-1] <= (3 if poor else 99))
    held = chosen(
        dataset(20_000), processes=ranks.per_node, least=lambda size: min(ranks.gather(size)), epochs=2
    )
    compilers = []
    for reason in (None, "there is no C++ compiler"):
        patch.setattr("mptui.engine.compile._impossible", lambda *_, why=reason: why if poor else None)
        compiler, _, told = compiler_for(torch.device("cpu"), 500, ranks=ranks)
        steps = probe(compiler, 9.0 if poor else 0.01) if compiler.undecided else 0
        compilers.append([steps, compiler.active, *told])
    trainer, _ = built(ranks, folder, memory={"micro_batch": "auto"}, train=16, val=4)
    trainer.context.begin()
    trainer.context.rollback.keep(trainer.state)
    kept = [trainer.context.rollback.possible, trainer.context.micro_batches.limits["training"]]
    end(trainer)
    return [held.mode, held.reason, compilers, kept]


def train_on_torn(ranks, folder, allowed):
    """Train on samples of which some can't be read; return what is told of them, and the error."""
    trainer, _ = built(ranks, folder, reads_as=Torn, training={"epochs": 3, "batch_size": 8})
    told: list[str] = []
    for loader in (trainer.context.job.train_loader, trainer.context.job.val_loader):
        loader.bad_samples._on_bad = lambda problem: told.append(f"{problem.path} {problem.reason}")
        loader.bad_samples._allowed = allowed
    error = None
    try:
        trainer.train()
    except DataError as caught:
        error = str(caught).splitlines()[0]
    end(trainer)
    return [sorted(told), error]


def switch_in_vain(ranks, folder, moment, setting):
    """Train; a switch to another setting fails on the last rank: its parts, validation or step."""
    of_ranks = {"model.depth": 2, "model.norm": "group", "precision.mode": "fp32", "training.epochs": 3}
    settings = {**UNET, **of_ranks}
    place = RankPlace(ranks.rank, ranks.rank, ranks.world_size, ranks.world_size)
    plan = plan_of(settings, None, place=place)
    trainers: list[Trainer] = []
    close, take_step, window_at = Trainer.close, Trainer._step, Loader.window_at
    build_updater, built = Updater.__init__, []
    broken = ranks.rank == ranks.world_size - 1
    left = [2 if moment == "second step" else 1]

    def kept(trainer):
        trainers.append(trainer)
        close(trainer)

    def fails(*_):
        raise ValueError("no memory for it")

    def step(trainer, window):
        if broken and trainer.context.on_trial is not None and moment in {"step", "second step", "backward"}:
            left[0] -= 1
            if left[0] == 0 and moment == "backward":
                hook = next(trainer.context.model.parameters()).register_hook(fails)
                try:
                    return take_step(trainer, window)
                finally:
                    hook.remove()
            if left[0] == 0:
                fails()
        return take_step(trainer, window)

    def read_at(loader, *where):
        if broken and moment == "validation" and loader.batches:
            fails()
        return window_at(loader, *where)

    def updater(*arguments, **named):
        built.append(1)
        if broken and moment == "parts" and len(built) == 2:
            fails()
        build_updater(*arguments, **named)

    patch = pytest.MonkeyPatch()
    patch.setattr(Trainer, "close", kept)
    patch.setattr(Updater, "__init__", updater)
    patch.setattr(Trainer, "_step", step)
    patch.setattr(Loader, "window_at", read_at)
    undone: list[str] = []
    if ranks.is_first:
        session = Session(plan, create_run(Path(folder), "test", "unet", "a"), ranks=ranks)
        session.mailbox.post(Command("set", setting))
        heard = session.listen()
        session.start()
        while not session.wait(1.0):
            pass
        code = session.result.exit_code
        undone = [e.action for e in heard.drain() if isinstance(e, Recovered) and e.problem == "switch"]
    else:
        code = Member(plan, ranks, force_compile=False).run()
    patch.undo()
    context = trainers[0].context
    training = context.job.config.training
    now = [training.batch_size, training.clip_grad_norm]
    return {"code": code, "undone": undone, "steps": context.state.step, "settings": now}
