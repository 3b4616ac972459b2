"""Reads configurations of other trainers: of training scripts, and of Hugging Face Accelerate."""

import ast
import json
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli
import yaml

from mptui.config.documents import MOST_VALUES, PLAIN, NotPlainYamlError, compose, key_lines
from mptui.errors import ConfigError
from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import Device, Machine
from mptui.lab.doctor.findings import Area, Finding, advice, error

# Values of a configuration file with their positions
# ---------------------------------------------------

Value = str | int | float | bool | None
Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value of a file, and its position.

    `line` counts from 1; `start` and `end` are the columns of the value in that line. All are None if the
    position is unknown. `quoted`: whether a YAML value is text because of quotes.
    """

    keys: Keys
    value: Value
    line: int | None = None
    start: int | None = None
    end: int | None = None
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """All values of a file in order; a duplicate key is listed twice."""

    path: Path
    lines: tuple[str, ...]
    values: tuple[ConfigValue, ...]

    def location(self, setting: ConfigValue) -> str:
        """Return the position: `train.yaml:3`."""
        return f"{self.path}:{setting.line}" if setting.line else str(self.path)

    def written(self, setting: ConfigValue) -> str:
        """Return the setting as written: `amp: False`."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {setting.value}"
        return _bare(line[: setting.end], setting)

    def corrected(self, setting: ConfigValue, value: str) -> str:
        """Return the setting as it should be written for `value`, without the rest of the line."""
        line = self._line(setting)
        if line is None:
            return f"{'.'.join(setting.keys)} = {value}"
        return _bare(line[: setting.start] + value, setting)

    def _line(self, setting: ConfigValue) -> str | None:
        """Return the line of a value, if its position is known."""
        known = setting.line is not None and setting.start is not None and setting.line <= len(self.lines)
        return self.lines[setting.line - 1] if known and setting.line else None


def _bare(text: str, setting: ConfigValue) -> str:
    """Return the text from the key on: several settings can share a line."""
    key = setting.keys[-1]
    at = text.rfind(key, 0, setting.start)
    quote = 1 if at > 0 and text[at - 1] in "\"'" else 0
    return text[max(0, at - quote) :].strip()


def refused(path: Path, why: str, line: int | None = None) -> ConfigError:
    """Return the error for a file that is refused."""
    place = f"{path}:{line}" if line else str(path)
    return ConfigError(f"{place}: {why}", hint="use a configuration file with plain values")


# Reads the literals of a Python file as flat settings; the file is parsed, never executed or imported
# ----------------------------------------------------------------------------------------------------
# Reads assignments of a module and of its classes, and tables written as `{...}` or `dict(...)`. Values
# that aren't literals (calls, names, expressions) are ignored; of two assignments the later one counts.


def read_python(path: Path, text: str) -> list[ConfigValue]:
    """Read the literals of a Python text.

    Raises:
        ConfigError: It is not Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the file don't matter
            module = ast.parse(text)
    except SyntaxError as error:
        raise refused(path, f"not Python: {error.msg}", error.lineno) from error
    except ValueError as error:
        raise refused(path, f"not Python: {error}") from error
    lines = text.split("\n")
    found = {setting.keys: setting for setting in _of_body(module.body, (), lines)}
    return list(found.values())


def _of_body(body: list[ast.stmt], keys: Keys, lines: list[str]) -> Iterator[ConfigValue]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _of_body(statement.body, (*keys, statement.name), lines)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name | ast.Attribute | ast.Subscript):
                    yield from _of_value(statement.value, (*keys, *_names(target)), lines)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _of_value(statement.value, (*keys, *_names(statement.target)), lines)


def _names(target: ast.expr) -> Keys:
    """`config.amp` and `config["amp"]` both name the key amp of config."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        return (*_names(target.value), target.attr)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        return (*_names(target.value), str(target.slice.value))
    return ("?",)


def _of_value(value: ast.expr, keys: Keys, lines: list[str]) -> Iterator[ConfigValue]:
    if isinstance(value, ast.Dict):
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                yield from _of_value(item, (*keys, str(key.value)), lines)
    elif isinstance(value, ast.Call):
        for keyword in value.keywords:
            if keyword.arg is not None:
                yield from _of_value(keyword.value, (*keys, keyword.arg), lines)
    else:
        yield from _literal(value, keys, lines)


