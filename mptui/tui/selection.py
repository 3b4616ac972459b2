"""What is picked for a run, and what it means: data, memory that it needs, completions, explanations."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.suggester import Suggester

from mptui.config.change import fixed_because
from mptui.config.keys import SETTINGS, TABLES, UNSET, acts, said, shown, training_of, with_values
from mptui.config.profiles import ProfileInfo
from mptui.config.resolve import EDITED, Resolved, data_flags, read_value, resolve, values_of
from mptui.config.schema import DataConfig, MemoryConfig, RunConfig, TrainingConfig
from mptui.engine.optim.schedule import scaled_lr, schedule_of, warmup_epochs
from mptui.errors import ConfigError
from mptui.hardware.advice import PrecisionChoice, batch_words, choose_precision
from mptui.hardware.devices import USABLE, Device
from mptui.io.files import expanded
from mptui.registry.models import model_names, task_of_model
from mptui.registry.names import BUILT_IN, SampleKind
from mptui.registry.own_code import is_own
from mptui.registry.tasks import ASSUMED_CLASSES, DEFAULT_TASK, task_for
from mptui.runs.planning.plan import Request, filled
from mptui.runs.planning.profile_diff import steps_of_epoch
from mptui.runs.store.choices import read_sources
from mptui.text import clean, counted, gib
from mptui.tui.work import in_background

if TYPE_CHECKING:
    from mptui.engine.memory.ledger import Footprint


# Inspects data for the picker; it reads the disk, so it runs in a thread
# -----------------------------------------------------------------------


def about_data(data: DataConfig, source: str = "") -> tuple[str | None, str]:
    """Return the task of the data (None: any), and a description.

    Args:
        data: Name or path of the data.
        source: What has named them where no field does; "": a field.

    Raises:
        ConfigError: The set doesn't exist.
        DataError: The folder doesn't exist or has no data.
    """
    from mptui.data.open import kind_of

    if data.name is None and data.path is None:
        return None, "no data named: shapes"
    if is_own(data.name):
        return None, "✓ your own data, opened when the run starts"
    kind = kind_of(data)
    words = f"✓ {clean(str(data.name or data.path), 200)}" + (f" ({source})" if source else "")
    return (None, words) if kind is None else (task_for(kind), f"{words}: {kind.value}")


# Explains a setting in its dialog
# --------------------------------


def explained(value: "Value", source: str) -> str:
    """Describe a setting: meaning, choices, current value and source, default."""
    setting = SETTINGS[value.key]
    default = _shown(value.key, _DEFAULTS[value.key])
    now = f"{value.shown} ({clean(source)})"
    if source != "default":
        now += f"; default: {default}"
    if setting.may_be_unset and value.value != UNSET:
        now += f"; {UNSET}: unset it"
    options = f"\n{' | '.join(setting.choices)}" if setting.choices else ""
    return f"{setting.help}{options}\n\nnow: {now}"


def in_a_paragraph(value: "Value") -> str:
    """Describe a setting below its list: name, who chose it, meaning, choices, why it can't change."""
    setting = SETTINGS[value.key]
    default = _shown(value.key, _DEFAULTS[value.key])
    choices = f" Choices: {' | '.join(setting.choices)}." if setting.choices else ""
    chosen = f" ({clean(value.source)})" if value.source.startswith("chosen") else ""
    why = f" is fixed during a run: {value.fixed}." if value.fixed else ":"
    return f"{value.key}{chosen}{why} {setting.help} Default: {default}.{choices}"


def _shown(key: str, value: object) -> str:
    is_unset = value == UNSET and SETTINGS[key].may_be_unset
    return said(None) if is_unset else plain(value)


# Estimates whether a run fits: its peak memory against the free memory of its device
# -----------------------------------------------------------------------------------
# The estimate needs torch, and runs in a thread that no screen waits for.


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
        return self.words_of_set(None)

    def words_of_set(self, samples: int | None) -> str:
        """Describe whether it fits a set of this many training samples, and up to which batch."""
        assumed = f", if there are {ASSUMED_CLASSES} classes" if self.classes is None else ""
        return self._fitting(samples) + assumed

    def _fitting(self, samples: int | None) -> str:
        if self.free is None:
            return "free memory unknown"
        best = self.largest
        if not self.fits:
            return f"✗ too much; batch {best:,} fits" if best else "✗ one sample is too much"
        if self.footprint.total > self.free * USABLE:
            return "✓ fits, but tightly"
        if samples is not None and samples <= best:
            return f"✓ fits, up to the whole set of {samples:,}"
        return f"✓ fits, up to batch {best:,}"

    @property
    def figure(self) -> str:
        """Describe peak and free memory, if that is known: `1.8 of 22.9 GiB`."""
        free = "" if self.free is None else f" of {gib(self.free)}"
        return f"{gib(self.footprint.total)}{free} GiB"

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


