"""Compares a training configuration with an accelerate file: settings in both must agree."""

import re
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from mptui.config.resolve import resolve
from mptui.errors import ConfigError, MptuiError
from mptui.hardware.advice import default_workers, recommend
from mptui.hardware.devices import Machine
from mptui.lab.doctor.findings import Area, Finding, advice, error, findings_of, ok
from mptui.lab.doctor.foreign_files import (
    AREA,
    Accelerate,
    ConfigFile,
    ConfigValue,
    OtherTraining,
    Said,
    Topic,
    Value,
    as_bool,
    as_format,
    as_number,
    read_config_file,
)
from mptui.registry.names import LOSS_SCALED, SIXTEEN_BIT
from mptui.registry.trackers import chosen_trackers
from mptui.runs.planning.plan import Plan, Request, effective_words, plan_run, rate_notes
from mptui.runs.trackers.feeder import install_hint

# Compares a training configuration with an accelerate file: settings in both must agree
# --------------------------------------------------------------------------------------

_NAMES: dict[Said, str] = {"no": "fp32", "16 bit": "mixed precision", "fp8": "fp8", "auto": "auto"}
_HIGH_LR = 0.1
_HIGH_LR_ADAM = 1e-3
_SWITCHES: tuple[Topic, ...] = ("amp", "fp16", "bf16")


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
        *(_differing_clips(training, accelerate) or _clipping(training)),
        *_differing_windows(training, accelerate),
        *_compile(training, accelerate),
    ]


def _faults(training: OtherTraining) -> Iterator[Finding]:
    """Report values with an unintended meaning."""
    settings = training.settings
    for topic in _SWITCHES:
        for setting in training.topics.get(topic, []):
            meant = as_bool(setting.value)
            if isinstance(setting.value, str) and meant is not None:
                yield error(
                    AREA,
                    topic,
                    f"{settings.location(setting)}: {settings.written(setting)} is text, "
                    "which counts as true",
                    f"write `{settings.corrected(setting, str(meant))}`",
                )
    for setting in training.topics.get("dtype", []):
        if setting.value is not None and as_format(setting.value) is None:
            yield error(
                AREA,
                "precision",
                f"{settings.location(setting)}: {settings.written(setting)}: unknown number format",
                "write bf16, fp16 or no",
            )


def _contradictions(training: OtherTraining) -> list[Finding]:
    """Report conflicting precision settings within one file."""
    settings, found = training.settings, []
    for topic in _SWITCHES:
        said = training.topics.get(topic, [])
        other = next((s for s in said[1:] if as_bool(s.value) != as_bool(said[0].value)), None)
        if other is not None:
            found.append(_twice(settings, said[0], other))
    formats: list[tuple[ConfigValue, Said]] = [
        (s, f) for s, f in training.statements() if f in {"fp16", "bf16", "fp8"}
    ]
    if differing := next(((s, f) for s, f in formats[1:] if f != formats[0][1]), None):
        found.append(_twice(settings, formats[0][0], differing[0]))
    amp = training.first("amp")
    switched_on = next(
        (s for t in ("fp16", "bf16") for s in training.topics.get(t, []) if as_bool(s.value)), None
    )
    if not found and amp is not None and as_bool(amp.value) is False and switched_on is not None:
        found.append(
            _twice(settings, amp, switched_on, settings.corrected(amp, _like(settings, amp, on=True)))
        )
    return found


def _twice(settings: ConfigFile, first: ConfigValue, second: ConfigValue, fix: str | None = None) -> Finding:
    do = f"write `{fix}` in {settings.location(first)}" if fix else "keep only the intended one"
    return error(
        AREA,
        "precision",
        f"conflicting precision settings: {settings.location(first)} has {settings.written(first)}, "
        f"{settings.location(second)} has {settings.written(second)}",
        do,
    )