def _literal(value: ast.expr, keys: Keys, lines: list[str]) -> Iterator[ConfigValue]:
    try:
        read = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError):
        return
    if read is not None and not isinstance(read, str | int | float):
        return
    plain: Value = read
    start, end = value.col_offset, value.end_col_offset
    line = lines[value.lineno - 1] if value.lineno <= len(lines) else ""
    # columns count bytes; in a line with other characters before the value they are unknown
    one_line = value.end_lineno == value.lineno and line.isascii()
    yield ConfigValue(keys, plain, value.lineno, start if one_line else None, end if one_line else None)


# Reads a configuration file of any program as flat values with their positions, without executing it
# ---------------------------------------------------------------------------------------------------
# Hostile files are refused with one line: too large, not text, tags for Python objects, exponentially
# growing aliases, endless nesting.

LARGEST_BYTES = 256 * 1024

Reader = Callable[[Path, str], list[ConfigValue]]


def read_config_file(path: Path) -> ConfigFile:
    """Read a configuration file: YAML, TOML, JSON, or the literals of a Python file, by its ending.

    Raises:
        ConfigError: It can't be read, is too large, is not of the format of its suffix, or has unsupported
            content.
    """
    reader = _reader(path)
    text = _text(path)
    try:
        values = reader(path, text)
    except (RecursionError, MemoryError) as error:
        raise refused(path, "nested too deeply") from error
    if len(values) > MOST_VALUES:
        raise refused(path, f"more than {MOST_VALUES:,} values")
    return ConfigFile(path, tuple(text.split("\n")), tuple(values))


def _reader(path: Path) -> Reader:
    # each reader loads its own parser: a TOML file needs no YAML
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return read_yaml
        case ".toml" | ".json":
            return read_toml if path.suffix.lower() == ".toml" else read_json
        case ".py":
            return read_python
    raise ConfigError(
        f"{path}: unknown kind of file",
        hint="use a .yaml, .yml, .toml, .json or .py file",
    )


