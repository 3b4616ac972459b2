"""`mptui stop` of a process without a socket: the result of the signal is reported."""

import os
import subprocess
import sys

import pytest

from mptui.cli.train.stop import _ask
from mptui.errors import RunDirectoryError


def test_a_process_that_ends_while_it_is_asked_is_no_error(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    _ask(tmp_path, ended.pid)


def test_a_process_of_another_user_is_told(tmp_path, monkeypatch):
    def kill(_pid, _number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    with pytest.raises(RunDirectoryError, match=r"process 7, which trains this run, belongs to another user"):
        _ask(tmp_path, 7)
