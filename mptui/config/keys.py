"""Names of all settings, as files, flags and variables have them; one value read and checked."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mptui.config.documents import Keys, read_document
from mptui.config.schema import Fixed, Live, OneOf, RunConfig, Table
from mptui.registry.names import LONG_NAMES
from mptui.registry.scope import Scope, Training, own_loss_in
from mptui.registry.tasks import TASKS
from mptui.text import clean

# Names of all settings, from the schema: `table.key` in files and flags, MPTUI_TABLE_KEY as variables
# ----------------------------------------------------------------------------------------------------

UNSET = "none"
"""Text that unsets an optional key in a file, a variable or a flag: TOML has no null."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the schema, and the table that checks it."""

    table: type[Table]
    name: str

    @property
    def field(self) -> FieldInfo:
        """The key's field in the schema."""
        return self.table.model_fields[self.name]

    @property
    def help(self) -> str:
        """The meaning of the key, in one line."""
        return " ".join((self.field.description or "").split())

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Where the key acts: in the runs that are in all of these."""
        return (*self.table.scopes, *(part for part in self.field.metadata if isinstance(part, Scope)))

    @property
    def live(self) -> Live | None:
        """How the key changes between two steps of a run; None: it can't."""
        return next((part for part in self.field.metadata if isinstance(part, Live)), None)

    @property
    def fixed(self) -> str:
        """Why not even a resume can change the key; "" if it can."""
        return next((part.why for part in self.field.metadata if isinstance(part, Fixed)), "")

    def idle(self, training: Training) -> Scope | None:
        """Return the scope that a run is not in, so that the key does nothing in it; None: it acts."""
        return next((scope for scope in self.scopes if not scope.acts(training)), None)

    @property
    def may_be_unset(self) -> bool:
        """Whether the key's value may be None."""
        return type(None) in get_args(self.field.annotation)

    @property
    def choices(self) -> list[str]:
        """The words that the key takes, where they are few; empty where it takes any value."""
        kind: Any = self.field.annotation
        if kind is bool:
            return ["true", "false"]
        words = get_args(kind)
        of_items = [part for word in words for part in getattr(word, "__metadata__", ())]
        if registry := _registry((*self.field.metadata, *of_items)):
            return registry
        if bool in words:
            return ["true", "false", *(word for inner in words for word in get_args(inner))]
        if any(get_origin(word) is list for word in words):  # or words in place of a list
            return [word for inner in words if get_origin(inner) is Literal for word in get_args(inner)]
        return [str(word) for word in words] if words and all(isinstance(word, str) for word in words) else []

    @property
    def item_choices(self) -> list[str]:
        """The words that the items of a list may be; empty where they are any, or the key takes no list."""
        kind: Any = self.field.annotation
        lists = [each for each in (kind, *get_args(kind)) if get_origin(each) is list]
        return _registry([part for each in lists for part in getattr(get_args(each)[0], "__metadata__", ())])

    @property
    def examples(self) -> list[str]:
        """Words to suggest where the key takes any text."""
        return [str(word) for word in self.field.examples or ()]

    @property
    def words(self) -> list[str]:
        """The words that a flag may give the key, where they are few; empty where it takes any value."""
        if not self.choices or get_origin(self.field.annotation) is list:
            return []
        return [*self.choices, UNSET] if self.may_be_unset else self.choices


def _registry(metadata: Iterable[object]) -> list[str]:
    """Return the words of the first registry that an annotation names; empty if it names none."""
    return next((list(part.registry) for part in metadata if isinstance(part, OneOf)), [])


