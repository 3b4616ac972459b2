"""Reads what configurations of other trainers say of precision, learning rate, clipping and processes.

The files are those of training scripts and of Hugging Face Accelerate; settings in both must agree.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from mptui.errors import ConfigError
from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import Machine
from mptui.lab.doctor.findings import Area, Finding, advice, error, ok
from mptui.lab.doctor.foreign_files import ConfigFile, ConfigValue, Value, read_config_file
from mptui.registry.names import SIXTEEN_BIT

AREA: Area = "two configurations"
_ok, _advice, _error = partial(ok, AREA), partial(advice, AREA), partial(error, AREA)

# Reads precision, learning rate and clipping from a training configuration of any program
# ----------------------------------------------------------------------------------------

Said = Literal["no", "16 bit", "fp16", "bf16", "fp8", "auto"]
"""A number format. "16 bit": mixed precision is on, and the launcher chooses its format."""
Topic = Literal["amp", "fp16", "bf16", "dtype", "lr", "clip", "accumulate", "compile", "optimizer"]

_NAMES: dict[Topic, str] = {
    "amp": "amp use_amp enable_amp native_amp autocast use_autocast",
    "fp16": "fp16 use_fp16 float16 half",
    "bf16": "bf16 use_bf16 bfloat16",
    "dtype": "amp_dtype autocast_dtype precision_type precision mixed_precision",
    "lr": "lr learning_rate base_lr train_lr",
    "clip": "clip_grad_norm max_grad_norm grad_clip grad_clip_norm clip_grad gradient_clip gradient_clipping "
    "gradient_clip_val grad_norm_clip max_norm",
    "accumulate": "gradient_accumulation_steps gradient_accumulate_every accumulate accumulation_steps "
    "accumulate_grad_batches grad_accum_steps",
    "compile": "compile_model torch_compile use_compile compile",
    "optimizer": "optimizer optim optimizer_name optimizer_type",
}
"""Names that are common in training scripts."""
_TOPICS = {name: topic for topic, names in _NAMES.items() for name in names.split()}
# the key that says it in a table of its own: `fp16: {enabled: true}`, `[precision] mode = …`
_WITHIN = {"enabled": {"amp", "fp16", "bf16"}, "dtype": {"amp"}, "mode": {"dtype"}, "name": {"optimizer"}}
_TRAINING = re.compile(r"(?i)train|optim|precision|solver|^(args|cfg|conf|config|hparams|params|common|run)")
_SWITCHES: dict[Topic, Said] = {"fp16": "fp16", "bf16": "bf16", "amp": "16 bit"}
_IN_ORDER: tuple[Topic, ...] = ("amp", "fp16", "bf16")

_FORMATS: dict[str, Said] = {
    **dict.fromkeys(("no", "none", "off", "fp32", "float32", "32", "32-true", "full", "false", "0"), "no"),
    **dict.fromkeys(("fp16", "float16", "half", "16", "16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("amp", "mixed", "true", "on", "yes", "1"), "16 bit"),
    **dict.fromkeys(("fp8", "transformer-engine"), "fp8"),
    "auto": "auto",
}
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True, slots=True)
class OtherTraining:
    """The settings by topic; of several, the first that concerns training."""

    path: Path
    topics: dict[Topic, list[ConfigValue]]

    def all(self, *topics: Topic) -> list[ConfigValue]:
        """Return the settings of some topics."""
        return [setting for topic in topics for setting in self.topics.get(topic, [])]

    def first(self, topic: Topic) -> ConfigValue | None:
        """Return the first setting of a topic."""
        return next(iter(self.all(topic)), None)

    def is_on(self, topic: Topic) -> bool | None:
        """Whether a switch is on; None if it is not set."""
        setting = self.first(topic)
        return None if setting is None else as_bool(setting.value)

    def statements(self) -> list[tuple[ConfigValue, Said]]:
        """Return every setting about precision with its meaning; "no" for a format only excludes it."""
        on = [(s, said) for topic, said in _SWITCHES.items() for s in self.all(topic) if as_bool(s.value)]
        return on + [(s, said) for s in self.all("dtype") if (said := as_format(s.value)) is not None]

    @property
    def precision(self) -> Said | None:
        """The format of the training; None if it is not set."""
        amp, all_said = self.is_on("amp"), [said for _, said in self.statements()]
        named = [said for said in all_said if said not in {"16 bit", "no"}]
        is_off = amp is False and not self.is_on("fp16") and not self.is_on("bf16")
        if named and not is_off:
            return named[0]
        if amp or "16 bit" in all_said:
            return "16 bit"
        silent = amp is None and not self.topics.keys() & {"fp16", "bf16", "dtype"}
        return None if silent else "no"


def read_training(settings: ConfigFile) -> OtherTraining:
    """Find the settings of a configuration that concern training."""
    topics: dict[Topic, list[ConfigValue]] = {}
    for setting in settings.values:
        topic = _topic(setting)
        if setting.keys[-1] == "precision" and as_format(setting.value) is None:
            continue  # for display or products, not a number format
        if topic is not None:
            topics.setdefault(topic, []).append(setting)
    return OtherTraining(settings.path, {topic: _about_training(found) for topic, found in topics.items()})


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


def as_number(setting: ConfigValue | None) -> float | None:
    """Return the number of a setting, also where the file has it as text; None if there is none."""
    value = None if setting is None else setting.value
    if value is None or isinstance(value, bool):
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

    def value(self, key: str) -> Value:
        """Return the value of a key; None if it is missing."""
        found = self.setting(key)
        return None if found is None else found.value

    @property
    def precision(self) -> Said | None:
        """The format in `mixed_precision`; "no" if it is missing, None if it is unknown."""
        if self.setting("mixed_precision") is None:
            return "fp16" if self.value("fp16") is True else "no"
        value = self.value("mixed_precision")
        return "no" if value is None else as_format(value)

    @property
    def distributed_type(self) -> str:
        """NO, MULTI_GPU, and so on; NO if it is missing."""
        found = self.setting("distributed_type")
        return "NO" if found is None or found.value is False else str(found.value)

    @property
    def gpu_ids(self) -> list[int] | None:
        """The GPUs by number; None for all, or if they are not given."""
        value = self.value("gpu_ids")
        parts = [part.strip() for part in str(value).split(",")]
        named = [int(part) for part in parts if part.isdecimal() and len(part) < 5]
        return None if value is None or value == "all" else named

    @property
    def processes(self) -> int | None:
        """Number of processes over all machines."""
        number = as_number(self.setting("num_processes"))
        return int(number) if number is not None and 0 < number < 1e6 else None


def check_accelerate(accelerate: Accelerate, machine: Machine) -> list[Finding]:
    """Check an accelerate file alone and against this machine."""
    gpus = sum(device.kind != "cpu" for device in machine.devices)
    checks = _unquoted(accelerate), _distributed(accelerate), _gpus(accelerate, gpus)
    return [*(finding for check in checks for finding in check), *_unsuited_devices(accelerate, machine)]


def _unquoted(accelerate: Accelerate) -> Iterator[Finding]:
    """YAML reads a bare no as false, which Accelerate refuses."""
    for name, value in (("distributed_type", "'NO'"), ("mixed_precision", "'no'")):
        setting = accelerate.setting(name)
        if setting is not None and setting.value is False:
            fix = f"write it in quotes: `{setting.corrected(value)}`"
            yield _error(name, f"{setting} is read as false", fix)


def _distributed(accelerate: Accelerate) -> Iterator[Finding]:
    kind, setting = accelerate.distributed_type, accelerate.setting("distributed_type")
    if setting is None:
        what = f"{accelerate.settings.path}: no distributed_type"
        yield _error("distributed_type", what, "run `accelerate config`")
        return
    several = (accelerate.processes or 1) > 1 or len(accelerate.gpu_ids or ()) > 1
    is_for_one = kind == "NO" and setting.value is not False  # False is reported as unquoted
    fix = f"write `{setting.corrected('MULTI_GPU')}`"
    if kind not in _DISTRIBUTED:
        do = f"{fix} for several GPUs, else `'NO'`"
        yield _error("distributed_type", f"{setting} is not known to Accelerate", do)
    elif is_for_one and several:
        do = f"{fix}, or num_processes: 1 and one of gpu_ids"
        yield _error("distributed_type", f"{setting}, with several processes or GPUs", do)


def _gpus(accelerate: Accelerate, gpus: int) -> Iterator[Finding]:
    named, processes, setting = accelerate.gpu_ids, accelerate.processes, accelerate.setting("gpu_ids")
    if setting is None or named is None:
        return
    if not named:
        yield _error("gpu_ids", f"{setting}: names no GPU", "write numbers with commas, or all")
        return
    one_machine = accelerate.setting("num_machines") is None or accelerate.value("num_machines") == 1
    differ = one_machine and processes != len(named)
    if differ and processes is not None:
        tell = _error if processes > len(named) else _advice
        what = f"{setting}: {len(named)} GPUs for num_processes: {processes}"
        yield tell("num_processes", what, f"write num_processes: {len(named)}, one for each GPU")
    if missing := [number for number in named if number >= gpus]:
        # without any GPU, the file is most likely for another machine
        tell = _error if gpus else _advice
        what = f"{setting}: this machine has {gpus or 'no'} GPUs; there is no GPU {missing[0]}"
        yield tell(
            "gpu_ids", what, f"use GPUs from 0 to {gpus - 1}" if gpus else "run it on a machine with GPUs"
        )


def _unsuited_devices(accelerate: Accelerate, machine: Machine) -> Iterator[Finding]:
    """Check for a precision that the GPU doesn't support."""
    device = next((device for device in machine.devices if device.kind != "cpu"), None)
    said = accelerate.precision
    setting = accelerate.setting("mixed_precision") if said in SIXTEEN_BIT else None
    if setting is None or device is None:
        return
    choice = choose_precision("bf16" if said == "bf16" else "fp16", device)
    if choice.warning is not None:
        suits = choose_precision("auto", device).used
        fix = setting.corrected("'no'" if suits == "fp32" else suits)
        yield _advice("mixed_precision", f"{setting}: {choice.reason} ({device.name})", f"write `{fix}`")


