"""Trains a run in this process, for `run` and `resume`."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mptui.cli import options as o
from mptui.cli.train.processes import Ready
from mptui.cli.train.signals import Signals
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.processes.rank_place import rank_place

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Plan, Request


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The directory that a run is recorded in.

    Attributes:
        path: The directory.
        goes_on: Whether the run goes on from what is in it.
        for_mistakes: Whether it stays after a mistake of the person's, though nothing was trained.
    """

    path: Path
    goes_on: bool
    for_mistakes: bool


def train(
    request: "Request",
    check: "Callable[[Plan], None]",
    place_of: "Callable[[Plan], RunPlace]",
    ready: Ready,
    output: o.QuietOutput,
) -> int:
    """Train, and return the exit code.

    Args:
        request: What is trained.
        check: Refuses a plan whose inputs are missing; called on all ranks, before they meet.
        place_of: Returns, or makes, the run's directory; called on the first rank.
        ready: Called with the directory.
        output: What is printed.
    """
    began = time.monotonic()
    signals = Signals()  # before torch is imported, which takes seconds
    from mptui.hardware.host import keep_freed_memory
    from mptui.runs.planning.plan import plan_run

    keep_freed_memory()
    rank = rank_place(os.environ)
    plan = plan_run(request, place=rank)

    from mptui.cli.train.host import follow, host, joined
    from mptui.runs.session.session import Session
    from mptui.runs.store.files import discard_unstarted

    check(plan)
    signals.leave_if_stopped()
    ranks = joined(plan, rank, signals)
    if not ranks.is_first:
        return follow(plan, ranks, signals)
    place = place_of(plan)
    ready(place.path)
    forced = plan.resolved.compile_forced
    session = Session(
        plan,
        place.path,
        resume=place.goes_on,
        force_compile=forced,
        ranks=ranks,
        begun_s=time.monotonic() - began,
    )
    try:
        return host(session, signals, as_json=output.as_json, quiet=output.quiet)
    except (ConfigError, DataError, OwnCodeError):
        if not place.for_mistakes:
            discard_unstarted(place.path)
        raise
