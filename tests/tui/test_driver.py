"""Signals that suspend and resume the program: their handlers do nothing that could block."""

import asyncio
import signal

from mptui.tui.terminal.process import SteadyDriver


class Recorder(SteadyDriver):
    """Records its calls, without a terminal."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._auto_restart, self._must_signal_resume = True, False
        self.done: list[str] = []

    def __repr__(self) -> str:  # `signal.signal` asks for it; Textual's own needs an app
        return "Recorder()"

    def suspend_application_mode(self) -> None:
        self.done.append("left")

    def resume_application_mode(self) -> None:
        self.done.append("entered")


async def test_what_a_continued_program_does_waits_for_the_event_loop():
    driver = Recorder()
    before = signal.signal(signal.SIGCONT, driver._sigcont_application)
    try:
        signal.raise_signal(signal.SIGCONT)
        assert driver.done == []  # a handler may interrupt a write, and must not write itself
        await asyncio.sleep(0)
        assert driver.done == ["left", "entered"]
    finally:
        signal.signal(signal.SIGCONT, before)


async def test_a_stop_that_was_announced_has_left_already():
    driver = Recorder()
    driver._must_signal_resume = True
    driver._sigcont_application(signal.SIGCONT, None)
    await asyncio.sleep(0)
    assert driver.done == ["entered"]


async def test_a_signal_after_the_end_does_nothing():
    driver = Recorder()
    driver._loop = asyncio.new_event_loop()
    driver._loop.close()
    driver._sigcont_application(signal.SIGCONT, None)
    await asyncio.sleep(0)
    assert driver.done == []
