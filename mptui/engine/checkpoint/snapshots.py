"""A trainer's state as a snapshot, and back: all that a bit-identical continuation needs.

Random numbers need no saving: each derives from the position in the run.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from mptui.config.dump import values_of
from mptui.config.resume import changed
from mptui.engine.checkpoint.files import Snapshot, host_copy
from mptui.engine.job import steps_left
from mptui.engine.optim.fused import FusedOptimizer
from mptui.engine.optim.lr_schedule import Standing
from mptui.engine.progress import Best, Cursor
from mptui.errors import ConfigError, RunDirectoryError

if TYPE_CHECKING:
    from mptui.engine.trainer import Trainer

Copy = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


def take(trainer: "Trainer", copy: Copy = host_copy) -> Snapshot:
    """The state between two optimizer steps, copied to the host. Waits for the device.

    Args:
        trainer: Stands between two steps.
        copy: Copies named tensors to where training no longer touches them.
    """
    trainer.reporter.catch_up()
    average = trainer.parts.average.state() if trainer.parts.average is not None else {}
    return Snapshot(
        step=trainer.step,
        tensors={
            "model": copy(trainer.model.state_dict()),
            "optimizer": copy(_optimizer_tensors(trainer)),
            "average": copy(average),
            "metrics": copy(trainer.metrics.state()),
        },
        state={
            "optimizer": trainer.job.config.training.optimizer,
            "cursor": asdict(trainer.cursor),
            "counted": trainer.once.counted,
            "best": asdict(trainer.best),
            "report": trainer.reporter.state(),
            "scaler": trainer.parts.precision.state(),
            "lr": float(trainer.parts.updater.lr),
            "schedule": [trainer.parts.updater.position(), trainer.parts.schedule_steps],
            "standing": asdict(trainer.parts.standing()),
            "guards": trainer.guards.state(),
            "compiled": trainer.parts.compiler.decision,
            "settings": values_of(trainer.guards.nan.given.config),
        },
    )


def size_of(trainer: "Trainer") -> int:
    """Bytes that a snapshot of `trainer` takes, its metrics apart."""
    groups = [trainer.model.state_dict(), _optimizer_tensors(trainer)]
    if trainer.parts.average is not None:
        groups.append(trainer.parts.average.state())
    return sum(t.numel() * t.element_size() for group in groups for t in group.values())


def restore(trainer: "Trainer", snapshot: Snapshot) -> None:
    """Set a trainer to where `snapshot` was taken: state is the snapshot's, settings are the trainer's.

    Raises:
        ConfigError: The snapshot does not fit settings that differ from those it was taken under.
        RunDirectoryError: The snapshot is of another model or optimizer.
    """
    state = snapshot.state
    asked = changed(state.get("settings", {}), values_of(trainer.guards.nan.given.config))
    try:
        _restore(trainer, snapshot, asked)
    except (KeyError, TypeError, RuntimeError) as error:
        message = f"the checkpoint of step {snapshot.step} does not fit this run: {error}"
        if shaping := sorted(key for key in asked if key.startswith(("model.", "data.", "training.opt"))):
            hint = f"resume with the {', '.join(shaping)} that the run had"
            raise ConfigError(message, hint=hint) from error
        hint = "resume with the model and optimizer of its run.toml"
        raise RunDirectoryError(message, hint=hint) from error
    trainer.step = snapshot.step


def _restore(trainer: "Trainer", snapshot: Snapshot, asked: frozenset[str]) -> None:
    """Take up `snapshot`; what was chosen for a setting that is `asked` anew now is left."""
    state, training = snapshot.state, trainer.job.config.training
    if state["optimizer"] != training.optimizer:
        raise RuntimeError(f"its optimizer is {state['optimizer']}, not {training.optimizer}")
    if "guards" in state:  # first: they may have chosen another precision, and other rates
        trainer.guards.load_state(state["guards"], asked)
    trainer.model.load_state_dict(snapshot.tensors["model"])
    _load_optimizer_tensors(trainer, snapshot.tensors.get("optimizer", {}))
    if trainer.parts.average is not None:
        # without one so far, it begins with the weights of now: those it was made with are random
        trainer.parts.average.load_state(
            snapshot.tensors.get("average") or dict(trainer.model.named_parameters())
        )
    trainer.metrics.load_state({k: v.to(trainer.device) for k, v in snapshot.tensors["metrics"].items()})
    trainer.once.counted = state.get("counted", 0)
    trainer.cursor = Cursor(**state["cursor"])
    if asked & {"training.batch_size", "training.accumulate"}:
        trainer.cursor.epoch_step = trainer.cursor.sample // (training.batch_size * training.accumulate)
    trainer.best = Best(**{**state["best"], "value": float(state["best"]["value"])})
    trainer.reporter.load_state(state["report"])
    if "precision.grad_scaler.init_scale" not in asked:
        trainer.parts.precision.load_state(state["scaler"])
    trainer.parts.updater.lr.fill_(state["lr"])
    left = steps_left(trainer.job, trainer.cursor, snapshot.step)
    trainer.parts.go_on(_standing(trainer, state), left)
    trainer.parts.compiler.take_up(None if "speed.compile" in asked else state.get("compiled"))


def _standing(trainer: "Trainer", state: Mapping[str, Any]) -> Standing:
    """Where the run stood; of a checkpoint that does not say, as its position and its last rate have it."""
    if "standing" in state:
        return Standing(**state["standing"])
    position, total = state["schedule"]
    now = trainer.parts.schedule.state()
    return Standing(position, {**now, "total": total, "asked": None}, None, state["lr"])


def _optimizer_tensors(trainer: "Trainer") -> dict[str, torch.Tensor]:
    names: dict[torch.Tensor, str] = {p: name for name, p in trainer.model.named_parameters()}
    return {
        f"{key}/{names[p]}": value
        for p, state in trainer.parts.optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }


def _load_optimizer_tensors(trainer: "Trainer", tensors: dict[str, torch.Tensor]) -> None:
    parameters = dict(trainer.model.named_parameters())
    if not isinstance(trainer.parts.optimizer, FusedOptimizer):
        trainer.parts.optimizer.state.clear()  # torch's own make theirs at their first step
    for full_name, value in tensors.items():
        key, _, name = full_name.partition("/")
        parameter = parameters[name]
        own = trainer.parts.optimizer.state[parameter].get(key)
        if own is None:
            own = torch.empty_like(parameter) if value.ndim else torch.empty((), device=trainer.device)
            trainer.parts.optimizer.state[parameter][key] = own
        own.copy_(value)
