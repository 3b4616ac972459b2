"""Merges a run's settings: defaults, profile, the profile's task tables, environment, flags, `--set`.

Later ones win, and the source of each value is recorded.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mptui.config.given import RESERVED_VARIABLES, SET_BEFORE, Layer, from_person, in_order
from mptui.config.keys import SETTINGS, VARIABLES, Setting, nested, training_of, value_of
from mptui.config.profiles import find_profile, is_ours
from mptui.config.schema import RunConfig
from mptui.config.validate import Profile, read_profile, shown
from mptui.errors import ConfigError
from mptui.registry.models import task_of_model
from mptui.registry.scope import Scope
from mptui.registry.tasks import TASKS
from mptui.text import clean

_RECORDED = "run"
"""Stem of the file in which a run records its settings, those too that do nothing."""

_SPLIT_SEED = "data.split_seed"
_OFF = ("off", "none")
"""Words for what is off."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A run's configuration, and the source of each value."""

    config: RunConfig
    sources: dict[str, str]
    """table.key -> its source: "default", "default [diffusion.training]", "profile fast",
    "profile fast [segmentation.training]", "MPTUI_TRAINING_LR", "--lr", "--set"."""
    profile: str
    """Name of the profile; "default" without one."""
    task: str | None
    """Task whose tables of the profile apply; None: not known yet."""
    notes: tuple[str, ...] = ()
    """What a person should know of the profile."""

    @property
    def compile_forced(self) -> bool:
        """Whether `--compile` was given, or `compile` in Python: even if the run is too short to repay it."""
        return self.sources["speed.compile"] in {"--compile", "compile"}


def resolve(
    profile: str | None,
    *,
    task: str | None,
    flags: Mapping[str, tuple[str, Any]],
    sets: Sequence[str],
    environ: Mapping[str, str],
    now: frozenset[str] | None = None,
) -> Resolved:
    """Merge the settings of a run into its configuration.

    Args:
        profile: Name or file of a profile; None: the defaults.
        task: Task of the data, if known; the task of a named model takes precedence.
        flags: table.key -> (flag, value), from `mptui.cli.options.overrides`.
        sets: Arguments of `--set`: "table.key=value", the value in TOML or a bare word.
        environ: The environment: MPTUI_TABLE_KEY, and the variables that locate the user's profiles.
        now: The keys that a person sets in a run that has begun: the others may do nothing in it by now;
            None: all are set for the run.

    Raises:
        ConfigError: Settings are invalid: all faults, one per line.
    """
    file, faults = (None, []) if profile is None else read_profile(find_profile(profile, environ))
    given, faults_given = from_person(environ, flags, sets)
    if file and faults:
        hint = f"correct it, then check it with `mptui profiles validate {file.path}`"
        raise ConfigError("\n".join([*faults, *faults_given]), hint=hint)
    if faults_given:
        hint = "`mptui run --dry-run` lists all keys with their values and sources"
        raise ConfigError("\n".join(faults_given), hint=hint)
    name = clean(file.path.stem) if file else "default"
    files = [_layer(file.values, f"profile {name}")] if file else []
    task = _task([*files, *given]) or task
    if file and task:
        files += [_task_layer(tables, of, f"profile {name}") for of, tables in _tables_for(task, file)]
    if task:
        files.insert(0, _task_layer(TASKS[task].defaults, task, "default"))
    if file and _records_older_run(file):
        files.insert(0, {_SPLIT_SEED: (None, f"profile {name}, of an earlier version")})
    values, sources = {}, dict.fromkeys(SETTINGS, "default")
    for key, value, source in in_order(files, given):
        values[key], sources[key] = value, source
    document = {"description": file.description if file else "", **nested(values)}
    config = _validated(document, sources)
    _refuse_other_task(config, sources, task)
    training = training_of(config, task)
    idle = {key: scope for key in values if (scope := SETTINGS[key].idle(training)) is not None}
    asked = {key: idle[key] for key in idle if _asks(values[key], sources[key], SETTINGS[key])}
    ours = file is not None and is_ours(file.path)
    notes = _refuse_idle(asked, config, sources, task, ours=ours, now=now)
    # what is said stays: it may act where the run goes on
    if dropped := {key for key, scope in idle.items() if not scope.said}:
        document = {key: value for key, value in values.items() if key not in dropped}
        config = _validated({"description": config.description, **nested(document)}, sources)
        sources |= dict.fromkeys(dropped, "default")
    if task:
        _refuse_impossible(config, sources, task)
    retired = dict.fromkeys(file.retired if file else ())
    notes += [f"{key} of profile {name} is ignored: this version has no such setting" for key in retired]
    return Resolved(config, sources, name, task, tuple(notes))


def check_profile(profile: str, environ: Mapping[str, str]) -> None:
    """Check a profile alone and for each task, without the settings of the environment.

    Raises:
        ConfigError: The profile is invalid: all faults, one per line.
    """
    places = {k: v for k, v in environ.items() if not k.startswith("MPTUI_") or k in RESERVED_VARIABLES}
    hints: dict[str, str] = {}
    for task in (None, *TASKS):
        try:
            resolve(profile, task=task, flags={}, sets=(), environ=places)
        except ConfigError as error:
            hints |= dict.fromkeys(error.message.splitlines(), error.hint)
    if hints:
        raise ConfigError("\n".join(hints), hint=next(iter(hints.values())))


