"""A driver for Textual that also handles an unannounced stop of the process.

`kill -STOP` and a batch system's suspend give no notice, so Textual stays in application mode while stopped.
At SIGCONT it starts application mode again: a second input thread takes half of the keys, and at the end the
terminal attributes of the screen are restored instead of the original ones.

Textual also does so within the signal handler, which deadlocks if it has interrupted a write to the queue
that it writes to. So both handlers only schedule a call on the event loop.

What a terminal sends is not always what Textual expects: a paste from a program with another encoding, a
mouse report of the oldest kind, whose columns are bytes. None of it may end the screen.
"""

import os
import select
import traceback
from codecs import getincrementaldecoder
from collections.abc import Callable

from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

_LOOK_S = 0.1
_MOST_BYTES = 4096


class SteadyDriver(LinuxDriver):
    """Reads any bytes; leaves application mode before starting it again, on the event loop."""

    def run_input_thread(self) -> None:
        """Read keys until the application ends. What is no UTF-8 becomes U+FFFD; nothing here raises."""
        parser, decoder = XTermParser(self._debug), getincrementaldecoder("utf-8")("replace")
        while not self.exit_event.is_set():
            try:
                data = self._read()
                if data == b"":  # the terminal is gone: the end of the program comes by a signal
                    self.exit_event.wait(_LOOK_S)
                for event in (*parser.feed(decoder.decode(data)), *parser.tick()) if data else parser.tick():
                    self.process_message(event)
            except Exception:  # noqa: BLE001 - of one key; the others are read on
                traceback.print_exc()  # to the log
                parser = XTermParser(self._debug)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return columns and lines of the terminal itself: COLUMNS and LINES may be of another one."""
        try:
            columns, lines = os.get_terminal_size(self.fileno)
        except OSError:
            columns = lines = 0
        return (columns, lines) if columns and lines else super()._get_terminal_size()

    def _read(self) -> bytes | None:
        """Return what has been typed; None if nothing was in `_LOOK_S`, b"" if the terminal is gone."""
        try:
            ready, _, _ = select.select([self.fileno], [], [], _LOOK_S)
            return os.read(self.fileno, _MOST_BYTES) if ready else None
        except OSError:
            return b""

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
