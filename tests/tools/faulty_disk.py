"""A run in a process of its own, on a disk whose calls fail, stop the process, or kill it."""

import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from mptui.lab.selftest import Fault, faulty_disk, kill_this_process
from mptui.processes.start import MAIN, Child, RunServer, function_of


def run_on_disk(
    server: RunServer, disk: dict[str, object], arguments: Sequence[object], output: Path
) -> Child:
    """Start `mptui ARGUMENTS`.

    `disk` has the fault: its `folder`, what a `Fault` takes, and `error`: None kills the process, "stop"
    stops it, and a number is the error of the call.
    """
    return server.run([json.dumps(disk), *arguments], output, call=f"{__name__}:main")


def main():
    """Run the program on the disk that comes first in `argv`."""
    disk = json.loads(sys.argv.pop(1))
    folder, error = disk.pop("folder"), disk.pop("error")
    strike = {None: kill_this_process, "stop": stop_this_process}.get(error) or failing(error)
    with faulty_disk(Path(folder), Fault(strike=strike, **{"when": "before", **disk})):
        function_of(MAIN)()


def failing(number):
    """Return an action that fails with an errno."""

    def strike():
        raise OSError(number, os.strerror(number))

    return strike


def stop_this_process():
    """Stop all threads until the process is continued; then the call proceeds."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
