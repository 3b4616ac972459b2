"""Where the live screen gets its run from, and where its commands go."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mptui.events import Event

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request
    from mptui.runs.view.run_view import RunView


class RunSource(Protocol):
    """A run of this process, of another one, or a journal. No method may wait for anything."""

    @property
    def view(self) -> "RunView":
        """What the run had come to before the first event; who folds the events goes on with it."""

    @property
    def profiles(self) -> Sequence[str]:
        """The presets, in the order of the digits that switch to them."""

    @property
    def run(self) -> Path | None:
        """The run's directory, once it has one; None too where no preset can be switched to."""

    @property
    def request(self) -> "Request | None":
        """What the run was asked with, where that is known."""

    @property
    def finished(self) -> bool:
        """Whether no further event will come."""

    @property
    def hosted(self) -> bool:
        """Whether the run is one of this process, so that leaving the screen must ask what becomes of it."""

    @property
    def can_detach(self) -> bool:
        """Whether a run of this process can go on without this screen."""

    def poll(self) -> list[Event]:
        """Take the events that came since the last call."""

    def send(self, command: str, argument: str | None = None) -> None:
        """Ask the run for pause, resume, checkpoint, validate, stop, or preset NAME."""
