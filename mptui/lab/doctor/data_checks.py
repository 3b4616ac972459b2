"""Checks the data of a run by the same scan."""

from collections.abc import Callable, Iterator

from mptui.data.core.types import Dataset
from mptui.data.formats.open import open_dataset
from mptui.errors import MptuiError
from mptui.lab.doctor.findings import Finding, advice, findings_of, ok
from mptui.registry.samples import SampleKind
from mptui.runs.planning.plan import Plan

_MOST_NAMED = 20
_UNEVEN = 10
"""Ratio of images in the largest and the smallest class from which it is reported."""


def check_data(plan: Plan, on_progress: Callable[[int, int], None]) -> list[Finding]:
    """Open and scan the data of a plan.

    Args:
        plan: Plan of the run.
        on_progress: Called with (files checked, all files).
    """
    config = plan.config
    warnings: list[str] = []
    try:
        dataset = open_dataset(
            config.data,
            kind=config.model.reads(plan.task),
            side=int(config.data.image_size or 0),
            seed=config.training.seed,
            on_progress=on_progress,
            should_stop=lambda: False,
            on_warning=warnings.append,
        )
    except MptuiError as fault:
        return findings_of("data", "data", fault)
    do = "see the layouts of data in the README"
    said = [advice("data", "warning", warning, do) for warning in warnings]
    return [
        _summary(dataset, plan.task),
        *_problems(dataset, config.data.bad_sample_budget),
        *said,
        *_fit(dataset, plan),
    ]


def _summary(dataset: Dataset, task: str) -> Finding:
    sides = "" if dataset.sides is None else ", shorter sides {}/{}/{} px".format(*dataset.sides)
    return ok(
        "data",
        "data",
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.val):,} validation images for "
        f"{task}, {len(dataset.classes)} classes{sides}",
    )


def _problems(dataset: Dataset, budget: float) -> Iterator[Finding]:
    """Report unreadable files within the budget, which a run leaves out; beyond it, the scan has failed."""
    do = f"repair or remove it; a run leaves it out (data.bad_sample_budget = {budget:g})"
    for problem in dataset.problems[:_MOST_NAMED]:
        yield advice("data", "file", f"{problem.path}: {problem.reason}", do)
    if (more := len(dataset.problems) - _MOST_NAMED) > 0:
        yield advice("data", "file", f"and {more} more files that can't be used", do)


def _fit(dataset: Dataset, plan: Plan) -> Iterator[Finding]:
    counts = [count for count in dataset.class_counts if count]
    if dataset.kind is SampleKind.CLASS and counts and max(counts) > _UNEVEN * min(counts):
        largest, smallest = (
            dataset.classes[list(dataset.class_counts).index(pick(counts))] for pick in (max, min)
        )
        what = f"unbalanced classes: {largest} has {max(counts):,} images, {smallest} {min(counts):,}"
        do = "--set data.sampler=balanced, with training.primary_metric=balanced_accuracy"
        yield advice("data", "classes", what, do)
    side = int(plan.config.data.image_size or 0)
    if dataset.sides is not None and dataset.sides[1] < side:
        what = f"half of the images are smaller than data.image_size = {side} and are enlarged"
        yield advice(
            "data", "image_size", what, f"--set data.image_size={max(32, dataset.sides[1] // 32 * 32)}"
        )
