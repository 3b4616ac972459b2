"""Estimates whether a run fits: its peak memory against the free memory of its device.

The estimate needs torch, and runs in a thread that no screen waits for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.config.base_tables import MemoryConfig
from mptui.config.merge import Resolved, resolve
from mptui.errors import ConfigError
from mptui.events import RunStarted
from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import USABLE, Device
from mptui.registry.own_code import is_own
from mptui.registry.samples import SampleKind
from mptui.registry.tasks import ASSUMED_CLASSES, DEFAULT_TASK
from mptui.runs.planning.plan import filled
from mptui.runs.store.directory import CONFIG

if TYPE_CHECKING:
    from mptui.engine.memory.footprint import Footprint


@dataclass(frozen=True, slots=True)
class Fit:
    """The memory estimate of a run, and the free memory of its device (bytes; None: unknown).

    Of a run in several processes (`ranks`), that of one with its share of the batch. `classes`: those of its
    data; None: not known, so that some are assumed.
    """

    network: str
    side: int
    footprint: "Footprint"
    batch_size: int
    free: int | None
    ranks: int = 1
    classes: int | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters of the network, which are float32."""
        return self.footprint.parameters

    @property
    def fits(self) -> bool:
        """Whether the peak is within the free memory."""
        return self.free is None or self.footprint.total <= self.free

    @property
    def largest(self) -> int:
        """The largest batch in the share of the free memory that is used; 0: none, or it is unknown."""
        room = 0 if self.free is None else int(self.free * USABLE)
        return self.ranks * self.footprint.largest_batch(room)

    @property
    def words(self) -> str:
        """Describe whether it fits, and up to which batch."""
        return self._fitting + (f", if there are {ASSUMED_CLASSES} classes" if self.classes is None else "")

    @property
    def _fitting(self) -> str:
        if self.free is None:
            return "free memory unknown"
        best = self.largest
        if not self.fits:
            return f"✗ too much; batch {best:,} fits" if best else "✗ one sample is too much"
        if self.footprint.total > self.free * USABLE:
            return "✓ fits, but tightly"
        return f"✓ fits, up to batch {best:,}"

    @property
    def figure(self) -> str:
        """Describe peak and free memory, if that is known: `1.8 of 22.9 GiB`."""
        free = "" if self.free is None else f" of {self.free / (1 << 30):.1f}"
        return f"{self.footprint.total / (1 << 30):.1f}{free} GiB"

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The parts of the peak, in the order of a step."""
        counted = self.footprint
        parts = [
            ("weights", counted.weights),
            ("activations", counted.activations),
            ("gradients", counted.gradients_at_peak),
            ("optimizer", counted.optimizer),
            ("average", counted.average),
            ("working", counted.working + counted.workspace + counted.batches + counted.context),
        ]
        return [(word, size) for word, size in parts if size]


def filling_batch(fit: Fit, memory: MemoryConfig, samples: int | None) -> tuple[int, str]:
    """Return the batch that fills the free memory, and why it is this one; 0: there is none.

    It is a multiple of 8 for each process, as Tensor Cores compute in tiles of 8 (NVIDIA, "Train With Mixed
    Precision"), and no more than the training samples, if their number is known.
    """
    split = "memory.budget_gib" if memory.budget_gib is not None else "memory.micro_batch"
    if memory.budget_gib is not None or memory.micro_batch is not None:
        return 0, f"{split} splits batches, so that any size fits"
    if not fit.largest:
        return 0, fit.words
    batch, why = fit.largest, f"fills {USABLE:.0%} of the free memory"
    if samples is not None and samples < batch:
        batch, why = samples, f"all training samples; {fit.largest:,} would fit"
    tile = 8 * fit.ranks
    return (batch - batch % tile if batch > tile else batch), why


def predicted(run: Path, started: RunStarted, precision: str) -> "Footprint":
    """Count the memory of a run from its directory, in the precision in use. Imports torch.

    Raises:
        MptuiError: Its settings can't be read, or its network can't be counted.
    """
    from mptui.engine.memory.footprint import footprint, of_one_rank
    from mptui.engine.memory.step_trace import UncountableError

    config = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    if is_own(config.model.name):
        raise ConfigError("the memory of your own network is not counted", hint="see docs/own_code.md")
    training = config.training.model_copy(update={"batch_size": started.batch_size})
    config = of_one_rank(config.model_copy(update={"training": training}), started.ranks)
    kind = started.device.partition(":")[0]
    try:
        return footprint(config, started.task, device=kind, precision=precision, classes=len(started.classes))
    except UncountableError as error:
        raise ConfigError(f"{config.model.name} can't be counted", hint="see docs/memory.md") from error


def fits(
    resolutions: Mapping[str, Resolved],
    device: Device,
    ranks: int,
    classes: int | None,
    wanted: Callable[[], bool],
) -> dict[str, "Fit | str"]:
    """Estimate each of these runs on `device`, by name, or say why it is impossible. Imports torch.

    Args:
        resolutions: The runs.
        device: The device of one process.
        ranks: Number of processes.
        classes: Number of classes of the data; None: not known.
        wanted: No further run is counted once it returns False.
    """
    return dict(_counted(takewhile(lambda _: wanted(), resolutions.items()), device, ranks, classes))


def _counted(
    resolutions: Iterable[tuple[str, Resolved]], device: Device, ranks: int, classes: int | None
) -> Iterable[tuple[str, "Fit | str"]]:
    from mptui.engine.memory.budget import kept_within
    from mptui.engine.memory.footprint import footprint, of_one_rank
    from mptui.engine.memory.step_trace import UncountableError

    number = classes or ASSUMED_CLASSES
    for name, resolution in resolutions:
        if is_own(resolution.config.model.name):
            continue  # it is imported only where it is trained
        kind = device.torch_name.partition(":")[0]
        try:
            config = filled(resolution, device)[0].config
            precision = choose_precision(config.precision.mode, device).used
            task = resolution.task or DEFAULT_TASK
            config = kept_within(config, task, device=kind, precision=precision, classes=number, ranks=ranks)
            rank = of_one_rank(config, ranks)
            matters = config.model.reads(task) is not SampleKind.IMAGE
            counted = footprint(rank, task, device=kind, precision=precision, classes=number)
        except UncountableError:
            continue
        except ConfigError as error:
            yield name, error.message
        else:
            yield (
                name,
                Fit(
                    str(config.model.name),
                    int(config.data.image_size or 0),
                    counted,
                    config.training.batch_size,
                    device.memory_free,
                    ranks,
                    classes if matters else 0,
                ),
            )
