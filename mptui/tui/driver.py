"""Textual's driver, told apart from a process that was stopped and continued behind its back.

`kill -STOP` and a batch system's suspend give no notice, so Textual keeps its application mode over the stop.
At SIGCONT it starts another one on top: a second thread takes half of the keys, and what is put back at the
end is the terminal of the screen instead of the one before it.
"""

from textual.drivers.linux_driver import LinuxDriver


class SteadyDriver(LinuxDriver):
    """Leaves application mode before it is started again."""

    def _sigcont_application(self, *given: object) -> None:
        # set by Textual's own handler of SIGTSTP, which leaves application mode before it stops
        if self._auto_restart and not self._must_signal_resume:
            self.suspend_application_mode()
        super()._sigcont_application(*given)
