"""Compares a training configuration with an accelerate file: settings in both must agree."""

from collections.abc import Iterator

from mptui.lab.doctor.accelerate_config import AREA, Accelerate
from mptui.lab.doctor.config_files.values import ConfigFile, ConfigValue
from mptui.lab.doctor.findings import Finding, advice, error, ok
from mptui.lab.doctor.training_config import Said, Topic, Training, as_bool, as_format, as_number

_NAMES: dict[Said, str] = {"no": "fp32", "16 bit": "mixed precision", "fp8": "fp8", "auto": "auto"}
_HIGH_LR = 0.1
_HIGH_LR_ADAM = 1e-3
_SWITCHES: tuple[Topic, ...] = ("amp", "fp16", "bf16")


def compare(training: Training, accelerate: Accelerate | None) -> list[Finding]:
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


def _faults(training: Training) -> Iterator[Finding]:
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


def _contradictions(training: Training) -> list[Finding]:
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


def _precision(training: Training, accelerate: Accelerate) -> Iterator[Finding]:
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


def _aligned(training: Training, theirs: Said) -> Iterator[Finding]:
    yield ok(AREA, "precision", "Configuration is properly aligned!")
    if theirs == "no":
        yield ok(AREA, "amp", "AMP: disabled, in both (fp32)")
        return
    yield ok(AREA, "amp", f"AMP: enabled (works with {theirs.upper()} mixed precision)")
    fp16 = training.is_on("fp16")
    if fp16 is not None:
        yield ok(AREA, "fp16", "FP16: enabled" if fp16 else "FP16: disabled (managed by AMP)")


def _conflict(training: Training, accelerate: Accelerate, ours: Said, theirs: Said) -> Finding:
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


def _fixes(training: Training, wanted: Said) -> Iterator[str]:
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


def _rate(training: Training) -> Iterator[Finding]:
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


def _clipping(training: Training) -> list[Finding]:
    clip = training.number("clip")
    if clip is not None and clip > 0:
        return [ok(AREA, "clip", f"Gradient clipping: {clip:g}")]
    if training.precision in {None, "no"}:
        return []
    what = f"{training.settings.path}: mixed precision without gradient clipping"
    do = "clip the norm of the gradients to 1.0, or 0.5 for more stability, after unscaling"
    return [advice(AREA, "clip", what, do)]


def _differing_clips(training: Training, accelerate: Accelerate) -> list[Finding]:
    return _differing("clip", training, accelerate, ("deepspeed_config", "gradient_clipping"))


def _differing_windows(training: Training, accelerate: Accelerate) -> list[Finding]:
    return _differing("accumulate", training, accelerate, ("deepspeed_config", "gradient_accumulation_steps"))


def _differing(
    topic: Topic, training: Training, accelerate: Accelerate, keys: tuple[str, ...]
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


def _compile(training: Training, accelerate: Accelerate) -> Iterator[Finding]:
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
