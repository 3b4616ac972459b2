"""What makes a program quick that is a fork of the process that has imported this module."""

import inspect
import sys
import traceback
from functools import partial

import typer

from mptui.cli import main
from mptui.cli.train import host
from mptui.engine.checkpoint import saver
from mptui.hardware.sampler import DeviceSampler
from mptui.runs.session import member, session, watchdog


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
# what a test waits for: the next try of a disk that has room again, a signal that is seen, a sample, a pulse
saver.RETRY_S = (0.1, saver.RETRY_S[1])
host.POLL_S = member.POLL_S = 0.1
session.DeviceSampler = partial(DeviceSampler, interval_s=0.4)  # type: ignore[assignment, attr-defined]
watchdog.PULSE_S = 0.2
