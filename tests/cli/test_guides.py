"""The commands of the README and of docs/: those of the table in docs/guides.md run, too."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from safetensors.torch import save_file

import mptui
from mptui.cli.options import SettingOptions
from mptui.config.resolve import resolve
from mptui.models.vae import Autoencoder
from mptui.models.vae_layout import CONFIG, WEIGHTS, VaeLayout
from mptui.processes.start import MAIN
from tests.cli.calls import program
from tests.data.images import class_folders
from tests.forks import FORKING
from tests.program import run_to_end

HOME = Path(mptui.__file__).parents[1]
DOCUMENT = HOME / "docs" / "guides.md"
ROWS = re.findall(r"^\| [1-5][1-5, ]* \|.*\| `(mptui [^`]+)` \|$", DOCUMENT.read_text(), re.MULTILINE)
COMMANDS = sorted(set(ROWS))
ONLY_PARSED = {
    "attach": "a live screen, which tests/tui opens",
    "bench": "minutes: tests/lab has small ones",
    "check-amp": "a minute for ResNet-50: tests/cli/test_check_amp.py has small networks",
    "evaluate": "of a trained run: tests/lab/use has some",
    "export": "of a trained run: tests/lab/use has some",
    "monitor": "without end: tests/cli/test_monitor.py ends it",
    "parity": "minutes, or a download: tests/cli/test_parity.py has small ones",
    "sample": "of a trained run: tests/lab/use has some",
    "tune": "ten minutes: tests/cli/test_tune.py has short ones",
    "mptui doctor": "seconds, as the one with a file: tests/cli/test_doctor.py runs it",
    "mptui doctor --data FOLDER": "seconds: tests/cli/test_doctor.py runs it with data",
    "mptui memory --model resnet50 --batch-size 64 --card h100": "seconds, as the other one",
    "mptui run --accelerate-config default_config.yaml": "needs the GPUs that the file names",
    "mptui run --nproc-per-node gpu": "needs a GPU",
}
"""By command, or by its name for all that begin with it: why it does not run here."""


def context_of(command):
    """Parse a command as the shell and the program would."""
    name, *words = shlex.split(command)[1:]
    group = program()
    context = typer.Context(group)
    found = group.get_command(context, name)
    if isinstance(found, typer.core.TyperGroup) and words:
        inner = found.get_command(context, words[0])
        assert inner is not None
        return inner.make_context(words[0], words[1:])
    return found.make_context(name, words)


def commands_of(page):
    """Return the commands that stand alone in an indented line, also after srun, torchrun or a variable."""
    return re.findall(r"^ {4}(?:(?:srun|torchrun|[A-Z_]+=).* )?(mptui .+)$", page.read_text(), re.MULTILINE)


PAGES = [page for page in (HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))) if commands_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_command_of_a_page_is_one_of_the_program(page):
    for command in commands_of(page):
        words = shlex.split(command, comments=True)
        if len(words) > 1:
            context_of(shlex.join(words))


def test_the_pages_have_their_commands():
    assert {"README", "diffusion", "memory", "several-gpus"} <= {page.stem for page in PAGES}
    assert sum(len(commands_of(page)) for page in PAGES) >= 80


def test_each_row_has_a_command():
    rows = [line for line in DOCUMENT.read_text().splitlines() if re.match(r"\| [1-5]", line)]

    assert len(rows) == len(ROWS) >= 100


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_of_the_program(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.yaml").write_text("training:\n  lr: 1e-5\n")
    context = context_of(command)
    request = SettingOptions(**context.params).request()

    if "profile" in context.params or "sets" in context.params:
        resolved = resolve(
            request.profile, task=None, flags=request.flags, sets=request.sets, environ=request.environ
        )
        assert resolved.config.precision.mode in {"auto", "fp32", "fp16", "bf16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the commands name: images, settings and a VAE."""
    folder = tmp_path_factory.mktemp("guides")
    class_folders(folder / "FOLDER", {"one": 2, "two": 2})
    (folder / "train.yaml").write_text("training:\n  lr: 1e-5\n")
    (folder / "default_config.yaml").write_text(
        "distributed_type: MULTI_GPU\ngpu_ids: 1,2\nnum_processes: 2\n"
    )
    layout = VaeLayout.of_width(4, 2)
    (folder / "VAE").mkdir()
    (folder / "VAE" / CONFIG).write_text(layout.as_text())
    save_file(Autoencoder(layout).state_dict(), folder / "VAE" / WEIGHTS)
    return folder


def why_only_parsed(command):
    """Return why a command does not run here; None if it does."""
    return ONLY_PARSED.get(command) or ONLY_PARSED.get(command.split()[1])


def test_what_is_only_parsed_is_in_the_document():
    assert set(ONLY_PARSED) <= {*COMMANDS, *(command.split()[1] for command in COMMANDS)}


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if not why_only_parsed(c)])
def test_a_command_runs(command, folder, tmp_path):
    words = shlex.split(command)[1:]
    dry = ["--dry-run"] if words[0] == "run" and "--dry-run" not in words else []
    environ = {"MPTUI_CONFIG_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}

    call = FORKING if words[0] == "doctor" else MAIN
    ended = run_to_end(*words, *dry, environ=environ, folder=folder, call=call)

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout or ended.stderr
