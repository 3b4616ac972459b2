"""Chooses the normalisation of images that are read as they are stored: by their own statistics."""

from collections.abc import Callable
from dataclasses import replace

from mptui.data.core.types import Dataset
from mptui.data.formats.splits import FileSplit, MaskedSplit
from mptui.data.scan.band_statistics import measure
from mptui.errors import ConfigError
from mptui.runs.planning.plan import Plan


def with_statistics(
    plan: Plan, dataset: Dataset, on_progress: Callable[[int, int], None], should_stop: Callable[[], bool]
) -> Plan:
    """Return the plan with `data.mean` and `data.std`, as saved in run.toml.

    Those left open are measured over all training images, once: a resume has them.

    Args:
        plan: The plan.
        dataset: The scanned data.
        on_progress: Called with (done, total) of images.
        should_stop: Called several times per second.

    Raises:
        ConfigError: They are given for another number of bands.
        ScanCancelledError: `should_stop` returned True.
    """
    data, form, train = plan.config.data, dataset.pixels, dataset.train
    if data.bands == "rgb":
        return plan
    notes = (*plan.notes, f"Images are read as stored: {form}")
    given = {"mean": data.mean, "std": data.std}
    for key, values in given.items():
        if values is not None and len(values) != form.bands:
            raise ConfigError(
                f"data.{key}: {len(values)} values, but images have {form.bands} bands",
                hint=f"give data.{key} one value for each band, or leave it out to measure it",
            )
    if None not in given.values():
        return replace(plan, notes=notes)
    assert isinstance(train, FileSplit | MaskedSplit), "others are not read as stored"
    found = measure(train.files, form, on_progress, should_stop)
    left_open = {"mean": list(found.mean), "std": list(found.std)}
    left_open = {key: value for key, value in left_open.items() if given[key] is None}
    config = plan.config.model_copy(update={"data": data.model_copy(update=left_open)})
    source = f"measured: {len(train):,} training images"
    sources = {**plan.resolved.sources, **{f"data.{key}": source for key in left_open}}
    return replace(plan, resolved=replace(plan.resolved, config=config, sources=sources), notes=notes)
