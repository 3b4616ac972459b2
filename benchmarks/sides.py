"""Training loops to compare, each in a separate process: `mptui run`, a bare loop, and peers.

Each follows its own documentation, with what that advises for speed: one fused optimizer, channels last, data
on the device, no validation. All train the same network on as many images of the same size, in the same
precision, with as many threads.
"""

import argparse
import contextlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.photos import imagefolder
from benchmarks.subjects import TINY, Batches, Case, Stamps
from mptui.hardware.host import keep_freed_memory

LR, MOMENTUM, WEIGHT_DECAY = 0.001, 0.9, 1e-4
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRINT_EVERY = 10
LOG_EVERY = 50

Data = Iterable[tuple[torch.Tensor, torch.Tensor]]
Loop = Callable[[Case, torch.nn.Module, Data], None]
Start = Callable[[Sequence[str], Mapping[str, str], float | None], "subprocess.CompletedProcess[str]"]

RUNS = {"mptui": "benchmarks.timed_run", "launches": "benchmarks.launches"}
"""Modules that run `mptui run`, by what they measure of it."""


def fresh(
    words: Sequence[str], environ: Mapping[str, str], limit_s: float | None
) -> "subprocess.CompletedProcess[str]":
    """Runs a command line in a fresh interpreter to its end, at most so many seconds."""
    return subprocess.run(words, capture_output=True, text=True, env=environ, check=False, timeout=limit_s)


def figures(
    side: str,
    case: Case,
    threads: int = 0,
    flags: Sequence[str] = (),
    limit_s: float | None = None,
    start: Start = fresh,
) -> dict[str, Any]:
    """Trains with `side` in a process; returns `wall_s` and `cpu_s` of a step, and its other figures.

    Args:
        side: One of RUNS or of SIDES.
        case: The training case.
        threads: Compute threads on the CPU; 0: torch's default.
        flags: Additional flags for `mptui run`.
        limit_s: Seconds after which the process is killed; None: no limit.
        start: Runs its command line in an environment.

    Raises:
        RuntimeError: It failed; the message has the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "figures.json")
        answer = start([*command(side, case, told, Path(folder)), *flags], environment(threads), limit_s)
        if answer.returncode or not told.exists():
            raise RuntimeError(f"{side} failed on {case.model}:\n{answer.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(told.read_text())
        if side in RUNS:
            summary = json.loads(answer.stdout)
            found["peak_bytes"] = summary["memory"]["peak_allocated_bytes"]
            found["loss"] = summary["final"].get("train_loss")
            found["first_step_s"] = summary["time"]["first_step_s"]
            found |= {name: summary[name] for name in ("warnings", "recoveries")}
        return found


def command(side: str, case: Case, told: Path, folder: Path) -> list[str]:
    """Returns the command line that starts the process of a side.

    Args:
        side: One of RUNS or of SIDES.
        case: The training case.
        told: File for the figures of the process.
        folder: Directory of `mptui run`.
    """
    subject = json.dumps(asdict(case))
    if side not in RUNS:
        return [sys.executable, "-m", "benchmarks.sides", side, subject, str(told)]
    run = ("run", "--json", "--runs-dir", str(folder / "runs"), *_flags(case))
    return [sys.executable, "-m", RUNS[side], subject, str(told), *run]


def environment(threads: int) -> dict[str, str]:
    """Returns the environment of a side's process; with 0 threads, torch's default."""
    return {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}


def missing(sides: Sequence[str]) -> str:
    """Returns one line that names the packages to install for `sides`; empty if none is missing."""
    needed = dict.fromkeys(NEEDS[side] for side in sides if side in NEEDS)
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(absent)}; pip install 'mptui[peers]'" if absent else ""


def _flags(case: Case) -> list[str]:
    """Returns the flags of `mptui run` for a case; logging, guards and numerics keep their defaults."""
    sets: dict[str, object] = {
        "data.image_size": case.side,
        **({"model.width": case.width} if case.task == "segmentation" else {}),
        "precision.matmul": "high" if case.tf32 else "highest",
        "speed.channels_last": case.channels_last,
        "speed.compile": case.compile,
    }
    if not case.folder:
        cache = "device" if case.resident else "off"
        sets |= {"data.samples": case.samples, "data.cache": cache, "data.augment": "none"}
    named = "unet" if case.task == "segmentation" else case.model
    return [
        *("--model", "resnet18" if case.model == TINY else named, "--data", case.folder or "shapes"),
        *("--batch-size", str(case.batch), "--epochs", "100", "--max-steps", str(case.steps)),
        *("--lr", str(LR), "--precision", case.precision, "--device", case.device),
        *(["--compile"] if case.compile != "off" else []),
        *(f"--set={key}={json.dumps(value)}" for key, value in sets.items()),
    ]


# -- the loops


def bare(case: Case, model: torch.nn.Module, batches: Data) -> None:
    """A hand-tuned tutorial loop without metrics, logging or synchronization."""
    keep_freed_memory()
    optimizer, criterion, autocast = _sgd(model), case.criterion(), _autocast(case)
    update = _updater(case, optimizer)
    for images, targets in batches:
        with autocast():
            loss = criterion(model(images), targets)
        update(loss)
        optimizer.zero_grad()


def recipe(case: Case, model: torch.nn.Module, batches: Data) -> None:
    """Loop of torchvision's reference scripts: metrics read at each step, a line every ten steps."""
    optimizer, criterion, autocast = _sgd(model), case.criterion(), _autocast(case)
    update = _updater(case, optimizer)
    kept: dict[str, deque[float]] = {
        name: deque(maxlen=20) for name in ("loss", "lr", "acc1", "acc5", "img/s")
    }
    device = torch.device(case.device)
    for number, (images, targets) in enumerate(batches):
        started = time.time()
        images, targets = images.to(device), targets.to(device)
        with autocast():
            outputs = model(images)
            loss = criterion(outputs, targets)
        optimizer.zero_grad()
        update(loss)
        kept["loss"].append(loss.item())
        kept["lr"].append(optimizer.param_groups[0]["lr"])
        if case.task == "classification":
            with torch.inference_mode():
                ranked = outputs.topk(min(5, case.classes), 1).indices == targets[:, None]
                kept["acc1"].append(ranked[:, :1].float().sum().mul(100 / len(targets)).item())
                kept["acc5"].append(ranked.float().sum().mul(100 / len(targets)).item())
        kept["img/s"].append(len(targets) / (time.time() - started))
        if number % PRINT_EVERY == 0:
            told = (f"{name}: {torch.tensor(list(d)).median().item():.4f}" for name, d in kept.items() if d)
            print(f"[{number}/{case.steps}]", "  ".join(told))


