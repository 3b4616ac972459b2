"""The program, with forks of it for all that it starts as interpreters: none imports torch once more.

Fork servers of a run are forks of the process. Ranks, runs that a screen starts as processes of their own and
the doctor's test of torch are forks of one that was forked before the program began, and so has no threads.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from mptui.processes import start as processes_start
from mptui.processes.start import MAIN, ForkServer, end_with_parent, function_of, mptui_command
from tests.program import Program, server

FORKING = "tests.forks:main"

_ASKED_BY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main():
    """Run the program."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from mptui.lab.doctor import machine
    from mptui.tui import sources as isolated

    processes_start.start = _Keeper  # type: ignore[assignment]
    keeper = ForkServer(())
    processes_start.start = _Fork  # type: ignore[assignment]
    subprocess_handler.Popen = partial(_rank, keeper)  # type: ignore[attr-defined, assignment]
    run = partial(_isolated_run, keeper)
    isolated.subprocess = SimpleNamespace(Popen=run, PIPE=None, DEVNULL=None)  # type: ignore[attr-defined, assignment]
    machine.start = partial(_probe, keeper)  # type: ignore[attr-defined]
    function_of(MAIN)()


class _Fork:
    """A fork of this process that calls a function; as far as a fork server goes, like `Popen`."""

    def __init__(self, call, *words, stdin, stderr, env):
        self.pid = os.fork()
        if self.pid:
            return
        try:
            os.setsid()
            for number in _ASKED_BY:
                signal.signal(number, signal.SIG_DFL)
            os.dup2(stdin.fileno(), 0)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = [call, *words]
            function_of(call)()
        finally:
            os._exit(1)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        os.waitpid(self.pid, 0)


def start_server(call, _parent, *preload, stdin, stderr, env):
    """Start a fork server that is a fork of that of the tests, with the module path of this process."""
    assert stderr == subprocess.DEVNULL
    own = server()
    words = (json.dumps(sys.path), call, str(own.pid), *preload)
    return own.start("tests.forks:serve", *words, streams=(stdin.fileno(), None, None), environ=env)


def serve():
    """Be a fork server that was started so."""
    sys.path[:] = json.loads(sys.argv.pop(1))
    function_of(sys.argv.pop(1))()


class _Keeper:
    """A process for a fork server that outlives this one, and lasts until nobody can ask any more.

    It blocks signals, and so do its forks at first: those to all processes of a job are for these alone.
    """

    def __init__(self, call, *_, stdin, stderr, env):
        if os.fork():
            return
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED_BY)
            os.dup2(stdin.fileno(), 0)
            for output in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            processes_start.end_with_parent = _end_with_parent
            sys.argv = [call, "0"]
            function_of(call)()
        finally:
            os._exit(1)


def _end_with_parent(parent):
    if parent:
        end_with_parent(parent)


def _rank(keeper, *, args, env, stdout, stderr, start_new_session):
    """Start a rank; its PID is the target of a link beside its log, named after the rank and the start."""
    assert start_new_session
    streams = (None, stdout.fileno(), stderr.fileno())
    process = keeper.start("tests.forks:rank", *words(args), streams=streams, environ=env)
    link = Path(stderr.name).with_name(_link(env["RANK"], env["TORCHELASTIC_RESTART_COUNT"]))
    link.unlink(missing_ok=True)
    link.symlink_to(str(process.pid))
    return process


def rank():
    """Be a rank."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED_BY)
    function_of(MAIN)()


def rank_pids(folder, start=0):
    """The processes of the ranks of a start, from 0, that a launcher has written into its folder."""
    found = {}
    for path in folder.glob(_link("*", start)):
        with suppress(FileNotFoundError):
            found[int(path.name.partition("-")[0])] = int(path.readlink().name)
    return found


def _link(rank, start):
    return f"{rank}-{start}.pid"


def _isolated_run(keeper, command, *, env, **_):
    return Program(*words(command), environ=env, call="tests.forks:isolated", forks=keeper)


def _probe(keeper, call, *, env, **_):
    return nullcontext(Program(environ=env, call=call, forks=keeper))


def isolated():
    """Be a run that a screen has started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED_BY)
    main()


def words(command):
    """The arguments in a command line of the program."""
    start = mptui_command()
    assert list(command[: len(start)]) == start
    return command[len(start) :]
