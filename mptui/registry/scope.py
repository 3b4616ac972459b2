"""Where a setting acts: the tasks and networks that read it.

The schema declares a scope beside each key that not every run reads. Imports no torch.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mptui.registry.models import MODELS, find_model
from mptui.registry.own_code import is_own
from mptui.registry.samples import SampleKind
from mptui.registry.tasks import TASKS


@dataclass(frozen=True, slots=True)
class Training:
    """What a run trains, as far as its settings say so.

    Attributes:
        task: A key of `TASKS`; None: the data decides, and is not known.
        network: `model.name`; None: that of the task.
        encoder: `model.encoder`.
        own_loss: `model.task` if it names a loss of the person's own.
    """

    task: str | None
    network: str | None
    encoder: str | None
    own_loss: str | None

    @property
    def network_name(self) -> str | None:
        """The name of the network; None: neither it nor the task is known."""
        return self.network or (self.task and TASKS[self.task].network.accelerator)


@dataclass(frozen=True, slots=True)
class Scope:
    """The runs in which a setting acts; a setting without one acts in all.

    Attributes:
        where: Returns the names of the tasks or networks in which it acts.
        here: Returns the name of those of a run.
        acts: Whether it acts in a run; True where that is not known.
    """

    where: Callable[[], list[str]]
    here: Callable[[Training], str | None]
    acts: Callable[[Training], bool]

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


def own_loss_in(task: str | None) -> str | None:
    """Return the value of `model.task` if it names a loss of the person's own."""
    return task if is_own(task) else None


def _settings_of(task: str) -> tuple[str, ...]:
    """Return the keys of [training] that a task reads; `loss` where there is one to choose."""
    spec = TASKS[task]
    return (*spec.settings, "loss") if spec.losses else spec.settings
