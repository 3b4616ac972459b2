"""Checks the configuration of a run: whether it is valid and suits this machine."""

import shutil
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from mptui.config.merge import resolve
from mptui.errors import MptuiError
from mptui.hardware.advice import default_workers, recommend
from mptui.hardware.devices import Machine
from mptui.lab.doctor.findings import Area, Finding, advice, error, findings_of, ok
from mptui.registry.precisions import LOSS_SCALED, SIXTEEN_BIT
from mptui.registry.trackers import chosen_trackers
from mptui.runs.planning.plan import Plan, Request, plan_run
from mptui.runs.planning.rates import effective_words, rate_notes
from mptui.runs.trackers.tracker_process import install_hint

_AREA: Area = "configuration"


def check_configuration(
    request: Request, machine: Machine, *, with_torch: bool
) -> tuple[Plan | None, list[Finding]]:
    """Resolve a request as a run would, and check it against the machine.

    Args:
        request: The request of the run.
        machine: This machine.
        with_torch: Whether torch may be imported; otherwise only the values are checked.

    Returns:
        The plan of the run, None if the configuration is invalid; and the findings.
    """
    try:
        if not with_torch:
            resolved = resolve(
                request.profile, task=None, flags=request.flags, sets=request.sets, environ=request.environ
            )
            return None, [ok(_AREA, "values", f"{resolved.profile}: configuration valid")]
        plan = plan_run(request, machine)
    except MptuiError as fault:
        if fault.exit_code == 3:  # the data is a separate area
            return None, findings_of("data", "data", fault)
        return None, findings_of(_AREA, "values", fault)
    config = plan.config
    what = (
        f"{plan.resolved.profile}: {config.model.name} at {config.data.image_size} px on "
        f"{config.data.path or config.data.name}, "
        f"{effective_words(config.training)}, {plan.precision.used} on {plan.device.torch_name}"
    )
    notes = [ok(_AREA, "training", note) for note in rate_notes(config.training)]
    return plan, [ok(_AREA, "values", what), *notes, *_unsuited(plan, machine)]


def _unsuited(plan: Plan, machine: Machine) -> Iterator[Finding]:
    yield from _precision(plan)
    yield from _batch(plan)
    yield from _workers(plan, machine)
    yield from _compile(plan)
    yield from _guards(plan)
    yield from _trackers(plan)


def _precision(plan: Plan) -> Iterator[Finding]:
    choice = plan.precision
    if choice.warning is not None:
        advised = recommend(plan.device).precision
        yield advice(_AREA, "precision.mode", choice.warning, f"--precision {advised}, or auto")
    else:
        scaled = "with" if choice.grad_scaler else "no"
        loss = f"; {scaled} loss scaling" if choice.used in SIXTEEN_BIT else ""
        yield ok(_AREA, "precision.mode", f"{choice.used}: {choice.reason}{loss}")


def _batch(plan: Plan) -> Iterator[Finding]:
    training, device = plan.config.training, plan.device
    if plan.precision.used in SIXTEEN_BIT and device.kind == "cuda" and training.batch_size % 8:
        what = f"training.batch_size = {training.batch_size}: Tensor Cores need multiples of 8"
        yield advice(_AREA, "training.batch_size", what, f"--batch-size {-(-training.batch_size // 8) * 8}")
    if training.batch_size == 1 and plan.config.model.norm == "batch":
        what = "training.batch_size = 1: BatchNorm needs at least 2 samples"
        yield advice(
            _AREA, "training.batch_size", what, "--batch-size 2, or for a unet --set model.norm=group"
        )


def _workers(plan: Plan, machine: Machine) -> Iterator[Finding]:
    cpus = machine.host.cpus_usable
    if plan.workers > cpus:
        what = f"data.workers = {plan.workers}: more than the {cpus} processors of this process"
        yield advice(_AREA, "data.workers", what, f"--workers {default_workers(cpus)}, or auto")


def _compile(plan: Plan) -> Iterator[Finding]:
    mode = plan.config.speed.compile
    if mode == "off":
        return
    if plan.device.kind == "mps":
        yield advice(_AREA, "speed.compile", f"speed.compile = {mode}: not on an Apple GPU", "--no-compile")
    if missing := _missing_of_a_compiler():
        what = f"speed.compile = {mode} needs {missing}, so the run would not compile"
        yield advice(_AREA, "speed.compile", what, "install build-essential and python3-dev, or --no-compile")


def _missing_of_a_compiler() -> str | None:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang", "g++", "c++")):
        return "a C compiler"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return None if header.is_file() else f"Python's headers ({header})"


def _guards(plan: Plan) -> Iterator[Finding]:
    config = plan.config
    if config.guards.on_nan == "ignore" and plan.precision.used in LOSS_SCALED:
        what = "guards.on_nan = ignore in fp16: a diverged run doesn't end"
        yield advice(_AREA, "guards.on_nan", what, "--set guards.on_nan=rollback")
    if config.guards.check_batches or config.guards.detect_anomaly:
        names = [name for name in ("check_batches", "detect_anomaly") if getattr(config.guards, name)]
        what = f"guards.{' and '.join(names)}: slow, for debugging only"
        yield advice(
            _AREA, "guards", what, "turn them off for a long run: another profile, or --set guards.…=false"
        )
    elif config.guards.on_nan == "rollback":
        what = f"NaN: back to the last good of snapshots every {config.guards.snapshot_every} steps"
        yield ok(_AREA, "guards.on_nan", what)
    limit = config.training.clip_grad_norm
    if limit is not None:
        yield ok(_AREA, "training.clip_grad_norm", f"gradients are clipped at a norm of {limit:g}")
    elif plan.precision.used in SIXTEEN_BIT:
        what = "training.clip_grad_norm is not set: one bad batch can spoil the weights"
        yield advice(_AREA, "training.clip_grad_norm", what, "--set training.clip_grad_norm=1.0")


def _trackers(plan: Plan) -> Iterator[Finding]:
    for name, spec in chosen_trackers(plan.config.logging.model_dump()).items():
        if find_spec(spec.package) is None:
            yield error(_AREA, "logging", f"{name} is not installed", install_hint(name))
