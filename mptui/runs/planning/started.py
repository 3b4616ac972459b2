"""The event of a run that is ready to train: all that a screen says of it."""

from pathlib import Path

from mptui.config.keys import value_of
from mptui.engine.job import Job
from mptui.engine.trainer import Trainer
from mptui.events import RunStarted
from mptui.models.zoo import parameter_count
from mptui.runs.planning.build import PreparedRun
from mptui.runs.planning.plan import BY_BUDGET, Plan
from mptui.text import clean


def run_started(
    plan: Plan, run: Path, prepared: PreparedRun, trainer: Trainer, resumed_from: int | None
) -> RunStarted:
    """Return the event of a run that is ready."""
    config, dataset, job = plan.config, prepared.dataset, prepared.job
    return RunStarted(
        step=trainer.state.step,
        run=run.name,
        directory=str(run),
        profile=plan.resolved.profile,
        task=plan.task,
        primary=job.task.primary,
        model=str(config.model.name),
        parameters=parameter_count(job.model),
        dataset=clean(dataset.name),
        train_samples=len(dataset.train),
        val_samples=len(dataset.val),
        classes=[clean(name) for name in dataset.classes],
        device=plan.device.torch_name,
        device_name=plan.device.name,
        ranks=trainer.context.ranks.world_size,
        nodes=trainer.context.ranks.nodes,
        precision_requested=plan.precision.requested,
        precision=plan.precision.used,
        precision_reason=plan.precision.reason,
        tf32=config.precision.tf32 and plan.device.native.get("tf32") == "native",
        channels_last=plan.channels_last,
        compile_mode=config.speed.compile,
        image_size=int(config.data.image_size or 0),
        batch_size=config.training.batch_size,
        accumulate=config.training.accumulate,
        epochs=config.training.epochs,
        steps_per_epoch=trainer.context.parts.steps_per_epoch,
        val_batches=job.val_loader.batches,
        total_steps=trainer.context.parts.schedule_steps,
        planned_lr=trainer.context.parts.planned_lr(trainer.state.step),
        resumed_from_step=resumed_from,
        price_per_hour=config.hardware.price_per_hour,
        notes=[*plan.notes, *_frozen_note(job), *_budget_note(plan)],
    )


def _budget_note(plan: Plan) -> list[str]:
    """Describe what a limit on memory decided."""
    chosen = [key for key, source in plan.resolved.sources.items() if source == BY_BUDGET]
    if not chosen:
        return []
    words = ", ".join(f"{key} = {value_of(plan.config, key)}" for key in chosen)
    return [f"Memory: {words} keeps to {plan.config.memory.budget_gib:g} GiB"]


def _frozen_note(job: Job) -> list[str]:
    """Describe what is frozen as the run begins."""
    asked = job.config.training.freeze
    if not asked:
        return []
    what = "the backbone" if not isinstance(asked, list) else ", ".join(asked)
    time = f" until the end of epoch {asked}" if isinstance(asked, int) else ""
    trained, all_of_it = parameter_count(job.model, trained=True), parameter_count(job.model)
    return [f"Frozen: {what}{time}; {trained:,} of {all_of_it:,} parameters are trained"]
