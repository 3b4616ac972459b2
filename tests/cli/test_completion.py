"""Shell completion, also in a real bash, without importing torch."""

import os
import subprocess
import sys

import pytest
import torchvision

from mptui.registry.models import MODELS, task_of_model
from mptui.registry.tasks import DEFAULT_TASK
from tests import small_cnn
from tests.cli.calls import call


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
    script = called(tmp_path, "--show-completion", "bash")
    (tmp_path / "completion.bash").write_text(script)
    return tmp_path


_NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""Use the named shell, not the one that started these tests."""


def called(folder, *arguments, **environ):
    """What the program says to the words of a script for completion."""
    ended = call(*arguments, folder=folder, environ={**_NAMED_SHELL, **environ})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


LINES = {
    "mptui res": ["resume"],
    "mptui run --profile sta": ["stable"],
    "mptui profiles show older": ["older-gpu"],
    "mptui run --model resnet1": ["resnet101", "resnet152", "resnet18"],
    "mptui resume 2026": ["20261120-fast"],
    "mptui sync 2026": ["20261120-fast"],
    "mptui runs compare 20261120-fast 2": ["20261120-fast"],
    "mptui attach --runs-dir elsewhere o": ["other"],
    "mptui run --set training.lr_": ["training.lr_scaling=", "training.lr_batch_size="],
    "mptui run --set training.lr_s": [f"training.lr_scaling={w}" for w in ("linear", "sqrt", "off")],
    "mptui run --set training.optimizer = ad": ["adamw", "adam", "adamw_schedule_free"],
    "mptui run --set training.nesterov =": ["true", "false", "none"],
    "mptui run --set model.task = seg": ["segmentation"],
    "mptui run --set hardware.device = c": ["cpu", "cuda"],
    "mptui run --set hardware.device": [
        f"hardware.device={w}" for w in ("auto", "cpu", "cuda", "xpu", "mps")
    ],
    "mptui run --precision f": ["fp32", "fp16"],
    "mptui run --device c": ["cpu", "cuda"],
    "mptui run --task c": ["classification"],
    "mptui run --weights p": ["pretrained"],
    "mptui memory --card a100": ["a100-40gb", "a100"],
    "mptui export --format s": ["safetensors"],
    "mptui report --format m": ["md"],
    "mptui predict --checkpoint l": ["last"],
    "mptui learn --rules c": ["cuda", "cpu"],
    "mptui run --set training.lr = 0.1 --profile sta": ["stable"],
}
"""Words before the cursor, as bash splits them, and what is offered."""


def asked(line):
    """The variables by which bash asks."""
    words = line.split()
    return {
        "_MPTUI_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }


@pytest.mark.parametrize("line", LINES)
def test_commands_profiles_models_runs_and_settings_are_completed(shell, line):
    assert called(shell, **asked(line)).splitlines() == LINES[line]


def test_a_bash_asks_by_its_script(shell):
    line = "mptui run --set training.optimizer = ad"
    words = " ".join(f"'{word}'" for word in line.split())
    script = (
        "source completion.bash\n"
        f"COMP_WORDS=({words}); COMP_CWORD={len(line.split()) - 1}\n"
        '"$(complete -p mptui | sed "s/.*-F \\([^ ]*\\).*/\\1/")" mptui\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environ = {**os.environ, **_NAMED_SHELL, "PATH": f"{shell / 'bin'}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=shell, env=environ, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == LINES[line]


@pytest.mark.parametrize(("kind", "separator"), [("zsh", '"stable"'), ("fish", "stable")])
def test_the_other_shells_are_served_too(shell, kind, separator):
    assert "_MPTUI_COMPLETE" in called(shell, "--show-completion", kind)
    words = {
        "_MPTUI_COMPLETE": f"complete_{kind}",
        "_TYPER_COMPLETE_ARGS": "mptui run --profile sta",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    assert separator in called(shell, **words)
    words["_TYPER_COMPLETE_ARGS"] = "mptui run --set training.optimizer=mu"
    assert "training.optimizer=muon" in called(shell, **words)


IN_TURN = """
import os, sys
from mptui.cli.main import main
for asked in {asked}:
    os.environ.update(asked)
    try:
        main()
    except SystemExit:
        print("loaded:", " ".join({{'torch', 'torchvision', 'textual'}} & set(sys.modules)), flush=True)
"""


def test_completing_loads_no_torch(shell):
    lines = (
        "run --model res",
        "resume 2",
        "run --profile f",
        "run --set training.o",
        "run --precision b",
        "run --task s",
        "memory --card h",
        "export --format o",
    )
    code = IN_TURN.format(asked=[asked(f"mptui {line}") for line in lines])
    told = subprocess.run([sys.executable, "-c", code], cwd=shell, capture_output=True, text=True, check=True)
    *offered, rest = told.stdout.split("loaded: \n")
    assert len(offered) == len(lines)
    assert all(offered)
    assert rest == ""


def test_the_classifiers_of_the_registry_are_all_that_torchvision_has():
    # torchvision's networks for masks, boxes and video are in submodules, which are excluded here
    own = {name for name in MODELS if task_of_model(name) == DEFAULT_TASK} - {small_cnn.NAME}
    assert own == set(torchvision.models.list_models(module=torchvision.models)), torchvision.__version__
