"""Textual's driver, told apart from a process that was stopped and continued behind its back.

`kill -STOP` and a batch system's suspend give no notice, so Textual keeps its application mode over the stop.
At SIGCONT it starts another one on top: a second thread takes half of the keys, and what is put back at the
end is the terminal of the screen instead of the one before it.

And it does so within the signal's handler, which waits for ever where it has interrupted a write to the
queue that it wants to write to itself. So both signals only leave word for the event loop.
"""

from collections.abc import Callable

from textual.drivers.linux_driver import LinuxDriver


class SteadyDriver(LinuxDriver):
    """Leaves application mode before it is started again, between two turns of the event loop."""

    def _sigtstp_application(self, *_given: object) -> None:
        self._leave_word(super()._sigtstp_application)

    def _sigcont_application(self, *_given: object) -> None:
        self._leave_word(self._continue)

    def _leave_word(self, action: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    def _continue(self) -> None:
        # set by Textual's own handler of SIGTSTP, which leaves application mode before it stops
        if self._auto_restart and not self._must_signal_resume:
            self.suspend_application_mode()
        super()._sigcont_application()
