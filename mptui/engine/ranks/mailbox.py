"""The mailbox of a rank: commands and stop requests that all ranks obey between the same two steps."""

from collections import deque

from typing_extensions import override

from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.ranks.group import Ranks, SyncPart


class RanksMailbox(Mailbox, SyncPart):
    """Holds the commands that all ranks agreed on when they last met (`Ranks.sync_status`).

    A stop and a save may be asked of any rank, by a signal; other commands come to rank 0.

    Args:
        ranks: The ranks.
        own: The mailbox of this process, to which signals, keys and sockets post.
    """

    size = 1

    def __init__(self, ranks: Ranks, own: Mailbox) -> None:
        super().__init__()
        self._ranks = ranks
        self._own = own
        self._taken: list[Command] = []
        self._agreed: deque[Command] = deque()
        ranks.agree_on("mailbox", self)

    @property
    @override
    def stop_is_asked(self) -> bool:
        return self.stop_requested or self._own.stop_requested

    @override
    def numbers(self) -> list[int]:
        """Return 1 + the signal of a stop; 1: without one; 0: no stop."""
        stop = 1 + (self._own.stop_signal or 0) if self._own.stop_requested else 0
        return [stop]

    @override
    def on_numbers(self, rows: list[list[int]]) -> None:
        if stop := max(row[0] for row in rows):
            self.stop_requested = True
            self.stop_signal = stop - 1 or None

    @override
    def news(self) -> list[Command] | None:
        while (command := self._own.take()) is not None:
            self._taken.append(command)
        told, self._taken = self._taken, []
        return told or None

    @override
    def on_news(self, told: list[list[Command]]) -> None:
        for commands in told:
            # a launcher sends its signal to all: one save suffices
            self._agreed.extend(command for command in commands if command not in self._agreed)

    def poll(self) -> None:
        """Meet the other ranks; raise Stopped if one of them was asked to stop."""
        self._ranks.sync_status()
        self.check_stop()

    def take(self, timeout_s: float = 0.0) -> Command | None:
        """Return the next command that all agreed on; with a timeout, rank 0 waits for one so long."""
        if not self._agreed and timeout_s > 0:
            if self._ranks.is_first and not self._own.stop_requested:
                command = self._own.take(timeout_s)
                self._taken += [] if command is None else [command]
            self._ranks.sync_status()
        return self._agreed.popleft() if self._agreed else None

    def __bool__(self) -> bool:
        return self.stop_requested or bool(self._agreed)


def mailbox_of(ranks: Ranks, own: Mailbox) -> Mailbox:
    """Return the mailbox of all ranks; that of a process that is alone is its own."""
    return own if ranks.is_alone else RanksMailbox(ranks, own)
