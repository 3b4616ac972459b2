"""Expands `~` and the XDG variables.

`pathlib` raises for an unknown user and for a user without a home, as in some containers. Here `~nobody`
stays unexpanded and then is a missing folder; without a home, nothing can be saved.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def expanded(path: str) -> Path:
    """Expand a leading `~` or `~user`."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def absolute(path: str) -> str:
    """Return the absolute path, without resolving links."""
    return os.path.abspath(expanded(path))  # noqa: PTH100 - Path.resolve follows links


def base_folder(variable: str, default: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that an XDG variable names, else `default` in the home folder."""
    if named := environ.get(variable):
        return Path(named)
    home = expanded("~")
    return (home if home.is_absolute() else Path(os.devnull)) / default