def accelerate(case: Case, model: torch.nn.Module, batches: Data) -> None:
    """The loop of Accelerate's quick tour."""
    from accelerate import Accelerator

    mixed = "no" if case.precision == "fp32" else case.precision
    accelerator = Accelerator(mixed_precision=mixed, cpu=case.device == "cpu")
    optimizer = _sgd(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, case.steps)
    assert isinstance(batches, Batches), "photos have a loader already"
    loader: Any = torch.utils.data.DataLoader(batches, batch_size=None)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    criterion = case.criterion()
    for images, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), targets)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()


def timm(case: Case, model: torch.nn.Module, batches: Data) -> None:
    """Loop of timm's training script: its optimizers, scaler and meters; a line every 50 steps."""
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import AverageMeter, NativeScaler

    logger = logging.getLogger("train")
    logging.basicConfig(level=logging.INFO)
    optimizer = create_optimizer_v2(
        model, opt="momentum", lr=LR, weight_decay=WEIGHT_DECAY, momentum=MOMENTUM, fused=True
    )
    scheduler = CosineLRScheduler(optimizer, t_initial=case.steps, t_in_epochs=False)
    scaler = NativeScaler(case.device) if case.precision == "fp16" else None
    autocast, criterion = _autocast(case), case.criterion()
    losses, step_time, data_time = AverageMeter(), AverageMeter(), AverageMeter()
    ended = time.time()
    for number, (images, targets) in enumerate(batches):
        data_time.update(time.time() - ended)
        with autocast():
            loss = criterion(model(images), targets)
        if scaler is None:
            torch.autograd.backward(loss)
            optimizer.step()
        else:
            scaler(loss, optimizer)
        optimizer.zero_grad()
        losses.update(loss.item(), images.size(0))
        scheduler.step_update(num_updates=number, metric=losses.avg)
        now = time.time()
        step_time.update(now - ended)
        if number % LOG_EVERY == 0:
            rate = sum(group["lr"] for group in optimizer.param_groups) / len(optimizer.param_groups)
            logger.info(
                f"Train: [{number:>4d}/{case.steps}] Loss: {losses.val:#.3g} ({losses.avg:#.3g}) "
                f"Time: {step_time.val:.3f}s ({step_time.avg:.3f}s) LR: {rate:.3e} Data: {data_time.val:.3f}"
            )
        ended = now


