"""Merges the settings of a run with their sources, and writes them again as TOML."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import tomli
import tomli_w
from pydantic import ValidationError

from mptui.config.documents import SUFFIXES, read_document
from mptui.config.keys import (
    MEANT,
    RETIRED,
    SETTINGS,
    TABLES,
    UNSET,
    VARIABLE_OF,
    VARIABLES,
    VERSION,
    Profile,
    Setting,
    acts,
    check_value,
    nearest_setting,
    nested,
    read_profile,
    shown,
    training_of,
    unknown_setting,
    value_of,
    with_values,
)
from mptui.config.meant import FORMER_VIEWS, VIEWS, is_former, meanings
from mptui.config.profiles import built_in, find_profile, is_built_in, is_ours, user_folder
from mptui.config.schema import RunConfig
from mptui.errors import ConfigError, DiskError
from mptui.io.files import expanded, meant_path, replace_file
from mptui.registry.models import find_model, task_of_model
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.scope import Scope
from mptui.registry.tasks import TASKS, TaskSpec
from mptui.text import clean, shell_word

# Reads and checks the settings given outside files: environment variables, flags and `--set`
# -------------------------------------------------------------------------------------------

Layer = dict[str, tuple[Any, str]]
"""table.key -> (value, source to show)."""

COMPILE_ON = "on"
"""Value of speed.compile for `--compile`: keeps the mode that is set, or "default" if that is off."""
EDITED, CHECKPOINT = "edited", "the checkpoint"
"""Sources of values that the picker and a checkpoint keep, while what is trained may change."""
SET_BEFORE = frozenset({EDITED, CHECKPOINT})
"""Sources of values that nobody has set for this very run: those that do nothing in it are left out."""
RESERVED_VARIABLES = frozenset(
    {"MPTUI_CONFIG_DIR", "MPTUI_GRAPHICS", "MPTUI_NOTIFY", "MPTUI_RUNS_DIR", "MPTUI_THEME"}
)
"""MPTUI_ variables that aren't settings."""


def from_person(
    environ: Mapping[str, str], flags: Mapping[str, tuple[str, Any]], sets: Sequence[str]
) -> tuple[list[Layer], list[str]]:
    """Read the layers in increasing precedence (variables, flags, `--set`), and their faults."""
    read = (_from_variables(environ), _from_flags(flags), _from_assignments(sets))
    return [layer for layer, _ in read], [fault for _, faults in read for fault in faults]


def _from_variables(environ: Mapping[str, str]) -> tuple[Layer, list[str]]:
    """Read the settings in the environment, and their faults, one line each."""
    layer: Layer = {}
    faults = []
    for name, text in environ.items():
        if name in VARIABLES:
            key = VARIABLES[name]
            value, wrong = read_value(SETTINGS[key], text)
            layer[key] = (value, name)
            faults += [f"{name} = {shown(text)}: {wrong}"] if wrong else []
        elif name.startswith("MPTUI_") and name not in RESERVED_VARIABLES:
            near = _nearest_variable(name)
            fault = f"{clean(name, limit=100)}: no such variable"
            faults.append(f"{fault}; nearest: {near}" if near else fault)
    return layer, faults


def _nearest_variable(name: str) -> str | None:
    """Return the variable closest to `name` in letters or meaning; None if none is similar."""
    known = [*VARIABLES, *RESERVED_VARIABLES]
    if near := get_close_matches(name.upper(), known, n=1, cutoff=0.9):
        return near[0]
    words = name.removeprefix("MPTUI_").lower()
    table = next((table for table in TABLES if words.startswith(f"{table}_")), "")
    meant = nearest_setting(f"{table}.{words.removeprefix(f'{table}_')}" if table else words)
    return VARIABLE_OF[meant] if meant else next(iter(get_close_matches(name, known, n=1)), None)


