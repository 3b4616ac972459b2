"""`mptui monitor`: load, memory, power and users of each device, live or as CSV."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from mptui import text as fmt
from mptui.cli import options as o
from mptui.cli.output import TableColumn, console, fitting, lines

if TYPE_CHECKING:
    from mptui.events import DeviceSample
    from mptui.hardware.sampler import DeviceSampler
    from mptui.io.files import LineFile

_LOOK_S = 0.5
"""Seconds between two looks for new samples."""


class MonitorOptions(o.Options):
    """How the devices are watched."""

    csv: Path | None = o.option(None, "FILE", "Also append each sample of each device to this file.")
    interval: float = o.option(1.0, "SECONDS", "Time between two samples.", min=0.1)


def monitor(options: MonitorOptions) -> int:
    """Show the load of each device, and who is on it, until ctrl+c.

    A live table in a terminal, else a line for each sample. Devices are those that `mptui detect` shows.
    """
    from mptui.hardware.devices import find_machine
    from mptui.hardware.other_gpus import amd_is_there
    from mptui.hardware.sampler import DeviceSampler

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            stack.callback(signal.signal, number, signal.signal(number, _leave))
        file = None if options.csv is None else stack.enter_context(_csv_file(options.csv))
        machine = find_machine(with_torch=amd_is_there())  # torch alone lists AMD GPUs
        samplers = [
            DeviceSampler(d.torch_name, uuid=d.uuid, interval_s=options.interval) for d in machine.devices
        ]
        for sampler in samplers:
            stack.callback(sampler.stop)
            sampler.start()
        _follow(_looks(samplers, min(options.interval, _LOOK_S)), file)
    return 0


def _leave(number: int, _: FrameType | None) -> None:
    raise typer.Exit(128 + number)


@contextmanager
def _csv_file(path: Path) -> Iterator["LineFile"]:
    """Open the file to append to.

    Raises:
        ConfigError: It has other content.
        DiskError: It can't be written.
    """
    from mptui.errors import ConfigError, DiskError
    from mptui.hardware.describe import csv_header
    from mptui.io.files import LineFile
    from mptui.io.written_files import disk_hint

    try:
        file = LineFile(path, csv_header())
        try:
            if file.first_line() != csv_header():
                raise ConfigError(
                    f"--csv {path}: this file has other content", hint="name a new file, or remove this one"
                )
            yield file
        finally:
            file.close()
    except OSError as error:
        hint = disk_hint(error, path, "name another file with --csv")
        raise DiskError(f"{path}: {error.strerror}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class _Look:
    """The latest sample of each device, those of them that are new, and why others have none."""

    latest: list["DeviceSample"]
    fresh: list["DeviceSample"]
    problems: list[str]


def _looks(samplers: list["DeviceSampler"], look_s: float) -> Iterator[_Look]:
    times: dict[str, float] = {}
    while True:
        time.sleep(look_s)
        latest = [sample for sampler in samplers if (sample := sampler.latest()) is not None]
        fresh = [sample for sample in latest if sample.time != times.get(sample.device)]
        times |= {sample.device: sample.time for sample in fresh}
        problems = [problem for sampler in samplers if (problem := sampler.problem()) is not None]
        yield _Look(latest, fresh, problems)


def _follow(looks: Iterator[_Look], file: "LineFile | None") -> None:
    """Show the looks, and append new samples to the file."""
    from mptui.hardware.describe import csv_row

    with _shown() as show:
        for look in looks:
            if file is not None and look.fresh:
                file.append([csv_row(sample) for sample in look.fresh])
            show(look)


@contextmanager
def _shown() -> Iterator[Callable[[_Look], None]]:
    """A function that shows a look: in a table that is redrawn, or in lines without a terminal."""
    out = console()
    if not out.is_terminal:
        missing = 0

        def print_lines(look: _Look) -> None:
            nonlocal missing
            for sample in look.fresh:
                typer.echo(line_of(sample))
            if len(look.problems) != missing:
                missing = len(look.problems)
                for problem in look.problems:
                    typer.echo(problem, err=True)

        yield print_lines
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=out, auto_refresh=False) as live:

        def redraw(look: _Look) -> None:
            rows = [*table_lines(look.latest, out.width), *look.problems]
            live.update(Text("\n".join(rows), no_wrap=True, overflow="ellipsis"), refresh=True)

        yield redraw


def table_lines(samples: list["DeviceSample"], width: int | None) -> list[str]:
    """Lay out the devices, and below them the processes on each; columns that don't fit are omitted.

    Args:
        samples: The latest sample of each device.
        width: Terminal cells; None: any.
    """

    def column(
        heading: str, words: Callable[["DeviceSample"], str], right: bool = True, leave: int = 0
    ) -> TableColumn:
        return TableColumn(heading, [words(sample) for sample in samples], right, leave)

    columns = [
        column("device", lambda s: s.device, right=False),
        column("name", lambda s: s.name, right=False, leave=4),
        column("busy", lambda s: _percent(s.utilisation)),
        column("memory busy", lambda s: _percent(s.memory_utilisation), leave=5),
        column("memory", _memory),
        column("power", _power, leave=2),
        column("temp", lambda s: fmt.filled("{:,.0f} °C", s.temperature_c), leave=1),
        column("clock", lambda s: fmt.filled("{:,.0f} MHz", s.sm_clock_mhz), leave=6),
        column("memory clock", lambda s: fmt.filled("{:,.0f} MHz", s.memory_clock_mhz), leave=7),
        column("throttled by", lambda s: ", ".join(s.throttle) or fmt.UNKNOWN, right=False, leave=3),
    ]
    shown = lines(fitting(columns, width))
    held = [(s.device, process) for s in samples for process in s.processes or ()]
    if not held:
        return shown
    unknown = fmt.UNKNOWN
    people = [
        TableColumn("on", [device for device, _ in held]),
        TableColumn("pid", [str(process.pid) for _, process in held], right=True),
        TableColumn("user", [process.user or unknown for _, process in held]),
        TableColumn("memory", [fmt.size(process.memory) for _, process in held], right=True),
        TableColumn("program", [process.command or unknown for _, process in held], leave=1),
    ]
    return [*shown, "", *lines(fitting(people, width))]


def line_of(sample: "DeviceSample") -> str:
    """Return a sample as a line with the time, for output that is not a terminal."""
    busy = f"busy {_percent(sample.utilisation)}"
    words = [fmt.clock(sample.time, seconds=True), sample.device, busy, f"memory {_memory(sample)}"]
    if sample.power_w is not None:
        words.append(_power(sample))
    if sample.temperature_c is not None:
        words.append(fmt.filled("{:,.0f} °C", sample.temperature_c))
    if sample.throttle:
        words.append(f"throttled by {', '.join(sample.throttle)}")
    for process in sample.processes or ():
        who = f"{process.command or 'pid'} {process.pid} of {process.user or 'an unknown user'}"
        words.append(f"{who}: {fmt.size(process.memory)}")
    return "  ".join(words)


def _percent(fraction: float | None) -> str:
    return fmt.UNKNOWN if fraction is None else f"{100 * fraction:.0f} %"


def _memory(sample: "DeviceSample") -> str:
    return f"{fmt.size(sample.memory_used)} of {fmt.size(sample.memory_total)}"


def _power(sample: "DeviceSample") -> str:
    if sample.power_w is None:
        return fmt.UNKNOWN
    return f"{sample.power_w:.0f} of {fmt.count(sample.power_limit_w)} W"
