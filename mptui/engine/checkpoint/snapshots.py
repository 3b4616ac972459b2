"""Takes snapshots of a run's state, copies them off a GPU, and restores them."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Lock
from typing import Any

import torch

from mptui.config.change import changed
from mptui.config.keys import SETTINGS
from mptui.config.resolve import values_of
from mptui.engine.checkpoint.files import Snapshot, host_copy
from mptui.engine.job import Job
from mptui.engine.micro_batches import is_out_of_memory
from mptui.engine.ranks.group import as_shards, shard_of
from mptui.engine.state import TrainState
from mptui.errors import ConfigError, OwnCodeError, RunDirectoryError
from mptui.io.safetensors import why_unsaveable
from mptui.registry.own_code import fault_of
from mptui.text import dtype_name

# Copies of a run's tensors that leave a GPU while training goes on
# -----------------------------------------------------------------
# Between two steps the tensors are copied on the device, in its stream, into one row of bytes. The row goes
# to host memory in another stream: that of a checkpoint in another thread and in parts, through one pinned
# buffer. So training is held up for a copy at the speed of the device's own memory, if it has room for one.

PART = 64 << 20
"""Bytes of the pinned buffer."""

_SHARE = 0.9
"""Share of a device's memory that a step and the copies may take; the rest is for gaps between tensors."""
_ALIGNMENT = 16

Groups = dict[str, dict[str, torch.Tensor]]
AnyGroups = Mapping[str, Mapping[str, torch.Tensor]]


def row_beside_a_step(size: int, device: torch.device) -> torch.Tensor | None:
    """Return `size` bytes of a device, uint8; None if it has no room for them beside the largest step so far.

    Only CUDA devices tell.
    """
    if device.type != "cuda" or not _fit_beside_a_step(size, device):
        return None
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:  # it has, in gaps between tensors
        return None


def _fit_beside_a_step(size: int, device: torch.device) -> bool:
    free, total = torch.cuda.mem_get_info(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    budget = torch.cuda.get_per_process_memory_fraction(index) * total
    room = min(free + torch.cuda.memory_reserved(device), budget)
    return torch.cuda.max_memory_allocated(device) + size <= _SHARE * room


class Layout:
    """The places of named tensors in a row of bytes, each with the order of its axes in memory.

    Attributes:
        size: Bytes of the row.
    """

    def __init__(self, groups: AnyGroups) -> None:
        self._groups = list(groups)
        self._names: dict[torch.dtype, list[tuple[str, str]]] = defaultdict(list)
        self._forms: dict[torch.dtype, list[tuple[torch.Size, tuple[int, ...]]]] = defaultdict(list)
        self._lengths: dict[torch.dtype, list[int]] = defaultdict(list)
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                dense = tensor if tensor.is_contiguous() else torch.empty_like(tensor, device="meta")
                bytes_held = -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
                self._names[tensor.dtype].append((group, name))
                self._forms[tensor.dtype].append((tensor.shape, dense.stride()))
                self._lengths[tensor.dtype].append(bytes_held // tensor.itemsize)
        self.size = sum(dtype.itemsize * sum(lengths) for dtype, lengths in self._lengths.items())

    def views(self, row: torch.Tensor) -> Groups:
        """Return the tensors in a row of uint8."""
        found: Groups = {group: {} for group in self._groups}
        for names, views in self._parts(row):
            for (group, name), view in zip(names, views, strict=True):
                found[group][name] = view
        return found

    def write(self, groups: AnyGroups, row: torch.Tensor) -> None:
        """Copy the tensors into a row: in a few kernels, if both are on one device."""
        for names, views in self._parts(row):
            sources = [groups[group][name] for group, name in names]
            torch._foreach_copy_(views, sources, non_blocking=True)

    def _parts(self, row: torch.Tensor) -> Iterator[tuple[list[tuple[str, str]], list[torch.Tensor]]]:
        """Yield the names and the tensors of each type."""
        begin = 0
        for dtype, lengths in self._lengths.items():
            end = begin + dtype.itemsize * sum(lengths)
            pieces = row[begin:end].view(dtype).split_with_sizes(lengths)
            forms = zip(pieces, self._forms[dtype], strict=True)
            yield self._names[dtype], [piece.as_strided(shape, stride) for piece, (shape, stride) in forms]
            begin = end


class DeviceCopies:
    """Copies of the tensors of a checkpoint, on their device at first.

    Args:
        layout: The places of the tensors in the row.
        row: Copies of tensors on a CUDA device, just written in its current stream.
        here: The tensors of the same groups in host memory, which are copied at once.
    """

    def __init__(self, layout: Layout, row: torch.Tensor, here: AnyGroups) -> None:
        self._here: Groups = {group: host_copy(tensors) for group, tensors in here.items()}
        self._layout = layout
        self._row = row
        self._lock = Lock()
        self._made: torch.cuda.Event | None = torch.cuda.current_stream(row.device).record_event()

    def bring(self) -> Groups:
        """Return the copies in host memory; the first call brings them there, and waits. Thread-safe."""
        with self._lock:
            if self._made is not None:
                self._row = self._brought(self._made)
                self._made = None
        brought = self._layout.views(self._row)
        return {group: brought[group] | tensors for group, tensors in self._here.items()}

    def _brought(self, made: torch.cuda.Event) -> torch.Tensor:
        stream = torch.cuda.Stream(self._row.device)  # type: ignore[no-untyped-call]
        arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call] # not by keeping a core busy

        def wait() -> None:
            arrived.record(stream)
            arrived.synchronize()

        with torch.cuda.stream(stream):
            stream.wait_event(made)
            return in_parts(self._row, torch.empty(PART, dtype=torch.uint8, pin_memory=True), wait)


def in_parts(row: torch.Tensor, buffer: torch.Tensor, wait: Callable[[], None]) -> torch.Tensor:
    """Return a copy of a row of bytes in host memory.

    Args:
        row: On a device, uint8.
        buffer: Pinned memory, in which each part lies for a moment.
        wait: Waits for the copies issued so far.
    """
    found = torch.empty(row.shape, dtype=torch.uint8)
    for part, target in zip(torch.split(row, len(buffer)), torch.split(found, len(buffer)), strict=True):
        buffer[: len(part)].copy_(part, non_blocking=True)
        wait()
        target.copy_(buffer[: len(part)])
    return found


def split(groups: AnyGroups) -> tuple[Groups, Groups]:
    """Return the tensors on a CUDA device, and all others, in groups of the same names."""
    plain = {
        group: {name: tensor.detach().resolve_conj().resolve_neg() for name, tensor in tensors.items()}
        for group, tensors in groups.items()
    }
    there, here = (
        {
            group: {name: tensor for name, tensor in tensors.items() if tensor.is_cuda is is_there}
            for group, tensors in plain.items()
        }
        for is_there in (True, False)
    )
    return there, here


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
    snapshot.arrive()
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
                f"{name} of the network is a weight of type {dtype_name(parameter.dtype)}, "
                "which is not trained",
                hint="hold its real and imaginary parts: torch.view_as_complex(self.weight) in forward",
            )


def _why_no_json(value: object) -> str | None:
    """Return why JSON doesn't give back a value as it is; None if it does."""
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError) as error:
        return f"its extra state is no JSON: {error}"
    return None if same else f"its extra state changes in JSON: {type(value).__name__}"
