"""Runs all checks in order."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mptui.errors import MptuiError
from mptui.hardware.devices import Machine, describe_machine
from mptui.hardware.host import given_environ, read_host
from mptui.hardware.nvml import NvmlReport, read_gpus
from mptui.lab.doctor import machine as doctor_machine
from mptui.lab.doctor.findings import Finding, advice, findings_of
from mptui.lab.doctor.foreign_files import (
    AREA,
    Accelerate,
    check_accelerate,
    read_config_file,
    read_training,
    usual_place,
)
from mptui.lab.doctor.machine import Probed, probe_torch
from mptui.lab.doctor.other_trainers import check_configuration, compare
from mptui.runs.planning.plan import Request


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
        return findings_of(AREA, "file", fault)
    found = [] if training is None else compare(training, accelerate)
    if accelerate is None:
        what = f"{usual}: no accelerate file, so no comparison"
        return [*found, advice(AREA, "accelerate", what, "give one with --accelerate FILE")]
    return [*found, *check_accelerate(accelerate, machine)]
