"""The person's own code that a run names, and whether it is trusted."""

from mptui.config.keys import value_of
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError
from mptui.io.places import absolute
from mptui.registry.own_code import allow, is_given, is_own, load

_KEYS = ("model.name", "model.task", "data.name")


def own_names(config: RunConfig) -> dict[str, str]:
    """Return the settings that name the person's own code, with the names."""
    return {key: name for key in _KEYS if is_own(name := value_of(config, key))}


def allow_own_code(config: RunConfig, *, trusted: bool) -> None:
    """Let this process import the person's own code that a configuration names.

    Raises:
        ConfigError: It isn't trusted; nothing of it has run.
    """
    names = own_names(config)
    folder = absolute(config.code.folder or ".")
    foreign = {key: name for key, name in names.items() if not is_given(name)}
    if foreign and not trusted:
        lines = (
            f"{key} = {name}: your own code runs only with --trust-code" for key, name in foreign.items()
        )
        raise ConfigError("\n".join(lines), hint=f"read the code in {folder}, then add --trust-code")
    if names:
        allow(folder)


def import_own_code(config: RunConfig) -> None:
    """Import the person's own code, so that its faults are found early.

    Raises:
        ConfigError: A module, or a name in it, is missing.
        Exception: Whatever the code raises.
    """
    for name in own_names(config).values():
        load(name)
