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

_COLOURS = {"ok": "green", "advice": "yellow", "error": "red"}


class DoctorOptions(o.InRunsDir):
    """What is checked beside the settings."""

    config: Path | None = o.option(
        None,
        "FILE",
        "A training configuration (.yaml, .toml, .json, .py) to compare with accelerate's.",
    )
    accelerate: Path | None = o.option(
        None, "FILE", "Accelerate's configuration file; default: its usual location."
    )
    with_torch: bool = o.option(
        True, "", "Also test torch on each device (takes seconds).", "--torch/--no-torch"
    )


_SETTINGS = "profile model weights task data batch_size lr precision compile workers device sets trust_code"


def doctor(settings: Annotated[o.SettingOptions, _SETTINGS], options: DoctorOptions, output: o.Output) -> int:
    """Check the machine, the data and the configuration.

    Given a second configuration, also check the differences between the two.

    Exit code: 0 without errors, 2 for the machine or a configuration, 3 for data, 7 for the disk.
    """
    from mptui.lab.doctor.examine import Question, examine
    from mptui.lab.doctor.findings import exit_code

    question = Question(
        request=settings.request(),
        runs_dir=options.runs_dir,
        with_torch=options.with_torch,
        with_data=settings.data is not None,
        config=options.config,
        accelerate=options.accelerate,
        terminal=shutil.get_terminal_size() if sys.stdout.isatty() else None,
    )
    with file_progress("checking files", lambda done, total: None) as on_progress:
        findings = examine(question, on_progress)
    code = exit_code(findings)
    if output.as_json:
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