def _from_flags(flags: Mapping[str, tuple[str, Any]]) -> tuple[Layer, list[str]]:
    """Check the values of flags, given as table.key -> (flag, value); one line per fault."""
    layer: Layer = {}
    faults = []
    for key, (flag, given) in flags.items():
        value, wrong = (given, None) if _is_compile_on(key, given) else check_value(SETTINGS[key], given)
        layer[key] = (value, flag)
        faults += [f"{flag} = {shown(given)}: {wrong}"] if wrong else []
    return layer, faults


def _from_assignments(sets: Sequence[str]) -> tuple[Layer, list[str]]:
    """Read the arguments of `--set`, and their faults, one line each."""
    layer: Layer = {}
    faults = []
    for argument in sets:
        key, equals, text = argument.partition("=")
        key, place = key.strip(), f"--set {clean(argument, limit=100)}"
        if not equals:
            faults.append(f"{place}: not of the form table.key=value")
        elif key not in SETTINGS:
            faults.append(f"{place}: {unknown_setting(key)}")
        else:
            value, wrong = read_value(SETTINGS[key], text)
            layer[key] = (value, "--set")
            faults += [f"{place}: {wrong}"] if wrong else []
    return layer, faults


def data_flags(where: str, flag: str) -> dict[str, tuple[str, Any]]:
    """Return the settings for a folder or the name of a data set; both replace the profile's.

    A folder may stand in quotes, as a `file://` address, or in another Unicode form than on the disk.
    """
    where = meant_path(where)
    path = expanded(where)
    is_path = os.sep in where or os.path.exists(path)  # noqa: PTH110 - pathlib raises for a name that is too long
    return {
        "data.path": (flag, str(path) if is_path else None),
        "data.name": (flag, None if is_path else where),
    }


def in_order(files: Sequence[Layer], given: Sequence[Layer]) -> Iterator[tuple[str, Any, str]]:
    """Yield each (table.key, value, source) of the layers, in their order: a later one wins.

    A learning rate given without its batch size is not rescaled: the `lr_batch_size` of a file doesn't
    apply to it. `--compile` forces the mode that is set after it, too.
    """
    mode: Any = "off"
    forced_by = None
    for layer in [*files, *given]:
        for key, (value, source) in layer.items():
            if key != "speed.compile":
                yield key, value, source
                continue
            if value != COMPILE_ON:
                mode = value
            else:
                mode, forced_by = "default" if mode == "off" else mode, source
            yield key, mode, source if forced_by is None or mode == "off" else forced_by
    if bare_rate := _source_of_bare_rate(given):
        yield "training.lr_batch_size", None, bare_rate


def _source_of_bare_rate(given: Sequence[Layer]) -> str | None:
    """Return the source of the learning rate if no `lr_batch_size` is given with or after it."""
    source = None
    for layer in given:
        if "training.lr" in layer:
            source = layer["training.lr"][1]
        if "training.lr_batch_size" in layer:
            source = None
    return source


def _is_compile_on(key: str, value: object) -> bool:
    return key == "speed.compile" and value == COMPILE_ON


def read_value(setting: Setting, text: str) -> tuple[Any, str | None]:
    """Read a value as TOML, or as a bare word where only that is valid for the key.

    Returns:
        The value, and its fault or None.
    """
    try:
        document = tomli.loads(f"value = {text}")
    except (ValueError, RecursionError):
        document = {}
    if document.keys() != {"value"}:
        return check_value(setting, text.strip())
    value, wrong = check_value(setting, document["value"])
    if wrong:
        as_text, fault = check_value(setting, text)
        return (value, wrong) if fault else (as_text, None)
    return value, wrong


# Merges a run's settings: defaults, profile, the profile's task tables, environment, flags, `--set`
# --------------------------------------------------------------------------------------------------
# Later ones win, and the source of each value is recorded.

_RECORDED_SETTINGS = 40
"""A run of any version records more settings, and no profile of a person or of a command has so many."""
_RECORDED = "run"
"""Stem of the file in which a run records its settings, those too that do nothing."""

