"""What the dialog of a setting says of it."""

from typing import Any, get_args

from mptui.config.keys import UNSET, Setting
from mptui.text import clean


def explained(setting: Setting, value: str, source: str) -> str:
    """What a setting means, which words it takes, what it is now, and its default."""
    meaning = setting.field.description or ""
    default = UNSET if setting.field.default is None else setting.field.default
    unset = "; none: unset" if setting.may_be_unset else ""
    words = choices(setting)
    options = f"\n{' | '.join(words)}" if words else ""
    return f"{meaning}{options}\n\nnow {clean(value)}, {clean(source)}; default {default}{unset}"


def choices(setting: Setting) -> list[str]:
    """The words that a setting takes, where they are few."""
    kind: Any = setting.field.annotation
    if kind is bool:
        return ["true", "false"]
    words = get_args(kind)
    if bool in words:
        return ["true", "false", *(word for inner in words for word in get_args(inner))]
    return [str(word) for word in words] if words and all(isinstance(word, str) for word in words) else []
