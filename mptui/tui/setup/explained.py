"""Explains a setting in its dialog."""

from mptui.config.keys import SETTINGS, UNSET, Setting
from mptui.text import clean
from mptui.tui.setup.selection import plain


def explained(setting: Setting, value: str, source: str) -> str:
    """Describe a setting: meaning, choices, current value and source, default."""
    default = _shown(UNSET if setting.field.default is None else setting.field.default)
    now = f"{_shown(value)} ({clean(source)})"
    if source != "default":
        now += f"; default: {default}"
    if setting.may_be_unset and value != UNSET:
        now += f"; {UNSET}: unset it"
    options = f"\n{' | '.join(setting.choices)}" if setting.choices else ""
    return f"{setting.help}{options}\n\nnow: {now}"


def in_a_paragraph(key: str, fixed: str = "") -> str:
    """Describe a setting below its list: name, meaning, choices, default, and why it can't change."""
    setting = SETTINGS[key]
    default = _shown(UNSET if setting.field.default is None else setting.field.default)
    choices = f" Choices: {' | '.join(setting.choices)}." if setting.choices else ""
    why = f" is fixed during a run: {fixed}." if fixed else ":"
    return f"{key}{why} {setting.help} Default: {default}.{choices}"


def _shown(value: object) -> str:
    return "unset" if value == UNSET else plain(value)