def _records_older_run(file: Profile) -> bool:
    """Whether a file records all settings of a run of an earlier version, whose seed picked its split too."""
    return _SPLIT_SEED not in file.values and {"training.seed", "data.val_fraction"} <= file.values.keys()


def _layer(values: Mapping[str, Any], source: str) -> Layer:
    return {key: (value, source) for key, value in values.items()}


def _task_layer(values: Mapping[str, Any], task: str, source: str) -> Layer:
    return {key: (value, f"{source} [{task}.{key.rpartition('.')[0]}]") for key, value in values.items()}


def _tables_for(task: str, file: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the values of a profile for a task, and before them those for the task that it is like."""
    like = TASKS[task].like
    foreign = {f"training.{key}" for key in TASKS[like].settings} if like else set()
    tables = file.by_task.get(like, {})
    yield like, {key: value for key, value in tables.items() if key not in foreign and key != "model.name"}
    yield task, file.by_task.get(task, {})


def _task(layers: Sequence[Layer]) -> str | None:
    """Return the task that the settings name, or that of their network."""
    merged = {key: value for layer in layers for key, (value, _) in layer.items()}
    if (task := merged.get("model.task")) in TASKS:
        return str(task)
    name = merged.get("model.name")
    return task_of_model(name) if name else None


def _validated(document: dict[str, Any], sources: dict[str, str]) -> RunConfig:
    """Check the combination of values."""
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        faults = "\n".join(str(e["ctx"]["error"]) for e in error.errors())
    raise ConfigError(
        "\n".join(_with_sources(line, sources) for line in faults.splitlines()),
        hint="change one of the two at its source, or override it with --set table.key=value",
    )


def _with_sources(line: str, sources: dict[str, str]) -> str:
    """Add the sources of the keys that a fault names."""
    keys = [key for key in dict.fromkeys(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", line)) if key in sources]
    return f"{line} ({', '.join(f'{key}: {sources[key]}' for key in keys)})"


def _refuse_other_task(config: RunConfig, sources: dict[str, str], task: str | None) -> None:
    own = task_of_model(config.model.name) if config.model.name else None
    if task and own not in (None, task):
        raise ConfigError(
            f'model.name = "{config.model.name}" ({sources["model.name"]}): not a network for {task}',
            hint=f"remove `name` from the profile's [{task}.model], or name another network with --model",
        )


def _refuse_impossible(config: RunConfig, sources: dict[str, str], task: str) -> None:
    """Refuse values that this task does not have."""
    training, spec = config.training, TASKS[task]
    chosen = (
        ("training.loss", training.loss, spec.losses),
        ("training.primary_metric", training.primary_metric, spec.primaries),
    )
    faults = [
        f'{key} = "{value}" ({sources[key]}): {task} has {", ".join(choices) or "no choice"}'
        for key, value, choices in chosen
        if value is not None and value not in choices
    ]
    if faults:
        hint = f"unset it for {task}; a profile has settings of one task in tables like [{task}.training]"
        raise ConfigError("\n".join(faults), hint=hint)


def _asks(value: object, source: str, setting: Setting) -> bool:
    """Whether a value that does nothing asks for something: not what is off, and not a default of a file."""
    if source.startswith("profile ") and value == setting.field.default:
        return False
    return bool(value) and value not in _OFF


def _refuse_idle(
    asked: Mapping[str, Scope],
    config: RunConfig,
    sources: Mapping[str, str],
    task: str | None,
    *,
    ours: bool,
    now: frozenset[str] | None,
) -> list[str]:
    """Refuse settings that do nothing in this run, where a person has set them for it.

    Args:
        asked: These settings, and what each would act in.
        config: The configuration that they are in.
        sources: The source of each setting.
        task: The task.
        ours: Whether the profile is built in: then it serves several tasks.
        now: As in `resolve`.

    Returns:
        What to say of those that a person has set for another run, such as an earlier one, or for others
        too, and of those that another machine would read.

    Raises:
        ConfigError: A person has set one: one line per setting.
    """
    training = training_of(config, task)
    faults, notes = [], []
    for key, scope in asked.items():
        source = sources[key]
        words = f"{key} = {shown(value_of(config, key))} ({source})"
        is_of_file, is_recorded = source.startswith("profile "), _file_of(source) == f"profile {_RECORDED}"
        if is_of_file and (ours or _of_a_like_task(source, task) or (is_recorded and scope.said)):
            continue
        is_late = now is not None and key not in now
        is_shared = is_of_file or source in VARIABLES  # with other runs of the file or of the shell
        is_for_others = scope.said or (is_shared and _is_overridden(scope, source, sources))
        if is_recorded or source in SET_BEFORE or is_late or is_for_others:
            notes.append(f"{words} is ignored: it {scope.refusal(training)}")
        else:
            faults.append(f"{words}: {scope.refusal(training)}")
    if faults:
        hint = "leave it out; a profile has settings of one task in tables like [classification.training]"
        raise ConfigError("\n".join(faults), hint=hint)
    return notes


def _is_overridden(scope: Scope, source: str, sources: Mapping[str, str]) -> bool:
    """Whether the settings that a value needs are not set where it is."""
    file = _file_of(source)
    return bool(scope.beside) and all(_file_of(sources[key]) != file for key in scope.beside)


def _file_of(source: str) -> str:
    """Return the source without the table of a task that a value is in."""
    return source.partition(" [")[0]


def _of_a_like_task(source: str, task: str | None) -> bool:
    """Whether a value is from the tables of the task that `task` is like."""
    like = TASKS[task].like if task else ""
    return bool(like) and f" [{like}." in source
