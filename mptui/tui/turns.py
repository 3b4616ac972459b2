"""Lets a run and its fork share a device: the parent pauses, or they take turns."""

from mptui.tui.sources.source import RunSource

TURN_S = 60
"""Seconds of a turn."""


class Turns:
    """Pauses a parent while its fork trains; call `tick` once a second.

    Args:
        parent: The run that was forked.
        fork: Its fork.
        swap: Whether they take turns; else the parent pauses until the fork has ended.
    """

    def __init__(self, parent: RunSource, fork: RunSource, *, swap: bool) -> None:
        self._training, self._paused, self._swap = fork, parent, swap
        self._seconds = 0
        parent.send("pause")

    def tick(self) -> bool:
        """Pass the turn if it is over; return False once one of them has ended, so that the other goes on."""
        if self._training.finished or self._paused.finished:
            self.end()
            return False
        self._seconds += 1
        if self._swap and self._seconds % TURN_S == 0:
            self._training.send("pause")
            self._paused.send("resume")
            self._training, self._paused = self._paused, self._training
        return True

    def end(self) -> None:
        """Let the paused one go on."""
        if not self._paused.finished:
            self._paused.send("resume")