def _precision(training: OtherTraining, accelerate: Accelerate) -> Iterator[Finding]:
    ours, theirs = training.precision, accelerate.precision
    setting = accelerate.setting("mixed_precision")
    if theirs is None:
        assert setting is not None
        file = accelerate.settings
        yield error(
            AREA,
            "precision",
            f"{file.location(setting)}: {file.written(setting)}: unknown number format",
            f"write `{file.corrected(setting, 'bf16')}`, or fp16, or 'no'",
        )
    elif ours is None or ours == "auto":
        yield ok(AREA, "precision", f"only Accelerate sets it: mixed_precision: {theirs}")
    elif ours == theirs or (ours == "16 bit" and theirs in {"fp16", "bf16", "fp8"}):
        yield from _aligned(training, theirs)
    else:
        yield _conflict(training, accelerate, ours, theirs)


def _aligned(training: OtherTraining, theirs: Said) -> Iterator[Finding]:
    yield ok(AREA, "precision", "Configuration is properly aligned!")
    if theirs == "no":
        yield ok(AREA, "amp", "AMP: disabled, in both (fp32)")
        return
    yield ok(AREA, "amp", f"AMP: enabled (works with {theirs.upper()} mixed precision)")
    fp16 = training.is_on("fp16")
    if fp16 is not None:
        yield ok(AREA, "fp16", "FP16: enabled" if fp16 else "FP16: disabled (managed by AMP)")


def _conflict(training: OtherTraining, accelerate: Accelerate, ours: Said, theirs: Said) -> Finding:
    """Report conflicting precision settings; the fix adapts the training file to Accelerate's."""
    file, setting = accelerate.settings, accelerate.setting("mixed_precision")
    found = [s for topic in (*_SWITCHES, "dtype") for s in training.topics.get(topic, [])]
    written = ", ".join(training.settings.written(s) for s in found)
    place = training.settings.location(found[0])
    other = (
        f"{file.location(setting)} has {file.written(setting)}"
        if setting
        else f"{file.path} has no mixed_precision"
    )
    return error(
        AREA,
        "precision",
        f"conflicting precision settings, which can cause NaN: {place} has {written} "
        f"({_NAMES.get(ours, ours)}), {other} ({_NAMES.get(theirs, theirs)})",
        f"{'; '.join(_fixes(training, theirs))}; or for {_NAMES.get(ours, ours)} "
        f"write `{_accelerate_fix(accelerate, ours)}` in {file.location(setting) if setting else file.path}",
    )


def _fixes(training: OtherTraining, wanted: Said) -> Iterator[str]:
    """Yield the lines of the training file that make it agree with Accelerate."""
    settings = training.settings
    on = {"amp": wanted != "no", "fp16": wanted == "fp16", "bf16": wanted == "bf16"}
    if training.first("amp") is not None:
        on |= {"fp16": False, "bf16": False}  # the switch turns it on, and Accelerate sets the format
    for topic in _SWITCHES:
        for setting in training.topics.get(topic, []):
            if as_bool(setting.value) != on[topic]:
                yield _line(settings, setting, _like(settings, setting, on=on[topic]))
    formats = training.topics.get("dtype", [])
    if wanted != "no" or training.first("amp") is None:
        for setting in formats:
            if as_format(setting.value) not in {wanted, None, "auto"}:
                yield _line(
                    settings, setting, _quoted(settings, setting, "fp32" if wanted == "no" else wanted)
                )
    switches = [setting for topic in _SWITCHES for setting in training.topics.get(topic, [])]
    if wanted != "no" and not formats and not any(on[t] for t in _SWITCHES if training.topics.get(t)):
        switched_on = settings.corrected(switches[0], _like(settings, switches[0], on=True))
        yield f"add `{switched_on.replace(switches[0].keys[-1], 'amp')}`"


def _line(settings: ConfigFile, setting: ConfigValue, value: str) -> str:
    return f"write `{settings.corrected(setting, value)}` in {settings.location(setting)}"


def _accelerate_fix(accelerate: Accelerate, ours: Said) -> str:
    value = {"no": "'no'", "16 bit": "bf16"}.get(ours, ours)
    setting = accelerate.setting("mixed_precision")
    return accelerate.settings.corrected(setting, value) if setting else f"mixed_precision: {value}"


def _like(settings: ConfigFile, setting: ConfigValue, *, on: bool) -> str:
    """Write a switch in the style of the existing one: True, true, yes or on."""
    old = settings.written(setting).removesuffix(",").split()[-1]
    words: tuple[str, str] = ("True", "False")
    for pair in (("true", "false"), ("yes", "no"), ("on", "off"), ("1", "0"), ("TRUE", "FALSE")):
        words = pair if old in pair else words
    if setting.line is None:
        words = ("true", "false")
    return words[0] if on else words[1]