# Compares a training configuration with an accelerate file: settings in both must agree
# --------------------------------------------------------------------------------------

_TITLES: dict[Said, str] = {"no": "fp32", "16 bit": "mixed precision", "fp8": "fp8", "auto": "auto"}
_HIGH_LR = 0.1
_HIGH_LR_ADAM = 1e-3


def compare(training: OtherTraining, accelerate: Accelerate | None) -> list[Finding]:
    """Compare the two files; agreement is reported per setting.

    A file that contradicts itself is not compared with another. Without `accelerate`, only the training file
    is checked.
    """
    within = [*_faults(training), *_contradictions(training)]
    found = [*within, *_rate(training)]
    if accelerate is None:
        return [*found, *_clipping(training)]
    precision = [] if within else list(_precision(training, accelerate))
    return [
        *precision,
        *found,
        *(_differing("clip", "gradient_clipping", training, accelerate) or _clipping(training)),
        *_differing("accumulate", "gradient_accumulation_steps", training, accelerate),
        *_compile(training, accelerate),
    ]


def _faults(training: OtherTraining) -> Iterator[Finding]:
    """Report values with an unintended meaning."""
    for topic in _IN_ORDER:
        for setting in training.all(topic):
            meant = as_bool(setting.value)
            if isinstance(setting.value, str) and meant is not None:
                fix = f"write `{setting.corrected(str(meant))}`"
                yield _error(topic, f"{setting} is text, which counts as true", fix)
    for setting in training.all("dtype"):
        if setting.value is not None and as_format(setting.value) is None:
            yield _error("precision", f"{setting}: unknown number format", "write bf16, fp16 or no")