def subtable(field: FieldInfo) -> type[Table] | None:
    """Return the table that a field of the schema holds; None if it holds a value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Table) else None


def _settings(table: type[Table], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, info in table.model_fields.items():
        inner = subtable(info)
        if inner is not None:
            yield from _settings(inner, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name, Setting(table, name)


SETTINGS: dict[str, Setting] = dict(_settings(RunConfig))
"""Every `table.key`, in the order of the schema."""
RETIRED: Mapping[str, str] = {
    "data.decode": "images are decoded on the CPU; data.cache and mptui prepare serve the same need"
}
"""Settings of earlier versions, and what there is in their place: files that have them can be read, and the
values are ignored with a note."""
RENAMED: Mapping[str, tuple[str, Mapping[object, str]]] = {
    "precision.tf32": ("precision.matmul", {True: "high", False: "highest"})
}
"""Settings of earlier versions, and the settings and values that files that have them mean."""
ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("amp", "use_amp", "enable_amp", "autocast", "amp_dtype", "mixed_precision"), "precision.mode"
    ),
    **dict.fromkeys(("fp16", "bf16", "use_fp16", "use_bf16", "autocast_dtype"), "precision.mode"),
    **dict.fromkeys(("compile_model", "use_compile", "torch_compile"), "speed.compile"),
    **dict.fromkeys(("learning_rate", "base_lr", "max_lr", "initial_lr"), "training.lr"),
    **dict.fromkeys(("batch", "train_batch_size", "per_device_train_batch_size"), "training.batch_size"),
    **dict.fromkeys(("accumulation_steps", "gradient_accumulation_steps"), "training.accumulate"),
    **dict.fromkeys(("grad_accum_steps", "accumulate_grad_batches"), "training.accumulate"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clip_val"), "training.clip_grad_norm"),
    **dict.fromkeys(("device_type", "gpu_ids"), "hardware.device"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "num_train_epochs"), "training.epochs"),
    **dict.fromkeys(("scheduler", "lr_scheduler", "lr_schedule"), "training.schedule"),
    **dict.fromkeys(("img_size", "imgsz", "input_size", "crop_size"), "data.image_size"),
    **dict.fromkeys(("dataset", "data_dir", "data_root"), "data.path"),
    **dict.fromkeys(("arch", "architecture"), "model.name"),
    "wd": "training.weight_decay",
    "patience": "training.early_stopping_patience",
    "random_seed": "training.seed",
    "criterion": "training.loss",
    "num_workers": "data.workers",
    "prefetch_factor": "data.prefetch",
    "memory_format": "speed.channels_last",
}
"""Names that other training programs give to settings, and ours."""
TABLES: tuple[str, ...] = tuple(name for name, field in RunConfig.model_fields.items() if subtable(field))
VARIABLE_OF: dict[str, str] = {key: f"MPTUI_{key.replace('.', '_').upper()}" for key in SETTINGS}
"""`table.key` -> environment variable."""
VARIABLES: dict[str, str] = {variable: key for key, variable in VARIABLE_OF.items()}
"""Environment variable -> `table.key`."""


def training_of(config: RunConfig, task: str | None) -> Training:
    """Return what a run trains, of which the scopes of settings judge; `task` as in `Training`."""
    model = config.model
    value = partial(value_of, config)
    return Training(task, model.name, model.encoder, own_loss_in(model.task), value)


def acts(key: str, training: Training) -> bool:
    """Whether a setting does anything in a run."""
    return SETTINGS[key].idle(training) is None


def value_of(config: RunConfig, key: str) -> Any:  # noqa: ANN401 - of whatever type the key has
    """Return the value of one table.key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Turn {"table.key": value} into nested tables, as in files and the schema."""
    document: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        place = document
        for table in tables:
            place = place.setdefault(table, {})
        place[name] = value
    return document


_T = TypeVar("_T", bound=Table)


def with_values(config: _T, values: Mapping[str, Any]) -> _T:
    """Return a copy with other values, by `table.key`, unchecked."""
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        table, _, rest = key.partition(".")
        if rest:
            inner.setdefault(table, {})[rest] = value
        else:
            own[key] = value
    tables = {table: with_values(getattr(config, table), changes) for table, changes in inner.items()}
    return config.model_copy(update={**own, **tables})


def nearest_setting(written: str) -> str | None:
    """Return the valid `table.key` closest to `written` in letters or meaning; None if none is similar."""
    written = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", written).replace("-", "_").lower()
    if written in RENAMED:
        return RENAMED[written][0]
    table, _, name = written.rpartition(".")
    if (meant := ELSEWHERE.get(name)) is not None:
        return meant
    names: dict[str, list[str]] = {}
    for key in SETTINGS:
        names.setdefault(key.rpartition(".")[2], []).append(key)
    close = [key for near in get_close_matches(name, names) for key in names[near]]
    in_table = [key for key in close if key.startswith(f"{table}.")]
    misspelt_table = [] if table in TABLES else get_close_matches(written, SETTINGS, n=1)
    return next(iter([*names.get(name, []), *in_table, *misspelt_table, *close]), None)


def unknown_setting(written: str) -> str:
    """Return the fault of a name that is no setting: what it is called here, or what has replaced it."""
    if written in RETIRED:
        return f"unknown key, of earlier versions: {RETIRED[written]}"
    near = nearest_setting(written)
    return f"unknown key; nearest: {near}" if near else "unknown key"


# Checks a profile against the schema and reports all faults at once, each with its line
# --------------------------------------------------------------------------------------

MEANT = "defaults"
"""Table of run.toml with what its unset settings and defaults mean."""
VERSION = 1
"""Format version of profiles and run.toml; a file without one has version 1."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile as read: its values by table.key, and those of its task tables."""

    path: Path
    description: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    by_task: dict[str, dict[str, Any]] = field(default_factory=dict)
    retired: list[str] = field(default_factory=list)
    """The settings of earlier versions that it has."""
    meant: dict[str, Any] = field(default_factory=dict)
    """What the settings mean that it leaves to a default: of the file of a run."""


