"""What makes a program quick that is a fork of the process that has imported this module."""

import inspect
import sys
import traceback

import typer

from mptui.cli import main
from mptui.engine.checkpoint import saver
from mptui.runs.session import watchdog


def frames(_context=1):
    """The frames of this thread without their sources."""
    walked = traceback.walk_stack(sys._getframe(1))
    return [
        inspect.FrameInfo(frame, frame.f_code.co_filename, line, frame.f_code.co_name, None, None)
        for frame, line in walked
    ]


# typer builds all commands in 60 ms
main.app = typer.main.get_command(main.app)  # type: ignore[assignment]
# torch's elastic agent looks up its callers, for which Python reads the sources of all: a second
inspect.stack = frames
# a disk that a test has filled has room again at the next try, and a test waits for what a pulse tells
saver.RETRY_S = (0.1, saver.RETRY_S[1])
watchdog.PULSE_S = 0.2
