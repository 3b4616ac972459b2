"""Notifications that end, and end nothing else."""

from textual.notifications import Notification

SHORTEST_S = 0.1
"""The least that a screen opened in the last moment of a notification shows it, in seconds."""


class TimedNotification(Notification):
    """A notification of which no screen gets too little time left for a timer.

    Each screen that opens shows the notification for the time left, by a timer of Textual. One of less than
    nothing, as between two looks at the clock, never gives the event loop back: the program hangs. One of
    microseconds can end without a call: the notification stays.
    """

    @property
    def time_left(self) -> float:
        """Seconds for which a screen that opens now shows it."""
        return max(super().time_left, SHORTEST_S)

    @property
    def has_expired(self) -> bool:
        """Whether its time is over."""
        return super().time_left <= 0
