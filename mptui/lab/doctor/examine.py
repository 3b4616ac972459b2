"""Runs all checks in order, and checks the configuration of a run itself."""

import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from mptui.config.resolve import resolve
from mptui.errors import MptuiError
from mptui.hardware.advice import default_workers, recommend
from mptui.hardware.devices import Machine, describe_machine
from mptui.hardware.host import given_environ, read_host
from mptui.hardware.nvml import NvmlReport, read_gpus
from mptui.lab.doctor import machine as doctor_machine
from mptui.lab.doctor.findings import Area, Finding, advice, error, findings_of, ok
from mptui.lab.doctor.foreign_files import read_config_file
from mptui.lab.doctor.machine import Probed, probe_torch
from mptui.lab.doctor.other_trainers import (
    Accelerate,
    check_accelerate,
    compare,
    read_training,
    usual_place,
)
from mptui.registry.names import LOSS_SCALED, SIXTEEN_BIT
from mptui.registry.trackers import chosen_trackers
from mptui.runs.planning.plan import Plan, Request, effective_words, plan_run, rate_notes
from mptui.runs.trackers.feeder import install_hint


@dataclass(frozen=True, slots=True)
class Question:
    """What to check.

    `config` and `accelerate` are the two files to compare; without `accelerate`, the default file is used.
    `root` contains /proc, /sys, /dev and /etc. `terminal` is the size of the terminal; None without one.
    """

    request: Request
    runs_dir: Path
    with_torch: bool = True
    with_data: bool = False
    config: Path | None = None
    accelerate: Path | None = None
    root: Path = Path("/")
    terminal: os.terminal_size | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)


def examine(question: Question, on_progress: Callable[[int, int], None]) -> list[Finding]:
    """Run all requested checks. Failures are findings, never exceptions."""
    report = read_gpus()
    probed = probe_torch(question.environ) if question.with_torch else None
    machine = describe_machine(
        report, read_host(question.root), probed.view if probed else None, question.environ
    )
    found = _machine(question, report, machine, probed)
    works = probed is not None and probed.works
    plan, configuration = check_configuration(question.request, machine, with_torch=works)
    found += configuration
    if question.with_data and plan is not None:
        from mptui.lab.doctor.data import check_data

        found += check_data(plan, on_progress)
    elif question.with_data and all(finding.state != "error" for finding in configuration):
        found.append(advice("data", "data", "not checked: this needs torch", "run it without --no-torch"))
    if question.config is not None or question.accelerate is not None:
        found += _two_files(question, machine)
    return found


def _machine(
    question: Question, report: NvmlReport, machine: Machine, probed: Probed | None
) -> list[Finding]:
    given = given_environ() if question.environ is os.environ else question.environ
    return [
        *doctor_machine.check_driver(report, question.root),
        *(doctor_machine.check_torch(machine, probed) if probed else ()),
        *doctor_machine.check_devices(machine, report, probed),
        *doctor_machine.check_processors(machine.host),
        *doctor_machine.check_memory(machine.host),
        *doctor_machine.check_shm(question.root),
        *doctor_machine.check_limits(question.root),
        *doctor_machine.check_disk(question.runs_dir),
        *doctor_machine.check_variables(question.environ),
        *doctor_machine.check_locale(given),
        *doctor_machine.check_terminal(question.environ, question.terminal),
        *doctor_machine.check_logout(question.root, question.environ),
    ]


def _two_files(question: Question, machine: Machine) -> list[Finding]:
    usual = usual_place(question.environ)
    path = question.accelerate or usual
    try:
        training = None if question.config is None else read_training(read_config_file(question.config))
        there = question.accelerate is not None or usual.is_file()
        accelerate = Accelerate(read_config_file(path)) if there else None
    except MptuiError as fault:
        return findings_of("two configurations", "file", fault)
    found = [] if training is None else compare(training, accelerate)
    if accelerate is None:
        what = f"{usual}: no accelerate file, so no comparison"
        return [*found, advice("two configurations", "accelerate", what, "give one with --accelerate FILE")]
    return [*found, *check_accelerate(accelerate, machine)]


# Checks the configuration of a run: whether it is valid and suits this machine
# -----------------------------------------------------------------------------

