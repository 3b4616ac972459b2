"""Explains a setting in its dialog."""

from mptui.config.keys import UNSET, Setting
from mptui.text import clean


def explained(setting: Setting, value: str, source: str) -> str:
    """Describe a setting: meaning, choices, current value and source, default."""
    default = _shown(UNSET if setting.field.default is None else setting.field.default)
    now = f"{_shown(value)} ({clean(source)})"
    if source != "default":
        now += f"; default: {default}"
    if setting.may_be_unset and value != UNSET:
        now += f"; {UNSET}: unset it"
    options = f"\n{' | '.join(setting.choices)}" if setting.choices else ""
    return f"{setting.field.description or ''}{options}\n\nnow: {now}"


def _shown(value: object) -> str:
    return "unset" if value == UNSET else clean(str(value))
