"""What the dialog of a setting says of it."""

from mptui.config.keys import UNSET, Setting
from mptui.text import clean


def explained(setting: Setting, value: str, source: str) -> str:
    """What a setting means, which words it takes, what it is now, and its default."""
    meaning = setting.field.description or ""
    default = UNSET if setting.field.default is None else setting.field.default
    unset = "; none: unset" if setting.may_be_unset else ""
    options = f"\n{' | '.join(setting.choices)}" if setting.choices else ""
    return f"{meaning}{options}\n\nnow {clean(value)}, {clean(source)}; default {default}{unset}"