def fits(
    resolutions: Mapping[str, Resolved],
    device: Device,
    ranks: int,
    classes: int | None,
    *,
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
    from mptui.engine.memory.ledger import footprint, kept_within, of_one_rank
    from mptui.engine.memory.tape import UncountableError

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


# The selection before a run: profile, model, data and edits. Imports no torch
# ----------------------------------------------------------------------------

PICKED = "picked"
_WHAT_ON = ("model.name", "data.name", "data.path", "hardware.device", "code.folder")
"""Settings that aren't saved in a profile: model, data and device, and the folder of their code."""

_DEFAULTS = values_of(RunConfig())


@dataclass(frozen=True, slots=True)
class Picked:
    """The selection for a run. Empty texts are chosen by the profile, the data and the device."""

    profile: str
    device: str = "auto"
    model: str = ""
    data: str = ""
    epochs: str = ""
    edits: Mapping[str, Any] = field(default_factory=dict)

    def flags(self) -> dict[str, tuple[str, Any]]:
        """Return the settings on top of the profile: table.key -> (source, value)."""
        flags: dict[str, tuple[str, Any]] = {"hardware.device": (PICKED, self.device)}
        if self.model:
            flags["model.name"] = (PICKED, self.model)
        if self.data:
            flags |= data_flags(self.data, PICKED)
        if self.epochs and not self.fault_of_epochs:
            value, _ = read_value(SETTINGS["training.epochs"], self.epochs)
            flags["training.epochs"] = (PICKED, value)
        return flags | {key: (EDITED, value) for key, value in self.edits.items()}

    @property
    def fault_of_epochs(self) -> str:
        """What is wrong with the text of the epochs; "": nothing."""
        if not self.epochs:
            return ""
        return read_value(SETTINGS["training.epochs"], self.epochs)[1] or ""

    @property
    def description(self) -> str:
        """The description of a profile saved from the selection."""
        edits = ", ".join(f"{key} = {value}" for key, value in self.edits.items())
        return f"{self.profile} with {edits}" if edits else f"A copy of {self.profile}"

    def request(self, resolution: Resolved, environ: Mapping[str, str] = os.environ) -> Request:
        """Return the request of the run, without the edits that did something for another network alone."""
        training = training_of(resolution.config, resolution.task)
        edits = {key: value for key, value in self.edits.items() if acts(key, training)}
        return Request(self.profile, replace(self, edits=edits).flags(), (), environ)


def first_pick(
    profiles: Sequence[ProfileInfo], advised: str, devices: Sequence[Device], last: Mapping[str, str]
) -> Picked:
    """Return the selection to begin with: the last one, in the advised profile if that has none.

    Args:
        profiles: All profiles.
        advised: The profile for this device.
        devices: The device to train on, or several of one kind.
        last: The last selection (`mptui.tui.last`).
    """
    names = [info.name for info in profiles]
    profile = next(name for name in (last["profile"], advised, *names) if name in names)
    epochs = last["epochs"] if profile == last["profile"] else ""
    return Picked(profile, _place(devices), last["model"], last["data"], epochs)


def demo_request(profile: str, devices: Sequence[Device], environ: Mapping[str, str]) -> Request:
    """Return the request of a run on the built-in images.

    Raises:
        ConfigError: The profile is invalid.
    """
    picked = Picked(profile, _place(devices), data=BUILT_IN)
    return picked.request(resolved(picked, None, environ), environ)


def flags_of_group(devices: Sequence[Device]) -> Sequence[str]:
    """Return the flags of a run in several processes; none for a single device."""
    return ("--device", ",".join(str(device.index) for device in devices)) if len(devices) > 1 else ()


def _place(devices: Sequence[Device]) -> str:
    """Return the setting of a run on a device, or on several of one kind."""
    where = devices[0].torch_name
    return where if len(devices) == 1 else where.partition(":")[0]


class Picks:
    """The selection; what a person typed stays when they choose another profile.

    Attributes:
        now: The current selection.
    """

    def __init__(self, first: Picked) -> None:
        self.now = first
        self._used: Mapping[str, Any] = {}

    def of(self, profile: str) -> Picked:
        """Return the selection with `profile`."""
        return replace(self.now, profile=profile)

    def choose(self, profile: str) -> None:
        """Select another profile."""
        self.now = self.of(profile)

    @property
    def has_unused(self) -> bool:
        """Whether there are edits that are neither saved nor used by a run."""
        return bool(self.now.edits) and self.now.edits != self._used

    def use(self) -> None:
        """Mark the edits as used by a run, which saves them in its directory."""
        self._used = self.now.edits

    def saved_as(self, profile: str) -> None:
        """Select the profile that was just saved, which has the edits."""
        self.now = replace(self.now, profile=profile, epochs="", edits={})


def data_of(picked: Picked, environ: Mapping[str, str] = os.environ) -> tuple[DataConfig, str]:
    """Return the data of a selection, and what has named them: "" its field, else a profile or a variable.

    Of a selection that can't be resolved, those of the field alone.
    """
    if picked.data:
        flags = data_flags(picked.data, PICKED)
        return DataConfig(name=flags["data.name"][1], path=flags["data.path"][1]), ""
    try:
        found = resolve(picked.profile, task=None, flags=picked.flags(), sets=(), environ=environ)
    except ConfigError:  # told where it is shown
        return DataConfig(), ""
    data = found.config.data
    return data, found.sources["data.path" if data.name is None else "data.name"]


def resolved(picked: Picked, task: str | None, environ: Mapping[str, str] = os.environ) -> Resolved:
    """Merge the configuration, as far as it is known before the data is opened.

    Raises:
        ConfigError: A value is invalid, or two exclude each other.
    """
    task = (task_of_model(picked.model) if picked.model else None) or task or DEFAULT_TASK
    return resolve(picked.profile, task=task, flags=picked.flags(), sets=(), environ=environ)


def every_profile(
    profiles: Sequence[ProfileInfo],
    picks: Picks,
    task: str | None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[dict[str, Resolved], dict[str, str]]:
    """Resolve each profile with the selection: the valid ones, and the faults of the others."""
    resolutions, faults = {}, {}
    for info in profiles:
        try:
            resolutions[info.name] = resolved(picks.of(info.name), task, environ)
        except ConfigError as error:
            faults[info.name] = error.message
    return resolutions, faults


@dataclass(frozen=True, slots=True)
class Value:
    """A setting to show; `default` is set only if the value differs, `fixed` only if it can't be edited."""

    key: str
    value: str
    source: str
    default: str | None
    edited: bool = False
    fixed: str = ""

    @property
    def table(self) -> str:
        """Table of the setting in the schema."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Name of the setting within its table."""
        return self.key.partition(".")[2]

    @property
    def shown(self) -> str:
        """The value for people; `value` is as it is typed."""
        return _shown(self.key, self.value)

    @property
    def changed(self) -> bool:
        """Whether it is not the default, or was edited."""
        return self.default is not None or self.edited

    def has(self, words: Sequence[str]) -> bool:
        """Whether all `words`, in lower case, are in its key or its help text."""
        text = f"{self.key} {SETTINGS[self.key].help}".lower()
        return all(word in text for word in words)


def values(resolution: Resolved) -> list[Value]:
    """Return the editable settings that act, in the order of the schema, those of a step first."""
    return [
        replace(
            value,
            source="profile" if (source := resolution.sources[value.key]).startswith("profile ") else source,
            edited=source == EDITED,
        )
        for value in _in_order(resolution.config, resolution.task)
    ]


def values_of_run(run: Path, resolution: Resolved) -> list[Value]:
    """Return the settings of a run, where they came from, and why some can't change while it trains."""
    found = _in_order(resolution.config, resolution.task)
    sources = read_sources(run, values_of(resolution.config))
    return [
        replace(value, source=sources.get(value.key, ""), fixed=fixed_because(value.key)) for value in found
    ]


def _in_order(config: RunConfig, task: str | None) -> list[Value]:
    """Return the settings that act in a run."""
    current, training = values_of(config), training_of(config, task)
    keys = sorted(
        (key for key in SETTINGS if key not in _WHAT_ON and acts(key, training)),
        key=lambda key: _ORDER[key.partition(".")[0]],
    )
    return [
        Value(
            key=key,
            value=plain(current[key]),
            source="",
            default=_shown(key, _DEFAULTS[key]) if current[key] != _DEFAULTS[key] else None,
        )
        for key in keys
    ]


USUAL = (
    "training.batch_size",
    "training.epochs",
    "training.time",
    "training.max_steps",
    "training.lr",
    "precision.mode",
)
"""What people change most often besides the data and the model, in this order."""

_FIRST = ("precision", "training", "speed", "data")
_ORDER = {table: n for n, table in enumerate(dict.fromkeys((*_FIRST, *TABLES)))}


def plain(value: object) -> str:
    """Format a value as it can be typed: text without quotes, lists as in TOML."""
    if isinstance(value, list):
        return clean(json.dumps(value, ensure_ascii=False))
    return shown(value).strip('"')


def to_save(picked: Picked, task: str | None, environ: Mapping[str, str] = os.environ) -> Resolved:
    """Return what to save as a profile, without model, data and device."""
    how, default = resolved(picked, task, environ), RunConfig()
    unset = dict.fromkeys(("model.name", "model.task", "data.name", "data.path"))
    left_out = {**unset, "hardware": default.hardware, "code": default.code}
    return replace(how, config=with_values(how.config, left_out))


def in_words(
    resolution: Resolved, device: Device, ranks: int = 1, samples: int | None = None
) -> list[tuple[str, str, str]]:
    """Describe the run in a few lines: label, value, reason or meaning.

    Args:
        resolution: The run.
        device: The device of one process.
        ranks: Number of processes.
        samples: Number of training samples; None: not known.
    """
    config = resolution.config
    precision: PrecisionChoice = choose_precision(config.precision.mode, device)
    training = config.training
    effective = training.batch_size * training.accumulate
    batch = batch_words(training.batch_size, training.accumulate)
    compiled = "forced" if resolution.compile_forced else "if the run is long enough to repay it"
    return [
        ("precision", precision.used, precision.warning or precision.reason),
        (
            "batch",
            batch,
            f"{effective} per optimizer step" + (f", shared by {ranks} GPUs" if ranks > 1 else ""),
        ),
        ("lr", f"{scaled_lr(training):.3g}", _rate_words(training)),
        ("time", training.time, f"as many epochs as fit, {training.schedule} schedule")
        if training.time is not None
        else ("epochs", f"{training.epochs}", _course_words(config, samples)),
        ("compile", config.speed.compile, compiled if config.speed.compile != "off" else "eager code"),
    ]


def _course_words(config: RunConfig, samples: int | None) -> str:
    """Describe the steps of an epoch and of the run, and the schedule."""
    training = config.training
    if not samples:
        end = f", at most {training.max_steps:,} steps" if training.max_steps else ""
        return f"{training.schedule} schedule{end}"
    steps = steps_of_epoch(config, samples)
    total = schedule_of(training, steps).total_steps
    return f"{counted(steps, 'step')} each, {total:,} in all, {training.schedule}"


def rate_rule(before: TrainingConfig, after: TrainingConfig) -> str:
    """Describe what another batch does to the learning rate."""
    if after.lr_scaling == "off":
        return f'lr stays {after.lr:.3g}: training.lr_scaling = "off"'
    if after.lr_batch_size is None:
        return f"lr stays {after.lr:.3g}: training.lr_batch_size is unset"
    rates = f"{scaled_lr(before):.3g} → {scaled_lr(after):.3g}"
    return f"lr {rates}: {after.lr_scaling} in the batch, {after.lr:g} for {after.lr_batch_size}"


def _rate_words(training: TrainingConfig) -> str:
    """Describe the origin of the effective rate."""
    words: str = training.optimizer
    if scaled_lr(training) != training.lr:
        words += f", {training.lr:g} for a batch of {training.lr_batch_size}, scaled {training.lr_scaling}"
    if warmup := warmup_epochs(training):
        cut = f", not {training.warmup_epochs:g}" if warmup < training.warmup_epochs else ""
        words += f", {warmup:g} epoch{'s' if warmup != 1 else ''} of warm-up{cut}"
    return words


# Completes names of networks and data while they are typed, without blocking on the disk
# ---------------------------------------------------------------------------------------


class ModelSuggester(Suggester):
    """Completes names of networks, in the order of the registry: common ones come first."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first name with this prefix."""
        return await in_background(lambda: next(iter(model_names(value)), None)) if value else None


class DataSuggester(Suggester):
    """Completes names of sets and folders."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first set or folder with this prefix."""
        return await in_background(lambda: _completed(value)) if value else None


def _completed(value: str) -> str | None:
    from mptui.data.open import NAMED

    named = [name for name in (BUILT_IN, *NAMED) if name.startswith(value)]
    return next(iter(named or _folders(value)), None)


def _folders(value: str) -> list[str]:
    """Return the folders with the prefix `value`; hidden ones only if the dot is typed."""
    head, tail = os.path.split(value)  # keeps the text as it was typed
    try:
        with os.scandir(expanded(head or ".")) as entries:
            shown = (entry for entry in entries if tail.startswith(".") or not entry.name.startswith("."))
            fitting = (entry for entry in shown if entry.name.startswith(tail) and entry.name.isprintable())
            names = [entry.name for entry in fitting if entry.is_dir()]
    except (OSError, ValueError):
        return []
    return [f"{value.removesuffix(tail)}{name}{os.sep}" for name in sorted(names)]
