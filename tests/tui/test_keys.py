import runpy
from pathlib import Path
from typing import Any

import pytest
from textual.binding import BindingsMap

from mptui.tui.app import MptuiApp
from mptui.tui.dialogs.help import HelpScreen
from mptui.tui.dialogs.questions import (
    AskDialog,
    CleanDialog,
    DeleteDialog,
    DiscardDialog,
    LeaveDialog,
    StopDialog,
    SwitchProfileDialog,
    UndoDialog,
)
from mptui.tui.keys import FILE_NAME, KEYS, PLACES, bindings, display, display_in_line, load_keymap
from mptui.tui.screens.compare import CompareScreen
from mptui.tui.screens.detection import DataField, DetectionScreen
from mptui.tui.screens.fork import ForkDialog
from mptui.tui.screens.learn import LearnScreen
from mptui.tui.screens.live import LiveScreen
from mptui.tui.screens.memory import MemoryScreen
from mptui.tui.screens.numerics import NumericsScreen
from mptui.tui.screens.picker import PickerScreen
from mptui.tui.screens.pictures import PicturesScreen
from mptui.tui.screens.ranks import RanksScreen
from mptui.tui.screens.run_settings import RunSettingsScreen
from mptui.tui.screens.runs import RunsScreen
from mptui.tui.widgets.basics import Column, KeyedList
from mptui.tui.widgets.chart import Chart
from mptui.tui.widgets.panels import LogPanel
from mptui.tui.widgets.run_list import RecentRuns
from mptui.tui.widgets.settings import Field

OWNERS = {
    "live": LiveScreen,
    "numerics": NumericsScreen,
    "learn": LearnScreen,
    "runs": RunsScreen,
    "compare": CompareScreen,
    "fork": ForkDialog,
    "delete": DeleteDialog,
    "clean": CleanDialog,
    "pictures": PicturesScreen,
    "ranks": RanksScreen,
    "memory": MemoryScreen,
    "settings": RunSettingsScreen,
    "chart": Chart,
    "log": LogPanel,
    "column": Column,
    "app": MptuiApp,
    "leave": LeaveDialog,
    "stop": StopDialog,
    "undo": UndoDialog,
    "discard": DiscardDialog,
    "switch": SwitchProfileDialog,
    "help": HelpScreen,
    "detection": DetectionScreen,
    "place": DataField,
    "newest": RecentRuns,
    "picker": PickerScreen,
    "list": KeyedList,
    "field": Field,
    "edit": AskDialog,
}


def binding_ids(owner: Any) -> list[str]:
    return [binding.id for binding in owner.BINDINGS]


@pytest.fixture
def keymap(tmp_path):
    def load(text):
        (tmp_path / FILE_NAME).write_text(text, encoding="utf-8")
        return load_keymap(tmp_path)

    return load


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.id)
def test_each_key_of_the_table_is_bound_to_an_action_that_exists(key):
    owner = OWNERS[key.where]
    bound = [id for id in binding_ids(owner) if id == key.id or id.startswith(f"{key.id}.")]
    assert bound
    target = MptuiApp if key.action.startswith("app.") else owner
    name = key.action.removeprefix("app.").split("(")[0]
    assert hasattr(target, f"action_{name}")


def test_each_place_has_keys_and_each_key_a_place():
    assert {key.where for key in KEYS} == set(PLACES)
    assert {part for place in PLACES.values() for part in place.parts} < set(PLACES)


def test_ids_are_unique_and_no_key_means_two_things():
    assert len({key.id for key in KEYS}) == len(KEYS)
    for where in OWNERS:
        assert all(len(bound) == 1 for bound in BindingsMap(bindings(where)).key_to_bindings.values())


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("list", ("up", "down", "first", "last")),
        ("detection", ("earlier", "later", "first", "last")),
        *((each, ("earlier", "later", "first", "last")) for each in ("log", "column", "numerics")),
        *((each, ("earlier", "later", "first", "last")) for each in ("pictures", "ranks")),
        ("learn", ("more", "less", "first", "last")),
    ],
)
def test_lists_have_the_same_keys_on_every_screen(place, names):
    by_id = {key.id: key.keys.split(",") for key in KEYS}
    for name, keys in zip(names, (("up", "k"), ("down", "j"), ("home", "g"), ("end", "G")), strict=True):
        assert {*keys} <= {*by_id[f"{place}.{name}"]}


def test_the_help_of_a_key_fits_a_line_of_the_help():
    assert max(len(key.help) for key in KEYS) <= 36


def test_no_file_is_no_change(tmp_path):
    loaded = load_keymap(tmp_path)
    assert (loaded.keys, loaded.warnings) == ({}, [])


def test_the_help_names_the_keys_of_each_action_and_the_bottom_line_those_of_both():
    closer = next(key for key in KEYS if key.id == "live.closer")
    assert (display(closer, {}), display_in_line(closer, {})) == ("+ / =", "+/-")
    assert display_in_line(closer, {"live.closer": "a,b"}) == "a"


def test_remap_is_taken_and_shown(keymap):
    loaded = keymap('[live]\npause = "p"\npreset = "f2,f3"\n')
    assert loaded.warnings == []
    assert loaded.bindings() == {"live.pause": "p", "live.profile.1": "f2", "live.profile.2": "f3"}
    pause = next(key for key in KEYS if key.id == "live.pause")
    assert display(pause, loaded.keys) == "p"


def test_going_back_can_not_be_taken_away(keymap):
    assert keymap('[app]\nback = "b"\n').keys["app.back"] == "b,escape"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[live]\npuase = "p"\n', "did you mean live.pause?"),
        ("[live]\npause = 3\n", "must be keys as text"),
        ('[live]\npause = "nokey"\n', '"nokey" is not a key'),
        ('[live]\npause = "q"\n', "already app.leave"),
        ('[live]\npause = "left"\n', "already live.earlier"),
        ('[live]\npause = "w"\nlog = "w"\n', "already live.pause"),
        ("[live\n", FILE_NAME),
    ],
)
def test_what_can_not_be_used_is_left_out_and_said(keymap, text, said):
    loaded = keymap(text)
    assert len(loaded.warnings) == 1
    assert said in loaded.warnings[0]
    assert "live.log" not in loaded.keys


def test_keys_that_are_never_heard_together_may_be_the_same(keymap):
    assert keymap('[leave]\nstop = "y"\n').warnings == []


def test_the_page_of_keys_is_made_from_the_table():
    docs = Path(__file__).parents[2] / "docs"
    made = runpy.run_path(str(docs / "make_keys.py"))["page"]()
    assert (docs / "keys.md").read_text(encoding="utf-8") == made, "python docs/make_keys.py > docs/keys.md"
