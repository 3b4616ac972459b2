"""A dialog for the value of a setting."""

from collections.abc import Callable

from mptui.config.given import read_value
from mptui.config.keys import SETTINGS
from mptui.tui.dialogs.input import AskDialog, Fault
from mptui.tui.setup.explained import explained
from mptui.tui.setup.selection import Value


class SettingDialog(AskDialog):
    """Asks for another value of a setting.

    Args:
        value: The setting.
        source: What its value now is from.
        take: Accepts a text for a key, or returns why it can't.
    """

    def __init__(self, value: Value, source: str, take: Callable[[str, str], Fault]) -> None:
        setting = SETTINGS[value.key]
        super().__init__(
            value.key,
            explained(setting, value.value, source),
            value.value,
            check=lambda text: read_value(setting, text)[1],
            take=lambda text: take(value.key, text),
            suggestions=setting.choices or setting.examples,
        )
