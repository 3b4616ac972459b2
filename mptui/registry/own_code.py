"""The person's own code: networks, tasks and data sets named as `package.module:name`.

A name is imported as `python -m package.module` would find it, from one folder, and only after `allow`, which
planning a run calls once the person has trusted the code (`--trust-code`). Imports no torch: data workers use
this.
"""

import importlib
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mptui.errors import ConfigError, MptuiError, OwnCodeError
from mptui.text import clean

OBJECTS = "python"
"""The module in the names of objects that a Python program gave to `mptui.train`, and that no other process
can import."""

_WORD = r"[^\W\d]\w*"
_NAME = re.compile(rf"{_WORD}(\.{_WORD})*:{_WORD}(\.{_WORD})*")
_OURS = Path(__file__).parents[1]
_LAYERS = _OURS / "models"
"""Parts of networks, which the person's networks call, as they do torch's."""
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]")
_MOST_FRAMES = 12
_DOORS = {
    ("own_code.py", "call"): "in a call of it by mptui",
    ("trainer.py", "_step"): "in its forward pass",
    ("precision.py", "in_fp32"): "in its forward pass",
    ("precision.py", "backward"): "in the backward pass of its loss",
}
"""File and function of mptui that run a person's code, or what it has computed -> what they do."""

_folders: list[str] = []
_given: dict[str, Any] = {}
_importing: list[str] = []


def is_own(name: object) -> bool:
    """Whether this names the person's own code: `package.module:name`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def allow(folder: str) -> None:
    """Import the person's own code from `folder` from now on; it comes first, as with `python -m`."""
    if allowed() != folder:
        _folders.append(folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def allowed() -> str:
    """Return the folder that was allowed last; "" if none."""
    return _folders[-1] if _folders else ""


def give(name: str, thing: object) -> None:
    """Let `name` stand for an object of this program, which needs no import."""
    _given[name] = thing


def is_given(name: str) -> bool:
    """Whether `name` stands for an object of this program."""
    return name in _given


def is_importing() -> bool:
    """Whether a module of the person's own code is being imported now."""
    return bool(_importing)


def load(name: str) -> Any:  # noqa: ANN401 - whatever the person has written
    """Return what `name` stands for; imports its module.

    Raises:
        ConfigError: There is no such module or name, or no folder was allowed.
        Exception: Whatever the person's module raises; see `fault_of`.
    """
    if name in _given:
        return _given[name]
    module, _, attribute = name.partition(":")
    if module == OBJECTS:
        raise ConfigError(
            f"{name} was an object of a Python program, which can't be imported",
            hint="resume the run there: mptui.resume(RUN, model=…, task=…, data=…)",
        )
    if not _folders:
        raise ConfigError(f"{name}: your own code is not trusted", hint="add --trust-code")
    found = _imported(name, module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{name}: {module} has no {attribute!r}", hint=f"define it in {_file_of(module)}"
            )
        found = getattr(found, part)
    return found


def _imported(name: str, module: str) -> Any:  # noqa: ANN401 - a module
    importlib.invalidate_caches()  # the file may be younger than the look into its folder
    _importing.append(module)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that theirs imports
        raise ConfigError(
            f"{name}: no module called {error.name} in {allowed()}",
            hint=f"start mptui where `python -m {module}` works, or --set code.folder=FOLDER",
        ) from error
    finally:
        _importing.pop()
    file = Path(getattr(found, "__file__", None) or allowed())
    if any(file.is_relative_to(folder) for folder in _folders[:-1]) and not file.is_relative_to(allowed()):
        raise ConfigError(
            f"{name}: this process has imported {module} from {file.parent} already",
            hint="start mptui again",
        )
    return found


def _file_of(module: str) -> str:
    return str(getattr(sys.modules[module], "__file__", None) or module)


def call(name: str, function: Callable[..., Any], *arguments: object, **named: object) -> Any:  # noqa: ANN401
    """Call the person's function.

    Raises:
        OwnCodeError: It doesn't take these arguments.
        Exception: Whatever it raises.
    """
    try:
        return function(*arguments, **named)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside
        raise OwnCodeError(f"{name}: {error}", hint="correct its arguments: docs/own_code.md") from error


def described(value: object) -> str:
    """Describe a value for a message: its type, with type and shape of its items, keys or content."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return f"a {kind} with the keys {', '.join(map(str, list(value)[:6])) or 'none'}"
    if isinstance(value, str | float):
        return f"a {kind}: {str(value)[:40]!r}" if isinstance(value, str) else f"a {kind}: {value!r}"
    if isinstance(value, list | tuple):
        return f"a {kind} of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"a {kind}" if shape is None else f"a {kind}, {getattr(value, 'dtype', '')} {list(shape)}"


def fault_of(error: BaseException) -> OwnCodeError | None:
    """Convert an exception of the person's own code, its traceback cut to their lines; None for any other.

    It is theirs if their lines are further inside the traceback than any of mptui's.
    """
    if isinstance(error, MptuiError):
        return error if isinstance(error, OwnCodeError) else None
    cause: BaseException | None = error
    while cause is not None:
        if places := _places(cause):
            words = str(cause).strip().splitlines() or [""]
            told = clean(f"{type(cause).__name__}: {words[0]}".removesuffix(": "), 500)
            lines = [f"{places[-1].partition(' in ')[0]}: {told}", *(f"  {place}" for place in places)]
            raised = OwnCodeError(
                "\n".join(lines), hint="correct your code; --debug shows the whole traceback"
            )
            raised.__cause__ = error
            return raised
        cause = cause.__cause__
    return None


def fault_in_library(error: BaseException, name: str, function: object) -> OwnCodeError | None:
    """Convert an exception of a library where mptui has given it the person's code; None for any other.

    In a backward pass, or in a loss of torch itself, no line of theirs is in the traceback. It is theirs if
    mptui's innermost line is one of `_DOORS`.

    Args:
        error: The exception, of which `fault_of` is None.
        name: What the person has named, in messages: `package.module:name`.
        function: Its function, which is told with its line; a network has its `forward`.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame for frame in frames if _owner(frame.f_code.co_filename) == "mptui"]
    if isinstance(error, MptuiError) or not ours:
        return None
    file, door = Path(ours[-1].f_code.co_filename).name, ours[-1].f_code.co_name
    is_raised_by_ours = ours[-1] is frames[-1] and door != call.__name__
    if (file, door) not in _DOORS or is_raised_by_ours:
        return None
    name = str(ours[-1].f_locals["name"]) if door == call.__name__ else name
    words = str(error).strip().splitlines() or [""]
    told = clean(f"{name}: {type(error).__name__}: {words[0]}".removesuffix(": "), 500)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    place = defining_line(code) if isinstance(code, CodeType) and door != call.__name__ else ""
    raised = OwnCodeError(
        "\n".join([told, f"  {_DOORS[file, door]}", *([f"  {place}"] if place else [])]),
        hint="targets are -1 where they are ignored: give the loss ignore_index=-1"
        if "Target -1 " in words[0]
        else "correct your code; --debug shows the whole traceback",
    )
    raised.__cause__ = error
    return raised