_SPLIT_SEED, _WEIGHTS = "data.split_seed", "model.weights"
_OPTIMIZER, _RATE = "training.optimizer", "training.lr"
_FINE_TUNING = "finetune"
"""The built-in profile for weights that were trained before."""
_FINE_TUNED = {
    f"training.{key}"
    for key in (
        *("optimizer", "lr", "lr_batch_size", "lr_scaling", "weight_decay", "layer_decay", "head_lr_scale"),
        *("warmup_epochs", "clip_grad_norm"),
    )
}
"""What such weights need of it, with any profile; its epochs, batch and precision are no need of theirs."""
_NOT_GIVEN = ("default", "profile ", "chosen")
"""Beginnings of the sources of values that no person has set for this very run."""
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
    changed: tuple[str, ...] = ()
    """The settings that people have set since the run took the profile."""

    @property
    def given(self) -> list[str]:
        """The settings that a person has set for this very run, and not in a file."""
        return [key for key, source in self.sources.items() if not source.startswith(_NOT_GIVEN)]

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
        hint = f"correct it, then check it with `mptui profiles validate {shell_word(file.path)}`"
        raise ConfigError("\n".join([*faults, *faults_given]), hint=hint)
    if faults_given:
        hint = "find a key by its name or its meaning: mptui profiles keys WORD"
        raise ConfigError("\n".join(faults_given), hint=hint)
    name = clean(file.path.stem) if file else "default"
    files = [_layer(file.values, f"profile {name}")] if file else []
    task = _task([*files, *given]) or task
    if file and task:
        files += [_task_layer(tables, of, f"profile {name}") for of, tables in _tables_for(task, file)]
    if task and not (file and _records_run(file)):  # which leaves out what was unset
        if _continues_weights(file, given):
            files.append(_of_weights(task, given))
        files.insert(0, _defaults_of(task, [*files, *given]))
    if file and _records_run(file) and _SPLIT_SEED not in file.values:  # then the seed picked the split, too
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
    if file and task:
        began = _as_it_began(file, config, sources, task)
        config = with_values(config, began)
        sources |= dict.fromkeys(began, f"profile {name}, as the run began")
        notes += _notes_on_defaults(file, config, sources, task, began)
    retired = dict.fromkeys(file.retired if file else ())
    notes += [f"{key} of profile {name} is ignored: {RETIRED[key]}" for key in retired]
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


def _records_run(file: Profile) -> bool:
    """Whether a file records all settings of a run, but for those that are unset."""
    return len(file.values) >= _RECORDED_SETTINGS


def _as_it_began(file: Profile, config: RunConfig, sources: Mapping[str, str], task: str) -> dict[str, Any]:
    """Return what the defaults of a run meant when it began, where they mean something else by now."""
    same_optimizer = config.training.optimizer == file.values.get(_OPTIMIZER)
    now = meanings(config, task)
    return {
        key: value
        for key, value in file.meant.items()
        if key in now
        and now[key] != value
        and sources[key].startswith(_NOT_GIVEN)
        and (same_optimizer or not _is_of_optimizer(key))
    }


def _notes_on_defaults(
    file: Profile, config: RunConfig, sources: Mapping[str, str], task: str, began: Mapping[str, Any]
) -> list[str]:
    """Return a line for each default of a run that is another one by now, or was and isn't recorded."""
    notes = [
        f"{key} = {json.dumps(value)}, which was the default when this run began; "
        f"--set {key}={'default' if key == VIEWS else UNSET} takes today's"
        for key, value in began.items()
    ]
    is_unrecorded = _records_run(file) and VIEWS not in file.meant and sources[VIEWS].startswith("profile ")
    if is_unrecorded and is_former(config, task):
        views = json.dumps(FORMER_VIEWS)
        notes.append(
            f"{VIEWS} = default: earlier versions turned images with masks and mirrored them top to bottom, "
            f"too, and this run does not record what it began with; --set {VIEWS}='{views}' keeps that"
        )
    return notes


