"""Sends what the trackers of a run have not got, once it has ended: the work of `mptui sync`."""

import time
from pathlib import Path

from mptui.config.schema import RunConfig
from mptui.errors import ConfigError, DiskError, RunDirectoryError, TrackerError
from mptui.registry.trackers import chosen_trackers
from mptui.runs.trackers.feeder import ONCE
from mptui.runs.trackers.tracker_process import LOG, TrackerProcess, TrackerReport, install_hint, with_hint

_POLL_S = 0.05


def send_missing(run: Path, config: RunConfig) -> dict[str, int]:
    """Send what each tracker has not got; the others get theirs if one fails.

    Returns:
        The number of events with scalars that were sent, by tracker.

    Raises:
        ConfigError: No tracker is chosen, or the package of one is missing.
        RunDirectoryError: Another process feeds the trackers.
        DiskError: The run directory can't be written.
        TrackerError: A tracker failed, or did not answer.
    """
    if not chosen_trackers(config.logging.model_dump()):
        raise ConfigError(
            f"{run}: no tracker is chosen", hint="""name one: --set 'logging.trackers=["csv"]'"""
        )
    try:
        process = TrackerProcess(run, config, ONCE)
    except OSError as error:
        raise DiskError(f"{run}: {error.strerror or error}", hint="make its folder writable") from error
    reports: list[TrackerReport] = []
    try:
        while process.exit_code is None:
            time.sleep(_POLL_S)
            reports += process.reports()
        reports += process.reports()
    finally:
        process.end(0)
    _raise_for(run, reports, process.left)
    return {report.tracker: int(report.message) for report in sorted(reports, key=lambda each: each.tracker)}


def _raise_for(run: Path, reports: list[TrackerReport], left: set[str]) -> None:
    if any(report.kind == "busy" for report in reports):
        raise RunDirectoryError(
            f"{run}: another process feeds its trackers",
            hint="wait until the run, or that process, has ended",
        )
    told = {report.tracker: report for report in reports if report.kind != "done"}
    if not left:
        return
    lines = [with_hint(told[name]) if name in told else f"{name}: its process ended" for name in sorted(left)]
    missing = [name for name in sorted(left) if name in told and told[name].kind == "missing"]
    if missing:
        raise ConfigError("\n".join(lines), hint=install_hint(",".join(missing)))
    raise TrackerError("\n".join(lines), hint=f"see {run / LOG}; then try again: mptui sync {run}")