def lightning(case: Case, model: torch.nn.Module, batches: Data, *, barebones: bool) -> None:
    """Lightning's trainer: barebones, or with progress bar and logger."""
    import lightning as pl

    criterion = case.criterion()

    class Learner(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = model

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
            images, targets = batch
            loss = criterion(self.network(images), targets)
            if not barebones:
                self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _sgd(self.network)

    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="gpu" if case.device == "cuda" else "cpu",
            devices=1,
            precision="32-true" if case.precision == "fp32" else f"{case.precision.lstrip('fp')}-mixed",
            max_epochs=1,
            benchmark=True,
            default_root_dir=folder,
            **({"barebones": True} if barebones else {}),
        )
        trainer.fit(Learner(), batches)


SIDES: dict[str, Loop] = {
    "bare": bare,
    "recipe": recipe,
    "accelerate": accelerate,
    "timm": timm,
    "lightning": partial(lightning, barebones=True),
    "lightning-logging": partial(lightning, barebones=False),
}
NEEDS = {
    "accelerate": "accelerate",
    "timm": "timm",
    "lightning": "lightning",
    "lightning-logging": "lightning",
}


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )


def _updater(case: Case, optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    """Returns a function for backward and the optimizer step, with a gradient scaler for fp16."""

    def plain(loss: torch.Tensor) -> None:
        torch.autograd.backward(loss)
        optimizer.step()

    if case.precision != "fp16":
        return plain
    scaler = torch.amp.GradScaler(case.device)

    def scaled(loss: torch.Tensor) -> None:
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()

    return scaled


def _autocast(case: Case) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    if case.precision == "fp32":
        return contextlib.nullcontext
    return partial(torch.autocast, case.device, dtype=DTYPES[case.precision])


def _photos(case: Case, stamps: Stamps) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yields batches of photos as in tutorials: ImageFolder, its usual transforms, worker processes."""
    loader = torch.utils.data.DataLoader(
        imagefolder(Path(case.folder), case.side),
        batch_size=case.batch,
        shuffle=True,
        drop_last=True,
        num_workers=os.cpu_count() or 1,
        pin_memory=case.device == "cuda",
        persistent_workers=True,
    )
    device, left = torch.device(case.device), case.steps
    while left:
        for images, targets in loader:
            stamps.request()
            yield images.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            left -= 1
            if not left:
                return


def train(side: str, case: Case) -> dict[str, Any]:
    """Trains with `side` in this process; returns the figures of `figures`."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if case.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = case.tf32
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if case.channels_last else torch.contiguous_format
    model = case.network().to(torch.device(case.device)).to(memory_format=layout)
    if case.compile != "off":
        model.compile(mode=None if case.compile == "default" else case.compile)
    stamps = Stamps(case)
    SIDES[side](case, model, _photos(case, stamps) if case.folder else Batches(case, stamps))
    peak = torch.cuda.max_memory_allocated() if case.device == "cuda" else None
    return {**stamps.figures, "peak_bytes": peak}


def main() -> None:
    """Runs as the process of one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("case", help="a Case as JSON")
    parser.add_argument("figures", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    case = Case(**json.loads(arguments.case))
    arguments.figures.write_text(json.dumps(train(arguments.side, case)))


if __name__ == "__main__":
    main()