def _contradictions(training: OtherTraining) -> list[Finding]:
    """Report conflicting precision settings within one file."""
    found = []
    for topic in _IN_ORDER:
        said = training.all(topic)
        other = next((s for s in said[1:] if as_bool(s.value) != as_bool(said[0].value)), None)
        if other is not None:
            found.append(_twice(said[0], other))
    formats = [(s, said) for s, said in training.statements() if said in {"fp16", "bf16", "fp8"}]
    if differing := next((s for s, said in formats[1:] if said != formats[0][1]), None):
        found.append(_twice(formats[0][0], differing))
    if found or training.is_on("amp") is not False:
        return found
    amp = training.first("amp")
    switched_on = next((s for s in training.all("fp16", "bf16") if as_bool(s.value)), None)
    if amp is not None and switched_on is not None:
        found.append(_twice(amp, switched_on, _switched(amp, on=True)))
    return found


def _twice(first: ConfigValue, second: ConfigValue, fix: str | None = None) -> Finding:
    return _error(
        "precision",
        f"conflicting precision settings: {_has(first)}, {_has(second)}",
        f"write `{fix}` in {first.location}" if fix else "keep only the intended one",
    )


def _has(setting: ConfigValue) -> str:
    return f"{setting.location} has {setting.written}"


def _precision(training: OtherTraining, accelerate: Accelerate) -> Iterator[Finding]:
    ours, theirs = None if training.precision == "auto" else training.precision, accelerate.precision
    setting = accelerate.setting("mixed_precision")
    agree = ours == theirs or (ours == "16 bit" and theirs in {"fp16", "bf16", "fp8"})
    if setting is not None and theirs is None:
        fix = f"write `{setting.corrected('bf16')}`, or fp16, or 'no'"
        yield _error("precision", f"{setting}: unknown number format", fix)
    elif theirs is None or ours is None:
        yield _ok("precision", f"only Accelerate sets it: mixed_precision: {theirs}")
    elif agree:
        yield from _aligned(training, theirs)
    else:
        yield _conflict(training, accelerate, ours, theirs)


