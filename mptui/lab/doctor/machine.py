"""Checks the login session: locale, terminal, and whether a run survives logout."""

import locale
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as NotIniError
from pathlib import Path

from mptui.lab.doctor.findings import Finding, advice, ok

SMALLEST = os.terminal_size((80, 24))
_LOGIND = "systemd/logind.conf"
_FOLDERS = ("usr/lib", "usr/local/lib", "run", "etc")
"""Folders of systemd's settings: later ones take precedence, and drop-ins over the main file."""
_BUSCTL = (
    *("busctl", "--system", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1"),
    *("org.freedesktop.login1.Manager", "KillUserProcesses"),
)
_PATIENCE_S = 5.0
_BUILT_IN = re.compile(r"(?m)^#KillUserProcesses=(\w+)")


def check_locale(environ: Mapping[str, str]) -> list[Finding]:
    """Check that text beyond ASCII can be shown. `environ`: the initial environment of the process."""
    variable, name = next(
        ((v, n) for v in ("LC_ALL", "LC_CTYPE", "LANG") if (n := environ.get(v))), ("LANG", "C")
    )
    do = "export LANG=C.UTF-8, and unset LC_ALL"
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, name)
    except locale.Error:
        return [advice("machine", "locale", f"{variable}={name}: no such locale on this machine", do)]
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    if "utf-8" not in name.lower() and "utf8" not in name.lower():
        what = f"{variable}={name}: no UTF-8, so charts are drawn in ASCII"
        return [advice("machine", "locale", what, do)]
    return [ok("machine", "locale", f"{variable}={name}")]


def check_terminal(environ: Mapping[str, str], size: os.terminal_size | None) -> list[Finding]:
    """Check the terminal; `size` is None without one."""
    if size is None:
        return [ok("machine", "terminal", "no terminal; mptui run doesn't need one")]
    term = environ.get("TERM", "")
    if term in {"", "dumb"}:
        what = f"TERM={term}: mptui can't draw its screens"
        return [advice("machine", "terminal", what, "export TERM=xterm-256color, or use mptui run")]
    colours = _colours(environ, term)
    found = [ok("machine", "terminal", f"TERM={term}, {size.columns} x {size.lines}, {colours} colours")]
    if colours == "8":
        do = "export TERM=xterm-256color, if the terminal can; in tmux set default-terminal"
        found = [advice("machine", "terminal", f"TERM={term}: {colours} colours", do)]
    if size.columns < SMALLEST.columns or size.lines < SMALLEST.lines:
        what = f"the terminal is {size.columns} x {size.lines}; screens need 80 x 24"
        found.append(advice("machine", "terminal", what, "enlarge the window, or use a smaller font"))
    return found


def _colours(environ: Mapping[str, str], term: str) -> str:
    if environ.get("COLORTERM", "").lower() in {"truecolor", "24bit"}:
        return "16 million"
    direct = "direct" in term or any(name in term for name in ("kitty", "alacritty", "ghostty", "wezterm"))
    return "16 million" if direct else "256" if "256" in term else "8"


def check_logout(root: Path, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check whether systemd ends the processes of a user at logout."""
    if not (root / "run/systemd/system").is_dir():
        yield ok("machine", "logout", "no systemd here: a detached run outlives the login")
        return
    if not _kills(root, environ):
        yield ok("machine", "logout", "KillUserProcesses=no: a detached run outlives the login")
        return
    if _is_outside_of_login(root):
        yield ok("machine", "logout", "KillUserProcesses=yes, but this shell is outside the login's scope")
        return
    yield advice(
        "machine",
        "logout",
        "KillUserProcesses=yes: systemd ends even a detached run when you log out",
        "once: loginctl enable-linger; then systemd-run --user --scope mptui run …",
    )


def _kills(root: Path, environ: Mapping[str, str]) -> bool:
    """Return KillUserProcesses from logind, or from its files if logind can't be queried."""
    answer = _asked(environ)
    if answer is not None:
        return answer
    value = "no"  # the built-in default of distributions
    for path in _files(root):
        value = _setting(path) or value
    return value.lower() in {"yes", "true", "on", "1"}


def _asked(environ: Mapping[str, str]) -> bool | None:
    try:
        answer = subprocess.run(  # noqa: S603 - fixed words, the person's own systemd
            _BUSCTL,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"b true": True, "b false": False}.get(answer.stdout.strip())


def _files(root: Path) -> Iterator[Path]:
    """Yield the main file of the last folder that has one, then drop-ins by name."""
    yield from (root / folder / _LOGIND for folder in _FOLDERS)
    drop_ins = {
        path.name: path for folder in _FOLDERS for path in (root / folder / f"{_LOGIND}.d").glob("*.conf")
    }
    yield from (drop_ins[name] for name in sorted(drop_ins))


def _setting(path: Path) -> str | None:
    """Return the value in a file, also from a comment: systemd's files show defaults as comments."""
    parser = ConfigParser(strict=False, interpolation=None, allow_no_value=True)
    try:
        text = path.read_text(errors="replace")
        parser.read_string(text)
    except (OSError, NotIniError):
        return None
    built_in = _BUILT_IN.search(text)
    return parser.get("Login", "KillUserProcesses", fallback=built_in[1] if built_in else None)


def _is_outside_of_login(root: Path) -> bool:
    """Whether this process is in a scope of the user manager, not of the session, which ends at logout."""
    try:
        groups = (root / "proc/self/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return "/user@" in groups and "/session-" not in groups
