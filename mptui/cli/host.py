"""Hosts a session in this process for `run` and `resume`: signals in, events out, an exit code at the end."""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from mptui.cli.console import Bars, Plain, Quiet, Renderer, final_lines
from mptui.cli.output import console, print_json, print_next
from mptui.events import finite_json
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.runs.session import Session

POLL_S = 0.1
ICONS = ("🚀", "📊")
ASCII_ICONS = ("on", "fp32")


def host(session: "Session", *, as_json: bool, quiet: bool) -> int:
    """Run `session` to its end and return the exit code.

    The first SIGINT or SIGTERM saves and stops, a second SIGINT ends at once. SIGHUP ends no run.

    Raises:
        MptuiError: What ended the run, after everything was written.
    """
    renderer = _renderer(silent=as_json or quiet)
    events = session.listen()
    _catch_signals(session)
    session.start()
    try:
        ended = False
        while not ended:
            ended = session.finished
            events.wait(POLL_S)
            for event in events.drain():
                renderer.show(event)
    finally:
        renderer.close()
    result = session.result
    if result.bug is not None:
        raise result.bug
    if as_json:
        print_json(finite_json(result.summary))
    if result.error is not None:
        raise result.error
    if not as_json:
        for line in final_lines(result.summary):
            typer.echo(clean(line))
        if not quiet:
            print_next(_next_step(session.run, result.exit_code))
    return result.exit_code


def _renderer(*, silent: bool) -> Renderer:
    out = console(file=sys.stderr)
    if silent:
        return Quiet(out)
    encoding = (sys.stderr.encoding or "").lower()
    icons = ICONS if encoding.startswith("utf") else ASCII_ICONS
    return Bars(out, icons) if sys.stderr.isatty() else Plain(out, icons)


def _catch_signals(session: "Session") -> None:
    """Handlers set a flag and nothing else; the run looks at it in every phase."""

    def stop(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and session.mailbox.stop_asked:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            raise KeyboardInterrupt
        session.mailbox.stop(number)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _next_step(run: Path, code: int) -> str:
    if code == 0:
        return "compare with other runs: mptui runs"
    return f"go on with it: mptui resume {run}"
