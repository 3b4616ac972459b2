"""Sides of a relay that are forks of a process, which has imported torch, in place of interpreters."""

import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from types import SimpleNamespace

from benchmarks import relay
from benchmarks.subjects import Case


class Fork:
    """`python -m MODULE` as a fork; as far as a relay goes, like `Popen`."""

    def __init__(self, words, *, env, stdin, stdout, stderr, preexec_fn):
        assert stdin == subprocess.DEVNULL  # as that of this process
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            preexec_fn()
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            os.environ.update(env)
            sys.argv = words[2:]
            runpy.run_module(words[2], run_name="__main__")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:  # noqa: BLE001 - as an interpreter does at its end
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self):
        os.waitpid(self.pid, 0)


def relayed() -> None:
    """Print the throughput of each side; argv has case and options in JSON, and the sides."""
    case, options, *sides = sys.argv[1:]
    relay.subprocess = SimpleNamespace(Popen=Fork, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined, assignment]
    print(json.dumps(relay.relay(Case(**json.loads(case)), sides, **json.loads(options))))


def main() -> None:
    """Print whether this process may not use CUDA, as one that was forked too late; or wait for its end."""
    import torch

    if sys.argv[1:] == ["wait"]:
        signal.pause()
    print(json.dumps(torch.cuda._is_in_bad_fork()))