def _quoted(settings: ConfigFile, setting: ConfigValue, value: str) -> str:
    quote = settings.written(setting)[-1]
    return f"{quote}{value}{quote}" if quote in "\"'" else value


def _rate(training: OtherTraining) -> Iterator[Finding]:
    setting, rate = training.first("lr"), training.number("lr")
    if setting is None:
        return
    settings = training.settings
    place = f"{settings.location(setting)}: {settings.written(setting)}"
    if rate is None or not 0 < rate < float("inf"):
        yield error(AREA, "lr", f"{place} is not a learning rate", "write a number above 0")
        return
    is_yaml = settings.path.suffix in {".yaml", ".yml"}
    if is_yaml and isinstance(setting.value, str) and not setting.quoted:
        yield advice(
            AREA,
            "lr",
            f"{place} is text to PyYAML, which requires a decimal point in such a number",
            f"write `{settings.corrected(setting, _as_yaml_float(setting.value))}`",
        )
    optimizer = training.first("optimizer")
    adam = optimizer is not None and "adam" in str(optimizer.value).lower()
    limit = _HIGH_LR_ADAM if adam else _HIGH_LR
    if rate > limit and training.precision not in {None, "no"}:
        kind = "Adam" if adam else "mixed precision"
        yield advice(
            AREA,
            "lr",
            f"{place} is high for {kind} and can cause NaN",
            f"start with {limit:g} or less, and a warm-up",
        )
    else:
        yield ok(AREA, "lr", f"Learning rate: {rate:g}")


def _as_yaml_float(text: str) -> str:
    """Write a number with an exponent for YAML 1.1: with a point, and a sign before the exponent."""
    mantissa, _, exponent = text.lower().partition("e")
    sign = "" if exponent.startswith(("+", "-")) else "+"
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}e{sign}{exponent}"


def _clipping(training: OtherTraining) -> list[Finding]:
    clip = training.number("clip")
    if clip is not None and clip > 0:
        return [ok(AREA, "clip", f"Gradient clipping: {clip:g}")]
    if training.precision in {None, "no"}:
        return []
    what = f"{training.settings.path}: mixed precision without gradient clipping"
    do = "clip the norm of the gradients to 1.0, or 0.5 for more stability, after unscaling"
    return [advice(AREA, "clip", what, do)]


def _differing_clips(training: OtherTraining, accelerate: Accelerate) -> list[Finding]:
    return _differing("clip", training, accelerate, ("deepspeed_config", "gradient_clipping"))


def _differing_windows(training: OtherTraining, accelerate: Accelerate) -> list[Finding]:
    return _differing("accumulate", training, accelerate, ("deepspeed_config", "gradient_accumulation_steps"))


def _differing(
    topic: Topic, training: OtherTraining, accelerate: Accelerate, keys: tuple[str, ...]
) -> list[Finding]:
    """Report a number that differs between the files."""
    ours, theirs = training.first(topic), accelerate.setting(*keys)
    numbers = [None if setting is None else as_number(setting.value) for setting in (ours, theirs)]
    if ours is None or theirs is None or None in numbers or numbers[0] == numbers[1]:
        return []
    settings, file = training.settings, accelerate.settings
    what = (
        f"conflicting settings: {settings.location(ours)} has {settings.written(ours)}, "
        f"{file.location(theirs)} has {file.written(theirs)}"
    )
    return [error(AREA, topic, what, _line(settings, ours, str(theirs.value)))]


def _compile(training: OtherTraining, accelerate: Accelerate) -> Iterator[Finding]:
    backend = accelerate.setting("dynamo_config", "dynamo_backend")
    setting = training.first("compile")
    if setting is None or backend is None or not as_bool(setting.value) or str(backend.value).upper() == "NO":
        return
    yield advice(
        AREA,
        "compile",
        f"compiled twice: {training.settings.location(setting)} and {accelerate.settings.location(backend)}",
        _line(training.settings, setting, _like(training.settings, setting, on=False)),
    )


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
    settings = accelerate.settings
    if not settings.values:
        raise ConfigError(f"{settings.path}: no settings", hint="write the file with: accelerate config")
    for key, what, is_one in _CHECKED:
        setting = accelerate.setting(key)
        if setting is not None and setting.value is not None and not is_one(setting.value):
            raise ConfigError(
                f"{settings.location(setting)}: {settings.written(setting)}: not {what}",
                hint=f"correct {key}, or write the file with: accelerate config",
            )


