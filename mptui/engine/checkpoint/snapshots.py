"""Takes and restores snapshots of a run's state, and checks that they can hold it."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from mptui.config.change import changed
from mptui.config.keys import SETTINGS
from mptui.config.resolve import values_of
from mptui.engine.checkpoint.device_copies import (
    AnyGroups,
    DeviceCopies,
    Groups,
    Layout,
    row_beside_a_step,
    split,
)
from mptui.engine.checkpoint.files import Snapshot, host_copy
from mptui.engine.job import Job
from mptui.engine.micro_batches import is_out_of_memory
from mptui.engine.ranks.group import as_shards, shard_of
from mptui.engine.state import TrainState
from mptui.errors import ConfigError, OwnCodeError, RunDirectoryError
from mptui.io.safetensors import why_unsaveable
from mptui.registry.own_code import fault_of

# Takes and restores snapshots of a run's state
# ---------------------------------------------
# Each part of the state (see `TrainState`) is stored as a group of tensors and a value in `state.json`,
# both under the part's name.

Copy = Callable[[AnyGroups], tuple[Groups, Callable[[], Groups] | None]]
"""Copies groups of named tensors to memory that training does not write; returns `tensors` and `bring` of a
`Snapshot`."""

AT_TOP = {
    "hooks": ("guards",),
    "optimizer": ("optimizer",),
    "schedule": ("lr", "schedule", "standing"),
    "compiler": ("compiled",),
}
"""Parts whose values format 1 stores at the top level of `state.json`, and their keys."""


def take(state: TrainState, copy: Copy | None = None) -> Snapshot:
    """Copy the state between two optimizer steps. Waits for the device to reach it.

    Args:
        state: State of a run between two steps.
        copy: Copies the tensors; None: whole ones, on the rank that writes them.
    """
    state.report.catch_up()
    job = state.job
    if copy is None and job.is_sharded:
        job.ranks.sync_status()  # before tensors are gathered
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    values: dict[str, Any] = {"settings": values_of(state.given.config)}
    for name in state.stateful():
        tensors[name], others = _parted(getattr(state, name).state_dict())
        if name in AT_TOP:
            values |= others
        elif others or not tensors[name]:
            values[name] = others
    groups = {name: group for name, group in tensors.items() if group}
    copied, bring = (copy or partial(_copied, job))(groups)
    return Snapshot(state.step, copied, values, bring=bring)


def _copied(job: Job, groups: AnyGroups) -> tuple[Groups, Callable[[], Groups] | None]:
    """Copy whole tensors to host memory, by way of the device's own if that has room."""
    if job.ranks.is_first and not job.is_sharded:
        there, here = split(groups)
        layout = Layout(there)
        row = row_beside_a_step(layout.size, job.device) if layout.size else None
        if row is not None:
            layout.write(there, row)
            return {}, DeviceCopies(layout, row, here).bring
    return {name: host_copy(group, kept=job.ranks.is_first) for name, group in groups.items()}, None


def size_of(state: TrainState) -> int:
    """Return the bytes of the tensors that this process holds of a snapshot."""
    groups = (_parted(getattr(state, name).state_dict())[0] for name in state.stateful())
    held = [shard_of(tensor) for group in groups for tensor in group.values()]
    return sum(t.numel() * t.element_size() for t in held)


def _parted(part: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Split a part into its tensors and its other values."""
    tensors = {key: value for key, value in part.items() if isinstance(value, torch.Tensor)}
    return tensors, {key: value for key, value in part.items() if key not in tensors}


def restore(state: TrainState, snapshot: Snapshot) -> None:
    """Restore a run's state from `snapshot`; settings stay those of the run.

    Raises:
        ConfigError: The snapshot does not fit settings that have changed since.
        RunDirectoryError: The snapshot is of another model or optimizer.
    """
    given = changed(snapshot.state.get("settings", {}), values_of(state.given.config))
    asked = [setting.live for key, setting in SETTINGS.items() if key in given and setting.live is not None]
    values = _without(snapshot.state, [path for live in asked for path in live.overridden_by])
    parameters = dict(state.model.named_parameters(remove_duplicate=False))
    try:
        state.step = snapshot.step
        for name in state.stateful():
            if name == "optimizer" and state.frozen_changes:  # in the epoch of the restored cursor
                state.build(state.job, state.parts)
            own = (
                {key: values[key] for key in AT_TOP[name] if key in values}
                if name in AT_TOP
                else values.get(name, {})
            )
            # looked up each time: a guard may have replaced a part by applying other settings
            tensors = as_shards(snapshot.tensors.get(name, {}), parameters)
            getattr(state, name).load_state_dict({**own, **tensors})
    except (KeyError, TypeError, RuntimeError) as error:
        if is_out_of_memory(error) or fault_of(error) is not None:
            raise
        raise _unfit(snapshot, given, error) from error
    if given & {"training.batch_size", "training.accumulate"}:
        state.cursor.recount(state.job.config.training)


def _without(values: Mapping[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return a copy of nested `values` without the entries at `paths`."""
    kept = dict(values)
    for path in paths:
        key, _, rest = path.partition("/")
        if not rest:
            kept.pop(key, None)
        elif key in kept:
            kept[key] = _without(kept[key], [rest])
    return kept


def _unfit(snapshot: Snapshot, given: frozenset[str], error: Exception) -> ConfigError | RunDirectoryError:
    message = f"the checkpoint of step {snapshot.step} does not fit this run: {error}"
    if shaping := sorted(key for key in given if key.startswith(("model.", "data.", "training.opt"))):
        return ConfigError(message, hint=f"resume with the original {', '.join(shaping)} of the run")
    return RunDirectoryError(message, hint="resume with the model and optimizer of its run.toml")


# Checks that checkpoints can hold the state of a network, before it is trained
# -----------------------------------------------------------------------------


def check_state(model: torch.nn.Module) -> None:
    """Check that the state of a network can be saved, and its weights trained.

    Raises:
        OwnCodeError: A tensor has a type or layout that safetensors don't hold, an extra state is not JSON,
            a trained weight is complex or has sparse gradients, or no weight is trained.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OwnCodeError(
            "no weight of the network is trained: it has none with requires_grad",
            hint="set requires_grad of the weights that are to learn; training.freeze freezes layers",
        )
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            why, remedy = why_unsaveable(value), "register_buffer(..., persistent=False) leaves it out"
        else:
            why, remedy = _why_no_json(value), "return a tensor, or what JSON holds, from get_extra_state"
        if why is not None:
            raise OwnCodeError(f"{name} of the network can't be saved in checkpoints: {why}", hint=remedy)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
            raise OwnCodeError(
                f"{name} of the network has sparse gradients, which are not trained",
                hint="leave out sparse=True: the gradients of all rows are then computed",
            )
    for name, parameter in model.named_parameters():
        if parameter.is_complex() and parameter.requires_grad:
            raise OwnCodeError(
                f"{name} of the network is a weight of type {_type(parameter)}, which is not trained",
                hint="hold its real and imaginary parts: torch.view_as_complex(self.weight) in forward",
            )


def _why_no_json(value: object) -> str | None:
    """Return why JSON doesn't give back a value as it is; None if it does."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError) as error:
        return f"its extra state is no JSON: {error}"
    return None if same else f"its extra state changes in JSON: {type(value).__name__}"


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
