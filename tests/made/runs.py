"""Small runs that tests train."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mptui.processes.rank_place import RankPlace
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run

LIMIT_S = 300.0
QUIET: dict[str, Any] = {"logging.pictures": 0, "guards.numerics": "off"}
"""Writes no pictures and counts no numbers, which takes a quarter of the time of a small run."""
UNET: dict[str, Any] = {
    **QUIET,
    "model.name": "unet",
    "model.width": 2,
    "model.depth": 1,
    "data.name": "shapes",
    "data.image_size": 16,
    "data.samples": 32,
    "data.workers": 0,
    "training.batch_size": 8,
    "training.warmup_epochs": 0,
    "logging.step_interval_s": 0,
    "hardware.device": "cpu",
    "speed.compile": "off",
}
"""Four steps in an epoch."""


def request_of(
    settings: Mapping[str, Any],
    profile: str | None = "stable",
    *,
    sets: Sequence[str] = (),
    trust_code: bool = False,
) -> Request:
    """Return the request for a run with these settings by their keys; `sets`: values of --set."""
    flags = {key: ("test", value) for key, value in settings.items()}
    return Request(profile, flags, tuple(sets), os.environ, trust_code)


def plan_of(
    settings: Mapping[str, Any],
    profile: str | None = "stable",
    *,
    place: RankPlace | None = None,
    **options: Any,
) -> Plan:
    """Return the plan of such a request; `place`: of which rank."""
    return plan_run(request_of(settings, profile, **options), place=place)


def session_of(
    run: Path, settings: Mapping[str, Any], *, resume: bool = False, profile: str = "stable", **options: Any
) -> Session:
    """Return a session of a run, whose folder is made unless it is resumed."""
    if not resume:
        create_run(run.parent, "test", settings["model.name"], run.name)
    return Session(plan_of(settings, profile), run, resume=resume, **options)


def ended(session: Session) -> Session:
    """Train to the end."""
    session.start()
    assert session.wait(LIMIT_S)
    return session


def trained(run: Path, settings: Mapping[str, Any], *, resume: bool = False) -> Session:
    """Train a new run, or go on with one, to the end."""
    return ended(session_of(run, settings, resume=resume))


def moved(made: Path, folder: Path) -> Path:
    """Copy a folder of runs and their data to another one, where the runs find the data beside them."""
    shutil.copytree(made, folder, symlinks=True, dirs_exist_ok=True)
    for config in folder.glob("*/run.toml"):
        config.write_text(config.read_text().replace(str(made), str(folder)))
    return folder
