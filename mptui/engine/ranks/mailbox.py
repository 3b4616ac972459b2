"""The mailbox of a rank: commands and stop requests that all ranks obey between the same two steps."""

from collections import deque
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from mptui.engine.mailbox import Command, Mailbox
from mptui.engine.ranks.group import Ranks

TIMES = 4
"""Numbers of a measured step; the last is not 0."""

_REASONS = (None, "steps", "time")
"""Why a save is due (`Saver.reason_now`), by the number that stands for it in a note."""


class RanksMailbox(Mailbox):
    """Holds what all ranks agreed on when they last met (`Ranks.sync_status`).

    A stop and a save may be asked of any rank, by a signal; other commands come to rank 0.

    Args:
        ranks: The ranks.
        own: The mailbox of this process, to which signals, keys and sockets post.

    Attributes:
        report_due: Whether it is time for a report, by the clock of this rank; that of rank 0 counts.
        reports: Whether all ranks report between the next two steps, as agreed when they last met: the clock
            starts over at a report, so that what they agreed in its own exchange no longer holds.
        save_due: Returns why a checkpoint is due, by the clock of this rank; that of rank 0 counts.
        saves: Why all ranks save between the next two steps, or None.
        times: Returns the times of a step of this rank, in microseconds; zeros if there are no new ones.
        on_times: Called with those of all ranks, if any has new ones.
        has_news: Whether this rank has news for all.
        take_news: Returns them: a small value that is called for if any rank has news.
        on_news: Called with those of all ranks.
    """

    def __init__(self, ranks: Ranks, own: Mailbox) -> None:
        super().__init__()
        self._ranks = ranks
        self._own = own
        self._taken: list[Command] = []
        self._agreed: deque[Command] = deque()
        self.report_due: Callable[[], bool] = lambda: False
        self.reports = False
        self.times: Callable[[], list[int]] = lambda: [0] * TIMES
        self.on_times: Callable[[list[list[int]]], None] = lambda times: None
        self.save_due: Callable[[], str | None] = lambda: None
        self.saves: str | None = None
        self.has_news: Callable[[], bool] = lambda: False
        self.take_news: Callable[[], Any] = lambda: None
        self.on_news: Callable[[list[Any]], None] = lambda news: None
        ranks.status_numbers = self._status_numbers
        ranks.on_status = self._on_status

    @property
    @override
    def stop_is_asked(self) -> bool:
        return self.stop_requested or self._own.stop_requested

    def _status_numbers(self) -> list[int]:
        """Return stop (1 + signal; 1: without one), commands, report due, save due, news, and times."""
        while (command := self._own.take()) is not None:
            self._taken.append(command)
        stop = 1 + (self._own.stop_signal or 0) if self._own.stop_requested else 0
        due = int(self.report_due()), _REASONS.index(self.save_due())
        return [stop, len(self._taken), *due, int(self.has_news()), *self.times()]

    def _on_status(self, rows: list[list[int]]) -> None:
        stop = max(each[0] for each in rows)
        if stop:
            self.stop_requested = True
            self.stop_signal = stop - 1 or None
        self.reports = bool(rows[0][2])
        self.saves = _REASONS[rows[0][3]]
        if any(each[-1] for each in rows):
            self.on_times([each[-TIMES:] for each in rows])
        if any(each[4] for each in rows):
            self.on_news(self._ranks.exchange(self.take_news()))
        if any(each[1] for each in rows):
            told, self._taken = self._taken, []
            for commands in self._ranks.exchange(told):
                # a launcher sends its signal to all: one save suffices
                self._agreed.extend(command for command in commands if command not in self._agreed)

    def take_report(self) -> bool:
        """Return whether all ranks report now."""
        reports, self.reports = self.reports, False
        return reports

    def take_save(self) -> str | None:
        """Return why all ranks save now, or None."""
        saves, self.saves = self.saves, None
        return saves

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
