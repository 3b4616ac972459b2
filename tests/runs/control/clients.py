"""A minimal run with a control socket, and a client of it."""

import json
import stat

from mptui.errors import ConfigError
from mptui.events import Warned
from mptui.runs.remote import control
from mptui.runs.remote.control import ControlServer
from mptui.runs.store.journal import Journal

DEADLINE_S = 60


class Run:
    """A minimal run for its socket: a journal, and a record of each command."""

    def __init__(self, path):
        self.path, self.sent, self.asked_by = path, [], []
        path.mkdir(parents=True, exist_ok=True)
        self.journal: Journal | None = Journal(path)
        self.now = 0.0
        self.server = ControlServer(
            path,
            presets=["fast", "stable"],
            profile=lambda: "fast",
            on_command=self.send,
            clock=lambda: self.now,
        )

    def send(self, command, argument, _id, by):
        if command == "validate":
            raise ConfigError("not now", hint="later")
        self.sent.append((command, argument))
        self.asked_by.append(by)

    def tell(self, step, text="x"):
        event = Warned(time=0.0, step=step, code="told", message=text)
        assert self.journal is not None
        self.journal.write(event)
        self.server.handle(event)

    def end(self):
        self.server.close()
        if self.journal is not None:
            self.journal.close()
            self.journal = None


class Client:
    def __init__(self, run):
        self.socket = control.connect(run.path, DEADLINE_S)
        self.file = self.socket.makefile("rb")

    def line(self):
        """Return the next document; None at the end."""
        line = self.file.readline()
        return json.loads(line) if line else None

    def say(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")

    def is_dropped(self):
        """Read until the server closes the connection."""
        try:
            while self.file.readline():
                pass
        except ConnectionError:
            pass
        return True

    def close(self):
        self.file.close()
        self.socket.close()


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)
