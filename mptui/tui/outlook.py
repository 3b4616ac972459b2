"""What the start of a selection would train, and for how long: for the screens before a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mptui.config.keys import value_of, with_values
from mptui.config.profiles import list_profiles
from mptui.config.resolve import Resolved
from mptui.config.schema import RunConfig
from mptui.errors import MptuiError
from mptui.hardware.advice import choose_precision
from mptui.hardware.devices import Device, tightest
from mptui.registry.names import BUILT_IN
from mptui.registry.own_code import is_own
from mptui.runs.listing.expected_time import expected_time, time_words
from mptui.runs.listing.rows import RunRow, unstamped
from mptui.runs.planning.plan import filled
from mptui.text import clean, counted
from mptui.tui.look import Outlook
from mptui.tui.selection import Picked, about_data, data_of, first_pick, resolved


def outlook(
    picked: Picked, devices: Sequence[Device], rows: Sequence[RunRow], environ: Mapping[str, str]
) -> Outlook:
    """Tell what a start of a selection would train; reads the disk.

    Args:
        picked: The selection.
        devices: Its devices.
        rows: The earlier runs, newest first.
        environ: Environment, for settings and profiles.
    """
    device = tightest(devices)
    try:
        task, _ = about_data(*data_of(picked, environ))
        resolution = resolved(picked, task, environ)
        config = filled(resolution, device)[0].config
    except MptuiError as error:
        return Outlook(fault=error.message)
    data = config.data
    is_built_in = data.path is None and data.name == BUILT_IN
    time, _ = expected(config, devices, rows, samples=None)
    name = "your network" if is_own(config.model.name) else str(config.model.name)
    return Outlook(
        network=clean(name, 60),
        data="built-in shapes" if is_built_in else clean(data.name or _end_of(str(data.path)), 60),
        epochs=counted(config.training.epochs, "epoch"),
        time_there=f"{time} on {_called(devices)}" if time else "",
    )


def chosen_and_expected(
    resolution: Resolved, devices: Sequence[Device], rows: Sequence[RunRow], samples: int | None
) -> tuple[Resolved, tuple[str, str]]:
    """Return a run with what its data and device choose, and its expected time; reads the disk.

    Args:
        resolution: The run; returned unchanged where it can't be completed, as its start will tell.
        devices: Its devices.
        rows: The earlier runs, newest first.
        samples: Number of training samples; None: not known.
    """
    try:
        whole = filled(resolution, tightest(devices))[0]
    except MptuiError:
        return resolution, ("", "")
    return whole, expected(whole.config, devices, rows, samples)


def with_choices(resolution: Resolved, whole: Resolved) -> Resolved:
    """Return a run with what was chosen for it, or for another one of the same data, and is not set in it.

    Args:
        resolution: The run.
        whole: Result of `chosen_and_expected`, maybe of a run before a change.
    """
    chosen = {
        key: source
        for key, source in whole.sources.items()
        if source.startswith("chosen") and resolution.sources[key].startswith("default")
    }
    config = with_values(resolution.config, {key: value_of(whole.config, key) for key in chosen})
    return replace(resolution, config=config, sources={**resolution.sources, **chosen})


def expected(
    config: RunConfig, devices: Sequence[Device], rows: Sequence[RunRow], samples: int | None
) -> tuple[str, str]:
    """Return the time that a run would take, "" if it is not known, and how that is known, or why not.

    Args:
        config: The run, with all that is chosen.
        devices: Its devices.
        rows: The earlier runs, newest first.
        samples: Number of training samples; None: not known.
    """
    device = tightest(devices)
    if samples is None and config.data.name == BUILT_IN:
        samples = config.data.samples
    found = expected_time(rows, config, device, ranks=len(devices), samples=samples)
    if found is not None:
        known_from = f"as fast as {clean(unstamped(found.run), 60)}" if found.run else "training.time"
        return time_words(found.seconds), known_from
    used = choose_precision(config.precision.mode, device).used
    network = "your network" if is_own(config.model.name) else config.model.name
    return "", f"no run of {clean(str(network), 40)} in {used} here"


def outlook_of_start(
    advised: str,
    devices: Sequence[Device],
    rows: Sequence[RunRow],
    last: Mapping[str, str],
    environ: Mapping[str, str],
) -> Outlook:
    """Tell what the picker would start as it opens; see `first_pick`."""
    return outlook(first_pick(list_profiles(environ), advised, devices, last), devices, rows, environ)


def _end_of(path: str) -> str:
    """Return the name of a folder, which the list of runs has too: a whole path has no room."""
    return Path(path).name or path


def _called(devices: Sequence[Device]) -> str:
    if len(devices) > 1:
        return f"{len(devices)} GPUs"
    return "this CPU" if devices[0].kind == "cpu" else devices[0].torch_name
