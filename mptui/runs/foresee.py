"""What another preset would do to a run in progress, told before it is asked for. Imports no torch.

A live screen opens without the schema: what reads it is imported when it is asked for.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.runs.directory import CONFIG

if TYPE_CHECKING:
    from mptui.runs.plan import Request


@dataclass(frozen=True, slots=True)
class Foreseen:
    """`table.key` -> what the run has now and what the preset has, as text.

    `changes` come into force with the preset; `kept` can't change in a run, and stay as they are.
    """

    changes: Mapping[str, list[str]] = field(default_factory=dict)
    kept: Mapping[str, list[str]] = field(default_factory=dict)


def foresee(run: Path, profile: str, request: "Request | None" = None) -> Foreseen:
    """Compare the run in the directory `run` with `profile`; waits for the disk.

    Args:
        run: Whose `run.toml` says what is in force.
        profile: The name of the preset.
        request: What the run was asked with, which goes above any preset; None: not known.

    Raises:
        ConfigError: There is no such preset, or it can't be had in this run.
    """
    from mptui.config.dump import values_of
    from mptui.config.merge import resolve, task_of_model
    from mptui.config.switch import switched
    from mptui.runs.plan import Request

    now = resolve(str(run / CONFIG), task=None, flags={}, sets=(), environ={}).config
    request = request or Request(environ=os.environ)
    preset = resolve(
        profile,
        task=task_of_model(str(now.model.name)),
        flags=request.flags,
        sets=request.sets,
        environ=request.environ,
    ).config
    _, changes, kept = switched(now, preset)
    had, wanted = values_of(now), values_of(preset)
    return Foreseen(changes, {key: [str(had[key]), str(wanted[key])] for key in kept})
