"""Finds and lists profile files.

Only names and descriptions are read, so that listing profiles doesn't import the schema.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from mptui.config.documents import SUFFIXES, read_document
from mptui.errors import ConfigError
from mptui.io.files import base_folder, expanded
from mptui.text import clean, shell_word

ORDER = (
    "fast",
    "stable",
    "memory-limited",
    "debug",
    "production",
    "max-batch",
    "older-gpu",
    "aggressive",
    "ultra-stable",
    "finetune",
    "speedrun",
    "radiodiff",
)
"""Profiles in the order of the screens, the first nine by their digits; all others follow by name."""


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """A profile that was found."""

    name: str
    description: str
    path: Path
    origin: str
    """`./profiles`, `yours` or `built in`."""


def list_profiles(environ: Mapping[str, str] = os.environ) -> list[ProfileInfo]:
    """List all profiles in the order of their digits; of two with one name, the one found first."""
    found = _found(environ)
    return [
        ProfileInfo(name, _description(path), path, origin)
        for name in _in_order(found)
        for path, origin in [found[name]]
    ]


def profile_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of all profiles in the order of their digits; reads no file."""
    return _in_order(_found(environ))


def is_built_in(name: str) -> bool:
    """Whether a built-in profile has this name, ignoring case, as some file systems do."""
    return name.casefold() in {path.stem for path in _built_in().glob("*.toml")}


def is_ours(path: Path) -> bool:
    """Whether this is the file of a built-in profile."""
    return path.resolve().parent == _built_in()


def built_in(name: str) -> Path:
    """Return the file of a built-in profile."""
    return _built_in() / f"{name}.toml"


def find_profile(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Find the file of a profile.

    Args:
        name: A file if it exists, has a separator, or ends in .toml, .yaml or .yml; else the name of a
            profile in ./profiles, in the user's configuration folder, or built in, in this order.
        environ: The environment, for MPTUI_CONFIG_DIR and XDG_CONFIG_HOME.

    Raises:
        ConfigError: No such profile; the message names the nearest.
    """
    if "\0" in name:
        raise ConfigError(f"no profile {name}: names can't contain NUL", hint="see `mptui profiles list`")
    if _is_file_name(name):
        return _checked(expanded(name))
    for _, folder in _folders(environ):
        for path in (folder / f"{name}{suffix}" for suffix in SUFFIXES):
            if os.path.isfile(path):  # noqa: PTH113 - pathlib raises for a name that is too long
                return path
    names = profile_names(environ)
    near = get_close_matches(name, names, n=1)
    raise ConfigError(
        f"no profile {name}" + (f"; nearest: {near[0]}" if near else f"; available: {', '.join(names)}"),
        hint="see `mptui profiles list`, or name a file: --profile ./my.toml",
    )


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the user's configuration folder, which may not exist."""
    if own := environ.get("MPTUI_CONFIG_DIR"):
        return expanded(own)
    return base_folder("XDG_CONFIG_HOME", ".config", environ) / "mptui"


def user_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the user's profiles, which may not exist."""
    return config_folder(environ) / "profiles"


def _found(environ: Mapping[str, str]) -> dict[str, tuple[Path, str]]:
    """Return path and origin of each profile by its name."""
    found: dict[str, tuple[Path, str]] = {}
    for origin, folder in _folders(environ):
        for path in (path for suffix in SUFFIXES for path in sorted(folder.glob(f"*{suffix}"))):
            found.setdefault(path.stem, (path, origin))
    return found


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (_digit(name), name))


def _digit(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _folders(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    return [("./profiles", Path("profiles")), ("yours", user_folder(environ)), ("built in", _built_in())]


@cache
def _built_in() -> Path:
    """Return the folder inside an installed package, or next to the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def _is_file_name(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(SUFFIXES) or os.path.isfile(name)  # noqa: PTH113


def _checked(path: Path) -> Path:
    if path.is_dir():
        run = path / "run.toml"
        hint = f"name a file: --profile {shell_word(run if run.is_file() else path / 'my.toml')}"
        raise ConfigError(f"{path}: a folder, not a profile", hint=hint)
    if not os.path.exists(path):  # noqa: PTH110
        hint = "check the path, or give the name of a profile: see `mptui profiles list`"
        raise ConfigError(f"{path}: no such file", hint=hint)
    return path


def _description(path: Path) -> str:
    """Return a profile's description; for an invalid file, a note that it is invalid."""
    try:
        described = read_document(path).values.get("description", "")
    except ConfigError:
        return f"(faulty: see `mptui profiles validate {shell_word(path.stem)}`)"
    return clean(described) if isinstance(described, str) else ""
