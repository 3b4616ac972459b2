"""What each setting that saves memory would save of a run: the levers of its ledger."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mptui.config.keys import nested
from mptui.config.schema import RunConfig
from mptui.engine.memory.footprint import Footprint, footprint, rows_of
from mptui.errors import ConfigError
from mptui.hardware.devices import USABLE
from mptui.registry.optimizers import OPTIMIZERS

_PARTS = 4
"""Micro-batches that the lever splits a batch into."""
_TWO_STATES = 8
"""Bytes of optimizer state for each weight from which one with a single state saves memory."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A setting that saves memory.

    Attributes:
        setting: As for `--set`.
        effect: What else it changes.
        footprint: The memory of the run with it.
        any_batch: Whether the batch may then be of any size, since only parts of it are on the device.
    """

    setting: str
    effect: str
    footprint: Footprint
    any_batch: bool


def levers(config: RunConfig, task: str, *, device: str, precision: str, classes: int) -> Iterator[Lever]:
    """Count the memory of a run with each setting that saves some and isn't set, those first that cost least.

    Args:
        config: The run.
        task: Its task.
        device: Type of its device.
        precision: The precision in use.
        classes: Number of classes of its data.

    Raises:
        UncountableError: As `footprint`.
    """
    for setting, effect, changes in _candidates(config, precision):
        used = changes.pop("precision.mode", precision)
        try:
            changed = _with(config, changes)
            counted = footprint(changed, task, device=device, precision=used, classes=classes)
            split = "memory.micro_batch" in changes
            note = "; BatchNorm by part" if split and counted.has_batch_norm else ""
            yield Lever(setting, effect + note, counted, split)
        except (ConfigError, ValidationError):  # this network has no blocks, or the settings exclude it
            continue


def enough(
    config: RunConfig, task: str, *, device: str, precision: str, classes: int, room: int
) -> Lever | None:
    """Return the first lever with which a run fits into `room` bytes, with a margin; None: none, or it does.

    Raises:
        ConfigError, UncountableError: As `footprint`.
    """
    counted = footprint(config, task, device=device, precision=precision, classes=classes)
    if counted.total <= USABLE * room:
        return None  # something else has the memory
    found = levers(config, task, device=device, precision=precision, classes=classes)
    return next((lever for lever in found if lever.footprint.total <= USABLE * room), None)


def _candidates(config: RunConfig, precision: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    training, memory = config.training, config.memory
    if precision == "fp32":
        yield "precision.mode=bf16", "16-bit activations", {"precision.mode": "bf16"}
    if config.speed.fused is False:
        yield "speed.fused=true", "the same update in one kernel", {"speed.fused": True}
    if not memory.activation_checkpointing:
        effect = "the same result, a third slower"
        yield "memory.activation_checkpointing=true", effect, {"memory.activation_checkpointing": True}
    if (rows := rows_of(config)) > 1:
        part = -(-rows // _PARTS)
        effect = "the same batch in parts"
        yield f"memory.micro_batch={part}", effect, {"memory.micro_batch": part}
    if training.ema_decay is not None:
        yield "training.ema_decay=none", "no averaged weights", {"training.ema_decay": None}
    if OPTIMIZERS[training.optimizer].state_bytes >= _TWO_STATES:
        effect = "one state instead of two; needs another rate"
        yield "training.optimizer=lion", effect, _of_lion(config)


def _of_lion(config: RunConfig) -> dict[str, Any]:
    """Return the settings of lion, without those that it doesn't take."""
    other = dict.fromkeys(("training.nesterov", "training.betas", "training.eps"))
    return {"training.optimizer": "lion", **other}


def _with(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """Return a configuration with other values of some keys (`table.key`).

    Raises:
        ValidationError: They exclude each other.
    """
    document = config.model_dump()
    for table, values in nested(changes).items():
        document[table] |= values
    return RunConfig.model_validate(document)
