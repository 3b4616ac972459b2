"""The number of classes that a network would have, before it is trained."""

from dataclasses import dataclass

from mptui.config.schema import RunConfig
from mptui.data.formats.open import files_of
from mptui.data.scan.scan import OnProgress
from mptui.errors import ConfigError, MptuiError
from mptui.lab.look.read_data import dataset_of
from mptui.registry.samples import SampleKind
from mptui.registry.tasks import ASSUMED_CLASSES
from mptui.runs.planning.plan import NO_DATA, Plan


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