def _processes(accelerate: Accelerate) -> tuple[int, int | None]:
    """Return the number of machines, and of processes on each."""
    found = accelerate.setting("num_machines")
    machines = found.value if found is not None and isinstance(found.value, int) and found.value > 1 else 1
    processes = accelerate.processes
    if processes is not None and processes % machines:
        raise ConfigError(
            f"{accelerate.settings.path}: num_processes: {processes} on num_machines: {machines}",
            hint="give each machine the same number of processes",
        )
    return machines, None if processes is None else processes // machines


def _endpoint(accelerate: Accelerate) -> str:
    host, port = accelerate.setting("main_process_ip"), accelerate.setting("main_process_port")
    if host is None or not host.value:
        raise ConfigError(
            f"{accelerate.settings.path}: several machines without main_process_ip",
            hint="add main_process_ip and main_process_port",
        )
    return f"{host.value}:{port.value if port is not None and port.value else 29500}"


def _device(accelerate: Accelerate, processes: int) -> str | None:
    on_cpu = accelerate.setting("use_cpu")
    if accelerate.distributed_type == "MULTI_CPU" or (on_cpu is not None and on_cpu.value is True):
        return "cpu"
    named = accelerate.gpu_ids
    if not named:
        return None
    return ",".join(map(str, named)) if len(named) > 1 and processes > 1 else f"cuda:{named[0]}"


def _not_followed(accelerate: Accelerate) -> Iterator[str]:
    settings, seen = accelerate.settings, set()
    for setting in settings.values:
        key = setting.keys[0]
        if key in _FOLLOWED or key in seen or setting.value in _NEUTRAL:
            continue
        seen.add(key)
        yield f"{settings.location(setting)}: {key} is not followed"
    kind, precision = accelerate.setting("distributed_type"), accelerate.setting("mixed_precision")
    if kind is not None and accelerate.distributed_type not in _DATA_PARALLEL:
        shards = "; memory.shard = true shares the weights as FSDP does" if "FSDP" in str(kind.value) else ""
        told = f"{settings.location(kind)}: {settings.written(kind)}"
        yield f"{told}: DistributedDataParallel is used instead{shards}"
    if precision is not None and accelerate.precision not in _PRECISIONS:
        yield f"{settings.location(precision)}: {settings.written(precision)} is not followed"


# Checks the configuration of a run: whether it is valid and suits this machine
# -----------------------------------------------------------------------------

_AREA: Area = "configuration"


def check_configuration(
    request: Request, machine: Machine, *, with_torch: bool
) -> tuple[Plan | None, list[Finding]]:
    """Resolve a request as a run would, and check it against the machine.

    Args:
        request: The request of the run.
        machine: This machine.
        with_torch: Whether torch may be imported; otherwise only the values are checked.

    Returns:
        The plan of the run, None if the configuration is invalid; and the findings.
    """
    try:
        if not with_torch:
            resolved = resolve(
                request.profile, task=None, flags=request.flags, sets=request.sets, environ=request.environ
            )
            return None, [ok(_AREA, "values", f"{resolved.profile}: configuration valid")]
        plan = plan_run(request, machine)
    except MptuiError as fault:
        if fault.exit_code == 3:  # the data is a separate area
            return None, findings_of("data", "data", fault)
        return None, findings_of(_AREA, "values", fault)
    config = plan.config
    what = (
        f"{plan.resolved.profile}: {config.model.name} at {config.data.image_size} px on "
        f"{config.data.path or config.data.name}, "
        f"{effective_words(config.training)}, {plan.precision.used} on {plan.device.torch_name}"
    )
    notes = [ok(_AREA, "training", note) for note in rate_notes(config.training)]
    return plan, [ok(_AREA, "values", what), *notes, *_unsuited_plan(plan, machine)]


