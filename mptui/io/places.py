"""Where a person's own files are: what `~` and the XDG variables stand for.

`pathlib` raises where there is no such user, and where this one has no home, as in some containers. Here
`~nobody` stays as it is written, and then is a folder that is not there; without a home nothing can be kept.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def expanded(path: str) -> Path:
    """Put a path that may begin with `~` or `~user` in full."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def absolute(path: str) -> str:
    """A path in full, links as they are: the same from every folder."""
    return os.path.abspath(expanded(path))  # noqa: PTH100 - Path.resolve follows links


def base_folder(variable: str, default: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that an XDG variable names, else `default` in the home folder."""
    if named := environ.get(variable):
        return Path(named)
    home = expanded("~")
    return (home if home.is_absolute() else Path(os.devnull)) / default
