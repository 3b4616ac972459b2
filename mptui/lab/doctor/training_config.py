"""Reads precision, learning rate and clipping from a training configuration of any program.

Recognises names common in training scripts: amp, use_amp, fp16, bf16, amp_dtype, mixed_precision, lr, ….
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mptui.lab.doctor.config_files.values import ConfigFile, ConfigValue, Value

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
class Training:
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


def read_training(settings: ConfigFile) -> Training:
    """Find the settings of a configuration that concern training."""
    topics: dict[Topic, list[ConfigValue]] = {}
    for setting in settings.values:
        topic = _topic(setting)
        if setting.keys[-1] == "precision" and as_format(setting.value) is None:
            continue  # for display or products, not a number format
        if topic is not None:
            topics.setdefault(topic, []).append(setting)
    return Training(settings, {topic: _about_training(found) for topic, found in topics.items()})


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
