"""Opens a trained run for use: its network with the weights of a checkpoint, and how its inputs are made.

Nothing is written and no lock is taken: the run may be training. Nothing of its files is unpickled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mptui.config.keys import SETTINGS, UNSET
from mptui.config.resolve import CHECKPOINT, resolve
from mptui.config.schema import RunConfig
from mptui.data.learned import LearnedData
from mptui.data.transforms import Geometry, Normalization
from mptui.data.types import PixelFormat
from mptui.engine.checkpoint.files import Snapshot, read_named
from mptui.engine.guards.divergence import Fallbacks
from mptui.engine.precision import Fp32Region, Precision, apply_fp32_layers, build_precision
from mptui.engine.progress import prepare_torch
from mptui.errors import ConfigError, RunDirectoryError
from mptui.hardware.devices import find_machine, select_device
from mptui.models.zoo import build
from mptui.registry.names import SampleKind
from mptui.registry.own_code import is_own
from mptui.registry.tasks import TASKS
from mptui.runs.planning.auto import choices_taken
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.store.directory import BEST, CHECKPOINTS, CONFIG, LAST, check_version
from mptui.runs.store.files import learned_in
from mptui.tasks.base import Task
from mptui.tasks.build_task import build_task
from mptui.text import shell_word

MODEL, AVERAGE = "model", "average"
"""Parts of a checkpoint: weights, buffers and extra state, and the EMA of the weights if there is one."""

Flags = Mapping[str, tuple[str, Any]]
"""table.key -> (flag, value): settings that a person gave."""

_OF_THE_MACHINE = ("data.path", "data.workers", "data.prefetch", "data.cache", "data.download")
"""Settings that a checkpoint may have from another machine, or that a resume may have corrected."""
_OF_RESULTS = ("model.", "precision.", "training.", "data.", "speed.")


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """How an image becomes the network's input; the same in validation, predictions and exports.

    An image is decoded as RGB, or as it is stored, resized and cut as `geometry` says, and normalised:
    (x / 255 - mean) / std for uint8, (x - mean) / std for others.
    """

    kind: SampleKind
    geometry: Geometry
    normalization: Normalization
    stored: PixelFormat | None = None
    """The format in which files are read as they are stored; None: as 8-bit RGB."""

    @classmethod
    def of(cls, kind: SampleKind, config: RunConfig, pixels: PixelFormat) -> "Preprocessing":
        """Return the preprocessing of a run's validation; `pixels` is the format of its images."""
        data = config.data
        geometry = Geometry.for_validation(
            kind,
            int(data.image_size or 0),
            data.resize,
            crop_pct=data.crop_pct,
            interpolation=data.interpolation,
        )
        assert data.mean is not None, "the plan chooses it"
        assert data.std is not None, "the plan chooses it"
        stored = pixels if data.bands == "all" else None
        return cls(kind, geometry, Normalization(tuple(data.mean), tuple(data.std)), stored)


@dataclass(frozen=True, slots=True)
class Trained:
    """A trained network, ready for use.

    Attributes:
        run: The run directory.
        checkpoint: The checkpoint that is used: best or last.
        step: Its optimizer step.
        plan: The run's settings, on this machine; batch size and workers may be those that a person gave.
        classes: Names of the classes; the index of each is its label.
        model: The network on its device, in eval mode, with fp32 weights; the EMA if the run has one.
        task: Its loss and metrics.
        precision: The precision of its forward passes: the run's.
        preprocessing: How an image becomes its input.
        state: The values of the checkpoint that are not tensors.
        fp32_regions: Layers that compute in fp32; while they exist, these layers are wrapped.
    """

    run: Path
    checkpoint: str
    step: int
    plan: Plan
    classes: tuple[str, ...]
    model: torch.nn.Module
    task: Task
    precision: Precision
    preprocessing: Preprocessing
    state: dict[str, Any]
    fp32_regions: list[Fp32Region]

    @property
    def config(self) -> RunConfig:
        """The settings in force at the checkpoint."""
        return self.plan.config

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return torch.device(self.plan.device.torch_name)


def open_trained(
    run: Path,
    checkpoint: str | None = None,
    flags: Flags | None = None,
    *,
    note: Callable[[str], None],
    trust_code: bool = False,
) -> Trained:
    """Open a run of any status that has a checkpoint.

    Args:
        run: The run directory, from `find_run`.
        checkpoint: best or last; None: best, or last if the run has no best.
        flags: Settings of this use: hardware.device, training.batch_size, data.workers. Without a device, the
            run's is used, or the default if it is missing here.
        note: Called with what a person should know: another checkpoint than expected, a slow precision.
        trust_code: Whether the person's own code may run.

    Raises:
        ConfigError: A flag is wrong, the network can't be built, or its code is not trusted.
        RunDirectoryError: The checkpoint is missing or damaged, or its run is of a newer version.
        DiskError: The checkpoint can't be read now.
    """
    check_version(run)
    name, snapshot = _read(run, checkpoint, note)
    learned = _learned(run, snapshot)
    plan = _planned(run, snapshot, flags or {}, learned.task, trust_code=trust_code)
    if plan.precision.warning is not None:
        note(plan.precision.warning)
    config, classes = plan.config, tuple(learned.classes)
    device = torch.device(plan.device.torch_name)
    prepare_torch(config, device)
    model = new_network(plan, len(classes))
    load_weights(model, snapshot, run)
    memory_format = torch.channels_last if plan.channels_last else torch.contiguous_format
    model = model.to(device).to(memory_format=memory_format).eval()
    fallbacks = _fallbacks(snapshot)
    is_chosen = "precision.mode" in (flags or {})
    used = plan.precision.used if is_chosen else fallbacks.over(plan.precision.used)
    return Trained(
        run=run,
        checkpoint=name,
        step=snapshot.step,
        plan=plan,
        classes=classes,
        model=model,
        task=build_task(plan.task, classes, config.training, config.model.task, counts=learned.class_counts),
        precision=build_precision(used, device, config.precision.grad_scaler),
        preprocessing=Preprocessing.of(TASKS[plan.task].sample, config, learned.pixels),
        state=snapshot.state,
        fp32_regions=[
            *apply_fp32_layers(model, config.precision.fp32_layers, device),
            *(Fp32Region(model, layer, device) for layer in fallbacks.fp32_layers),
        ],
    )


