"""A new command to a run is one entry of `COMMANDS`: the socket, the training thread, log and key know it."""

import pytest

from mptui.engine.mailbox import Command
from mptui.events import CommandAnswered, Step, Warned
from mptui.registry.commands import COMMANDS, CommandSpec
from mptui.runs.remote.feed import Connection
from mptui.runs.store.index import read_run
from mptui.runs.store.journal import read_journal
from mptui.tui import keys
from mptui.tui.app import MptuiApp
from mptui.tui.keys import KEYS, bindings, command_keys
from mptui.tui.screens.live import LiveScreen
from tests.made.runs import LIMIT_S, UNET, session_of
from tests.tui.events import demo_source
from tests.tui.frames import frame


def words(given, profiles):
    if not isinstance(given, str):
        raise ValueError("a note is a text")
    return given


def note(context, command):
    """Take a note of the step; "never" is refused."""
    if command.argument == "never":
        return "never is not now"
    context.emit(Warned(step=context.state.step, code="note", message=f"noted: {command.argument}"))
    return None


@pytest.fixture
def spec(monkeypatch):
    spec = CommandSpec(execute=note, argument=words, help="note this step", key="w", title="memo")
    monkeypatch.setitem(COMMANDS, "note", spec)
    return spec


def test_a_client_sends_it_by_the_socket_and_the_journal_has_what_became_of_it(spec, tmp_path):
    run = tmp_path / "run"
    session = session_of(run, {**UNET, "data.samples": 16, "training.epochs": 1})
    session.mailbox.post(Command("pause"))
    session.start()
    client = Connection(run)
    asked = [client.answer(client.send("note", each)) for each in (None, "here", "never")]
    client.answer(client.send("resume"))
    client.close()
    assert session.wait(LIMIT_S)
    events = list(read_journal(run))
    ids = [each["answer"] for each in asked]
    told = [(each.id, each.state, each.detail) for each in events if isinstance(each, CommandAnswered)]
    assert [each.get("error", each.get("state")) for each in asked] == ["a note is a text", "asked", "asked"]
    assert [(state, detail) for id, state, detail in told if id == ids[1]] == [
        *(("asked", "here"), ("taken", ""), ("done", ""))
    ]
    assert (ids[2], "refused", "never is not now") in told
    assert [each.message for each in events if isinstance(each, Warned)] == ["noted: here"]
    assert len([each for each in events if isinstance(each, Step)]) == 2
    assert any(line.text.startswith("memo here requested by script") for line in read_run(run).log)


async def test_its_key_sends_it_and_is_in_the_palette_and_the_help(spec, monkeypatch):
    monkeypatch.setattr(keys, "KEYS", (*KEYS, *(key for key in command_keys() if key.id == "live.note")))

    class Screen(LiveScreen):
        BINDINGS = bindings("live", keys.KEYS)

    source = demo_source()
    app = MptuiApp(Screen(source))
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.press("w")
        assert source.sent == [("note", None)]
        assert ("note this step", "w") in [(c.title, c.help) for c in app.get_system_commands(app.screen)]
        await pilot.press("question_mark")
        assert "w  note this step" in frame(app)