def _aligned(training: OtherTraining, theirs: Said) -> Iterator[Finding]:
    yield _ok("precision", "Configuration is properly aligned!")
    if theirs == "no":
        yield _ok("amp", "AMP: disabled, in both (fp32)")
        return
    yield _ok("amp", f"AMP: enabled (works with {theirs.upper()} mixed precision)")
    fp16 = training.is_on("fp16")
    if fp16 is not None:
        yield _ok("fp16", "FP16: enabled" if fp16 else "FP16: disabled (managed by AMP)")


def _conflict(training: OtherTraining, accelerate: Accelerate, ours: Said, theirs: Said) -> Finding:
    """Report conflicting precision settings; the fix adapts the training file to Accelerate's."""
    file, setting = accelerate.settings.path, accelerate.setting("mixed_precision")
    found = training.all(*_IN_ORDER, "dtype")
    written = ", ".join(each.written for each in found)
    other = _has(setting) if setting else f"{file} has no mixed_precision"
    wanted, named = {"no": "'no'", "16 bit": "bf16"}.get(ours, ours), _TITLES.get(ours, ours)
    fix = setting.corrected(wanted) if setting else f"mixed_precision: {wanted}"
    return _error(
        "precision",
        f"conflicting precision settings, which can cause NaN: {found[0].location} has {written} "
        f"({named}), {other} ({_TITLES.get(theirs, theirs)})",
        f"{'; '.join(_fixes(training, theirs))}; or for {named} "
        f"write `{fix}` in {setting.location if setting else file}",
    )


def _fixes(training: OtherTraining, wanted: Said) -> Iterator[str]:
    """Yield the lines of the training file that make it agree with Accelerate."""
    on = {"amp": wanted != "no", "fp16": wanted == "fp16", "bf16": wanted == "bf16"}
    if training.first("amp") is not None:
        on |= {"fp16": False, "bf16": False}  # the switch turns it on, and Accelerate sets the format
    for topic in _IN_ORDER:
        for setting in training.all(topic):
            if as_bool(setting.value) != on[topic]:
                yield _in_place(setting, _switched(setting, on=on[topic]))
    formats = training.all("dtype")
    if wanted != "no" or training.first("amp") is None:
        for setting in formats:
            if as_format(setting.value) not in {wanted, None, "auto"}:
                quote = setting.written[-1] if setting.written[-1] in "\"'" else ""
                value = "fp32" if wanted == "no" else wanted
                yield _in_place(setting, setting.corrected(f"{quote}{value}{quote}"))
    lacks_format = wanted != "no" and not formats
    if lacks_format and not any(on[t] for t in _IN_ORDER if training.topics.get(t)):
        switch = training.all(*_IN_ORDER)[0]
        yield f"add `{_switched(switch, on=True).replace(switch.keys[-1], 'amp')}`"


def _in_place(setting: ConfigValue, corrected: str) -> str:
    return f"write `{corrected}` in {setting.location}"


def _switched(setting: ConfigValue, *, on: bool) -> str:
    """Return a switch that is on or off, in the style of the existing one: True, true, yes or on."""
    old = setting.written.removesuffix(",").split()[-1]
    words: tuple[str, str] = ("True", "False")
    for pair in (("true", "false"), ("yes", "no"), ("on", "off"), ("1", "0"), ("TRUE", "FALSE")):
        words = pair if old in pair else words
    if setting.line is None:
        words = ("true", "false")
    return setting.corrected(words[0] if on else words[1])


