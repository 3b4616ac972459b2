"""Common tests for an entry of each registry: a dry run, the picker, and a run that is resumed."""

from contextlib import asynccontextmanager

import pytest
import torch

from mptui.cli.main import app as command_line
from mptui.engine.checkpoint.files import read_newest
from mptui.events import Step
from mptui.runs.store.journal import read_journal
from mptui.tui import work
from mptui.tui.app import MptuiApp
from mptui.tui.screens import picker as picker_screen
from mptui.tui.screens.picker import PickerScreen
from tests.hardware.machines import H200
from tests.made.runs import LIMIT_S, ended, session_of

SMALL = {
    "data.name": "shapes",
    "data.image_size": 32,
    "data.samples": 16,
    "data.workers": 0,
    "training.batch_size": 8,
    "training.warmup_epochs": 0,
    "training.schedule": "constant",  # the same rates however many epochs there are
    "logging.step_interval_s": 0,
    "hardware.device": "cpu",
    "speed.compile": "off",
}


def dry_run(capsys, *arguments):
    """Return the output of `mptui run --dry-run` with these arguments."""
    command_line(["run", "--dry-run", *arguments], prog_name="mptui", standalone_mode=False)
    return capsys.readouterr().out


@asynccontextmanager
async def picker(tmp_path, network=""):
    """Show the picker with empty user folders; yields (app, pilot, its screen).

    The memory of the picked profile alone is counted, and with that network alone: of all, it takes seconds.
    """
    environ = {"XDG_STATE_HOME": str(tmp_path / "state"), "MPTUI_CONFIG_DIR": str(tmp_path / "config")}
    screen, count = PickerScreen(H200, environ=environ), vars(picker_screen)["fits"]

    def of_the_network(runs, *others, wanted):
        run = runs[screen.picked.profile]
        counted = {screen.picked.profile: run} if run.config.model.name == network else {}
        return count(counted, *others, wanted=wanted)

    app = MptuiApp(screen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picker_screen, "fits", of_the_network)
        async with app.run_test(size=(120, 36)) as pilot:
            await pilot.pause()
            yield app, pilot, screen
        assert work.wait(LIMIT_S)  # else it counts without the patch, in the next test


def trained(run, settings, *, epochs, resume=False):
    """Train for a total number of epochs; return the tensors of the last checkpoint by group and name."""
    asked = {**SMALL, **settings, "training.epochs": epochs}
    session = ended(session_of(run, asked, resume=resume))
    assert session.result.exit_code == 0, session.result.bug or session.result.error
    return read_newest(run / "checkpoints")[0].tensors


def trained_whole_and_in_parts(folder, settings):
    """Return the last checkpoint of two epochs; assert that a run resumed after the first has the same."""
    whole = trained(folder / "whole", settings, epochs=2)
    trained(folder / "parts", settings, epochs=1)
    resumed = trained(folder / "parts", settings, epochs=2, resume=True)
    assert losses(folder / "parts") == losses(folder / "whole")
    assert bits(resumed) == bits(whole)
    return whole


def losses(run):
    return [event.loss for event in read_journal(run) if isinstance(event, Step)]


def bits(groups):
    return {
        (group, name): tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }
