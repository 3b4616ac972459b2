"""The commands of docs/guides.md."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import mptui
from mptui.cli.main import app
from mptui.cli.options import request_of
from mptui.config.merge import resolve
from tests.program import run_to_end

DOCUMENT = Path(mptui.__file__).parents[1] / "docs" / "guides.md"
ROWS = re.findall(r"^\| [1-5][1-5, ]* \|.*\| `(mptui [^`]+)` \|$", DOCUMENT.read_text(), re.MULTILINE)
COMMANDS = sorted(set(ROWS))


def context_of(command):
    """Parse a command as the shell and the program would."""
    name, *words = shlex.split(command)[1:]
    group = typer.main.get_command(app)
    context = typer.Context(group)
    found = group.get_command(context, name)  # type: ignore[attr-defined]
    if isinstance(found, typer.core.TyperGroup) and words:
        inner = found.get_command(context, words[0])
        assert inner is not None
        return inner.make_context(words[0], words[1:])
    return found.make_context(name, words)


def test_each_row_has_a_command():
    rows = [line for line in DOCUMENT.read_text().splitlines() if re.match(r"\| [1-5]", line)]

    assert len(rows) == len(ROWS) >= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_of_the_program(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("training:\n  lr: 1e-5\n")
    context = context_of(command)
    request = request_of(context)

    if "profile" in context.params or "sets" in context.params:
        resolved = resolve(
            request.profile, task=None, flags=request.flags, sets=request.sets, environ=request.environ
        )
        assert resolved.config.precision.mode in {"auto", "fp32", "fp16", "bf16"}


@pytest.mark.slow
def test_the_short_ones_run(tmp_path):
    environ = {"MPTUI_CONFIG_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    short = [c for c in COMMANDS if c.endswith("--dry-run") or c.split()[1] in {"detect", "profiles", "runs"}]
    assert len(short) >= 6
    for command in short:
        ended = run_to_end(*shlex.split(command)[1:], environ=environ, folder=tmp_path)
        assert ended.returncode == 0, (command, ended.stderr)
