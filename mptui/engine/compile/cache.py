"""On-disk cache of compiled code: a private folder of the user, which no configuration file can set.

Inductor caches pickles and machine code, so that anyone who can write there can run code as the user. Its
default is a guessable name in /tmp.
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
"""Size limit of the cache; beyond it the least recently used files are removed, down to three quarters."""


def use_compile_cache(warn: Callable[[str, str], None], folder: Path | None = None) -> Path:
    """Cache compiled code in `folder` (default: in the user's cache folder); returns the folder in use.

    A folder set in the environment (`TORCHINDUCTOR_CACHE_DIR`) is the user's choice and takes precedence. If
    the cache folder is writable by others, or can't be written, a temporary one of this process is used.

    Args:
        warn: Called with (code, message) if nothing can be cached.
        folder: The cache folder.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    named = os.environ.get(VARIABLE)
    if named is not None and named != default_cache_dir():  # set by torch itself on import
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
    """Create `folder` for its owner alone; returns the reason if others could write there, else None."""
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
    """Move the cache of precompiled headers there too: it ignores the variable."""
    from torch._inductor import codecache, config

    if hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR"):
        codecache._HEADER_DIR = str(folder / "precompiled_headers")
        codecache._HEADER_LOCK_DIR = str(folder / "precompiled_headers" / "locks")
    else:  # another version of torch, with another location
        config.cpp_cache_precompile_headers = False


def prune(folder: Path, limit: int = LIMIT_BYTES) -> None:
    """Remove the least recently used files if the cache exceeds `limit` bytes.

    Inductor recompiles what is missing, so that each file can be removed independently.
    """
    files: list[tuple[float, int, Path]] = []
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            with suppress(OSError):  # another process may prune as well
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
