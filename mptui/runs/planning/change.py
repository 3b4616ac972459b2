"""Builds the job for a switch of profile, a changed setting, or an undo during a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mptui.config.change import switched, with_chosen
from mptui.config.keys import SETTINGS, said, value_of, with_values
from mptui.config.resolve import Resolved, resolve
from mptui.config.schema import RunConfig
from mptui.engine.checkpoint.files import UNDO, Snapshot, read_checkpoint
from mptui.engine.checkpoint.pointers import target_of
from mptui.engine.job import Job, ProfileSwitch
from mptui.engine.mailbox import Command
from mptui.errors import ConfigError, RunDirectoryError
from mptui.events import Warned
from mptui.hardware.advice import choose_precision, default_workers
from mptui.hardware.host import usable_cpus
from mptui.runs.planning.build import PreparedRun, build_job
from mptui.runs.planning.find_data import Emit
from mptui.runs.planning.plan import (
    Plan,
    Request,
    allow_own_code,
    why_idle,
    with_code_folder,
    within_budget,
)
from mptui.runs.store.choices import chosen_at_start


def build_switch(
    plan: Plan, prepared: PreparedRun, current: Job, command: Command, *, folder: Path, emit: Emit
) -> tuple[Plan, ProfileSwitch]:
    """Return plan and job for a command: `preset NAME`, `set table.key=value` or `undo`.

    Args:
        plan: The current plan.
        prepared: The prepared run.
        current: The current job; its loaders are reused if the new settings don't affect them.
        command: The command.
        folder: Folder of the checkpoints.
        emit: Receives a warning about settings that can't change.

    Raises:
        ConfigError: The profile or setting doesn't exist or can't apply to this run, or there is no switch to
            undo.
    """
    if command.name == "undo":
        return _way_back(plan, prepared, current, _read_undo(folder))
    request, argument = plan.request, command.argument or ""
    if command.name == "preset":
        request = replace(request, profile=argument)
    else:
        request = replace(request, sets=(*request.sets, argument))
    now = frozenset({argument.partition("=")[0].strip()} if command.name == "set" else ())
    preset = resolve(
        request.profile,
        task=plan.task,
        flags=request.flags,
        sets=request.sets,
        environ=request.environ,
        now=now,
    )
    if command.name == "preset":
        preset = with_chosen(preset, chosen_at_start(folder.parent))
    wanted = preset.config
    if command.name == "set":  # it alone: what is chosen by it where a run begins, was chosen there
        wanted = with_values(plan.config, {key: value_of(wanted, key) for key in now})
    switch = switched(plan.config, wanted)
    if command.name == "set":
        set_by_now = (*plan.resolved.changed, *switch.changes)
        preset = replace(preset, profile=plan.resolved.profile, changed=tuple(dict.fromkeys(set_by_now)))
    if command.name == "set" and not switch.changes:
        why = (
            "; ".join(filter(None, switch.kept.values()))
            or "this can't change during a run, or has this value already"
        )
        raise ConfigError(f"{argument}: {why}", hint="start another run with --set")
    fresh = _under(plan, prepared, request, replace(preset, config=switch.config))
    if idle := [why for key in now if (why := why_idle(key, fresh))]:
        raise ConfigError(f"{argument}: {idle[0]}", hint="change that first")
    job = _next_job(plan, fresh, prepared, current)
    if switch.kept:
        kept = "; ".join(f"{key} ({why})" if why else key for key, why in switch.kept.items())
        emit(Warned(code="preset_kept", message=f"can't change during a run, unchanged: {kept}"))
    changes, changed, before = _changes(plan, fresh), preset.changed, _settings(plan)
    return fresh, ProfileSwitch(job, preset.profile, plan.resolved.profile, changes, changed, before)


def _settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of a plan, JSON-ready, for `_way_back`."""
    return {
        "profile": plan.resolved.profile,
        "changed": list(plan.resolved.changed),
        "asked": {"profile": plan.request.profile, "sets": list(plan.request.sets)},
        "config": plan.config.model_dump(mode="json"),
    }