def read_profile(path: Path) -> tuple[Profile, list[str]]:
    """Read a profile, and its faults, one line each, in the order of the file.

    Raises:
        ConfigError: The file can't be read, is not UTF-8, or is not TOML or plain YAML.
    """
    read = read_document(path)
    document = dict(read.values)
    reader = _Reader()
    reader.version(document.pop("version", VERSION))
    profile = Profile(
        path,
        description=reader.description(document.pop("description", "")),
        meant=reader.tables_of(MEANT, document.pop(MEANT, None)),
        by_task={task: reader.tables_of(task, document.pop(task)) for task in TASKS if task in document},
        values=reader.table(document, RunConfig, ()),
        retired=reader.retired,
    )
    located = sorted((_line(read.lines, keys), fault) for keys, fault in reader.faults)
    return profile, [f"{path}:{line}: {fault}" if line else f"{path}: {fault}" for line, fault in located]


def check_value(setting: Setting, value: object) -> tuple[Any, str | None]:
    """Check one value against its key.

    Returns:
        The value ("none" turned into None where the key may be unset, `bfloat16` into `bf16`), and its fault
        or None.
    """
    if isinstance(value, str) and LONG_NAMES.get(value) in setting.choices:
        return LONG_NAMES[value], None
    if value in (UNSET, None) and setting.may_be_unset:
        return None, None
    try:
        setting.table.model_validate({setting.name: value})
    except ValidationError as error:
        errors = error.errors(include_url=False)
        wanted = dict.fromkeys(_wanted(e) for e in errors)
        return value, f"must be {' or '.join(wanted)}{_nearest_choice(value, errors)}"
    return value, None


def said(value: object) -> str:
    """Format a value of a configuration for people."""
    return "unset" if value is None else str(value)


def shown(value: object) -> str:
    """Format a value as in its file, shortened for a message."""
    if isinstance(value, bool | None):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number beyond 64 bits"
    return clean(f'"{value}"' if isinstance(value, str) else str(value), limit=60)