def _unsuited_plan(plan: Plan, machine: Machine) -> Iterator[Finding]:
    yield from _plan_precision(plan)
    yield from _batch(plan)
    yield from _workers(plan, machine)
    yield from _plan_compile(plan)
    yield from _guards(plan)
    yield from _trackers(plan)


def _plan_precision(plan: Plan) -> Iterator[Finding]:
    choice = plan.precision
    if choice.warning is not None:
        advised = recommend(plan.device).precision
        yield advice(_AREA, "precision.mode", choice.warning, f"--precision {advised}, or auto")
    else:
        scaled = "with" if choice.grad_scaler else "no"
        loss = f"; {scaled} loss scaling" if choice.used in SIXTEEN_BIT else ""
        yield ok(_AREA, "precision.mode", f"{choice.used}: {choice.reason}{loss}")


def _batch(plan: Plan) -> Iterator[Finding]:
    training, device = plan.config.training, plan.device
    if plan.precision.used in SIXTEEN_BIT and device.kind == "cuda" and training.batch_size % 8:
        what = f"training.batch_size = {training.batch_size}: Tensor Cores need multiples of 8"
        yield advice(_AREA, "training.batch_size", what, f"--batch-size {-(-training.batch_size // 8) * 8}")
    if training.batch_size == 1 and plan.config.model.norm == "batch":
        what = "training.batch_size = 1: BatchNorm needs at least 2 samples"
        yield advice(
            _AREA, "training.batch_size", what, "--batch-size 2, or for a unet --set model.norm=group"
        )


def _workers(plan: Plan, machine: Machine) -> Iterator[Finding]:
    cpus = machine.host.cpus_usable
    if plan.workers > cpus:
        what = f"data.workers = {plan.workers}: more than the {cpus} processors of this process"
        yield advice(_AREA, "data.workers", what, f"--workers {default_workers(cpus)}, or auto")


def _plan_compile(plan: Plan) -> Iterator[Finding]:
    mode = plan.config.speed.compile
    if mode == "off":
        return
    if plan.device.kind == "mps":
        yield advice(_AREA, "speed.compile", f"speed.compile = {mode}: not on an Apple GPU", "--no-compile")
    if missing := _missing_of_a_compiler():
        what = f"speed.compile = {mode} needs {missing}, so the run would not compile"
        yield advice(_AREA, "speed.compile", what, "install build-essential and python3-dev, or --no-compile")


def _missing_of_a_compiler() -> str | None:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang", "g++", "c++")):
        return "a C compiler"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return None if header.is_file() else f"Python's headers ({header})"


def _guards(plan: Plan) -> Iterator[Finding]:
    config = plan.config
    if config.guards.on_nan == "ignore" and plan.precision.used in LOSS_SCALED:
        what = "guards.on_nan = ignore in fp16: a diverged run doesn't end"
        yield advice(_AREA, "guards.on_nan", what, "--set guards.on_nan=rollback")
    if config.guards.check_batches or config.guards.detect_anomaly:
        names = [name for name in ("check_batches", "detect_anomaly") if getattr(config.guards, name)]
        what = f"guards.{' and '.join(names)}: slow, for debugging only"
        yield advice(
            _AREA, "guards", what, "turn them off for a long run: another profile, or --set guards.…=false"
        )
    elif config.guards.on_nan == "rollback":
        what = f"NaN: back to the last good of snapshots every {config.guards.snapshot_every} steps"
        yield ok(_AREA, "guards.on_nan", what)
    limit = config.training.clip_grad_norm
    if limit is not None:
        yield ok(_AREA, "training.clip_grad_norm", f"gradients are clipped at a norm of {limit:g}")
    elif plan.precision.used in SIXTEEN_BIT:
        what = "training.clip_grad_norm is not set: one bad batch can spoil the weights"
        yield advice(_AREA, "training.clip_grad_norm", what, "--set training.clip_grad_norm=1.0")


def _trackers(plan: Plan) -> Iterator[Finding]:
    for name, spec in chosen_trackers(plan.config.logging.model_dump()).items():
        if find_spec(spec.package) is None:
            yield error(_AREA, "logging", f"{name} is not installed", install_hint(name))
