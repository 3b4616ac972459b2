"""The memory of a training by part and precision, what each setting saves, and what fits a card."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mptui.config.keys import with_values
from mptui.config.schema import RunConfig, shard_faults
from mptui.data.open import files_of
from mptui.data.scan import OnProgress
from mptui.engine.memory.ledger import Footprint, Lever, footprint, levers
from mptui.errors import ConfigError, MptuiError
from mptui.hardware.devices import USABLE
from mptui.lab.doctor.data import dataset_of
from mptui.lab.measure.scaling import Link, Prediction, Simulation
from mptui.registry.names import PRECISIONS, SampleKind
from mptui.registry.tasks import ASSUMED_CLASSES
from mptui.runs.planning.plan import NO_DATA, Plan

# The number of classes that a network would have, before it is trained
# ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClassCount:
    """A number of classes.

    Attributes:
        number: The number; 0: the network tells none apart.
        assumed: Why it is assumed; "": it is that of the data.
    """

    number: int
    assumed: str = ""

    @property
    def words(self) -> str:
        """Describe it: `150 classes`."""
        if not self.number:
            return "no classes"
        return f"{self.number:,} classes" + (f" assumed, as {self.assumed}" if self.assumed else "")


def count_classes(plan: Plan, on_progress: OnProgress) -> ClassCount:
    """Count the classes of the data of a plan; those of masks take a scan of all masks.

    Data that can't be read doesn't keep a network from being counted.
    """
    if plan.config.model.reads(plan.task) is SampleKind.IMAGE:
        return ClassCount(0)
    if plan.resolved.sources.get("data.name") == NO_DATA:
        return ClassCount(ASSUMED_CLASSES, "no data is given (--data)")
    try:
        return ClassCount(_classes_of(plan.config, plan.task, on_progress))
    except MptuiError as error:
        first_line = error.message.partition("\n")[0]
        return ClassCount(ASSUMED_CLASSES, f"the data can't be read: {first_line}")


def _classes_of(config: RunConfig, task: str, on_progress: OnProgress) -> int:
    kind = config.model.reads(task)
    if kind is not SampleKind.MASK:
        try:
            return len(files_of(config.data, kind, on_progress, lambda: False)[2].classes)
        except ConfigError:  # the set has no files of its own
            pass
    return len(dataset_of(config, task, on_progress).classes)


# The memory of a training by part and precision, what each setting saves, and the largest batch
# ----------------------------------------------------------------------------------------------

PARTS = {
    "weights": "weights and buffers",
    "gradients_at_peak": "gradients, at the peak",
    "optimizer": "optimizer states",
    "average": "averaged weights",
    "activations": "activations",
    "working": "temporaries",
    "batches": "batch, prefetched",
    "workspace": "workspaces (estimated)",
    "context": "libraries (estimated)",
}
"""Parts of a `Footprint` -> their words."""

SHARDED_OVER = 8
"""GPUs of the row on sharding: those of a usual node."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The memory of a planned run, in bytes.

    Attributes:
        plan: The run, on the device that it is counted for.
        classes: The classes that it is counted with.
        room: What the device has for it; None: unknown.
        formats: Precision -> memory.
        levers: Settings that save memory, in the precision of the plan.
        simulation: The run on several GPUs.
        sharded: Memory of each of `SHARDED_OVER` GPUs with `memory.shard`; None: the settings exclude it.
    """

    plan: Plan
    classes: ClassCount
    room: int | None
    formats: dict[str, Footprint]
    levers: list[Lever]
    simulation: Simulation
    sharded: int | None

    @property
    def used(self) -> Footprint:
        """The memory in the precision of the plan."""
        return self.formats[self.plan.precision.used]

    @property
    def shard_faults(self) -> list[str]:
        """The settings that exclude `memory.shard`, a line each."""
        return _shard_faults(self.plan.config)

    def over_ranks(self, link: Link, step_s: float | None) -> dict[str, Prediction | None]:
        """Return the run on several GPUs by the way in which they hold the network; None: excluded.

        Args:
            link: What connects them.
            step_s: Seconds of a step on one; None: unknown.
        """
        return {
            "replicated": self.simulation.replicated(link, step_s),
            "sharded": None if self.shard_faults else self.simulation.sharded(link, step_s),
        }

    def largest_batch(self, counted: Footprint) -> int | None:
        """Return the largest batch that fits, with a margin; None without a known room."""
        return None if self.room is None else counted.largest_batch(int(self.room * USABLE))

    def document(self) -> dict[str, Any]:
        """Return the ledger for JSON."""
        config, used = self.plan.config, self.used
        return {
            "model": config.model.name,
            "parameters": used.parameters,
            "image_size": config.data.image_size,
            "class_count": self.classes.number,
            "classes_assumed": self.classes.assumed or None,
            "optimizer": config.training.optimizer,
            "micro_batch": used.batch_size,
            "device": self.plan.device.torch_name,
            "device_name": self.plan.device.name,
            "device_bytes": self.room,
            "usable": USABLE,
            "precision": self.plan.precision.used,
            "formats": {
                name: {
                    **counted.parts,
                    "gradients": counted.gradients,
                    "allocated": counted.allocated,
                    "total": counted.total,
                    "per_sample": counted.per_sample,
                    "largest_batch": self.largest_batch(counted),
                    "activations_by_module": counted.by_module,
                }
                for name, counted in self.formats.items()
            },
            "levers": [
                {
                    "setting": lever.setting,
                    "effect": lever.effect,
                    "total": lever.footprint.total,
                    "saved": used.total - lever.footprint.total,
                    "largest_batch": None if lever.any_batch else self.largest_batch(lever.footprint),
                }
                for lever in self.levers
            ],
            "sharded": {"ranks": SHARDED_OVER, "total": self.sharded},
        }


def ledger_of(plan: Plan, classes: ClassCount, room: int | None, on_start: Callable[[str], None]) -> Ledger:
    """Count the memory of a run in each precision, and with each lever.

    Args:
        plan: The run.
        classes: The classes of its data.
        room: Bytes that its device has.
        on_start: Called with what is counted next.

    Raises:
        ConfigError: There is no such network, or it does not support this image size.
        UncountableError: The network can't be counted.
    """
    config, task, kind, used = plan.config, plan.task, plan.device.kind, plan.precision.used
    formats = {}
    for name in PRECISIONS:
        on_start(name)
        formats[name] = footprint(config, task, device=kind, precision=name, classes=classes.number)
    on_start("what settings save")
    found = list(levers(config, task, device=kind, precision=used, classes=classes.number))
    on_start(f"sharded over {SHARDED_OVER} GPUs")
    simulation = Simulation(config, task, device=kind, precision=used, classes=classes.number)
    sharded = None
    if not _shard_faults(config):
        sharded = simulation.sharded(Link(SHARDED_OVER, bytes_per_s=1.0, latency_s=0.0)).memory_bytes
    return Ledger(plan, classes, room, formats, found, simulation, sharded)


def _shard_faults(config: RunConfig) -> list[str]:
    return shard_faults(with_values(config, {"memory.shard": True, "speed.compile": "off"}))


def largest_modules(counted: Footprint, count: int) -> Iterator[tuple[str, int]]:
    """Yield the parts of the network with the largest activations: names of two levels, and bytes."""
    sums: Counter[str] = Counter()
    for module, size in counted.by_module.items():
        sums[".".join(module.split(".")[:2]) or "network, loss"] += size
    yield from sums.most_common(count)
