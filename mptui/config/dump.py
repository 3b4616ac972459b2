"""A configuration as TOML: what `run.toml` holds, and what `--dry-run` prints."""

from typing import Any

import tomli_w

from mptui.config.keys import SETTINGS, UNSET, nested
from mptui.config.merge import Resolved
from mptui.config.schema import RunConfig
from mptui.config.validate import VERSION


def to_toml(config: RunConfig) -> str:
    """Every value in the order of the schema; resolving the text again gives an equal configuration."""
    values = {key: value for key, value in values_of(config).items() if value != _unset_by_default(key)}
    return written(config.description, values)


def dry_run_text(resolved: Resolved) -> str:
    """Every key of `resolved` as TOML, unset ones too, and beside each where its value came from."""
    lines = written(resolved.config.description, values_of(resolved.config)).splitlines()
    width = min(40, max(len(line) for line in lines))
    table = ""
    told = []
    for line in lines:
        if line.startswith("["):
            table = line.strip("[]")
        source = resolved.sources.get(f"{table}.{line.partition(' = ')[0]}")
        told.append(f"{line:<{width}}  # {source}" if source else line)
    return "\n".join(told) + "\n"


def values_of(config: RunConfig) -> dict[str, Any]:
    """Each table.key and its value, "none" where it is unset."""
    found = ((key, value_of(config, key)) for key in SETTINGS)
    return {key: UNSET if value is None else value for key, value in found}


def value_of(config: RunConfig, key: str) -> Any:  # noqa: ANN401 - of whatever type the key has
    """The value of one table.key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def written(description: str, values: dict[str, Any]) -> str:
    """Write {"table.key": value} as TOML tables, in the order given."""
    return tomli_w.dumps({"version": VERSION, "description": description, **nested(values)})


def _unset_by_default(key: str) -> str | None:
    """The value that says nothing and is left out of a file."""
    return UNSET if SETTINGS[key].field.default is None else None