def new_network(plan: Plan, num_classes: int) -> torch.nn.Module:
    """Build the network of a run's plan with random weights, on the CPU."""
    model, data = plan.config.model, plan.config.data
    side = int(data.image_size or 0)
    return build(model, num_classes=num_classes, task=plan.task, side=side, bands=data.channels)


def _learned(run: Path, snapshot: Snapshot) -> LearnedData:
    """Return what the network of a checkpoint has learned from."""
    learned = learned_in(run, snapshot.state)
    if learned is None:
        raise RunDirectoryError(
            f"{run}: neither the checkpoint, data.json nor the journal of this run records its classes",
            hint="resume it once, which records them: mptui resume",
        )
    return learned


def _read(run: Path, checkpoint: str | None, note: Callable[[str], None]) -> tuple[str, Snapshot]:
    """Read the weights of a checkpoint; return its name too."""
    for name in (BEST, LAST) if checkpoint is None else (checkpoint,):
        snapshot = read_named(run / CHECKPOINTS, name, (MODEL, AVERAGE))
        if snapshot is not None:
            if checkpoint is None and name != BEST:
                note(f"{run.name} has no best checkpoint: the last one is used")
            return name, snapshot
    what = "no checkpoint" if checkpoint is None else f"no {checkpoint} checkpoint"
    raise RunDirectoryError(
        f"{run}: this run has {what}",
        hint=f"train it until it saves one: mptui resume {shell_word(run)}"
        + ("" if checkpoint in {None, LAST} else f", or use --checkpoint {LAST}"),
    )


def _planned(run: Path, snapshot: Snapshot, flags: Flags, task: str | None, *, trust_code: bool) -> Plan:
    """Resolve the settings in force at a checkpoint of a task for this machine."""
    of_any_machine = SETTINGS.keys() - {*_OF_THE_MACHINE}
    saved = {
        key: (CHECKPOINT, value)
        for key, value in snapshot.state.get("settings", {}).items()
        if key in of_any_machine and key.startswith(_OF_RESULTS)
    }
    # its own weights take the place of those it began with
    saved |= dict.fromkeys(("model.weights", "model.weights_key"), (CHECKPOINT, UNSET))
    saved["data.cache"] = ("one pass", "off")
    saved["data.workers"] = ("default", "auto")
    asked = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    augment = saved.get("data.augment", ("", asked.data.augment))[1]
    if isinstance(augment, list) and any(map(is_own, augment)):  # of training alone: it needs no trust
        saved["data.augment"] = (CHECKPOINT, [name for name in augment if not is_own(name)] or "none")
    return planned_again(run, {**saved, **flags}, task, trust_code=trust_code)


def planned_again(run: Path, flags: Flags, task: str | None, *, trust_code: bool) -> Plan:
    """Resolve the settings of a run for this machine; on another one than its own, for the default device.

    Raises:
        ConfigError: A setting or flag is wrong, or its code is not trusted.
        DataError: Its data is missing.
    """
    machine = find_machine(with_torch=True)
    asked = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config.hardware.device
    given = dict(flags)
    try:
        select_device(asked, machine)
    except ConfigError:  # it was trained on another machine
        given.setdefault("hardware.device", ("default", "auto"))
    plan = plan_run(Request(str(run / CONFIG), given, trust_code=trust_code, task=task), machine)
    return choices_taken(plan, run) or plan


def _fallbacks(snapshot: Snapshot) -> Fallbacks:
    """Return the fallbacks that the run had taken."""
    taken = Fallbacks(budget=0)
    ladder = snapshot.state.get("guards", {}).get("nan", {}).get("ladder")
    if ladder is not None:
        taken.load_state_dict(ladder)
    return taken


def load_weights(model: torch.nn.Module, snapshot: Snapshot, run: Path) -> None:
    """Load the weights and buffers that the run validates with: the EMA in place of those that have one.

    Averages are copied into parameters and buffers: a weight that several layers share has several names in
    the state of the network, of which the average has one.

    Raises:
        RunDirectoryError: They don't fit the network.
    """
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    try:
        model.load_state_dict({**snapshot.state.get(MODEL, {}), **snapshot.tensors.get(MODEL, {})})
        with torch.no_grad():
            for name, average in snapshot.tensors.get(AVERAGE, {}).items():
                own[name].copy_(average)
    except (RuntimeError, KeyError) as error:
        faults = "\n".join(str(error).splitlines()[1:4])
        raise RunDirectoryError(
            f"{run}: the checkpoint of step {snapshot.step} does not fit the network of run.toml\n{faults}",
            hint="restore the run.toml that the run wrote, or use another checkpoint",
        ) from error
