"""What the samples of each task have. Imports no torch: plans and screens ask this."""

from mptui.config.schema import TaskName
from mptui.data.core.types import SampleKind

SAMPLE_KINDS: dict[TaskName, SampleKind] = {
    "classification": SampleKind.CLASS,
    "segmentation": SampleKind.MASK,
    "diffusion": SampleKind.IMAGE,
}


def task_for(kind: SampleKind | None) -> TaskName | None:
    """The first task whose samples are of `kind`; None where the kind is open."""
    return next((task for task, its_kind in SAMPLE_KINDS.items() if its_kind is kind), None)