def _rate(training: OtherTraining) -> Iterator[Finding]:
    setting = training.first("lr")
    if setting is None:
        return
    rate = as_number(setting)
    if rate is None or not 0 < rate < float("inf"):
        yield _error("lr", f"{setting} is not a learning rate", "write a number above 0")
        return
    is_yaml = training.path.suffix in {".yaml", ".yml"}
    written = setting.value if is_yaml and not setting.quoted else None
    if isinstance(written, str):
        what = f"{setting} is text to PyYAML, which requires a decimal point in such a number"
        yield _advice("lr", what, f"write `{setting.corrected(_as_yaml_float(written))}`")
    optimizer = training.first("optimizer")
    adam = optimizer is not None and "adam" in str(optimizer.value).lower()
    limit, kind = (_HIGH_LR_ADAM, "Adam") if adam else (_HIGH_LR, "mixed precision")
    if rate > limit and training.precision not in {None, "no"}:
        do = f"start with {limit:g} or less, and a warm-up"
        yield _advice("lr", f"{setting} is high for {kind} and can cause NaN", do)
    else:
        yield _ok("lr", f"Learning rate: {rate:g}")


def _as_yaml_float(text: str) -> str:
    """Write a number with an exponent for YAML 1.1: with a point, and a sign before the exponent."""
    mantissa, _, exponent = text.lower().partition("e")
    sign = "" if exponent.startswith(("+", "-")) else "+"
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{sign}{exponent}"


def _clipping(training: OtherTraining) -> list[Finding]:
    clip = as_number(training.first("clip"))
    if clip is not None and clip > 0:
        return [_ok("clip", f"Gradient clipping: {clip:g}")]
    if training.precision in {None, "no"}:
        return []
    what = f"{training.path}: mixed precision without gradient clipping"
    do = "clip the norm of the gradients to 1.0, or 0.5 for more stability, after unscaling"
    return [_advice("clip", what, do)]


def _differing(topic: Topic, key: str, training: OtherTraining, accelerate: Accelerate) -> list[Finding]:
    """Report a number that differs from DeepSpeed's in the accelerate file."""
    ours, theirs = training.first(topic), accelerate.setting("deepspeed_config", key)
    if ours is None or theirs is None:
        return []
    numbers = as_number(ours), as_number(theirs)
    if None in numbers or numbers[0] == numbers[1]:
        return []
    what = f"conflicting settings: {_has(ours)}, {_has(theirs)}"
    return [_error(topic, what, _in_place(ours, ours.corrected(str(theirs.value))))]


def _compile(training: OtherTraining, accelerate: Accelerate) -> Iterator[Finding]:
    backend, setting = accelerate.setting("dynamo_config", "dynamo_backend"), training.first("compile")
    if setting is None or backend is None:
        return
    if not as_bool(setting.value) or str(backend.value).upper() == "NO":
        return
    what = f"compiled twice: {setting.location} and {backend.location}"
    yield _advice("compile", what, _in_place(setting, _switched(setting, on=False)))


# Takes processes, machines, precision and GPUs of a run from a configuration of Hugging Face Accelerate
# ------------------------------------------------------------------------------------------------------

_FOLLOWED = frozenset(
    {"num_processes", "num_machines", "main_process_ip", "main_process_port", "mixed_precision"}
    | {"gpu_ids", "use_cpu", "distributed_type", "same_network", "main_training_function", "rdzv_backend"}
)
"""Keys that are followed, or that say nothing about a run of mptui."""

_NEUTRAL = (False, None, 0, "", "no", "NO", "LOCAL_MACHINE")
"""Values that ask for nothing."""

_DATA_PARALLEL = frozenset({"NO", "MULTI_GPU", "MULTI_CPU", "MULTI_XPU"})
_PRECISIONS = {"no": "fp32", "fp32": "fp32", "fp16": "fp16", "bf16": "bf16"}


def _is_count(value: Value) -> bool:
    return not isinstance(value, bool) and str(value).isdecimal() and 0 < int(str(value)[:7]) < 10**6


_GPU_IDS = re.compile(r"all|\s*\d{1,4}\s*(,\s*\d{1,4}\s*)*")