def _layer(values: Mapping[str, Any], source: str) -> Layer:
    return {key: (value, source) for key, value in values.items()}


def _task_layer(values: Mapping[str, Any], task: str, source: str) -> Layer:
    return {key: (value, f"{source} [{task}.{key.rpartition('.')[0]}]") for key, value in values.items()}


def _defaults_of(task: str, layers: Sequence[Layer], *, recipe: bool = True) -> Layer:
    """Return the defaults of a task and of a network, but of no optimizer where `layers` name another.

    Args:
        task: The task.
        layers: What is given otherwise.
        recipe: With the task's recipe, if `layers` leave that open.
    """
    given = _merged(layers)
    name = given.get("model.name")
    spec = find_model(name)
    own = {} if spec is None else _layer(spec.training, f"default of {clean(str(name))}")
    defaults = _task_layer(TASKS[task].defaults, task, "default")
    if recipe and _takes_recipe(TASKS[task], {**_merged([own]), **given}):
        defaults |= _task_layer(TASKS[task].recipe, task, "default")
    return _suiting(defaults | own, given)


def _takes_recipe(task: TaskSpec, given: Mapping[str, Any]) -> bool:
    """Whether no optimizer is named but that of the recipe, and no rate that is meant for another one."""
    if _OPTIMIZER in given:
        return bool(given[_OPTIMIZER] == task.recipe.get(_OPTIMIZER))
    rate = given.get(_RATE)
    return not (isinstance(rate, int | float) and rate >= task.other_rates)


def _continues_weights(file: Profile | None, given: Sequence[Layer]) -> bool:
    """Whether a person asks for trained weights, but for no rate, and has no profile of an own."""
    asked = _merged(given)
    is_for_any = file is None or (is_ours(file.path) and _WEIGHTS not in file.values)
    return is_for_any and asked.get(_WEIGHTS) not in (None, *_OFF) and _RATE not in asked


def _of_weights(task: str, given: Sequence[Layer]) -> Layer:
    """Return how weights that were trained before are trained on, by the profile `finetune`.

    The rates of random weights destroy them in the first steps. The head is not trained alone first: a run
    may be shorter than that takes.
    """
    profile, _ = read_profile(built_in(_FINE_TUNING))
    values = {key: value for key, value in profile.values.items() if key in _FINE_TUNED}
    for _, tables in _tables_for(task, profile):
        values |= {key: value for key, value in tables.items() if key in _FINE_TUNED}
    return _suiting(_layer(values, "default of weights that were trained before"), _merged(given))


def _suiting(defaults: Layer, given: Mapping[str, Any]) -> Layer:
    """Put the usual rate of an optimizer that is given in place of what is for one of the defaults."""
    named, own = given.get(_OPTIMIZER), defaults.get(_OPTIMIZER)
    if named is None or (own is not None and own[0] == named):
        return dict(defaults)
    kept = {key: default for key, default in defaults.items() if not _is_of_optimizer(key)}
    spec = OPTIMIZERS.get(named) if isinstance(named, str) else None
    return kept if spec is None or spec.lr is None else kept | _layer({_RATE: spec.lr}, f"default of {named}")


def _is_of_optimizer(key: str) -> bool:
    live = SETTINGS[key].live
    return key == _OPTIMIZER or (live is not None and live.one_optimizer)


def _merged(layers: Sequence[Layer]) -> dict[str, Any]:
    return {key: value for layer in layers for key, (value, _) in layer.items()}


