"""Where compiled code is kept between runs: a folder of the user's own, and never one that a file names.

What Inductor keeps is pickles and machine code, and who can write there can run code as the user. Its own
default is a name in /tmp that anyone can guess.
"""

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mptui.io.user_cache import cache_folder

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
LIMIT_BYTES = 4 << 30
"""What is kept at most; beyond it the files that were not used for longest go, down to three quarters."""


def use_compile_cache(warn: Callable[[str, str], None], folder: Path | None = None) -> Path:
    """Have compiled code kept in `folder` (default: in the user's cache folder); returns where it goes.

    A folder that the environment names (`TORCHINDUCTOR_CACHE_DIR`) is the person's own choice and stays.
    Where the cache folder is open to others, or can't be written, it is one for this process alone.

    Args:
        warn: Told (code, message) where nothing can be kept.
        folder: Where to keep it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    named = os.environ.get(VARIABLE)
    if named is not None and named != default_cache_dir():  # which torch itself sets when it is imported
        return Path(named)
    folder = cache_folder() / "compiled" if folder is None else folder
    fault = _make_private(folder)
    if fault is None:
        prune(folder)
    else:
        warn("compile_cache", f"compiled code is not cached for later runs: {fault}")
        folder = Path(tempfile.mkdtemp(prefix="mptui-compiled-"))  # 0700
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[VARIABLE] = str(folder)
    _move_headers(folder)
    return folder


def _make_private(folder: Path) -> str | None:
    """Make `folder` for its owner alone; returns why others could write there all the same."""
    if not folder.is_absolute():
        return f"{folder} is not an absolute path"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        own = folder.lstat()
        if not stat.S_ISDIR(own.st_mode):
            return f"{folder} is not a folder"
        if own.st_uid != os.geteuid():
            return f"{folder} belongs to another user"
        folder.chmod(0o700)
        for parent in folder.resolve().parents:
            status = parent.stat()
            open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
            if status.st_uid not in {0, os.geteuid()} or open_to_all:
                return f"{parent} is writable by other users"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    return None


def _move_headers(folder: Path) -> None:
    """Have precompiled headers kept there too: they ignore the variable, and go to the guessable name."""
    from torch._inductor import codecache, config

    if hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR"):
        codecache._HEADER_DIR = str(folder / "precompiled_headers")
        codecache._HEADER_LOCK_DIR = str(folder / "precompiled_headers" / "locks")
    else:  # another version of torch, in which they lie elsewhere
        config.cpp_cache_precompile_headers = False


def prune(folder: Path, limit: int = LIMIT_BYTES) -> None:
    """Remove what was not used for longest where more than `limit` bytes are kept.

    Inductor makes again what it does not find, so that no file needs another one.
    """
    files: list[tuple[float, int, Path]] = []
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            with suppress(OSError):  # another process may tidy up as well
                status = path.lstat()
                files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return
    for _, size, path in sorted(files):
        with suppress(OSError):
            path.unlink()
        total -= size
        if total <= limit * 3 // 4:
            return
