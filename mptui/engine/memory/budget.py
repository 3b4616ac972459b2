"""Keeps a run within `memory.budget_gib`: what is counted chooses how, before anything is allocated."""

from contextlib import suppress
from dataclasses import dataclass

from mptui import format as fmt
from mptui.config.schema import RunConfig
from mptui.engine.memory.footprint import Footprint, footprint, of_one_rank, rows_of
from mptui.engine.memory.step_trace import UncountableError
from mptui.errors import ConfigError
from mptui.hardware.devices import USABLE


def kept_within(
    config: RunConfig, task: str, *, device: str, precision: str, classes: int, ranks: int = 1
) -> RunConfig:
    """Choose activation checkpointing and micro-batch of a run so that its memory is within its budget.

    What is set stays: checkpointing that is on, and `memory.micro_batch` as the most samples per pass. A
    network with BatchNorm is checkpointed before its batches are split, since that leaves its result the
    same, and others are split first, which takes less time.

    Args:
        config: The run; without a budget it is returned as it is.
        task: Its task.
        device: Type of its device.
        precision: The precision in use.
        classes: Number of classes of its data.
        ranks: Processes that share each batch.

    Raises:
        ConfigError: Not even one sample fits, or a network can't be counted on a device that has no limit.
    """
    budget = config.memory.budget_gib
    if budget is None:
        return config
    count = _Counts(of_one_rank(config, ranks), task, device, precision, classes)
    room = int(budget * USABLE * (1 << 30))
    try:
        rows, checkpointed = _chosen(count, room, checkpointed=config.memory.activation_checkpointing)
        if not rows:
            raise _nothing_fits(count, budget)
    except UncountableError as error:
        if device == "cuda":  # allocations are held to the budget there, and what doesn't fit is split
            return config
        raise ConfigError(
            f"memory.budget_gib: the memory of {config.model.name} can't be counted in advance",
            hint="leave it unset, or use another network",
        ) from error
    is_whole = rows >= count.config.training.batch_size
    update = {"micro_batch": None if is_whole else rows, "activation_checkpointing": checkpointed}
    return config.model_copy(update={"memory": config.memory.model_copy(update=update)})


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts a run, or one rank of it, with other micro-batches, with and without checkpointing."""

    config: RunConfig
    task: str
    device: str
    precision: str
    classes: int

    def at(self, rows: int, *, checkpointed: bool) -> Footprint:
        """Count passes of `rows` samples.

        Raises:
            ConfigError: The network has no blocks to checkpoint.
        """
        update = {"micro_batch": rows, "activation_checkpointing": checkpointed}
        memory = self.config.memory.model_copy(update=update)
        config = self.config.model_copy(update={"memory": memory})
        return footprint(
            config, self.task, device=self.device, precision=self.precision, classes=self.classes
        )

    @property
    def most(self) -> int:
        """The most samples per pass that the settings allow."""
        return rows_of(self.config)

    def largest(self, room: int, *, checkpointed: bool) -> int:
        """Return the most samples per pass that fit into `room` bytes; 0: none."""
        if self.at(self.most, checkpointed=checkpointed).total <= room:
            return self.most
        # of a split batch, the gradients of the other parts are there, too
        return min(self.most, self.at(1, checkpointed=checkpointed).largest_batch(room))


def _chosen(count: _Counts, room: int, *, checkpointed: bool) -> tuple[int, bool]:
    """Return the samples per pass, 0 if not even one fits, and whether blocks are checkpointed."""
    if checkpointed:
        return count.largest(room, checkpointed=True), True
    plain = count.largest(room, checkpointed=False)
    split = plain < count.most
    if split and (not plain or count.at(1, checkpointed=False).has_batch_norm):
        with suppress(ConfigError):  # it has no blocks
            more = count.largest(room, checkpointed=True)
            if more > plain:
                return more, True
    return plain, False


def _nothing_fits(count: _Counts, budget: float) -> ConfigError:
    least = count.at(1, checkpointed=count.config.memory.activation_checkpointing)
    with suppress(ConfigError):
        least = count.at(1, checkpointed=True)
    return ConfigError(
        f"memory.budget_gib = {budget:g}: one image at {count.config.data.image_size} px takes "
        f"{fmt.size(least.total)} in {count.precision}, and a tenth of the budget stays free",
        hint=f"see where it goes with mptui memory --card {budget:g}GiB; try 16 bits, a smaller "
        "data.image_size, or a smaller model",
    )