def _tables_for(task: str, file: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the values of a profile for a task, and before them those for the task that it is like."""
    like = TASKS[task].like
    foreign = {f"training.{key}" for key in TASKS[like].settings} if like else set()
    tables = file.by_task.get(like, {})
    yield like, {key: value for key, value in tables.items() if key not in foreign and key != "model.name"}
    yield task, file.by_task.get(task, {})


def _task(layers: Sequence[Layer]) -> str | None:
    """Return the task that the settings name, or that of their network."""
    merged = _merged(layers)
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
        is_meant_for_others = ours or _of_a_like_task(source, task) or (is_recorded and scope.said)
        if is_of_file and is_meant_for_others:
            continue
        is_late = now is not None and key not in now
        is_shared = is_of_file or source in VARIABLES  # with other runs of the file or of the shell
        is_for_others = scope.said or (is_shared and _is_overridden(scope, source, sources))
        is_earlier = is_recorded or source in SET_BEFORE
        is_no_fault = is_earlier or is_late or is_for_others
        if is_no_fault:
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


# Writes a configuration as TOML, for `run.toml` and `--dry-run`
# --------------------------------------------------------------


def to_toml(config: RunConfig, meant: Mapping[str, Any] | None = None) -> str:
    """Write all values in the order of the schema; resolving the text again gives an equal configuration.

    Args:
        config: The configuration.
        meant: What it leaves to a default (`mptui.config.meant.meanings`), as it stands beside its values.
    """
    values = {key: value for key, value in values_of(config).items() if value != _unset_by_default(key)}
    text = document_text(config.description, values)
    return text + "\n" + tomli_w.dumps({MEANT: nested(dict(meant))}) if meant else text


def dry_run_text(resolved: Resolved) -> str:
    """Write every key that acts as TOML, unset ones too, with the source of its value in a comment."""
    training = training_of(resolved.config, resolved.task)
    values = {key: value for key, value in values_of(resolved.config).items() if acts(key, training)}
    lines = document_text(resolved.config.description, values).splitlines()
    width = min(40, max(len(line) for line in lines))
    table = ""
    commented = []
    for line in lines:
        if line.startswith("["):
            table = line.strip("[]")
        source = resolved.sources.get(f"{table}.{line.partition(' = ')[0]}")
        commented.append(f"{line:<{width}}  # {source}" if source else line)
    return "\n".join(commented) + "\n"


def values_of(config: RunConfig) -> dict[str, Any]:
    """Return the value of each table.key; "none" if it is unset."""
    found = ((key, value_of(config, key)) for key in SETTINGS)
    return {key: UNSET if value is None else value for key, value in found}


def document_text(description: str, values: dict[str, Any]) -> str:
    """Write {"table.key": value} as TOML tables, in the order given."""
    return tomli_w.dumps({"version": VERSION, "description": description, **nested(values)})


def _unset_by_default(key: str) -> str | None:
    """Return "none" if the key is unset by default: a file then omits it."""
    return UNSET if SETTINGS[key].field.default is None else None


# Saves a user's profile: from a configuration, or as a copy of another profile
# -----------------------------------------------------------------------------

_NAME = re.compile(r"\w[\w.\- ]{0,63}")
_DESCRIPTION = re.compile(r"^description\s*=.*$", re.MULTILINE)


def save_profile(
    name: str,
    config: RunConfig,
    description: str,
    *,
    task: str | None,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Save the values that differ from the defaults of a task as a profile in the user's folder.

    Raises:
        ConfigError: The name is not a valid file name, is that of a built-in profile, or is in use.
        DiskError: The folder can't be written.
    """
    return write_profile(_path_of_name(name, environ), profile_text(config, description, task=task))


def profile_path(where: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file to save a profile in: a path, or a name in the user's folder.

    Raises:
        ConfigError: The name is not a valid file name, or is that of a built-in profile, or the path ends in
            .yaml or .yml.
    """
    if where.endswith(SUFFIXES[1:]):
        hint = f"name it {Path(where).with_suffix(SUFFIXES[0])}"
        raise ConfigError(f"{clean(where)}: profiles are saved as TOML", hint=hint)
    if os.sep in where or where.endswith(SUFFIXES):
        return expanded(where)
    return _path_of_name(where, environ)


def check_free(path: Path, *, hint: str = "choose another name, or edit that file") -> None:
    """Check that `path` doesn't exist.

    Raises:
        ConfigError: It exists.
    """
    if path.exists():
        raise ConfigError(f"profile {path.stem} exists already: {path}", hint=hint)


def profile_text(
    config: RunConfig, description: str, comments: Sequence[str] = (), *, task: str | None
) -> str:
    """Write the values that differ from the defaults of a task as TOML, below `comments`, one per line."""
    default = {**values_of(RunConfig()), **(_left_out(config, task) if task else {})}
    for key in TASKS[task].recipe if task else ():  # what is left out of a recipe would be taken from it
        del default[key]
    changed = {
        key: value for key, value in values_of(config).items() if key not in default or value != default[key]
    }
    head = [f"# {clean(line, limit=1000)}\n" for line in comments]
    return "".join(head) + document_text(description, changed)


def _left_out(config: RunConfig, task: str) -> dict[str, Any]:
    """Return the values of table.key that a file may leave out, as the defaults of a task and a network."""
    network, optimizer = (_layer({key: value_of(config, key)}, "") for key in ("model.name", _OPTIMIZER))
    own = _defaults_of(task, [network], recipe=False)  # a file names all of a recipe, and any other optimizer
    kept = _defaults_of(task, [network, optimizer], recipe=False)
    named = own.get(_OPTIMIZER, (None, ""))
    return {key: value for key, (value, _) in {**kept, _OPTIMIZER: named}.items()}


def copy_profile(name: str, origin: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Copy a profile into the user's folder, as TOML; the description names the original.

    Comments are kept, but for those of a YAML file.

    Raises:
        ConfigError: The name is not a valid file name, is that of a built-in profile, or is in use, or
            `origin` is missing or can't be read.
        DiskError: The folder can't be written.
    """
    source = find_profile(origin, environ)
    read = read_document(source)
    text, document = read.text, _without_nulls(read.values)
    document["description"] = f"A copy of {source.stem}"
    line = f"description = {json.dumps(document['description'], ensure_ascii=False)}"
    edited = _DESCRIPTION.sub(lambda _: line, text, count=1)
    if not _says(edited, document):
        edited = f"{line}\n{text}"
    text = edited if _says(edited, document) else tomli_w.dumps(document)
    return write_profile(_path_of_name(name, environ), text)


def _without_nulls(table: dict[str, Any]) -> dict[str, Any]:
    """Write YAML's null as TOML's text for it, and leave out tables without keys."""
    settings = {setting.name for setting in SETTINGS.values()}
    return {
        key: _without_nulls(value) if isinstance(value, dict) else UNSET if value is None else value
        for key, value in table.items()
        if value is not None or key in settings
    }


def _says(text: str, document: dict[str, Any]) -> bool:
    try:
        return tomli.loads(text) == document
    except ValueError:
        return False


def write_profile(path: Path, text: str, *, replace: bool = False) -> Path:
    """Write a profile atomically.

    Raises:
        ConfigError: The file exists, and `replace` is not set.
        DiskError: It can't be written.
    """
    if not replace:
        check_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), mode=0o666)
    except OSError as error:
        hint = "choose a writable folder; profiles given by name are saved below MPTUI_CONFIG_DIR"
        raise DiskError(f"{path}: {error.strerror}", hint=hint) from error
    return path


def _path_of_name(name: str, environ: Mapping[str, str]) -> Path:
    if not _NAME.fullmatch(name) or name.endswith(SUFFIXES):
        raise ConfigError(
            f'"{clean(name, limit=80)}" is not a valid profile name',
            hint="use letters, digits, '-', '_' and '.', starting with a letter or a digit, without a path",
        )
    if is_built_in(name):
        raise ConfigError(
            f"{name} is a built-in profile; a profile of yours with this name would replace it",
            hint=f"choose another name, such as my-{name}",
        )
    return user_folder(environ) / f"{name}{SUFFIXES[0]}"
