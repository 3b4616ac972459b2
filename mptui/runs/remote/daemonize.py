"""Detaches a training process from its terminal, so that closing the shell doesn't end it."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from mptui.errors import ConfigError
from mptui.regular import open_regular

LOG = "console.log"
"""File in the run directory for the output of a detached run."""

_LAUNCHERS = {"SLURM_JOB_ID": "SLURM", "TORCHELASTIC_RUN_ID": "torchrun"}


def launcher(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of a launcher that ends all processes of its job; None if there is none."""
    return next((name for variable, name in _LAUNCHERS.items() if environ.get(variable)), None)


def environ_outside() -> dict[str, str]:
    """Return the environment without what tells of a launcher: for a child that this process waits for."""
    return {name: value for name, value in os.environ.items() if name not in _LAUNCHERS}


def check_detach(environ: Mapping[str, str] = os.environ) -> None:
    """Check that a run can be detached.

    Raises:
        ConfigError: SLURM or torchrun started this process.
    """
    if (name := launcher(environ)) is not None:
        raise ConfigError(
            f"can't detach under {name}, which ends all processes of a job",
            hint="use `mptui run` without --detach",
        )


def leave_terminal(log: Path) -> None:
    """Detach from the terminal: redirect output to `log`, and ignore SIGHUP.

    Raises:
        OSError: The log can't be written.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    printed = open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    for number, target in ((0, nowhere), (1, printed), (2, printed)):
        os.dup2(target, number)
    os.close(nowhere)
    os.close(printed)
    leave_session()


def leave_session() -> None:
    """Start a new session without a terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # it is a session leader already
        os.setsid()
