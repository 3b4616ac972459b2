"""The interface of a run to the live screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mptui.events import Event

if TYPE_CHECKING:
    from mptui.runs.planning.plan import Request
    from mptui.runs.view.run_view import RunView


class RunSource(Protocol):
    """A run of this process, of another one, or a journal. No method may block."""

    @property
    def view(self) -> "RunView":
        """The state of the run before the first event; the screen handles the events with it."""

    @property
    def profiles(self) -> Sequence[str]:
        """The profiles, in the order of the digits that switch to them."""

    @property
    def run(self) -> Path | None:
        """The run directory, once there is one; None also if no profile can be switched to."""

    @property
    def request(self) -> "Request | None":
        """The request of the run, if it is known."""

    @property
    def given(self) -> Sequence[str]:
        """The settings that were given to the run, which no profile changes, where `request` is not known."""

    @property
    def finished(self) -> bool:
        """Whether all events have been delivered."""

    @property
    def hosted(self) -> bool:
        """Whether the run belongs to this process, so that leaving the screen must ask about it."""

    @property
    def can_detach(self) -> bool:
        """Whether a run of this process can continue without this screen."""

    def poll(self) -> list[Event]:
        """Return the events since the last call."""

    def send(self, command: str, argument: str | None = None) -> None:
        """Send a command: pause, resume, checkpoint, validate, stop, or preset NAME."""
