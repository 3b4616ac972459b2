"""All errors shown to users, each with a message, a hint and an exit code.

An `MptuiError` is shown as two lines and ends the process with its `exit_code`; any other exception is a bug
and gets a traceback. The exit codes are a public interface; README.md lists them.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from mptui.text import clean, clean_lines


class MptuiError(Exception):
    """An error that isn't a bug: shown as a message and a hint.

    Args:
        message: The fault, with place and value; lines after the first are details, one fault each.
        hint: The remedy, in the imperative, with the flag or command.

    Attributes:
        document: What a command with --json prints beside the error.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str) -> None:
        self.message = clean_lines(message)
        self.hint = clean(" ".join(hint.splitlines()))
        self.document: Mapping[str, object] = {}
        super().__init__(self.message)


class OwnCodeError(MptuiError):
    """A bug in the person's own network, task or data set; the message has their lines of the traceback."""

    exit_code = 1


class ConfigError(MptuiError):
    """A flag, a profile or a configuration is wrong."""

    exit_code = 2


class DataError(MptuiError):
    """The data is missing, empty or unreadable."""

    exit_code = 3


class TwoReadingsError(DataError):
    """The data can be read in two or more ways.

    Args:
        message: What can be.
        readings: Name of each reading, and what it would be; each is a line of the message.
        hint: What decides.
    """

    def __init__(self, message: str, readings: Mapping[str, str], *, hint: str) -> None:
        lines = (f"\n  {name}: {reading}" for name, reading in readings.items())
        super().__init__(f"{message}:{''.join(lines)}", hint=hint)


class DivergedError(MptuiError):
    """Training diverged and could not recover."""

    exit_code = 4


class MemoryExhaustedError(MptuiError):
    """The device ran out of memory and could not recover."""

    exit_code = 5


class RunDirectoryError(MptuiError):
    """A checkpoint or run directory is missing, damaged or not trusted."""

    exit_code = 6


class DiskError(MptuiError):
    """The disk is full or not writable."""

    exit_code = 7


class RankError(MptuiError):
    """Another process of the run's group has failed, or can't be reached."""

    exit_code = 8


class TrackerError(MptuiError):
    """An experiment tracker has failed, or can't be reached."""

    exit_code = RankError.exit_code


_ERRORS: dict[int, type[MptuiError]] = {
    error.exit_code: error
    for error in (
        OwnCodeError,
        ConfigError,
        DataError,
        DivergedError,
        MemoryExhaustedError,
        RunDirectoryError,
        DiskError,
        RankError,
    )
}


def error_of_code(code: int) -> type[MptuiError]:
    """Return the kind of error that ended a process with this exit code."""
    return _ERRORS.get(code, MptuiError)


@contextlib.contextmanager
def cleaned_up_by(clean_up: Callable[[], object]) -> Iterator[None]:
    """Call `clean_up` at the end of a context; if that fails after an error, the error stays the cause.

    A `finally` would raise the failure of the clean-up instead: a process that was killed would be told as
    a closed handle, and the run would end by an error that is not its own.
    """
    try:
        yield
    except BaseException as cause:
        try:
            clean_up()
        except Exception as failed:  # noqa: BLE001 - told with the cause
            cause.add_note(f"cleaning up after it failed, too: {failed!r}")
        raise
    clean_up()