def _way_back(
    plan: Plan, prepared: PreparedRun, current: Job, snapshot: Snapshot
) -> tuple[Plan, ProfileSwitch]:
    """Return the plan and the job before the last switch or undo, with the state in `snapshot`."""
    try:
        before = snapshot.state["switch"]
        asked, profile = before["asked"], str(before["profile"])
        changed = tuple(map(str, before.get("changed", ())))  # not in those of earlier versions
        kept = {"split_seed": plan.config.data.split_seed}  # earlier versions have not saved it
        saved = before["config"]
        config = RunConfig.model_validate(saved | {"data": saved["data"] | kept})
    except (KeyError, TypeError, ValidationError) as error:
        raise _no_way_back() from error
    request = replace(plan.request, profile=asked["profile"], sets=tuple(asked["sets"]))
    fresh = _under(
        plan, prepared, request, replace(plan.resolved, config=config, profile=profile, changed=changed)
    )
    job = _next_job(plan, fresh, prepared, current)
    changes, before = _changes(plan, fresh), _settings(plan)
    return fresh, ProfileSwitch(
        job, profile, plan.resolved.profile, changes, changed, before, back_to=snapshot
    )


def _changes(plan: Plan, fresh: Plan) -> dict[str, list[str]]:
    """Return table.key -> old and new value, as text."""
    had, now = (({key: value_of(each.config, key) for key in SETTINGS}) for each in (plan, fresh))
    return {key: [said(had[key]), said(now[key])] for key in had if had[key] != now[key]}


def _read_undo(folder: Path) -> Snapshot:
    """Read the checkpoint saved before the last switch.

    Raises:
        ConfigError: It is missing or damaged.
    """
    try:
        path = target_of(folder, UNDO)
        if path is None:
            raise _no_way_back()
        return read_checkpoint(path)
    except (OSError, RunDirectoryError) as error:
        raise _no_way_back() from error


def _no_way_back() -> ConfigError:
    return ConfigError(
        "no switch to undo, or the checkpoint before it is missing",
        hint="switch to another profile, or start another run",
    )


def _under(plan: Plan, prepared: PreparedRun, request: Request, resolved: Resolved) -> Plan:
    """Return the plan of a run with other settings.

    Raises:
        ConfigError: They name the person's own code, which is not trusted.
    """
    config, chosen = with_code_folder(resolved.config), prepared.loaders.plan
    allow_own_code(config, trusted=request.trust_code)
    resolved = replace(resolved, config=config)
    workers = plan.workers
    if config.data.workers != plan.config.data.workers:
        cpus = max(1, usable_cpus() // prepared.loaders.ranks.per_node)
        workers = default_workers(cpus) if config.data.workers == "auto" else config.data.workers
    precision = chosen.precision
    if config.precision.mode != precision.requested:
        precision = choose_precision(config.precision.mode, plan.device)
    fresh = replace(plan, request=request, resolved=resolved, precision=precision, workers=workers)
    return within_budget(
        fresh,
        precision=precision.used,
        classes=len(prepared.dataset.classes),
        ranks=prepared.loaders.ranks.world_size,
    )


def _next_job(plan: Plan, fresh: Plan, prepared: PreparedRun, current: Job) -> Job:
    """Return the job of `fresh`, reusing loaders and caches of the job of `plan` that don't change."""
    train, val = (
        loader if _loader_settings(plan, train=train) == _loader_settings(fresh, train=train) else None
        for loader, train in ((current.train_loader, True), (current.val_loader, False))
    )
    loaders, forced = prepared.loaders.of(fresh), prepared.job.force_compile
    return build_job(fresh, loaders, current.model, force_compile=forced, train=train, val=val)


def _loader_settings(plan: Plan, *, train: bool) -> object:
    """Return the settings of a loader that a switch can change."""
    config = plan.config
    of_training = {"augment", "sampler", "mixup_alpha", "cutmix_alpha"}
    data = config.data.model_dump(exclude=None if train else of_training)
    return data, config.training.batch_size, plan.workers, plan.channels_last
