"""Names of all settings, from the schema: `table.key` in files and flags, MPTUI_TABLE_KEY as variables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from mptui.config.base_tables import Table
from mptui.config.one_of import OneOf
from mptui.config.schema import RunConfig
from mptui.registry.scope import Scope, Training, own_loss_in

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
        for registry in (p.registry for p in (*self.field.metadata, *of_items) if isinstance(p, OneOf)):
            return list(registry)
        if bool in words:
            return ["true", "false", *(word for inner in words for word in get_args(inner))]
        return [str(word) for word in words] if words and all(isinstance(word, str) for word in words) else []

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


def subtable(field: FieldInfo) -> type[Table] | None:
    """Return the table that a field of the schema holds; None if it holds a value."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Table) else None


def _settings(table: type[Table], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, field in table.model_fields.items():
        inner = subtable(field)
        if inner is not None:
            yield from _settings(inner, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name, Setting(table, name)


SETTINGS: dict[str, Setting] = dict(_settings(RunConfig))
"""Every `table.key`, in the order of the schema."""
RETIRED = frozenset({"data.decode"})
"""Settings of earlier versions: files that have them can be read, and the values are ignored with a note."""
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
    **dict.fromkeys(("learning_rate", "base_lr"), "training.lr"),
    **dict.fromkeys(("accumulation_steps", "gradient_accumulation_steps"), "training.accumulate"),
    **dict.fromkeys(("grad_accum_steps", "accumulate_grad_batches"), "training.accumulate"),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clip_val"), "training.clip_grad_norm"),
    **dict.fromkeys(("device_type", "gpu_ids"), "hardware.device"),
    "num_epochs": "training.epochs",
    "num_workers": "data.workers",
    "prefetch_factor": "data.prefetch",
    "memory_format": "speed.channels_last",
}
"""Names that other training programs give to settings, and ours."""
TABLES: tuple[str, ...] = tuple(name for name, field in RunConfig.model_fields.items() if subtable(field))
VARIABLES: dict[str, str] = {f"MPTUI_{key.replace('.', '_').upper()}": key for key in SETTINGS}
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


def nearest_setting(written: str) -> str | None:
    """Return the valid `table.key` closest to `written` in letters or meaning; None if none is similar."""
    if written in RENAMED:
        return RENAMED[written][0]
    table, _, name = written.rpartition(".")
    if (meant := ELSEWHERE.get(name.replace("-", "_").lower())) is not None:
        return meant
    names: dict[str, list[str]] = {}
    for key in SETTINGS:
        names.setdefault(key.rpartition(".")[2], []).append(key)
    close = [key for near in get_close_matches(name, names) for key in names[near]]
    in_table = [key for key in close if key.startswith(f"{table}.")]
    misspelt_table = [] if table in TABLES else get_close_matches(written, SETTINGS, n=1)
    return next(iter([*names.get(name, []), *in_table, *misspelt_table, *close]), None)
