"""Writes a configuration as TOML, for `run.toml` and `--dry-run`."""

from typing import Any

import tomli_w

from mptui.config.keys import SETTINGS, UNSET, acts, nested, training_of, value_of
from mptui.config.merge import Resolved
from mptui.config.schema import RunConfig
from mptui.config.validate import VERSION


def to_toml(config: RunConfig) -> str:
    """Write all values in the order of the schema; resolving the text again gives an equal configuration."""
    values = {key: value for key, value in values_of(config).items() if value != _unset_by_default(key)}
    return document_text(config.description, values)


def dry_run_text(resolved: Resolved) -> str:
    """Write every key that acts as TOML, unset ones too, with the source of its value in a comment."""
    training = training_of(resolved.config, resolved.task)
    values = {key: value for key, value in values_of(resolved.config).items() if acts(key, training)}
    lines = document_text(resolved.config.description, values).splitlines()
    width = min(40, max(len(line) for line in lines))
    table = ""
    commented = []
    for line in lines:
        if line.startswith("["):
            table = line.strip("[]")
        source = resolved.sources.get(f"{table}.{line.partition(' = ')[0]}")
        commented.append(f"{line:<{width}}  # {source}" if source else line)
    return "\n".join(commented) + "\n"


def values_of(config: RunConfig) -> dict[str, Any]:
    """Return the value of each table.key; "none" if it is unset."""
    found = ((key, value_of(config, key)) for key in SETTINGS)
    return {key: UNSET if value is None else value for key, value in found}


def document_text(description: str, values: dict[str, Any]) -> str:
    """Write {"table.key": value} as TOML tables, in the order given."""
    return tomli_w.dumps({"version": VERSION, "description": description, **nested(values)})


def _unset_by_default(key: str) -> str | None:
    """Return "none" if the key is unset by default: a file then omits it."""
    return UNSET if SETTINGS[key].field.default is None else None
