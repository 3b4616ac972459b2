"""Builds a dataset from a list of files: scans them, drops unusable ones and splits the others."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mptui.config.schema import DataConfig
from mptui.data.address import title_of
from mptui.data.dataset import FileSplit, Labels, MaskedSplit, Rows, split_by_class
from mptui.data.decode import other_format
from mptui.data.folder_format import Found
from mptui.data.kept_reading import build_reading, by_reason, held_out_phrase
from mptui.data.mask_classes import FoundCoding, class_pixels, find_coding, masks_upright, unknown_code
from mptui.data.masks import MaskCoding
from mptui.data.prepared import LAYOUT, PreparedSet
from mptui.data.scan import NOT_RGB, OnProgress, ScanReport, ShouldStop, scan
from mptui.data.transforms import default_resize
from mptui.data.types import RGB, Dataset, PixelFormat, Problem, Reading, Sides
from mptui.errors import DataError
from mptui.registry.names import SampleKind
from mptui.text import clean, clean_name, some

_MOST_NAMED = 20


def assemble(
    name: str, found: Found, data: DataConfig, seed: int, *, on_progress: OnProgress, should_stop: ShouldStop
) -> Dataset:
    """Scan the files of a set and build a dataset from them.

    Args:
        name: Name of the set.
        found: Its files.
        data: The budget of unusable files, the share of validation, the ignored mask value.
        seed: Selects the validation half if the set has none.
        on_progress: Called with (checked files, all files).
        should_stop: Called several times per second.

    Raises:
        DataError: Too many files are unusable, or too few are left.
        ScanCancelledError: `should_stop` returned True.
    """
    stored = data.bands == "all"
    report = scan(found.images, found.masks, on_progress, should_stop, stored=stored)
    form = _one_format(found, report) if stored else None
    if found.masks is not None:
        return _with_masks(name, found, report, data, seed=seed, form=form)
    assert found.labels is not None
    return _with_labels(name, found, found.labels, report, data=data, seed=seed, form=form)


def _one_format(found: Found, report: ScanReport) -> PixelFormat:
    """Return the format of most images as they are stored, and leave out the others."""
    counts = Counter(report.formats.values())
    form = counts.most_common(1)[0][0] if counts else RGB
    for row, other in report.formats.items():
        if other != form:
            report.leave_out(row, found.images[row], other_format(other, form))
    return form


def assemble_prepared(prepared: PreparedSet, data: DataConfig, side: int, seed: int) -> Dataset:
    """Build a dataset from a prepared set, with the samples and the order of the original files.

    Args:
        prepared: The set.
        data: The share of validation, the ignored mask value.
        side: Side of the network's input in pixels.
        seed: Selects the validation half if the set has none.

    Raises:
        DataError: It has too few samples, or was prepared with another ignored mask value.
    """
    about, records, place = prepared.about, prepared.records, clean_name(str(prepared.folder))
    if about.masks and data.ignore_index not in (None, about.ignore_index):
        raise DataError(
            f"{place}: prepared with another data.ignore_index",
            hint=f"prepare it again: mptui prepare DATA --ignore-index {data.ignore_index}",
        )
    count, labels, sides = len(records), records["label"].astype(np.int64), prepared.sides
    train_rows = count if about.train_count is None else about.train_count
    train, val = split_train_val(
        place, labels, np.arange(count), train_rows, fraction=data.val_fraction, seed=seed
    )
    pixels = records["pixels"][train].sum(axis=0).tolist() if about.masks else []
    counts = pixels[:-1] or np.bincount(labels[train], minlength=len(prepared.classes)).tolist()
    split = held_out_phrase(data.val_fraction)
    if about.train_count is not None:
        split = "that of the files it was prepared from"
    left_out = tuple(by_reason(prepared.problems))
    return Dataset(
        name=clean_name(about.name),
        kind=prepared.kind,
        classes=prepared.classes,
        train=prepared.split(train),
        val=prepared.split(val),
        problems=prepared.problems,
        warnings=(*map(clean, about.warnings), *_shrunk(prepared, data, side)),
        has_ignored=about.masks and bool(records["pixels"][:, -1].any()),
        class_counts=counts,
        sides=shorter_sides(sides),
        held_out=about.train_count is None,
        reading=Reading(LAYOUT, split, prepared.classes, tuple(counts), left_out=left_out),
        sizes=(sides[train], sides[val]),
    )


def _shrunk(prepared: PreparedSet, data: DataConfig, side: int) -> Iterator[str]:
    """Say what is otherwise than from the original images, as they were resized."""
    wanted, resized_to = data.resize or default_resize(side), prepared.about.side
    if not bool((prepared.records["shorter"] == resized_to).any()):
        return
    if wanted > resized_to:
        yield (
            f"images were prepared at a shorter side of {resized_to} px, but data.resize is {wanted}:"
            f" crops differ from those of the files; prepare it again with --resize {wanted},"
            f" or set data.resize to {resized_to}"
        )
    if data.interpolation == "bicubic":
        yield (
            "images were resized by the bilinear filter when they were prepared:"
            " data.interpolation = bicubic resamples their crops alone"
        )


def _with_labels(
    name: str,
    found: Found,
    labels: Labels,
    report: ScanReport,
    *,
    data: DataConfig,
    seed: int,
    form: PixelFormat | None,
) -> Dataset:
    problems = within_budget(found, report, data.bad_sample_budget)
    train, val = _halves_of(name, found, labels, report, fraction=data.val_fraction, seed=seed)
    counts, val_counts = (
        np.bincount(labels[rows], minlength=len(found.classes)).tolist() for rows in (train, val)
    )
    warnings = [*found.warnings, *_not_finite(found, report, form), *lossy_images(found, report, form)]
    if unusable := [name for name, count in zip(found.classes, counts, strict=True) if not count]:
        warnings.append(f"classes without a usable training image: {some(unusable)}")
    if found.train_rows == len(found.images):
        in_val = set(labels[val].tolist())
        counted = enumerate(zip(found.classes, counts, strict=True))
        if alone := [name for number, (name, count) in counted if count == 1 and number not in in_val]:
            warnings.append(f"classes with one image, used for training only: {some(alone)}")
    return Dataset(
        name=name,
        kind=SampleKind.CLASS,
        classes=found.classes,
        train=FileSplit(found.images, labels, train, form),
        val=FileSplit(found.images, labels, val, form),
        problems=problems,
        warnings=tuple(warnings),
        class_counts=counts,
        sides=shorter_sides(report.sides),
        held_out=found.train_rows == len(found.images),
        sizes=(report.sides[train], report.sides[val]),
        pixels=form or RGB,
        reading=build_reading(
            found, found.classes, (counts, val_counts), problems, val_fraction=data.val_fraction
        ),
    )


def _with_masks(
    name: str, found: Found, report: ScanReport, data: DataConfig, *, seed: int, form: PixelFormat | None
) -> Dataset:
    assert found.masks is not None
    masks = mask_coding(found, report, data)
    coding = masks.coding
    problems = within_budget(found, report, data.bad_sample_budget)
    surveys = report.surveys
    as_one_class = np.zeros(len(found.images), np.int64)
    train, val = _halves_of(name, found, as_one_class, report, fraction=data.val_fraction, seed=seed)
    counts, ignored_train = class_pixels([surveys[int(row)] for row in train], coding)
    val_counts, ignored_val = class_pixels([surveys[int(row)] for row in val], coding)
    warnings = [*found.warnings, *_not_finite(found, report, form), *lossy_images(found, report, form)]
    warnings += [*masks.cleaned, *masks.notes]
    if absent := [title for title, pixels in zip(coding.classes, counts, strict=True) if not pixels]:
        warnings.append(f"classes without a pixel in any training mask: {some(absent)}")
    return Dataset(
        name=name,
        kind=SampleKind.MASK,
        classes=coding.classes,
        train=MaskedSplit(found.images, found.masks, coding, train, form),
        val=MaskedSplit(found.images, found.masks, coding, val, form),
        problems=problems,
        warnings=tuple(warnings),
        has_ignored=ignored_train or ignored_val,
        class_counts=counts,
        sides=shorter_sides(report.sides),
        held_out=found.train_rows == len(found.images),
        sizes=(report.sides[train], report.sides[val]),
        pixels=form or RGB,
        reading=replace(
            build_reading(
                found,
                coding.classes,
                (counts, val_counts),
                problems,
                val_fraction=data.val_fraction,
                coding=coding,
            ),
            orientation=masks.orientation,
            cleaned=masks.cleaned,
        ),
    )


def _not_finite(found: Found, report: ScanReport, form: PixelFormat | None) -> Iterator[str]:
    if report.not_finite:
        named = some([title_of(found.images[row]) for row in report.not_finite])
        how = "black or white" if form is None else "0"
        yield f"images with NaN or infinite pixels, read as {how}: {named}"


def lossy_images(found: Found, report: ScanReport, form: PixelFormat | None) -> Iterator[str]:
    """Name the images that are read as 8-bit RGB but are more than that; `form` is how they are read."""
    if form is None and report.formats:
        named = some([f"{title_of(found.images[row])} ({more})" for row, more in report.formats.items()])
        yield f'images are read as 8-bit RGB, data.bands = "all" reads them as they are stored: {named}'


@dataclass(frozen=True, slots=True)
class CodedMasks:
    """What is decided for all masks of a set: their coding, phrases for its reading, and warnings."""

    coding: MaskCoding
    cleaned: tuple[str, ...]
    orientation: str
    notes: tuple[str, ...]


def mask_coding(found: Found, report: ScanReport, data: DataConfig) -> CodedMasks:
    """Find the coding of the masks of a scanned set; drop samples whose masks do not fit it.

    Raises:
        DataError: No coding fits, or too many samples are unusable.
    """
    assert found.masks is not None
    if not report.surveys:
        within_budget(found, report, data.bad_sample_budget)
    surveys = list(report.surveys.values())
    upright, orientation = masks_upright(surveys, data.mask_orientation)
    if found.coding is not None:
        coded = FoundCoding(found.coding)
    else:
        coded = find_coding(surveys, data.ignore_index, found.class_file, found.void)
    coding = replace(coded.coding, upright=upright)
    known = frozenset(coding.codes)
    for row, survey in list(report.surveys.items()):
        if (unknown := unknown_code(survey, coding, known)) is not None:
            report.leave_out(row, found.masks[row], f"{unknown} of the mask is none of the classes")
    return CodedMasks(coding, coded.cleaned, orientation, coded.notes)


def within_budget(found: Found, report: ScanReport, budget: float) -> tuple[Problem, ...]:
    """Return the unusable samples, checked against the budget.

    Raises:
        DataError: They exceed the budget.
    """
    problems = (*found.unpaired, *(report.problems[row] for row in sorted(report.problems)))
    check_budget(found, problems, budget, f"raise data.bad_sample_budget (now {budget:g}) above")
    return problems


def check_budget(found: Found, problems: Sequence[Problem], budget: float, raise_it: str) -> None:
    """Refuse more unusable samples than the budget allows.

    Args:
        found: The files of the set.
        problems: The unusable samples.
        budget: The largest share of the set that they may be.
        raise_it: How it is raised, for the hint, which ends with the share.

    Raises:
        DataError: They exceed the budget.
    """
    total = len(found.images) + len(found.unpaired)
    if len(problems) <= budget * total:
        return
    named = [f"  {clean_name(problem.path)}: {problem.reason}" for problem in problems[:_MOST_NAMED]]
    more = [f"  … and {len(problems) - _MOST_NAMED} more"] if len(problems) > _MOST_NAMED else []
    hint = f"repair or remove them, or {raise_it} {len(problems) / total:.3g} to leave them out"
    if any(problem.reason.endswith(NOT_RGB) for problem in problems):
        hint = "train with --set data.bands=all, which reads images as they are stored"
    raise DataError(
        "\n".join([f"{len(problems)} of {total} samples can't be used:", *named, *more]), hint=hint
    )


def _halves_of(
    name: str, found: Found, labels: Labels, report: ScanReport, *, fraction: float, seed: int
) -> tuple[Rows, Rows]:
    return split_train_val(
        name, labels, np.flatnonzero(report.sides[:, 0]), found.train_rows, fraction=fraction, seed=seed
    )


def split_train_val(
    name: str, labels: Labels, usable: Rows, train_rows: int, *, fraction: float, seed: int
) -> tuple[Rows, Rows]:
    """Return the usable rows for training and for validation.

    Args:
        name: Name of the set, for messages.
        labels: The class of each row.
        usable: The usable rows.
        train_rows: Number of rows of the training folder; all rows if there is no validation folder.
        fraction: The share to hold out in that case.
        seed: Selects the held-out rows.

    Raises:
        DataError: One half is empty.
    """
    if train_rows < len(labels):
        train, val = usable[usable < train_rows], usable[usable >= train_rows]
    else:
        train, val = split_by_class(labels, usable, fraction, seed)
    if not len(train) or not len(val):
        which = "training" if not len(train) else "validation"
        raise DataError(
            f"{name}: no usable images are left for {which} ({len(usable)} of {len(labels)} are usable)",
            hint="add images: each class, or a set with masks, needs two; or add a validation folder",
        )
    return train, val


def shorter_sides(sizes: Sides) -> tuple[int, int, int]:
    """Return the smallest, the median and the largest shorter side of usable images."""
    sides = sizes[:, 0][sizes[:, 0] > 0]
    return int(sides.min()), int(np.median(sides)), int(sides.max())