def _text(path: Path) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            raise refused(path, "not a file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="use a readable file") from error
    except ValueError as error:  # a NUL in the name
        raise ConfigError(f"{path}: not a file name", hint="use a readable file") from error
    if len(raw) > LARGEST_BYTES:
        raise refused(path, f"too large for a configuration (limit: {LARGEST_BYTES // 1024} KiB)")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refused(path, f"not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise refused(path, "binary, not text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


# Reads TOML and JSON files as flat settings
# ------------------------------------------

_VALUE = r'\s*[=:]\s*("(?:[^"\\]|\\.)*"|\'[^\']*\'|[^\s,#}\]]+)'

_Places = dict[str, list[tuple[int, re.Match[str]]]]

_JSON_KEY = re.compile(r'("(?:[^"\\]|\\.)*")' + _VALUE)


def read_toml(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a TOML text.

    Raises:
        ConfigError: It is not TOML.
    """
    try:
        document = tomli.loads(text)
    except ValueError as error:
        raise refused(path, f"not TOML: {error}") from error
    places = key_lines(text)
    lines = text.split("\n")
    return [_toml_setting(keys, value, lines, places.get(keys)) for keys, value in _flat(document, ())]


def read_json(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a JSON text; a duplicate key is listed twice.

    Raises:
        ConfigError: It is not JSON, or not a table.
    """
    try:
        document = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise refused(path, f"not JSON: {error.msg}", error.lineno) from error
    except ValueError as error:  # a number of thousands of digits
        raise refused(path, f"not JSON: {str(error).partition(';')[0]}") from error
    if not isinstance(document, _Pairs):
        raise refused(path, "not a table of keys and values")
    places = _json_places(text.split("\n"))
    return [_json_setting(keys, value, places) for keys, value in _flat(document, ())]


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with all its keys, in order."""


def _flat(value: Any, keys: Keys) -> list[tuple[Keys, Value]]:  # noqa: ANN401 - any JSON or TOML value
    if isinstance(value, dict):
        value = _Pairs(value.items())
    if isinstance(value, list):
        pairs = value if isinstance(value, _Pairs) else [(str(i), item) for i, item in enumerate(value)]
        return [flat for name, item in pairs for flat in _flat(item, (*keys, name))]
    return [(keys, value if isinstance(value, str | int | float | None) else str(value))]


def _toml_setting(keys: Keys, value: Value, lines: list[str], line: int | None) -> ConfigValue:
    if line is None:
        return ConfigValue(keys, value)
    match = re.search(re.escape(keys[-1]) + r"[\"']?" + _VALUE, lines[line - 1])
    return (
        ConfigValue(keys, value, line, match.start(1), match.end(1))
        if match
        else ConfigValue(keys, value, line)
    )


def _json_places(lines: list[str]) -> _Places:
    """Return the position of each key: its line, and a match whose groups are the key and its value."""
    places: _Places = {}
    for number, line in enumerate(lines, 1):
        for match in _JSON_KEY.finditer(line):
            places.setdefault(match[1], []).append((number, match))
    return places


def _json_setting(
    keys: Keys, value: Value, places: dict[str, list[tuple[int, re.Match[str]]]]
) -> ConfigValue:
    """Return the setting, with its line if its key occurs only once."""
    found = places.get(json.dumps(keys[-1]), [])
    if len(found) != 1:
        return ConfigValue(keys, value)
    line, match = found[0]
    return ConfigValue(keys, value, line, match.start(2), match.end(2))


# Reads a YAML file as flat settings, as PyYAML's safe loader reads them
# ----------------------------------------------------------------------

_TRUE = {"true", "yes", "on"}
_NULL = {"", "~", "null"}


def read_yaml(path: Path, text: str) -> list[ConfigValue]:
    """Read the values of a YAML text.

    Raises:
        ConfigError: It is not YAML, has more than one document, a tag for other than plain values, or
            aliases that expand beyond `MOST_VALUES`.
    """
    try:
        _, root = compose(text, yaml.SafeLoader)
    except NotPlainYamlError as error:
        raise refused(path, str(error), error.line) from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise refused(path, "not a table of keys and values")
    values: list[ConfigValue] = []
    _flatten(root, (), values)
    return values


def _flatten(node: yaml.Node, keys: Keys, values: list[ConfigValue]) -> None:
    if isinstance(node, yaml.MappingNode):
        own = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        for key, child in node.value:
            if key.tag == f"{PLAIN}merge":
                _merge(child, own, keys, values)
            else:
                name = key.value if isinstance(key, yaml.ScalarNode) else "?"
                _flatten(child, (*keys, name), values)
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            _flatten(child, (*keys, str(index)), values)
    else:
        values.append(_setting(node, keys))


def _merge(node: yaml.Node, own: set[str], keys: Keys, values: list[ConfigValue]) -> None:
    """Merge the tables of `<<`: keys of the table itself take precedence, then those of earlier tables."""
    for table in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if not isinstance(table, yaml.MappingNode):
            continue
        brought: list[ConfigValue] = []
        _flatten(table, keys, brought)
        values += [setting for setting in brought if setting.keys[len(keys)] not in own]
        own = own | {setting.keys[len(keys)] for setting in brought}


def _setting(node: yaml.Node, keys: Keys) -> ConfigValue:
    start, end = node.start_mark, node.end_mark
    one_line = start.line == end.line
    return ConfigValue(
        keys,
        _value(node),
        line=start.line + 1,
        start=start.column if one_line else None,
        end=end.column if one_line else None,
        quoted=node.style is not None,
    )


def _value(node: yaml.Node) -> Value:
    """Return the value as read by PyYAML's safe loader; text if that fails."""
    text = str(node.value)
    match node.tag.removeprefix(PLAIN):
        case "bool":
            return text.lower() in _TRUE
        case "null":
            return None if text.lower() in _NULL else text
        case "int" | "float" as kind:
            digits = text.replace("_", "")
            try:
                return int(digits, 0) if kind == "int" else float(digits)
            except ValueError:  # octal and sexagesimal numbers, infinities, which no setting here uses
                return text
    return text


# Reads precision, learning rate and clipping from a training configuration of any program
# ----------------------------------------------------------------------------------------
# Recognises names common in training scripts: amp, use_amp, fp16, bf16, amp_dtype, mixed_precision, lr, ….

Said = Literal["no", "16 bit", "fp16", "bf16", "fp8", "auto"]
"""A number format. "16 bit": mixed precision is on, and the launcher chooses its format."""
Topic = Literal["amp", "fp16", "bf16", "dtype", "lr", "clip", "accumulate", "compile", "optimizer"]

_TOPICS: dict[str, Topic] = {
    **dict.fromkeys(("amp", "use_amp", "enable_amp", "native_amp", "autocast", "use_autocast"), "amp"),
    **dict.fromkeys(("fp16", "use_fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "use_bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(
        ("amp_dtype", "autocast_dtype", "precision_type", "precision", "mixed_precision"), "dtype"
    ),
    **dict.fromkeys(("lr", "learning_rate", "base_lr", "train_lr"), "lr"),
    **dict.fromkeys(
        ("clip_grad_norm", "max_grad_norm", "grad_clip", "grad_clip_norm", "clip_grad", "gradient_clip"),
        "clip",
    ),
    **dict.fromkeys(("gradient_clipping", "gradient_clip_val", "grad_norm_clip", "max_norm"), "clip"),
    **dict.fromkeys(("gradient_accumulation_steps", "gradient_accumulate_every", "accumulate"), "accumulate"),
    **dict.fromkeys(("accumulation_steps", "accumulate_grad_batches", "grad_accum_steps"), "accumulate"),
    **dict.fromkeys(("compile_model", "torch_compile", "use_compile", "compile"), "compile"),
    **dict.fromkeys(("optimizer", "optim", "optimizer_name", "optimizer_type"), "optimizer"),
}
# the key that says it in a table of its own: `fp16: {enabled: true}`, `[precision] mode = …`
_WITHIN = {"enabled": {"amp", "fp16", "bf16"}, "dtype": {"amp"}, "mode": {"dtype"}, "name": {"optimizer"}}
_TRAINING = re.compile(r"(?i)train|optim|precision|solver|^(args|cfg|conf|config|hparams|params|common|run)")

_FORMATS: dict[str, Said] = {
    **dict.fromkeys(("no", "none", "off", "fp32", "float32", "32", "32-true", "full", "false", "0"), "no"),
    **dict.fromkeys(("fp16", "float16", "half", "16", "16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("amp", "mixed", "true", "on", "yes", "1"), "16 bit"),
    **dict.fromkeys(("fp8", "transformer-engine"), "fp8"),
    "auto": "auto",
}
_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True, slots=True)
class OtherTraining:
    """The settings by topic; of several, the first that concerns training."""

    settings: ConfigFile
    topics: dict[Topic, list[ConfigValue]]

    def first(self, topic: Topic) -> ConfigValue | None:
        """Return the first setting of a topic."""
        return next(iter(self.topics.get(topic, [])), None)

    def is_on(self, topic: Topic) -> bool | None:
        """Whether a switch is on; None if it is not set."""
        setting = self.first(topic)
        return None if setting is None else as_bool(setting.value)

    def number(self, topic: Topic) -> float | None:
        """A number, also where the file has it as text."""
        setting = self.first(topic)
        return None if setting is None else as_number(setting.value)

    def statements(self) -> Iterator[tuple[ConfigValue, Said]]:
        """Yield every setting about precision with its meaning; "no" for a format only excludes it."""
        for topic, said in _SAYS.items():
            for setting in self.topics.get(topic, []):
                if as_bool(setting.value):
                    yield setting, said
        for setting in self.topics.get("dtype", []):
            if (read := as_format(setting.value)) is not None:
                yield setting, read

    @property
    def precision(self) -> Said | None:
        """The format of the training; None if it is not set."""
        amp = self.is_on("amp")
        named = [said for _, said in self.statements() if said not in {"16 bit", "no"}]
        if named and amp is not False:
            return named[0]
        if self.is_on("fp16") or self.is_on("bf16"):
            return named[0]
        if amp or any(said == "16 bit" for _, said in self.statements()):
            return "16 bit"
        silent = amp is None and not self.topics.keys() & {"fp16", "bf16", "dtype"}
        return None if silent else "no"


_SAYS: dict[Topic, Said] = {"fp16": "fp16", "bf16": "bf16", "amp": "16 bit"}


def read_training(settings: ConfigFile) -> OtherTraining:
    """Find the settings of a configuration that concern training."""
    topics: dict[Topic, list[ConfigValue]] = {}
    for setting in settings.values:
        topic = _topic(setting)
        if setting.keys[-1] == "precision" and as_format(setting.value) is None:
            continue  # for display or products, not a number format
        if topic is not None:
            topics.setdefault(topic, []).append(setting)
    return OtherTraining(settings, {topic: _about_training(found) for topic, found in topics.items()})


def _topic(setting: ConfigValue) -> Topic | None:
    name = setting.keys[-1].lower()
    if name in _WITHIN and len(setting.keys) > 1:
        outer = _TOPICS.get(setting.keys[-2].lower())
        if outer in _WITHIN[name]:
            return "dtype" if name == "dtype" else outer
    return _TOPICS.get(name)


def _about_training(found: list[ConfigValue]) -> list[ConfigValue]:
    """Prefer settings at the top level or in a table about training: a model can have its own `fp16`."""
    near = [s for s in found if len(s.keys) == 1 or any(_TRAINING.search(key) for key in s.keys[:-1])]
    return near or found


def as_bool(value: Value) -> bool | None:
    """Interpret a value as a switch; None if it isn't one."""
    if isinstance(value, str):
        return _BOOLEANS.get(value.strip().lower())
    return None if value is None else bool(value)


def as_number(value: Value) -> float | None:
    """Interpret a value as a number; None if it isn't one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def as_format(value: Value) -> Said | None:
    """Interpret a value as a number format; None if it is unknown."""
    return _FORMATS.get(str(value).strip().lower().removeprefix("torch."))


# Reads a configuration of Hugging Face Accelerate and checks whether Accelerate accepts it
# -----------------------------------------------------------------------------------------

AREA: Area = "two configurations"
_DISTRIBUTED = {
    *("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA", "MULTI_SDAA", "MULTI_XPU"),
    *("MULTI_HPU", "DEEPSPEED", "FSDP", "XLA", "TPU", "MEGATRON_LM", "MPS"),
}


def usual_place(environ: Mapping[str, str]) -> Path:
    """Return the path that `accelerate config` writes to; it may not exist."""
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = environ.get("HF_HOME") or f"{cache}/huggingface"
    return Path(os.path.expanduser(home)) / "accelerate" / "default_config.yaml"  # noqa: PTH111 - no user, no error


@dataclass(frozen=True, slots=True)
class Accelerate:
    """An accelerate file; the settings below are at its top level."""

    settings: ConfigFile

    def setting(self, *keys: str) -> ConfigValue | None:
        """Return a value by its keys; of a duplicate key the last one, as in Accelerate."""
        return next((s for s in reversed(self.settings.values) if s.keys == keys), None)

    @property
    def precision(self) -> Said | None:
        """The format in `mixed_precision`; "no" if it is missing, None if it is unknown."""
        found = self.setting("mixed_precision")
        if found is None:
            old = self.setting("fp16")
            return "fp16" if old is not None and old.value is True else "no"
        return as_format(found.value) if found.value is not None else "no"

    @property
    def distributed_type(self) -> str:
        """NO, MULTI_GPU, and so on; NO if it is missing."""
        found = self.setting("distributed_type")
        return "NO" if found is None or found.value is False else str(found.value)

    @property
    def gpu_ids(self) -> list[int] | None:
        """The GPUs by number; None for all, or if they are not given."""
        found = self.setting("gpu_ids")
        text = "all" if found is None or found.value is None else str(found.value)
        parts = [part.strip() for part in text.split(",")]
        return [int(part) for part in parts if part.isdecimal() and len(part) < 5] if text != "all" else None

    @property
    def processes(self) -> int | None:
        """Number of processes over all machines."""
        found = self.setting("num_processes")
        number = None if found is None else as_number(found.value)
        return int(number) if number is not None and 0 < number < 1e6 else None


def check_accelerate(accelerate: Accelerate, machine: Machine) -> list[Finding]:
    """Check an accelerate file alone and against this machine."""
    devices = [device for device in machine.devices if device.kind != "cpu"]
    found = [*_unquoted(accelerate), *_distributed(accelerate), *_gpus(accelerate, len(devices))]
    return [*found, *_unsuited_devices(accelerate, devices)]


def _unsuited_devices(accelerate: Accelerate, devices: list[Device]) -> list[Finding]:
    """Check for a precision that the GPU doesn't support."""
    setting, said = accelerate.setting("mixed_precision"), accelerate.precision
    if setting is None or not devices or said not in {"fp16", "bf16"}:
        return []
    choice = choose_precision("bf16" if said == "bf16" else "fp16", devices[0])
    if choice.warning is None:
        return []
    settings, suits = accelerate.settings, choose_precision("auto", devices[0]).used
    what = f"{settings.location(setting)}: {settings.written(setting)}: {choice.reason} ({devices[0].name})"
    fix = settings.corrected(setting, "'no'" if suits == "fp32" else suits)
    return [advice(AREA, "mixed_precision", what, f"write `{fix}`")]


def _unquoted(accelerate: Accelerate) -> list[Finding]:
    """YAML reads a bare no as false, which Accelerate refuses."""
    settings = accelerate.settings
    found = []
    for name, value in (("distributed_type", "'NO'"), ("mixed_precision", "'no'")):
        setting = accelerate.setting(name)
        if setting is not None and setting.value is False:
            found.append(
                error(
                    AREA,
                    name,
                    f"{settings.location(setting)}: {settings.written(setting)} is read as false",
                    f"write it in quotes: `{settings.corrected(setting, value)}`",
                )
            )
    return found


def _distributed(accelerate: Accelerate) -> list[Finding]:
    settings, kind = accelerate.settings, accelerate.distributed_type
    setting = accelerate.setting("distributed_type")
    if setting is None:
        return [
            error(
                AREA, "distributed_type", f"{settings.path}: no distributed_type", "run `accelerate config`"
            )
        ]
    if setting.value is False:
        return []  # reported as unquoted
    if kind not in _DISTRIBUTED:
        return [
            error(
                AREA,
                "distributed_type",
                f"{settings.location(setting)}: {settings.written(setting)} is not known to Accelerate",
                f"write `{settings.corrected(setting, 'MULTI_GPU')}` for several GPUs, else `'NO'`",
            )
        ]
    several = (accelerate.processes or 1) > 1 or len(accelerate.gpu_ids or ()) > 1
    if kind == "NO" and several:
        return [
            error(
                AREA,
                "distributed_type",
                f"{settings.location(setting)}: {settings.written(setting)}, with several processes or GPUs",
                f"write `{settings.corrected(setting, 'MULTI_GPU')}`, or num_processes: 1 and one of gpu_ids",
            )
        ]
    return []


def _gpus(accelerate: Accelerate, gpus: int) -> list[Finding]:
    named, processes, setting = accelerate.gpu_ids, accelerate.processes, accelerate.setting("gpu_ids")
    if setting is None or named is None:
        return []
    settings = accelerate.settings
    place = f"{settings.location(setting)}: {settings.written(setting)}"
    if not named:
        return [error(AREA, "gpu_ids", f"{place}: names no GPU", "write numbers with commas, or all")]
    found = []
    machines = accelerate.setting("num_machines")
    if processes is not None and processes != len(named) and (machines is None or machines.value == 1):
        tell = error if processes > len(named) else advice
        found.append(
            tell(
                AREA,
                "num_processes",
                f"{place}: {len(named)} GPUs for num_processes: {processes}",
                f"write num_processes: {len(named)}, one for each GPU",
            )
        )
    if missing := [number for number in named if number >= gpus]:
        # without any GPU, the file is most likely for another machine
        tell = error if gpus else advice
        found.append(
            tell(
                AREA,
                "gpu_ids",
                f"{place}: this machine has {gpus or 'no'} GPUs; there is no GPU {missing[0]}",
                f"use GPUs from 0 to {gpus - 1}" if gpus else "run it on a machine with GPUs",
            )
        )
    return found
