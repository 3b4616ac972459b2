"""Plans a run from a request: chooses the device, the precision, and all unset values.

`mptui run --dry-run` prints a plan, and `run.toml` stores it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mptui.config.keys import SETTINGS, training_of, value_of
from mptui.config.merge import Resolved, resolve
from mptui.config.schema import DataConfig, RunConfig
from mptui.data.formats.open import kind_of
from mptui.hardware.advice import PrecisionChoice, choose_precision, default_workers
from mptui.hardware.devices import Device, Machine, check_torch, default_reason, find_machine, select_device
from mptui.io.places import absolute, expanded
from mptui.models.latent.vae_layout import digest
from mptui.processes.rank_place import RankPlace
from mptui.registry.models import PRETRAINED, find_model, task_of_model
from mptui.registry.precisions import LOSS_SCALED
from mptui.registry.samples import BUILT_IN, SampleKind
from mptui.registry.tasks import DEFAULT_TASK, TASKS, ByDevice, task_for
from mptui.runs.planning.images import image_choices
from mptui.runs.planning.ranks import check_batch, check_single_process, check_sync_batch_norm, device_of
from mptui.runs.planning.rates import rate_notes
from mptui.runs.planning.trust import allow_own_code, own_names

_SCALER = "precision.grad_scaler."
BY_BUDGET = "chosen: memory.budget_gib"
"""Source of a setting that a limit on memory decides."""

NO_DATA = "chosen: no data given"
"""Source of the built-in images, where none are named."""

_SAMPLES = ByDevice(8192, cpu=128)
"""Number of training samples of the built-in set."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request of the user, independent of machine and data."""

    profile: str | None = None
    flags: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    sets: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    trust_code: bool = False
    """Whether the person's own code may run: `--trust-code`. Never saved: each start asks for it again."""
    notes: tuple[str, ...] = ()
    """What a person should know of these settings."""
    task: str | None = None
    """The task where the settings leave it to the data; None: look at the data."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A complete run, except for values that depend on the data (cache, compile).

    `auto` settings have the choice of the table of devices until they are measured.
    """

    request: Request
    resolved: Resolved
    task: str
    device: Device
    precision: PrecisionChoice
    workers: int
    driver: str | None
    notes: tuple[str, ...] = ()
    channels_last: bool = True
    fused: bool = True

    @property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return self.resolved.config

    def data_from_anywhere(self) -> DataConfig:
        """Return the data of the run for a profile: in any folder, and on any machine, it is the same."""
        data = self.config.data
        path = None if data.path is None else str(expanded(data.path).resolve())
        is_chosen = self.resolved.sources["data.samples"].startswith("chosen")
        return data.model_copy(update={"path": path, "samples": None if is_chosen else data.samples})


