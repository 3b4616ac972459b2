"""The interface for Python programs: `from mptui import resume, train`. `docs/python.md` describes it.

What the functions here take and return stays compatible; all other modules may change with any version.
"""

import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mptui.cli.options import SETTING_OF_FLAG
from mptui.cli.train.host import renderer_of
from mptui.cli.train.signals import Signals
from mptui.config.keys import SETTINGS
from mptui.config.resolve import COMPILE_ON, data_flags
from mptui.errors import ConfigError, DataError, OwnCodeError
from mptui.registry import own_code
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.store.directory import CONFIG, check_name, check_version, create_run, find_run

if TYPE_CHECKING:
    from torch import nn

Factory = Callable[..., "nn.Module"]
Flags = dict[str, tuple[str, Any]]

_POLL_S = 0.2
_TAKEN = ("model.task", "data.augment")
"""Settings of which an object stands for itself; of others it is what a function returns."""


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run that has ended.

    Attributes:
        directory: The run directory, with its checkpoints; `resume` continues it.
        summary: The content of its `summary.json`.
    """

    directory: Path
    summary: Mapping[str, Any]

    @property
    def status(self) -> str:
        """`completed`, or `stopped` by `mptui stop` or a key."""
        return str(self.summary["status"])

    @property
    def best(self) -> Mapping[str, Any]:
        """The best validation: `epoch`, `metric` and its `value`."""
        best: Mapping[str, Any] = self.summary["best"]
        return best

    @property
    def final(self) -> Mapping[str, float]:
        """Losses and metrics of the last epoch: `train_loss`, `val_loss`, `acc1` and others."""
        final: Mapping[str, float] = self.summary["final"]
        return final


def train(
    model: "str | Factory | nn.Module | None" = None,
    data: object = None,
    task: object = None,
    *,
    profile: str | Path | None = None,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    progress: bool = False,
    trust_code: bool = False,
    **settings: object,
) -> TrainedRun:
    """Train a network, as `mptui run` does.

    Args:
        model: The name of a network, a function or class that takes `num_classes` and returns an `nn.Module`,
            or an `nn.Module`, which is trained in place. None: chosen for the data.
        data: The name or folder of a set, or a class of a data set (see `docs/own_code.md`). None: `shapes`.
        task: The name of a task, or a loss: a function, a class or an object. None: that of network and data.
        profile: The name or file of a profile.
        name: Name of the run.
        runs_dir: Folder of the runs.
        progress: Whether to print progress on stderr.
        trust_code: Let code run that is named as "package.module:name". Objects are trusted.
        settings: Any setting, by its flag (`epochs=3`) or by its key (`**{"data.cache": "ram"}`).

    Raises:
        ConfigError: A value is wrong, or code is not trusted.
        OwnCodeError: The given code has a bug; the cause is the original exception.
        MptuiError: The run failed; each class has an `exit_code`.
        KeyboardInterrupt: SIGINT; a checkpoint was saved first. A second one raises at once.
    """
    request = _request(
        None if profile is None else str(profile), model, data, task, trust_code=trust_code, settings=settings
    )
    if name is not None:
        check_name(name)

    def directory(plan: Plan) -> Path:
        from mptui.runs.planning.build import check_inputs

        check_inputs(plan)
        return create_run(Path(runs_dir), plan.resolved.profile, str(plan.config.model.name), name)

    return _run(request, directory, resume=False, progress=progress)


def resume(
    run: str | Path,
    *,
    model: "str | Factory | nn.Module | None" = None,
    data: object = None,
    task: object = None,
    runs_dir: str | Path = "runs",
    progress: bool = False,
    trust_code: bool = False,
    **settings: object,
) -> TrainedRun:
    """Continue a run from its newest checkpoint, as `mptui resume` does.

    Args:
        run: Name of a run in `runs_dir`, its start, or its directory (`./NAME`).
        model: The network again, if the run was given an object.
        data: The data set again, if the run was given an object.
        task: The loss again, if the run was given an object.
        runs_dir: Folder of the runs.
        progress: Whether to print progress on stderr.
        trust_code: Let code run that the run names as "package.module:name".
        settings: Settings to change, as in `train`.

    Raises:
        RunDirectoryError: There is no such run, or its checkpoints are damaged.
        Exception: As `train`.
    """
    path = find_run(Path(runs_dir), str(run))
    check_version(path)
    request = _request(str(path / CONFIG), model, data, task, trust_code=trust_code, settings=settings)
    return _run(request, lambda _: path, resume=True, progress=progress)


def _request(
    profile: str | None,
    model: object,
    data: object,
    task: object,
    *,
    trust_code: bool,
    settings: Mapping[str, object],
) -> Request:
    if own_code.is_importing():
        raise OwnCodeError(
            "train() is called while its module is imported",
            hint='call it under: if __name__ == "__main__":',
        )
    flags: Flags = {}
    for key, thing in (("model.name", model), ("model.task", task)):
        if thing is not None:
            flags = {**_named(key, thing), **flags}  # the folder of the first
    if isinstance(data, str | Path):
        flags |= data_flags(str(data), "data")
    elif data is not None:
        flags = {"data.path": ("data", None), **_named("data.name", data), **flags}
        if str(flags["data.name"][1]).startswith(f"{own_code.OBJECTS}:"):
            flags["data.workers"] = ("data, which no worker can import", 0)
    for word, value in settings.items():
        flags |= _setting(word, value)
    return Request(profile, flags, (), os.environ, trust_code=trust_code)


def _setting(word: str, value: object) -> Flags:
    if word == "compile":
        return {"speed.compile": (word, COMPILE_ON if value is True else value or "off")}
    key = SETTING_OF_FLAG.get(word, word)
    if key not in SETTINGS:
        raise ConfigError(
            f"{word}: no such setting", hint='use the name of a flag, or of a key: **{"table.key": VALUE}'
        )
    if key == "data.augment" and isinstance(value, list | tuple):
        return _transforms(word, value)
    return {key: (word, value)}


def _transforms(word: str, things: Sequence[object]) -> Flags:
    """Return the settings of transforms, each a name or an object."""
    names: list[str] = []
    flags: Flags = {}
    for number, thing in enumerate(things):
        named = _named("data.augment", thing)
        name = str(named.pop("data.augment")[1])
        if name in names and not isinstance(thing, str):
            name = f"{name}_{number}"
            own_code.give(name, thing)
        names.append(name)
        flags |= named
    if any(name.startswith(f"{own_code.OBJECTS}:") for name in names):
        flags["data.workers"] = ("data.augment, which no worker can import", 0)
    return {**flags, "data.augment": (word, names)}


def _named(key: str, thing: object) -> Flags:
    """Return the settings of a thing, which its name stands for in this process."""
    if isinstance(thing, str):
        return {key: (key, thing)}
    from torch import nn

    module = inspect.getmodule(thing)
    qualified = getattr(thing, "__qualname__", "")
    name, folder = f"{_module_name(module)}:{qualified}", _folder_of(module)
    is_object = isinstance(thing, nn.Module) or not callable(thing)
    if is_object or not own_code.is_own(name):
        word = getattr(thing, "__name__", type(thing).__name__)
        name, folder = f"{own_code.OBJECTS}:{word if word.isidentifier() else 'function'}", ""
    own_code.give(name, thing if key in _TAKEN or not is_object else lambda **_: thing)
    return {key: (key, name), **({"code.folder": (key, folder)} if folder else {})}


def _module_name(module: ModuleType | None) -> str:
    """Return the name that another process imports a module by."""
    if module is None:
        return ""
    if module.__name__ != "__main__":
        return module.__name__
    if module.__spec__ is not None:  # python -m
        return module.__spec__.name
    return Path(getattr(module, "__file__", None) or "").stem


def _folder_of(module: ModuleType | None) -> str:
    """Return the folder that a module of the person's own is imported from; "" for a library's."""
    file = getattr(module, "__file__", None)
    if file is None or own_code.is_library(file):
        return ""
    path = Path(file).absolute()
    inside = path.parent if path.name == "__init__.py" else path
    return str(inside.parents[_module_name(module).count(".")])


def _run(request: Request, directory: Callable[[Plan], Path], *, resume: bool, progress: bool) -> TrainedRun:
    from mptui.data.own import opened
    from mptui.runs.session.session import Session
    from mptui.runs.store.files import discard_unstarted

    opened.cache_clear()  # a name can stand for another object now
    in_main = threading.current_thread() is threading.main_thread()
    with Signals() if in_main else contextlib.nullcontext() as signals:
        plan = plan_run(request)
        from mptui.data.view_transforms import made  # torch is there

        made.cache_clear()
        path = directory(plan)
        session = Session(plan, path, resume=resume, force_compile=plan.resolved.compile_forced)
        events, renderer = session.listen(), renderer_of(silent=not progress)
        session.start()
        if signals is not None:
            signals.attach(session.mailbox)
        ended = False
        while not ended:
            ended = session.wait(_POLL_S)
            for event in events.drain():
                renderer.handle(event)
        renderer.close()
    if signals is not None and signals.stop is not None:
        signal.raise_signal(signals.stop)  # what it does without mptui; all is saved
    result = session.result
    if (error := result.bug or result.error) is not None:
        if not resume and isinstance(error, ConfigError | DataError | OwnCodeError):
            discard_unstarted(path)
        raise error
    sys.stderr.flush()
    return TrainedRun(path, result.summary)
