"""`mptui doctor`: checks machine, data and configuration, and compares two configurations."""

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mptui.cli import options as o
from mptui.cli.output import file_progress, print_json, print_next
from mptui.text import counted

if TYPE_CHECKING:
    from mptui.lab.doctor.findings import Finding

FORMAT_VERSION = 1
_COLOURS = {"ok": "green", "advice": "yellow", "error": "red"}

_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A training configuration (.yaml, .toml, .json, .py) to compare with accelerate's.",
    ),
]
_Accelerate = Annotated[
    Path | None,
    typer.Option(
        "--accelerate", metavar="FILE", help="Accelerate's configuration file; default: its usual location."
    ),
]
_Torch = Annotated[
    bool, typer.Option("--torch/--no-torch", help="Also test torch on each device (takes seconds).")
]


def app_command(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    ctx: typer.Context,
    profile: o.Profile = None,
    model: o.Model = None,
    weights: o.Weights = None,
    task: o.Task = None,
    data: o.Data = None,
    batch_size: o.BatchSize = None,
    lr: o.Lr = None,
    precision: o.Precision = None,
    compile: o.Compile = None,
    workers: o.Workers = None,
    device: o.Device = None,
    sets: o.Set = None,
    trust_code: o.TrustCode = False,
    runs_dir: o.RunsDir = o.DEFAULT_RUNS_DIR,
    config: _Config = None,
    accelerate: _Accelerate = None,
    with_torch: _Torch = True,
    as_json: o.Json = False,
) -> int:
    """Check the machine, the data and the configuration.

    Given a second configuration, also check the differences between the two.

    Exit code: 0 without errors, 2 for the machine or a configuration, 3 for data, 7 for the disk.
    """
    from mptui.lab.doctor.examine import Question, examine
    from mptui.lab.doctor.findings import exit_code

    question = Question(
        request=o.request_of(ctx),
        runs_dir=runs_dir,
        with_torch=with_torch,
        with_data=data is not None,
        config=config,
        accelerate=accelerate,
        terminal=shutil.get_terminal_size() if sys.stdout.isatty() else None,
    )
    with file_progress("checking files", lambda done, total: None) as on_progress:
        findings = examine(question, on_progress)
    code = exit_code(findings)
    if as_json:
        print_json(_document(findings, code))
    else:
        _show(findings)
        print_next(
            "mptui run --profile fast" if code == 0 else "fix the errors, then check again: mptui doctor"
        )
    return code


def _document(findings: list["Finding"], code: int) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "version": FORMAT_VERSION,
        "findings": [asdict(finding) for finding in findings],
        "errors": sum(finding.state == "error" for finding in findings),
        "advice": sum(finding.state == "advice" for finding in findings),
        "exit_code": code,
    }


def _show(findings: list["Finding"]) -> None:
    """Print each finding in a line, with the remedy below it."""
    from mptui.lab.doctor.findings import AREAS

    for area in AREAS:
        within = [finding for finding in findings if finding.area == area]
        if within:
            typer.secho(area.capitalize(), bold=True)
        for finding in within:
            typer.secho(f"  {finding.state:<6}  ", fg=_COLOURS[finding.state], nl=False)
            typer.echo(finding.what)
            if finding.do:
                typer.echo(f"         fix: {finding.do}")
    errors = sum(finding.state == "error" for finding in findings)
    advised = sum(finding.state == "advice" for finding in findings)
    told = (counted(errors, "error"), counted(advised, "suggestion"))
    typer.echo(f"{', '.join(told)}, {len(findings) - errors - advised} ok")