def plan_run(request: Request, machine: Machine | None = None, place: RankPlace | None = None) -> Plan:
    """Resolve a request on this machine. Imports torch.

    Args:
        request: The user's request.
        machine: This machine, with torch's view; None: detect it now.
        place: The place of this process among several that train together; None: it is alone.

    Raises:
        ConfigError: A value is invalid, the device is missing, torch can't be imported, a launcher started
            several processes, or own code is named, but not trusted.
        DataError: The folder of the data is missing or has an unknown layout.
    """
    if place is None:
        check_single_process(request.environ)
    resolved = resolve_request(request)  # report mistakes before importing torch
    if machine is None:
        machine = find_machine(with_torch=True)
    check_torch(machine)
    device = select_device(resolved.config.hardware.device, machine)
    if place is not None:
        device = device_of(place, device, machine.devices)
    resolved, notes = filled(resolved, device)
    reason = None
    if resolved.config.hardware.device == "auto":
        reason = machine.hidden if device.kind == "cpu" else default_reason(machine.devices)
    config = resolved.config
    task = resolved.task or DEFAULT_TASK
    _check_model(config, task)
    workers = config.data.workers
    cpus = machine.host.cpus_usable
    if config.memory.shard and place is None:
        notes = (*notes, "memory.shard is not used: this is a single process (several: --nproc-per-node)")
    if place is not None:
        check_batch(place.world_size, config.training)
        check_sync_batch_norm(config.training, device)
        cpus = max(1, min(cpus, place.cpus) if place.cpus else cpus // place.local_world_size)
    plan = Plan(
        request=request,
        resolved=resolved,
        task=task,
        device=device,
        precision=choose_precision(config.precision.mode, device),
        workers=default_workers(cpus) if workers == "auto" else workers,
        driver=machine.driver,
        notes=(
            *request.notes,
            *resolved.notes,
            *(() if reason is None else (reason,)),
            *notes,
            *rate_notes(config.training),
        ),
        channels_last=layout_of(config, device),
        fused=bool(config.speed.fused),
    )
    return replace(plan, notes=(*plan.notes, *_unscaled_notes(plan)))


def why_idle(key: str, plan: Plan) -> str:
    """Return why a setting does nothing in a planned run; "" if it acts."""
    training = training_of(plan.config, plan.task)
    if (scope := SETTINGS[key].idle(training)) is not None:
        return scope.refusal(training)
    if key.startswith(_SCALER) and plan.precision.used not in LOSS_SCALED:
        return f"acts with fp16; this run computes in {plan.precision.used}"
    return ""


def _unscaled_notes(plan: Plan) -> Iterator[str]:
    """Yield what to say of settings of the loss scale where the number format that was chosen has none."""
    if plan.config.precision.mode == "fp32":
        return  # told already
    for key, source in plan.resolved.sources.items():
        is_set = key.startswith(_SCALER) and not source.startswith(("default", "profile"))
        if is_set and (why := why_idle(key, plan)):
            yield f"{key} = {value_of(plan.config, key)} ({source}) is ignored: it {why}"


def workers_under(config: RunConfig, plan: Plan) -> int:
    """Return the loader processes of `plan` under other settings."""
    return plan.workers if config.data.workers == "auto" else config.data.workers


def layout_of(config: RunConfig, device: Device) -> bool:
    """Whether images are NHWC in memory: as requested, else as suits the device."""
    asked = config.speed.channels_last
    return device.kind != "mps" if asked == "auto" else asked


def _check_model(config: RunConfig, task: str) -> None:
    from mptui.models.zoo import check

    check(config.model, task, int(config.data.image_size or 0))


def resolve_request(request: Request) -> Resolved:
    """Resolve a request to find the data, and again with the tables of its task; imports no torch.

    Raises:
        ConfigError, DataError: As `plan_run`, apart from the device.
    """

    def resolved_for(task: str | None) -> Resolved:
        return resolve(
            request.profile, task=task, flags=request.flags, sets=request.sets, environ=request.environ
        )

    first = resolved_for(request.task)
    allow_own_code(first.config, trusted=request.trust_code)
    if first.task is not None:
        return first
    kind = kind_of(first.config.data)
    return resolved_for(DEFAULT_TASK if kind is None else task_for(kind))


def scaled_to(request: Request, processes: int, begun: Path | None) -> Request:
    """Multiply the batch size by a number of processes, and the learning rate with it: --scale-batch.

    The rate follows by `training.lr_scaling`: linear, unless set (Goyal et al. 2017, arXiv 1706.02677).

    Args:
        request: The request of a run.
        processes: The number of processes.
        begun: `run.toml` of the run if it has begun: then it keeps the batch size that it has.

    Returns:
        The request with both as flags, which a switch of profile doesn't change.

    Raises:
        ConfigError, DataError: As `resolve_request`.
    """
    training = resolve_request(request).config.training
    if begun is None:
        batch = processes * training.batch_size
        notes = [f"Batch size: {training.batch_size:,} x {processes} processes = {batch:,} (--scale-batch)"]
    else:
        batch = resolve(str(begun), task=None, flags={}, sets=(), environ={}).config.training.batch_size
        notes = [f"Batch size: {batch:,}, as when the run began (--scale-batch)"]
    values: dict[str, Any] = {"training.batch_size": batch}
    if training.lr_batch_size is None:
        values |= {
            "training.lr": training.lr,
            "training.lr_batch_size": training.batch_size * training.accumulate,
        }
    if processes > 1 and training.lr_scaling != "off" and not training.warmup_epochs:
        notes.append("Warm-up: none, which a rate for a large batch needs (--set training.warmup_epochs=5)")
    sets = [given for given in request.sets if given.partition("=")[0].strip() not in values]
    flags = {**request.flags, **{key: ("--scale-batch", value) for key, value in values.items()}}
    return replace(request, flags=flags, sets=sets, notes=(*request.notes, *notes))


def head_notes(plan: Plan) -> tuple[str, ...]:
    """Return the line on what becomes of the head of the weights that a new run begins with."""
    model, kind = plan.config.model, TASKS[plan.task].sample
    has_no_head = model.weights is None or (model.weights == PRETRAINED and model.encoder is not None)
    if has_no_head or kind is SampleKind.IMAGE:
        return ()
    return (
        "Weights: a head for as many classes as the data has is kept, even if they are others; "
        "another starts from random weights",
    )


def within_budget(plan: Plan, *, precision: str, classes: int, ranks: int) -> Plan:
    """Return the plan with its memory within `memory.budget_gib`, if it has one, in the precision given.

    Args:
        plan: The plan.
        precision: The precision to count in.
        classes: Number of classes of the data.
        ranks: The number of processes that share each batch.

    Raises:
        ConfigError: Not even one sample fits, or the network can't be counted.
    """
    if plan.config.memory.budget_gib is None:
        return plan
    from mptui.engine.memory.budget import kept_within  # of torch's compiler, which other runs don't need

    config = kept_within(
        plan.config,
        plan.task,
        device=plan.device.kind,
        precision=precision,
        classes=classes,
        ranks=ranks,
    )
    sources = dict(plan.resolved.sources)
    for key in ("memory.micro_batch", "memory.activation_checkpointing"):
        if value_of(config, key) != value_of(plan.config, key):
            sources[key] = BY_BUDGET
    return replace(plan, resolved=replace(plan.resolved, config=config, sources=sources))


def filled(resolved: Resolved, device: Device) -> tuple[Resolved, tuple[str, ...]]:
    """Choose unset values (network, data and their size), with notes."""
    why = "chosen: no GPU" if device.kind == "cpu" else f"chosen for {device.name}"
    config, sources = resolved.config, dict(resolved.sources)
    model, data = config.model, config.data
    if model.weights not in {None, PRETRAINED}:
        model = model.model_copy(update={"weights": absolute(str(model.weights))})
    if model.vae is not None:
        folder = absolute(model.vae)
        known = model.vae_sha256 or digest(Path(folder))
        model = model.model_copy(update={"vae": folder, "vae_sha256": known})
    if model.name is None:
        name = TASKS[resolved.task or DEFAULT_TASK].network.on(device.kind)
        model = model.model_copy(update={"name": name})
        sources["model.name"] = why
    if (spec := find_model(model.name)) is not None:
        left_open = {
            key: d.on(device.kind) for key, d in spec.defaults.items() if sources[f"model.{key}"] == "default"
        }
        model = model.model_copy(update=left_open)
        sources |= dict.fromkeys((f"model.{key}" for key in left_open), why)
    task = task_of_model(str(model.name)) or resolved.task or DEFAULT_TASK
    changes: dict[str, Any] = {}
    if data.name is None and data.path is None:
        changes["name"] = BUILT_IN
        sources["data.name"] = NO_DATA
    for key, (value, source) in image_choices(
        config.model_copy(update={"model": model}), task, device.kind, why
    ).items():
        changes[key], sources[f"data.{key}"] = value, source
    if (changes.get("name") or data.name) == BUILT_IN and data.samples is None:
        changes["samples"] = _SAMPLES.on(device.kind)
        sources["data.samples"] = why
    if data.path is not None:
        changes["path"] = absolute(data.path)  # the run may be resumed from another folder
    data = data.model_copy(update=changes)
    notes = []
    if config.model.name is None or "name" in changes:
        notes.append(
            f"{model.name} at {data.image_size} px on {data.path or data.name} "
            "(choose with --model, --data, --set data.image_size=N)"
        )
    code = config.code
    if own_names(config):
        code = code.model_copy(update={"folder": absolute(code.folder or ".")})
    filled = config.model_copy(update={"model": model, "data": data, "code": code})
    return replace(resolved, config=filled, sources=sources), tuple(notes)