class _Reader:
    """Flattens the tables of a document and collects their faults."""

    def __init__(self) -> None:
        self.faults: list[tuple[Keys, str]] = []
        self.retired: list[str] = []

    def version(self, value: object) -> None:
        """Refuse files of a later version, whose keys may have other meanings."""
        if type(value) is not int or value > VERSION:
            fault = f"version = {shown(value)}: this mptui reads profiles of version {VERSION}"
            self.faults.append((("version",), fault))

    def description(self, value: object) -> str:
        if isinstance(value, str):
            return value
        self.faults.append((("description",), f"description = {shown(value)}: must be text in quotes"))
        return ""

    def tables_of(self, name: str, tables: object) -> dict[str, Any]:
        """Return the values of the tables below a task, or below `MEANT`."""
        if isinstance(tables, dict | None):
            return self.table(tables or {}, RunConfig, (name,))
        self.faults.append(((name,), f"{name} = {shown(tables)}: must be a table"))
        return {}

    def table(self, values: Mapping[str, Any], table: type[Table], place: Keys) -> dict[str, Any]:
        """Return the values of `table` and of its subtables, as {"table.key": value}."""
        flat: dict[str, Any] = {}
        for name, value in values.items():
            keys = (*place, name)
            known = table.model_fields.get(name)
            inner = known and subtable(known)
            dotted = ".".join(keys[1:] if keys[0] in {*TASKS, MEANT} else keys)
            if inner and isinstance(value, dict | None):  # None: a table of YAML without keys
                flat |= self.table(value or {}, inner, keys)
            elif inner:
                self.faults.append((keys, f"{_location(keys)} = {shown(value)}: must be a table"))
            elif dotted in SETTINGS:
                flat[dotted], wrong = check_value(SETTINGS[dotted], value)
                if wrong:
                    self.faults.append((keys, f"{_location(keys)} = {shown(value)}: {wrong}"))
            elif dotted in RENAMED and isinstance(value, bool):
                now, meant = RENAMED[dotted]
                flat.setdefault(now, meant[value])
            elif dotted in RETIRED:
                self.retired.append(dotted)
            else:
                self.faults.append((keys, _unknown(keys, dotted, value)))
        return flat


def _location(keys: Keys) -> str:
    *tables, name = keys
    return clean(f"[{'.'.join(tables)}] {name}" if tables else name, limit=100)


def _unknown(keys: Keys, dotted: str, value: object) -> str:
    if isinstance(value, dict):
        near = get_close_matches(dotted, [*TABLES, *TASKS, "precision.grad_scaler"], n=1)
        what = f"[{clean('.'.join(keys), limit=100)}]: unknown table"
        return f"{what}; nearest: {near[0]}" if near else what
    return f"{_location(keys)}: {unknown_setting(dotted)}"


_WANTED = {
    "duration": "a duration, as 90m, 2h or 1h30m",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list, in brackets",
    "string_type": "text in quotes",
    "string_unicode": "Unicode text",
    "literal_error": "{expected}",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}",
    "less_than_equal": "{le:g} or less",
}


def _wanted(error: ErrorDetails) -> str:
    template = _WANTED.get(error["type"])
    return template.format(**error.get("ctx", {})) if template else f"otherwise: {error['msg']}"


# names for values of settings, to suggest the right one
_SYNONYMS = {**LONG_NAMES, "half": "fp16", "float": "fp32"}


def _nearest_choice(value: object, errors: list[ErrorDetails]) -> str:
    """Return the nearest choice for the end of a message; "" if none is similar."""
    choices = [
        choice
        for error in errors
        if error["type"] == "literal_error"
        for choice in re.findall(r"'([^']+)'", error["ctx"]["expected"])
    ]
    if not isinstance(value, str) or not choices:
        return ""
    meant = value.lower().removeprefix("torch.")
    near = get_close_matches(_SYNONYMS.get(meant, meant), choices, n=1)
    return f"; nearest: {near[0]}" if near else ""


def _line(lines: dict[Keys, int], keys: Keys) -> int:
    """Return the line of a key, or of the innermost listed table around it; 0: unknown."""
    return next((lines[keys[:n]] for n in range(len(keys), 0, -1) if keys[:n] in lines), 0)
