"""Text files that grow by whole lines, for readers such as grep and spreadsheets."""

import os
from pathlib import Path

from mptui.regular import open_regular

_BLOCK = 65536


class LineFile:
    """A file that lines are appended to; a torn last line of an earlier process is removed.

    Args:
        path: The file, created for its owner alone. Links are refused.
        header: First line of a new file.

    Raises:
        OSError: It can't be opened or repaired.
    """

    def __init__(self, path: Path, header: str = "") -> None:
        self._file = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        try:
            self._end = cut_torn_line(self._file)
            if not self._end and header:
                self.append([header])
        except OSError:
            os.close(self._file)
            raise

    def append(self, lines: list[str]) -> None:
        """Append all lines, or none.

        Raises:
            OSError: The disk is full or gone.
        """
        left = "".join(f"{line}\n" for line in lines).encode()
        end = self._end + len(left)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._end)
            raise
        self._end = end

    def first_line(self) -> str:
        """Return the first line, without its line break."""
        return os.pread(self._file, _BLOCK, 0).partition(b"\n")[0].decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def cut_torn_line(file: int) -> int:
    """Remove the part after the last line break, reading only the file's end; return the remaining size.

    Raises:
        OSError: The disk is gone.
    """
    size = os.lseek(file, 0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        block = os.pread(file, end - start, start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)
    return end
