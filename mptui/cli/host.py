"""Hosts a session in this process for `run` and `resume`: signals in, events out, an exit code at the end."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli.console import Bars, Plain, Quiet, Renderer, final_lines
from mptui.cli.output import console, print_json, print_next
from mptui.cli.signals import Signals
from mptui.codec import finite_json
from mptui.runs.leaving import end_now, worker_left
from mptui.text import clean

if TYPE_CHECKING:
    from mptui.runs.buffer import EventBuffer
    from mptui.runs.session import Session

POLL_S = 1.0
_INTERRUPTED = 130
ICONS = ("🚀", "📊")
ASCII_ICONS = ("on", "fp32")


def host(session: "Session", signals: Signals, *, as_json: bool, quiet: bool) -> int:
    """Run `session` to its end and return the exit code.

    A second SIGINT ends the process at once. A terminal that is gone ends nothing.

    Raises:
        MptuiError: What ended the run, after everything was written.
    """
    events = session.listen()
    session.start()
    signals.attach(session.mailbox)
    try:
        _show(session, events, renderer_of(silent=as_json or quiet))
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)  # in order, it would wait for a save
    result = session.result
    if result.bug is not None:
        raise result.bug
    if result.error is not None:
        if as_json:
            print_json(finite_json(result.summary))
        raise result.error
    tell_end(result.summary, session.run, result.exit_code, as_json=as_json, quiet=quiet)
    if worker_left():
        end_now(result.exit_code)
    return result.exit_code


def tell_end(summary: dict[str, Any], run: Path, code: int, *, as_json: bool, quiet: bool) -> None:
    """Say on stdout how a run ended, and on stderr what to do next."""
    if as_json:
        print_json(finite_json(summary))
        return
    try:
        for line in final_lines(summary):
            typer.echo(clean(line))
        if not quiet:
            print_next(_next_step(run, code))
    except OSError:  # nobody is there to read it, and the exit code is the run's all the same
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())


def renderer_of(*, silent: bool) -> Renderer:
    """What shows events on this console."""
    out = console(file=sys.stderr)
    if silent:
        return Quiet(out)
    encoding = (sys.stderr.encoding or "").lower()
    icons = ICONS if encoding.startswith("utf") else ASCII_ICONS
    return Bars(out, icons) if sys.stderr.isatty() else Plain(out, icons)


def _show(session: "Session", events: "EventBuffer", renderer: Renderer) -> None:
    """Show what happens until the run has ended; only wait for that once the terminal is gone.

    What happens is fetched now and then, and wakes nobody: each wake takes Python's lock and a processor from
    the thread that trains.
    """
    try:
        ended = False
        while not ended:
            ended = session.wait(renderer.every_s)
            for event in events.drain():
                renderer.show(event)
        renderer.close()
    except OSError:
        while not session.wait(POLL_S):  # a wait without a limit would keep signals from their handlers
            pass


def _next_step(run: Path, code: int) -> str:
    if code == 0:
        return "compare with other runs: mptui runs"
    return f"go on with it: mptui resume {run}"
