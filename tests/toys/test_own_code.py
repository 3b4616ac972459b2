"""Networks, losses and data sets of a person's own, by name: `--model package.module:name --trust-code`."""

import signal
import sys

import pytest
import tomli
from textual.widgets import Input

from mptui.cli.main import _exit_code
from mptui.config.resolve import resolve
from mptui.engine.checkpoint.files import read_newest
from mptui.events import ImagesGenerated, Recovered, Step
from mptui.runs.planning.plan import Request
from mptui.runs.store.directory import CONFIG, read_summary
from mptui.runs.store.journal import read_journal
from mptui.tui.sources import command
from tests.program import Program
from tests.toys.own_project import make_project
from tests.toys.training import bits, picker
from tests.tui.cockpits import until

SETTINGS = {
    "data.image_size": 32,
    "data.workers": 0,
    "training.epochs": 4,
    "training.batch_size": 8,
    "checkpoint.every_steps": 2,
    "logging.step_interval_s": 0,
    "hardware.device": "cpu",
    "precision.mode": "fp32",
    "speed.compile": "off",
    "speed.channels_last": "false",
    "speed.fused": "false",
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    return make_project(tmp_path, monkeypatch)


def words(module, *more, net="Net", data="Data", **settings):
    """Return the command line that trains them."""
    sets = [word for item in {**SETTINGS, **settings}.items() for word in ("--set", "{}={}".format(*item))]
    own = ("--model", f"{module}:{net}", "--task", f"{module}:Loss", "--data", f"{module}:{data}")
    return ["run", *own, *sets, "--quiet", *more]


def run(*arguments):
    return _exit_code(list(arguments), debug=False)


def imported(tmp_path):
    return list(tmp_path.glob("*/imported")) != []


@pytest.mark.parametrize("option", ["--model", "--task", "--data"])
def test_without_trust_nothing_of_the_file_runs(option, module, tmp_path, capsys):
    assert run("run", option, f"{module}:Net", "--device", "cpu") == 2
    told = capsys.readouterr().err
    assert f"{module}:Net: your own code runs only with --trust-code" in told
    assert f"read the code in {tmp_path}" in told
    assert not imported(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_trust_is_not_saved_and_a_resume_asks_for_it_again(module, tmp_path, capsys):
    assert run(*words(module, "--trust-code", "--name", "first", "--max-steps", "2")) == 0
    events = read_journal(tmp_path / "runs" / "first")
    pictured = [event for event in events if isinstance(event, ImagesGenerated) and event.what == "data"]
    assert [(event.images, event.path) for event in pictured] == [(8, "predictions/data.png")]
    saved = tomli.loads((tmp_path / "runs" / "first" / CONFIG).read_text())
    assert saved["code"] == {"folder": str(tmp_path)}
    (next(tmp_path.glob("*/imported"))).unlink()
    del sys.modules[module]
    assert run("resume", "runs/first", "--no-tui", "--epochs", "5") == 2
    assert "--trust-code" in capsys.readouterr().err
    assert run("evaluate", "runs/first") == 2
    assert run("runs") == 0
    assert not imported(tmp_path)
    assert run("evaluate", "runs/first", "--trust-code", "--device", "cpu", "--workers", "0") == 0
    assert "near" in capsys.readouterr().out


async def test_the_picker_takes_the_names_and_imports_nothing(module, tmp_path):
    async with picker(tmp_path) as (app, pilot, screen):
        screen.query_one("#model", Input).value = f"{module}:Net"
        screen.query_one("#data", Input).value = f"{module}:Data"
        await until(app, pilot, "your own data, opened when the run starts")
        resolution = resolve(None, task=None, flags=screen.picked.flags(), sets=(), environ={})
        request = screen.picked.request(resolution, {})
        assert screen.faults() == {}
    assert request.flags["model.name"][1] == f"{module}:Net"
    assert not request.trust_code
    assert not imported(tmp_path)


@pytest.mark.slow
def test_a_run_that_was_killed_and_had_a_nan_has_the_bits_of_one_that_was_not_killed(
    module, tmp_path, monkeypatch
):
    assert run(*words(module, "--trust-code", "--name", "whole")) == 0
    (tmp_path / module.partition(".")[0] / "kill").write_text("9")
    killed = Program(
        *words(module, "--trust-code", "--name", "parts", **{"data.workers": 1}), folder=tmp_path
    )
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.chdir("/")  # the run knows the folder of its code
    assert run("resume", str(tmp_path / "runs" / "parts"), "--trust-code", "--quiet") == 0

    whole, parts = tmp_path / "runs" / "whole", tmp_path / "runs" / "parts"
    assert read_summary(whole)["skipped_steps"] == 4
    assert read_summary(whole)["best"]["metric"] == "near"
    assert losses(parts) == losses(whole)
    assert len(losses(whole)) == 12
    assert "bad batch" in {e.problem for e in read_journal(parts) if isinstance(e, Recovered)}
    assert bits(read_newest(parts / "checkpoints")[0].tensors) == bits(
        read_newest(whole / "checkpoints")[0].tensors
    )


def losses(run):
    """Return the loss of each step as text, in which NaN is equal to NaN."""
    return {event.step: repr(event.loss) for event in read_journal(run) if isinstance(event, Step)}


@pytest.mark.parametrize(
    ("given", "line", "told"),
    [
        ({"net": "BrokenNet"}, "return super().forward(images.flatten(1))  # the mistake", "RuntimeError"),
        ({"data": "BrokenData"}, 'return {}["image"], 0  # the mistake', "KeyError: 'image'"),
        ({"data": "BrokenData", "data.workers": 1}, 'return {}["image"], 0  # the mistake', "KeyError"),
    ],
)
def test_a_bug_is_told_with_the_persons_line(given, line, told, module, tmp_path, capsys):
    code = (tmp_path / module.replace(".", "/")).with_suffix(".py")
    number = 1 + [text.strip() for text in code.read_text().splitlines()].index(line)
    assert run(*words(module, "--trust-code", "--name", "broken", **given)) == 1
    first, *frames, hint = capsys.readouterr().err.strip().splitlines()
    assert first.startswith(f"mptui: {code.relative_to(tmp_path)}:{number}: ")
    assert told in first
    assert frames[-1].endswith(line)
    assert not [frame for frame in frames if "mptui/" in frame or "torch" in frame.partition(":")[0]]
    assert "--debug" in hint


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--model", "{}:missing"], 2, "has no 'missing'"),
        (["--model", "{}_gone:make"], 2, "no module called"),
        (["--model", "{}:wide", "--data", "{}:Data"], 1, "returned [2, 4] for 2 images"),
        (["--task", "{}:HERE"], 2, "has no loss"),
        (["--task", "{}:Data"], 1, "missing 1 required positional argument: 'train'"),
    ],
)
def test_what_does_not_fit_is_told(arguments, code, told, module, capsys):
    words = [word.format(module) for word in arguments]
    assert run("run", *words, "--trust-code", "--device", "cpu", "--set", "data.image_size=32", "-q") == code
    assert told in capsys.readouterr().err


def test_an_isolated_run_is_trusted_as_its_program_is(tmp_path):
    assert "--trust-code" in command(Request("fast", {}, (), {}, trust_code=True), tmp_path)
    assert "--trust-code" not in command(Request("fast", {}, (), {}), tmp_path)
