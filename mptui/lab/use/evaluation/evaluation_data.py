"""The samples that a trained run is measured on: its own validation set, or another set of its classes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mptui.config.schema import DataConfig
from mptui.data.core.types import RGB, Dataset, Split
from mptui.data.decode.mask import opened_mask, survey
from mptui.data.describe.read_again import read_again
from mptui.data.formats.combined import JoinedSplit, RenumberedSplit
from mptui.data.formats.kept_reading import KeptReading
from mptui.data.formats.masks.mask_classes import BINARY
from mptui.data.formats.open import open_dataset
from mptui.data.formats.splits import MaskedSplit
from mptui.errors import DataError
from mptui.io.places import absolute
from mptui.lab.use.trained import Trained
from mptui.registry.samples import SampleKind
from mptui.runs.store.data_record import data_changes, kept_reading
from mptui.text import clean_name

_NAMED = 10
_NUMBERS = ("class_0", "class_1")


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """The samples of an evaluation.

    Attributes:
        dataset: The opened set, with the classes of the run.
        split: Its samples that are measured.
        part: Which they are: validation, or all.
        own: Whether it is the run's validation set, unchanged as far as is known.
    """

    dataset: Dataset
    split: Split
    part: str
    own: bool


def open_samples(
    trained: Trained,
    given: Mapping[str, Any],
    *,
    on_progress: Callable[[int, int], None],
    note: Callable[[str], None],
) -> EvaluationData:
    """Open the data of an evaluation.

    The run's own data is read as the run has read it. Of another set, the validation half is measured, or all
    of it if it has none.

    Args:
        trained: The run.
        given: Values of [data] that a person gave (name, path, download); empty: the run's own data.
        on_progress: Called with (checked files, all files).
        note: Called with warnings about the data.

    Raises:
        ConfigError: There is no set of that name.
        DataError: The data is missing or unreadable, of another kind or pixel format, or has classes that the
            run lacks.
    """
    config = _settings(trained.config.data, given)
    own = (config.name, config.path) == (trained.config.data.name, trained.config.data.path)

    def opened(kept: KeptReading | None) -> Dataset:
        return open_dataset(
            config,
            kind=trained.config.model.reads(trained.plan.task),
            side=trained.preprocessing.geometry.side,
            seed=trained.config.split_seed,
            on_progress=on_progress,
            should_stop=lambda: False,
            on_warning=note,
            kept=kept,
        )

    before = kept_reading(trained.run, trained.config, trained.config) if own else None
    dataset, differs = read_again(opened, before)
    if differs:
        note(differs)
    if dataset.pixels != (trained_on := trained.preprocessing.stored or RGB):
        raise DataError(
            f"{clean_name(dataset.name)}: images have {dataset.pixels}, but the run has {trained_on}",
            hint="Give --data images of the same bands and values.",
        )
    whole = dataset.held_out and not own
    if own and (told := data_changes(trained.run, dataset)) is not None:
        note(f"the data of this run has changed since it was trained: {told}")
        own = False
    split: Split = JoinedSplit(dataset.train, dataset.val) if whole else dataset.val
    split = _with_classes_of_run(split, dataset, trained, note)
    dataset = replace(dataset, classes=trained.classes)
    return EvaluationData(dataset, split, "all samples" if whole else "validation", own)


def _settings(data: DataConfig, given: Mapping[str, Any]) -> DataConfig:
    """Return the data settings with what a person gave."""
    if given.get("path") is not None:
        given = {**given, "path": absolute(given["path"])}
    if given.get("name") is not None and given["name"] == data.name:
        given = {key: value for key, value in given.items() if key != "path"}  # the folder where it is stored
    return data.model_copy(update=dict(given))


def _with_classes_of_run(
    split: Split, dataset: Dataset, trained: Trained, note: Callable[[str], None]
) -> Split:
    """Return the split with its classes numbered as the run's."""
    ours = trained.classes
    theirs = _names_by_value(dataset, ours)
    if theirs != dataset.classes:
        note(f"masks of {dataset.name} have the values 0 and 1: they are {' and '.join(theirs)} of the run")
    if dataset.kind is SampleKind.IMAGE or theirs == ours:
        return split
    unknown = [name for name in theirs if name not in ours]
    missing = [name for name in ours if name not in theirs]
    if unknown:
        faults = [f"only in the data: {_listed(unknown)}"]
        faults += [f"only in the run: {_listed(missing)}"] if missing else []
        raise DataError(
            "\n".join([f"{dataset.name}: its classes differ from those of {trained.run.name}", *faults]),
            hint="give --data a set whose classes have the names of the run's",
        )
    if missing:
        note(f"{dataset.name} has no sample of these classes of the run: {_listed(missing)}")
    return RenumberedSplit(split, tuple(ours.index(name) for name in theirs))


def _names_by_value(dataset: Dataset, ours: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes of a set, those of masks of 0 and 1 by their values if the run's are named so.

    Such masks are background and foreground alone; beside others, 0 and 1 are the numbers of classes.
    """
    split = dataset.val
    if dataset.classes != BINARY or not isinstance(split, MaskedSplit) or not {*_NUMBERS} <= {*ours}:
        return dataset.classes
    for row in split.rows.tolist():
        with opened_mask(split.mask_paths[row]) as mask:
            mask.load()
            highest = max(survey(split.mask_paths[row], mask).codes)
        if highest:
            return _NUMBERS if highest == 1 else dataset.classes
    return dataset.classes


def _listed(names: list[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _NAMED else ""
    return ", ".join(map(clean_name, names[:_NAMED])) + more
