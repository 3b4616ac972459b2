"""A new setting is a field beside its help, and the code that reads it: a run changes it, and undoes that."""

from typing import Annotated

import pytest
from pydantic import Field
from pydantic.fields import FieldInfo

from mptui.config.keys import SETTINGS, Setting
from mptui.config.schema import Live, RunConfig, TrainingConfig
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.hooks import Hook
from mptui.engine.mailbox import Command
from mptui.engine.trainer import HOOKS
from mptui.errors import ConfigError
from mptui.events import CommandAnswered, PresetSwitched
from tests.made.runs import QUIET, ended, session_of
from tests.small_cnn import NAME
from tests.toys.training import SMALL, bits, dry_run

KEY, HELP = "training.brake", "Factor of all gradients; 0: no weight moves."
BRAKE = Annotated[float, Field(ge=0, le=1, description=HELP), Live("engine/brake.py")]
RUN = {
    **SMALL,
    **QUIET,
    "model.name": NAME,
    "training.epochs": 2,
    "training.optimizer": "sgd",
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
}
"""Four steps, whose weights move by their gradients alone."""


class Brake(Hook):
    """Multiplies gradients by `training.brake`; asks for an undo after step 3 with 0."""

    moved: list[tuple[int, bool]]
    """Each step, and whether it has moved the weights."""

    def __init__(self, context):
        self._context = context
        self._weight = next(context.model.parameters())

    @property
    def _brake(self):
        return self._context.job.config.training.brake

    def step_begins(self):
        self._before = self._weight.detach().clone()

    def gradients_ready(self):
        for parameter in self._context.model.parameters():
            parameter.grad *= self._brake

    def step_ends(self):
        step = self._context.state.step
        self.moved.append((step, not self._weight.equal(self._before)))
        if step == 3 and self._brake == 0:
            self._context.mailbox.post(Command("undo"))


@pytest.fixture(autouse=True)
def brake(monkeypatch):
    TrainingConfig.model_fields["brake"] = FieldInfo.from_annotated_attribute(BRAKE, 1.0)
    monkeypatch.setitem(SETTINGS, KEY, Setting(TrainingConfig, "brake"))
    monkeypatch.setitem(HOOKS, "brake", Brake)
    _rebuild()
    yield
    del TrainingConfig.model_fields["brake"]
    _rebuild()


def _rebuild():
    for table in (TrainingConfig, RunConfig):
        table.model_rebuild(force=True)


def test_the_command_line_knows_it_its_help_and_its_limits(capsys):
    assert "brake = 0.5" in dry_run(capsys, "--set", f"{KEY}=0.5", "--device", "cpu")
    assert SETTINGS[KEY].help == HELP
    with pytest.raises(ConfigError, match=r"training\.brake"):
        dry_run(capsys, "--set", f"{KEY}=2", "--device", "cpu")


def test_it_is_changed_during_a_run_and_undone_as_if_it_had_never_been(tmp_path):
    Brake.moved = []
    plain = ended(session_of(tmp_path / "plain", RUN))
    assert plain.result.exit_code == 0
    assert Brake.moved == [(1, True), (2, True), (3, True), (4, True)]

    Brake.moved = []
    session = session_of(tmp_path / "changed", RUN)
    session.mailbox.post(Command("set", f"{KEY}=0"))  # taken after the first step
    heard = session.listen()
    assert ended(session).result.exit_code == 0
    assert Brake.moved == [(1, True), (2, False), (3, False), (2, True), (3, True), (4, True)]
    assert bits(read_newest(tmp_path / "changed" / "checkpoints")[0].tensors) == bits(
        read_newest(tmp_path / "plain" / "checkpoints")[0].tensors
    )

    events = heard.drain()
    answers = [(each.command, each.state) for each in events if isinstance(each, CommandAnswered)]
    assert answers == [("set", "taken"), ("set", "done"), ("undo", "taken"), ("undo", "done")]
    switches = [each for each in events if isinstance(each, PresetSwitched)]
    changes = [(each.changes, each.undone) for each in switches]
    assert changes == [({KEY: ["1.0", "0.0"]}, False), ({KEY: ["0.0", "1.0"]}, True)]
