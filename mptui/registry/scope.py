"""Where a setting acts: the tasks and networks that read it, and the settings that it needs beside it.

The schema declares scopes beside each key that not every run reads. Imports no torch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mptui.registry.models import MODELS, find_model
from mptui.registry.names import BUILT_IN, SampleKind
from mptui.registry.optimizers import OPTIMIZERS
from mptui.registry.own_code import is_own
from mptui.registry.tasks import TASKS


@dataclass(frozen=True, slots=True)
class Training:
    """What a run trains, as far as its settings say so.

    Attributes:
        task: A key of `TASKS`; None: the data decides, and is not known.
        network: `model.name`; None: that of the task.
        encoder: `model.encoder`.
        own_loss: `model.task` if it names a loss of the person's own.
        value: Returns the value of a `table.key`.
    """

    task: str | None
    network: str | None
    encoder: str | None
    own_loss: str | None
    value: Callable[[str], Any]

    @property
    def network_name(self) -> str | None:
        """The name of the network; None: neither it nor the task is known."""
        return self.network or (self.task and TASKS[self.task].network.accelerator)


@dataclass(frozen=True, slots=True)
class Scope:
    """The runs in which a setting acts; a setting without one acts in all.

    Attributes:
        where: Returns the names of the tasks or networks in which it acts, or the settings that it needs.
        here: Returns the name of those of a run.
        acts: Whether it acts in a run; True where that is not known.
        beside: The settings that it needs, as `table.key`, if these decide and not task or network.
        said: Whether a run that it does nothing in is told so, and not refused: the settings that it needs
            are chosen by the machine too, or differ in runs that are compared.
    """

    where: Callable[[], list[str]]
    here: Callable[[Training], str | None]
    acts: Callable[[Training], bool]
    beside: tuple[str, ...] = ()
    said: bool = False

    def refusal(self, training: Training) -> str:
        """Return why a setting does nothing in this run."""
        return f"acts with {', '.join(self.where())}; this run has {self.here(training) or 'none of them'}"


def of_network(setting: str) -> Scope:
    """Return the networks whose entry in `MODELS` has this key of [model] among its settings."""

    def acts(training: Training) -> bool:
        name = training.network_name
        spec = find_model(name)
        if name is None or spec is None:  # an unknown name is refused elsewhere
            return True
        return setting in spec.settings and not (setting == "depth" and training.encoder)

    def here(training: Training) -> str | None:
        name = training.network_name
        return f"{name} with model.encoder" if setting == "depth" and training.encoder else name

    return Scope(lambda: [name for name, spec in MODELS.items() if setting in spec.settings], here, acts)


def of_task(setting: str, *, of_loss: bool = True) -> Scope:
    """Return the tasks whose entry in `TASKS` has this key of [training] among its settings.

    Args:
        setting: The key.
        of_loss: Whether the loss alone reads it: then a loss of the person's own does not.
    """

    def acts(training: Training) -> bool:
        if of_loss and training.own_loss:
            return False
        return training.task is None or setting in _settings_of(training.task)

    def here(training: Training) -> str | None:
        return training.own_loss if of_loss and training.own_loss else training.task

    return Scope(lambda: [name for name in TASKS if setting in _settings_of(name)], here, acts)


def of_samples(*kinds: SampleKind) -> Scope:
    """Return the tasks that learn from samples of these kinds."""

    def acts(training: Training) -> bool:
        return training.task is None or TASKS[training.task].sample in kinds

    return Scope(
        lambda: [name for name, spec in TASKS.items() if spec.sample in kinds],
        lambda training: training.task,
        acts,
    )


def of_tasks(*names: str) -> Scope:
    """Return these tasks."""
    return Scope(
        lambda: list(names),
        lambda training: training.task,
        lambda training: training.task is None or training.task in names,
    )


def beside(key: str, needed: str, acts: Callable[[Any], bool], *, said: bool = False) -> Scope:
    """Return the runs in which the setting `key` has a value that `acts`; `needed` says which to a person."""

    def here(training: Training) -> str:
        return _assigned(key, training.value(key))

    return Scope(lambda: [f"{key}: {needed}"], here, lambda training: acts(training.value(key)), (key,), said)


def of_optimizer(setting: str) -> Scope:
    """Return the optimizers whose entry in `OPTIMIZERS` has this key of [training] among its settings."""
    names = [name for name, spec in OPTIMIZERS.items() if setting in spec.settings]
    return beside("training.optimizer", " or ".join(names), names.__contains__)


def _of_data(needed: str, acts: Callable[[str | None, str | None], bool]) -> Scope:
    keys = ("data.name", "data.path")

    def here(training: Training) -> str:
        values = ((key, training.value(key)) for key in keys)
        return (
            ", ".join(_assigned(key, value) for key, value in values if value is not None)
            or f"data.name = {BUILT_IN}"
        )

    return Scope(lambda: [needed], here, lambda training: acts(*map(training.value, keys)), keys)


def own_loss_in(task: str | None) -> str | None:
    """Return the value of `model.task` if it names a loss of the person's own."""
    return task if is_own(task) else None


def _settings_of(task: str) -> tuple[str, ...]:
    """Return the keys of [training] that a task reads; `loss` where there is one to choose."""
    spec = TASKS[task]
    return (*spec.settings, "loss") if spec.losses else spec.settings


def _is_built_in(name: str | None, path: str | None) -> bool:
    return name == BUILT_IN or (name is None and path is None)


OF_BUILT_IN = _of_data(f"data.name = {BUILT_IN}", _is_built_in)
"""Runs on the built-in images."""
OF_OTHER_DATA = _of_data("other data", lambda name, path: not _is_built_in(name, path))
"""Runs on all other data."""
OF_FOLDERS = _of_data("a folder as data.path", lambda name, path: name is None and path is not None)
"""Runs on data that is found in a folder."""


def _assigned(key: str, value: object) -> str:
    return f"{key} = {'none' if value is None else json.dumps(value)}"
