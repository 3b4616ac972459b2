"""Hosts a session in this process for `run` and `resume`: signals in, events out, an exit code at the end."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli.console import Bars, Plain, Quiet, Renderer, final_lines
from mptui.cli.output import console, print_json, print_next
from mptui.cli.train.signals import Signals
from mptui.codec import finite_json
from mptui.runs.session.shutdown import end_now, worker_left
from mptui.streams import drop_unwritten, is_gone
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.runs.session.session import Session
    from mptui.runs.view.event_buffer import EventBuffer

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
        _show(session, events, renderer_of(silent=as_json or quiet), signals)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)  # in order, it would wait for a save
    result = session.result
    if result.bug is not None:
        raise result.bug
    if result.error is not None:
        if as_json:
            with _losing_output():  # the error and its exit code count, whoever reads the document
                print_json(finite_json(result.summary))
        raise result.error
    tell_end(result.summary, session.run, result.exit_code, as_json=as_json, quiet=quiet)
    if worker_left():
        end_now(result.exit_code)
    return result.exit_code


def tell_end(summary: dict[str, Any], run: Path, code: int, *, as_json: bool, quiet: bool) -> None:
    """Say on stdout how a run ended, and on stderr what to do next.

    Raises:
        OutputError: The document of a run that completed could not be written.
    """
    if as_json:
        with contextlib.nullcontext() if code == 0 else _losing_output():
            print_json(finite_json(summary))
        return
    with _losing_output():  # nobody is there to read it, and the exit code is the run's all the same
        for line in final_lines(summary):
            typer.echo(clean(line))
    if not quiet:
        print_next(_next_step(run, code))


@contextlib.contextmanager
def _losing_output() -> Iterator[None]:
    """Drop what stdout does not take."""
    try:
        yield
    except OSError:
        drop_unwritten(sys.stdout)


def renderer_of(*, silent: bool) -> Renderer:
    """What shows events on this console."""
    out = console(file=sys.stderr)
    if silent:
        return Quiet(out)
    encoding = (sys.stderr.encoding or "").lower()
    icons = ICONS if encoding.startswith("utf") else ASCII_ICONS
    return Bars(out, icons) if sys.stderr.isatty() else Plain(out, icons)


def _show(session: "Session", events: "EventBuffer", renderer: Renderer, signals: Signals) -> None:
    """Show what happens until the run has ended; only wait for that once the terminal is gone.

    What happens is fetched now and then, and wakes nobody: each wake takes Python's lock and a processor from
    the thread that trains.
    """
    ended = False
    if isinstance(renderer, Bars):
        signals.catch_suspend()
    try:
        while not ended and not is_gone(sys.stderr):
            ended = session.wait(renderer.every_s)
            if signals.take_suspend():
                _suspend(renderer)
            for event in events.drain():
                renderer.handle(event)
        renderer.close()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third one ends even a write to a stalled terminal
        renderer.close()
        raise
    while not session.wait(POLL_S):  # a wait without a limit would keep signals from their handlers
        pass


def _suspend(renderer: Renderer) -> None:
    """Stand still, with all threads, until the shell lets this process go on."""
    renderer.close()
    typer.echo("suspended, and training with it; go on: fg", err=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    renderer.open()


def _next_step(run: Path, code: int) -> str:
    if code == 0:
        return "compare with other runs: mptui runs"
    return f"go on with it: mptui resume {shell_word(run)}"
