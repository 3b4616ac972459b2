"""A driver for Textual that also handles an unannounced stop of the process.

`kill -STOP` and a batch system's suspend give no notice, so Textual stays in application mode while stopped.
At SIGCONT it starts application mode again: a second input thread takes half of the keys, and at the end the
terminal attributes of the screen are restored instead of the original ones.

Textual also does so within the signal handler, which deadlocks if it has interrupted a write to the queue
that it writes to. So both handlers only schedule a call on the event loop.
"""

from collections.abc import Callable

from textual.drivers.linux_driver import LinuxDriver


class SteadyDriver(LinuxDriver):
    """Leaves application mode before starting it again, on the event loop."""

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