AREA: Area = "configuration"
_ok, _advice, _error = partial(ok, AREA), partial(advice, AREA), partial(error, AREA)


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
            return None, [_ok("values", f"{resolved.profile}: configuration valid")]
        plan = plan_run(request, machine)
    except MptuiError as fault:
        if fault.exit_code == 3:  # the data is a separate area
            return None, findings_of("data", "data", fault)
        return None, findings_of(AREA, "values", fault)
    config = plan.config
    what = (
        f"{plan.resolved.profile}: {config.model.name} at {config.data.image_size} px on "
        f"{config.data.path or config.data.name}, "
        f"{effective_words(config.training)}, {plan.precision.used} on {plan.device.torch_name}"
    )
    notes = [_ok("training", note) for note in rate_notes(config.training)]
    return plan, [_ok("values", what), *notes, *_unsuited_plan(plan, machine)]


def _unsuited_plan(plan: Plan, machine: Machine) -> Iterator[Finding]:
    yield from _plan_precision(plan)
    yield from _batch(plan)
    yield from _workers(plan, machine)
    yield from _plan_compile(plan)
    yield from _guards(plan)
    yield from _trackers(plan)


def _plan_precision(plan: Plan) -> Iterator[Finding]:
    choice = plan.precision
    if choice.warning is not None:
        advised = recommend(plan.device).precision
        yield _advice("precision.mode", choice.warning, f"--precision {advised}, or auto")
    else:
        scaled = "with" if choice.grad_scaler else "no"
        loss = f"; {scaled} loss scaling" if choice.used in SIXTEEN_BIT else ""
        yield _ok("precision.mode", f"{choice.used}: {choice.reason}{loss}")


def _batch(plan: Plan) -> Iterator[Finding]:
    training, device = plan.config.training, plan.device
    uses_tensor_cores = plan.precision.used in SIXTEEN_BIT and device.kind == "cuda"
    if uses_tensor_cores and training.batch_size % 8:
        what = f"training.batch_size = {training.batch_size}: Tensor Cores need multiples of 8"
        yield _advice("training.batch_size", what, f"--batch-size {-(-training.batch_size // 8) * 8}")
    if training.batch_size == 1 and plan.config.model.norm == "batch":
        what = "training.batch_size = 1: BatchNorm needs at least 2 samples"
        yield _advice("training.batch_size", what, "--batch-size 2, or for a unet --set model.norm=group")


def _workers(plan: Plan, machine: Machine) -> Iterator[Finding]:
    cpus = machine.host.cpus_usable
    if plan.workers > cpus:
        what = f"data.workers = {plan.workers}: more than the {cpus} processors of this process"
        yield _advice("data.workers", what, f"--workers {default_workers(cpus)}, or auto")


def _plan_compile(plan: Plan) -> Iterator[Finding]:
    mode = plan.config.speed.compile
    if mode == "off":
        return
    if plan.device.kind == "mps":
        yield _advice("speed.compile", f"speed.compile = {mode}: not on an Apple GPU", "--no-compile")
    if missing := _missing_of_a_compiler():
        what = f"speed.compile = {mode} needs {missing}, so the run would not compile"
        yield _advice("speed.compile", what, "install build-essential and python3-dev, or --no-compile")


def _missing_of_a_compiler() -> str | None:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang", "g++", "c++")):
        return "a C compiler"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return None if header.is_file() else f"Python's headers ({header})"


def _guards(plan: Plan) -> Iterator[Finding]:
    config = plan.config
    if config.guards.on_nan == "ignore" and plan.precision.used in LOSS_SCALED:
        what = "guards.on_nan = ignore in fp16: a diverged run doesn't end"
        yield _advice("guards.on_nan", what, "--set guards.on_nan=rollback")
    if config.guards.check_batches or config.guards.detect_anomaly:
        names = [name for name in ("check_batches", "detect_anomaly") if getattr(config.guards, name)]
        what = f"guards.{' and '.join(names)}: slow, for debugging only"
        yield _advice(
            "guards", what, "turn them off for a long run: another profile, or --set guards.…=false"
        )
    elif config.guards.on_nan == "rollback":
        what = f"NaN: back to the last good of snapshots every {config.guards.snapshot_every} steps"
        yield _ok("guards.on_nan", what)
    limit = config.training.clip_grad_norm
    if limit is not None:
        yield _ok("training.clip_grad_norm", f"gradients are clipped at a norm of {limit:g}")
    elif plan.precision.used in SIXTEEN_BIT:
        what = "training.clip_grad_norm is not set: one bad batch can spoil the weights"
        yield _advice("training.clip_grad_norm", what, "--set training.clip_grad_norm=1.0")


def _trackers(plan: Plan) -> Iterator[Finding]:
    for name, spec in chosen_trackers(plan.config.logging.model_dump()).items():
        if find_spec(spec.package) is None:
            yield _error("logging", f"{name} is not installed", install_hint(name))
