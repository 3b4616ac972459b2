"""Runs a session for `run` and `resume`: handles signals, prints events and returns the exit code."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mptui.cli.console import Bars, Plain, Quiet, Renderer, final_lines
from mptui.cli.output import console, flat_error, print_json, print_next
from mptui.cli.train.signals import Signals
from mptui.engine.checkpoint.pointers import lost_words, steps_lost
from mptui.events import finite_json
from mptui.io.streams import drop_unwritten, is_gone
from mptui.processes.waiting import interruptible
from mptui.runs.session.shutdown import end_now, worker_left
from mptui.runs.store.directory import CHECKPOINTS
from mptui.text import clean, shell_word

if TYPE_CHECKING:
    from mptui.engine.ranks.group import Ranks
    from mptui.processes.rank_place import RankPlace
    from mptui.runs.planning.plan import Plan
    from mptui.runs.remote.feed import OwnFeed
    from mptui.runs.session.session import Session

POLL_S = 1.0
SOON_S = 3.0
"""Seconds of a wait for other processes that need no word."""
_INTERRUPTED = 130
ICONS = ("🚀", "📊")
ASCII_ICONS = ("on", "fp32")


def host(session: "Session", signals: Signals, *, as_json: bool, quiet: bool) -> int:
    """Run `session` to its end and return the exit code.

    A second SIGINT ends the process at once. Losing the terminal doesn't end the run.

    Raises:
        MptuiError: The error that ended the run, after all files were written.
    """
    events = session.listen()
    session.start()
    signals.attach(session.mailbox)
    try:
        _show(session, events, renderer_of(silent=as_json or quiet), signals)
    except KeyboardInterrupt:
        _tell_losses(steps_lost(session.run / CHECKPOINTS, session.steps))
        os._exit(_INTERRUPTED)  # sys.exit would wait for a save
    result = session.result
    if session.trackers.unsent:
        names, word = ", ".join(session.trackers.unsent), shell_word(session.run)
        typer.echo(
            clean(f"warning: not all has been sent to {names}; to send it: mptui sync {word}", 4096), err=True
        )
    _tell_losses(result.summary.get("lost"))
    if result.bug is not None:
        raise result.bug
    if result.error is not None:
        result.error.document = finite_json(result.summary)
        raise result.error
    tell_end(result.summary, session.run, result.exit_code, as_json=as_json, quiet=quiet)
    if worker_left():
        end_now(result.exit_code)
    return result.exit_code


def _tell_losses(lost: dict[str, int | None] | None) -> None:
    if lost:
        with contextlib.suppress(OSError):  # the exit code tells of it, too
            typer.echo(f"warning: {lost_words(lost)}", err=True)


def joined(plan: "Plan", place: "RankPlace | None", signals: Signals) -> "Ranks":
    """Join the other processes of the run, if a launcher started several; waits for all of them.

    Says whom it waits for if that takes more than `SOON_S`; a signal to stop ends the process at once.

    Raises:
        RankError: They can't be reached.
        ConfigError: Two of them have the same GPU.
    """
    import torch

    from mptui.engine.ranks.group import Arrivals, join

    device = torch.device(plan.device.torch_name)
    if place is None:
        return join(place, device)
    arrivals = Arrivals(place)
    look = told_wait(lambda: str(arrivals), signals)
    return interruptible(lambda: join(place, device, arrivals, uuid=plan.device.uuid), look)


def told_wait(words: Callable[[], str], signals: Signals) -> Callable[[], None]:
    """Return what to call again and again in a wait: it says `words` after `SOON_S`, and if they change.

    A signal to stop ends the process: there is nothing to save, and the wait itself can't be ended.
    """
    said, since = "", time.monotonic()

    def look() -> None:
        nonlocal said
        if signals.stop is not None:
            end_now(128 + signals.stop)
        if time.monotonic() - since > SOON_S and (now := words()) != said:
            said = now
            typer.echo(clean(said, 400), err=True)

    return look


def follow(plan: "Plan", ranks: "Ranks", signals: Signals) -> int:
    """Train as a rank that is not the first, and return the exit code.

    Raises:
        MptuiError: The error of this rank that ended the run.
    """
    from mptui.runs.session.member import Member

    member = Member(plan, ranks, force_compile=plan.resolved.compile_forced)
    signals.attach(member.mailbox)
    return member.run()


def tell_end(summary: dict[str, Any], run: Path, code: int, *, as_json: bool, quiet: bool) -> None:
    """Print the result of a run on stdout and a next command on stderr.

    Raises:
        OutputError: The run completed, but its JSON document can't be written.
    """
    if as_json:
        with contextlib.nullcontext() if code == 0 else _discard_unwritable():
            print_json(finite_json(flat_error(summary)))
        return
    with _discard_unwritable():  # the exit code is the run's
        for line in final_lines(summary):
            typer.echo(clean(line))
    if not quiet:
        print_next(_next_step(run, code))


@contextlib.contextmanager
def _discard_unwritable() -> Iterator[None]:
    """Discard output that stdout doesn't accept."""
    try:
        yield
    except OSError:
        drop_unwritten(sys.stdout)


def renderer_of(*, silent: bool) -> Renderer:
    """Return the renderer for this console."""
    out = console(file=sys.stderr)
    if silent:
        return Quiet(out)
    encoding = (sys.stderr.encoding or "").lower()
    icons = ICONS if encoding.startswith("utf") else ASCII_ICONS
    return Bars(out, icons) if sys.stderr.isatty() else Plain(out, icons)


def _show(session: "Session", events: "OwnFeed", renderer: Renderer, signals: Signals) -> None:
    """Show events until the run has ended; without a terminal, only wait for the end.

    Events are polled: waking this thread for each would take the GIL and a CPU from the training thread.
    """
    ended = False
    if isinstance(renderer, Bars):
        signals.catch_suspend()
    try:
        while not ended and not is_gone(sys.stderr):
            ended = session.wait(renderer.every_s)
            if signals.take_suspend():
                suspend(renderer)
            for event in events.drain():
                renderer.handle(event)
        renderer.close()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third SIGINT ends a write to a stalled terminal
        renderer.close()
        raise
    while not session.wait(POLL_S):  # an unlimited wait would block signal handlers
        pass


def suspend(renderer: Renderer) -> None:
    """Stop this process, with all threads, until the shell continues it."""
    renderer.close()
    typer.echo("training is suspended; to continue: fg", err=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    renderer.open()


def _next_step(run: Path, code: int) -> str:
    if code == 0:
        return "compare with other runs: mptui runs"
    return f"resume it: mptui resume {shell_word(run)}"