def running_line() -> str:
    """Return the person's innermost running line, `net.py:16 in forward: return x.half()`; "" if none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_persons(file, tuple(_folders)):
            return _place(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return ""


def defining_line(code: CodeType) -> str:
    """Return the line where a function of the person is defined, as `running_line`; "" if it isn't theirs."""
    file, number = code.co_filename, code.co_firstlineno
    while linecache.getline(file, number).lstrip().startswith("@"):
        number += 1
    return _place(file, number, code.co_name) if _is_persons(file, tuple(_folders)) else ""


def failing_line(error: BaseException) -> str:
    """Return the person's innermost line in the traceback of `error`, as `running_line`; "" if none.

    Unlike `fault_of`, also if lines of mptui are further inside, such as those of a mode that watches torch.
    """
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if _owner(frame.filename) == "person"]
    return _place(theirs[-1].filename, theirs[-1].lineno or 0, theirs[-1].name) if theirs else ""


@lru_cache(maxsize=4096)
def _is_persons(file: str, _folders_then: tuple[str, ...]) -> bool:
    return _owner(file) == "person"


def _place(file: str, number: int, function: str) -> str:
    text = linecache.getline(file, number).strip()
    return clean(f"{_shown(file)}:{number} in {function}: {text}", 500)


def _places(error: BaseException) -> list[str]:
    """Return the person's lines in a traceback, from the outermost; none if the fault is not theirs."""
    frames = [(frame, _owner(frame.filename)) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename is not None:
        name, text = error.filename, (error.text or "").strip()
        frames.append((traceback.FrameSummary(name, error.lineno, "<module>", line=text), _owner(name)))
    owners = [owner for _, owner in frames if owner]
    if not owners or owners[-1] != "person":
        return []
    theirs = [frame for frame, owner in frames if owner == "person"][-_MOST_FRAMES:]
    return [f"{_shown(f.filename)}:{f.lineno} in {f.name}: {f.line}" for f in theirs]


def _owner(file: str) -> str:
    """Whose file it is: of the person, of mptui, or "" of a library."""
    path = os.path.abspath(file)  # noqa: PTH100 - links stay as they are
    if Path(path).is_relative_to(_OURS):
        return "" if Path(path).is_relative_to(_LAYERS) else "mptui"
    inside = any(Path(path).is_relative_to(folder) for folder in _folders)
    is_theirs = inside and not is_library(path) and Path(path).is_file()
    return "person" if is_theirs else ""


def is_library(file: str) -> bool:
    """Whether a file is of an installed package or of Python."""
    return bool(_LIBRARIES.search(file)) or Path(file).is_relative_to(Path(os.__file__).parent)


def _shown(file: str) -> str:
    """Return a file relative to the current folder if it is in it."""
    path = os.path.abspath(file)  # noqa: PTH100 - links stay as they are
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
