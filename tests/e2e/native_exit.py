"""The program, whose processes end as a library or a person ends them: without a word."""

import os
import signal

from mptui.cli.main import main as program

ENDS = signal.SIGRTMIN


def main():
    """Run it; a signal ends its child as `exit()` of native code does, with code 0."""
    os.register_at_fork(after_in_child=lambda: signal.signal(ENDS, lambda *_: os._exit(0)))
    program()


def under_a_shell():
    """Run it as the child of a process that keeps the terminal, as a shell does, and outlives it."""
    if pid := os.fork():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.waitpid(pid, 0)
        signal.pause()
    program()
