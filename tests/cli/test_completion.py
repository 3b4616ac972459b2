"""Shell completion in a real bash, without importing torch."""

import os
import subprocess
import sys

import pytest
import torchvision

from mptui.registry.models import MODELS, task_of_model
from mptui.registry.tasks import DEFAULT_TASK
from tests import small_cnn


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A folder with `mptui` on the PATH of a shell, its bash script, and a run in its runs directory."""
    tmp_path = tmp_path_factory.mktemp("shell")
    program = tmp_path / "bin" / "mptui"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mptui "$@"\n')
    program.chmod(0o755)
    for name in ("runs/20261120-fast", "elsewhere/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.toml").write_text("")
    script = in_shell(tmp_path, "mptui", "--show-completion", "bash")
    (tmp_path / "completion.bash").write_text(script)
    return tmp_path


_NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""Use the named shell, not the one that started these tests."""


def in_shell(folder, *command, **environ):
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **_NAMED_SHELL, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **environ},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mptui res", ["resume"]),
        ("mptui run --profile sta", ["stable"]),
        ("mptui profiles show older", ["older-gpu"]),
        ("mptui run --model resnet1", ["resnet101", "resnet152", "resnet18"]),
        ("mptui resume 2026", ["20261120-fast"]),
        ("mptui sync 2026", ["20261120-fast"]),
        ("mptui runs compare 20261120-fast 2", ["20261120-fast"]),
        ("mptui attach --runs-dir elsewhere o", ["other"]),
        ("mptui run --set training.lr_", ["training.lr_scaling=", "training.lr_batch_size="]),
        ("mptui run --set training.lr_s", [f"training.lr_scaling={w}" for w in ("linear", "sqrt", "off")]),
        ("mptui run --set training.optimizer = ad", ["adamw", "adam", "adamw_schedule_free"]),
        ("mptui run --set training.nesterov =", ["true", "false", "none"]),
        ("mptui run --set training.lr = 0.1 --profile sta", ["stable"]),
    ],
)
def test_a_bash_completes_commands_profiles_models_and_runs(shell, line, offered):
    words = " ".join(f"'{word}'" for word in line.split())
    script = (
        "source completion.bash\n"
        f"COMP_WORDS=({words}); COMP_CWORD={len(line.split()) - 1}\n"
        '"$(complete -p mptui | sed "s/.*-F \\([^ ]*\\).*/\\1/")" mptui\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    assert in_shell(shell, "bash", "--norc", "-c", script).splitlines() == offered


@pytest.mark.parametrize(("kind", "separator"), [("zsh", '"stable"'), ("fish", "stable")])
def test_the_other_shells_are_served_too(shell, kind, separator):
    assert "_MPTUI_COMPLETE" in in_shell(shell, "mptui", "--show-completion", kind)
    asked = {
        "_MPTUI_COMPLETE": f"complete_{kind}",
        "_TYPER_COMPLETE_ARGS": "mptui run --profile sta",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    assert separator in in_shell(shell, "mptui", **asked)
    asked["_TYPER_COMPLETE_ARGS"] = "mptui run --set training.optimizer=mu"
    assert "training.optimizer=muon" in in_shell(shell, "mptui", **asked)


@pytest.mark.parametrize(
    "line", ["mptui run --model res", "mptui resume 2", "mptui run --profile f", "mptui run --set training.o"]
)
def test_completing_loads_no_torch(shell, line):
    program = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*{'torch', 'torchvision', 'textual'} & set(sys.modules)))\n"
        "from mptui.cli.main import main\nmain()"
    )
    words = line.split()
    asked = {
        "_MPTUI_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    *offered, loaded = in_shell(shell, sys.executable, "-c", program, **asked).splitlines()
    assert offered
    assert loaded == ""


def test_the_classifiers_of_the_registry_are_all_that_torchvision_has():
    # torchvision's networks for masks, boxes and video are in submodules, which are excluded here
    own = {name for name in MODELS if task_of_model(name) == DEFAULT_TASK} - {small_cnn.NAME}
    assert own == set(torchvision.models.list_models(module=torchvision.models)), torchvision.__version__
