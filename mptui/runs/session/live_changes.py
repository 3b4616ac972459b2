"""What people have changed in a run since its command was given: switched settings, and a pause.

A launcher starts a run again by the same command, after the loss of a process or the preemption of its job.
Then the changes count, and not the flags.
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from mptui.config.dump import to_toml
from mptui.config.merge import resolve
from mptui.errors import ConfigError, DiskError, RunDirectoryError
from mptui.hardware.advice import choose_precision
from mptui.io.atomic import Guard
from mptui.processes.rank_place import is_restart
from mptui.runs.planning.plan import Plan, workers_under
from mptui.runs.store.directory import CHANGES, CONFIG, VERSION, read_json, write_json, write_text


class LiveChanges:
    """The settings in force of a run, `run.toml`, and what a restart has to know of them.

    Args:
        run: The run directory.
        plan: The plan by the command line.
        guard: Context around each change of a name in the run directory.
    """

    def __init__(self, run: Path, plan: Plan, guard: Guard = contextlib.nullcontext) -> None:
        self._run, self.guard = run, guard
        again = is_restart(plan.request.environ)
        self._found: dict[str, Any] = read_json(run / CHANGES) if again else {}

    @property
    def paused(self) -> bool:
        """Whether the run was paused when it ended, and is to be paused again."""
        return self._found.get("paused") is True

    def onto(self, plan: Plan) -> Plan:
        """Return the plan with the settings that were in force, if the command has begun the run before."""
        try:
            asked = self._found["asked"]
            config = resolve(str(self._run / CONFIG), task=None, flags={}, sets=(), environ={}).config
            request = replace(plan.request, profile=asked["profile"], sets=tuple(asked["sets"]))
        except (KeyError, TypeError, ConfigError):
            return plan
        resolved = replace(plan.resolved, config=config, profile=str(self._found["profile"]))
        precision = plan.precision
        if config.precision.mode != precision.requested:
            precision = choose_precision(config.precision.mode, plan.device)
        workers = workers_under(config, plan)
        return replace(plan, request=request, resolved=resolved, precision=precision, workers=workers)

    def begin(self) -> None:
        """Forget the changes in a run that somebody has started or resumed.

        Raises:
            DiskError: The run directory can't be written.
        """
        if not self._found and (self._run / CHANGES).exists():
            self._write()

    def take(self, plan: Plan) -> None:
        """Write the settings in force as the run begins.

        Raises:
            DiskError: The run directory can't be written.
        """
        write_text(self._run / CONFIG, to_toml(plan.config), self.guard)

    def switch(self, plan: Plan) -> None:
        """Write the settings in force after a switch.

        Raises:
            DiskError: The run directory can't be written.
        """
        asked = {"profile": plan.request.profile, "sets": list(plan.request.sets)}
        self._found |= {"profile": plan.resolved.profile, "asked": asked}
        self._write()
        self.take(plan)

    def pause(self, paused: bool) -> None:
        """Note that the run is paused, or goes on; a disk that can't be written forgets it."""
        if paused != self.paused:
            self._found["paused"] = paused
            with contextlib.suppress(DiskError, RunDirectoryError):
                self._write()

    def _write(self) -> None:
        write_json(self._run / CHANGES, {"version": VERSION, **self._found}, self.guard)