_CHECKED: tuple[tuple[str, str, Callable[[Value], bool]], ...] = (
    ("num_processes", "a number of processes", _is_count),
    ("num_machines", "a number of machines", _is_count),
    ("gpu_ids", "GPUs by number, with commas, or all", lambda value: bool(_GPU_IDS.fullmatch(str(value)))),
    ("use_cpu", "true or false", lambda value: isinstance(value, bool)),
)
"""Keys of which a value that can't be read is refused: what it is to be, and whether it is."""


@dataclass(frozen=True, slots=True)
class AccelerateLaunch:
    """What a file asks for.

    Attributes:
        flags: Flags of `mptui run` with their values.
        notes: What can't be followed, a sentence each.
    """

    flags: dict[str, str | int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_accelerate_launch(path: Path) -> AccelerateLaunch:
    """Read a configuration as `accelerate config` writes it.

    Raises:
        ConfigError: It can't be read, is empty, has a value that says nothing, or its processes don't fit its
            machines.
    """
    accelerate = Accelerate(read_config_file(path))
    _check_values(accelerate)
    flags: dict[str, str | int] = {}
    machines, each = _processes(accelerate)
    if each is not None:
        flags["nproc_per_node"] = str(each)
    if machines > 1:
        flags |= {"nnodes": machines, "rdzv_endpoint": _endpoint(accelerate)}
    if (device := _device(accelerate, each or 1)) is not None:
        flags["device"] = device
    precision = accelerate.precision if accelerate.setting("mixed_precision") else None
    if precision in _PRECISIONS:
        flags["precision"] = _PRECISIONS[precision]
    return AccelerateLaunch(flags, list(_not_followed(accelerate)))


def _check_values(accelerate: Accelerate) -> None:
    """Check the values that say how many processes run, and on what: a guess would train with others.

    Raises:
        ConfigError: One is not of its kind, or there are none.
    """
    if not accelerate.settings.values:
        raise ConfigError(
            f"{accelerate.settings.path}: no settings", hint="write the file with: accelerate config"
        )
    for key, what, is_one in _CHECKED:
        setting = accelerate.setting(key)
        value = None if setting is None else setting.value
        if value is not None and not is_one(value):
            raise ConfigError(
                f"{setting}: not {what}",
                hint=f"correct {key}, or write the file with: accelerate config",
            )


def _processes(accelerate: Accelerate) -> tuple[int, int | None]:
    """Return the number of machines, and of processes on each."""
    found, processes = accelerate.value("num_machines"), accelerate.processes
    machines = found if isinstance(found, int) and found > 1 else 1
    if processes is not None and processes % machines:
        raise ConfigError(
            f"{accelerate.settings.path}: num_processes: {processes} on num_machines: {machines}",
            hint="give each machine the same number of processes",
        )
    return machines, None if processes is None else processes // machines


def _endpoint(accelerate: Accelerate) -> str:
    host = accelerate.value("main_process_ip")
    if not host:
        raise ConfigError(
            f"{accelerate.settings.path}: several machines without main_process_ip",
            hint="add main_process_ip and main_process_port",
        )
    return f"{host}:{accelerate.value('main_process_port') or 29500}"


def _device(accelerate: Accelerate, processes: int) -> str | None:
    if accelerate.distributed_type == "MULTI_CPU" or accelerate.value("use_cpu") is True:
        return "cpu"
    named = accelerate.gpu_ids
    if not named:
        return None
    return ",".join(map(str, named)) if len(named) > 1 and processes > 1 else f"cuda:{named[0]}"


def _not_followed(accelerate: Accelerate) -> Iterator[str]:
    asking: dict[str, ConfigValue] = {}
    for setting in accelerate.settings.values:
        if setting.keys[0] not in _FOLLOWED and setting.value not in _NEUTRAL:
            asking.setdefault(setting.keys[0], setting)
    yield from (f"{setting.location}: {key} is not followed" for key, setting in asking.items())
    kind, precision = accelerate.setting("distributed_type"), accelerate.setting("mixed_precision")
    if kind is not None and accelerate.distributed_type not in _DATA_PARALLEL:
        shards = "; memory.shard = true shares the weights as FSDP does" if "FSDP" in str(kind.value) else ""
        yield f"{kind}: DistributedDataParallel is used instead{shards}"
    if precision is not None and accelerate.precision not in _PRECISIONS:
        yield f"{precision} is not followed"
