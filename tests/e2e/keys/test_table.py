"""The table of keys against the screens: no function without a key, no key without a walk that presses it."""

import inspect

from mptui.tui.app import RunActions
from mptui.tui.keys import KEYS
from tests.e2e.keys.walk import WALKS, keys_of
from tests.tui.test_keys import OWNERS


def _is_ours(owner):
    return owner.__module__.startswith("mptui.")


def test_each_key_of_the_table_is_pressed_by_a_walk():
    assert {key.id for key in KEYS} == {key.id for walk in WALKS for key in keys_of(walk)}


def test_each_action_of_a_screen_has_a_key():
    by_key = {key.action.removeprefix("app.").partition("(")[0] for key in KEYS}
    ours = {base for owner in (*OWNERS.values(), RunActions) for base in owner.__mro__ if _is_ours(base)}
    actions = {
        name.removeprefix("action_")
        for owner in ours
        for name, _ in inspect.getmembers(owner, inspect.isfunction)
        if name.startswith("action_") and name in vars(owner)
    }
    assert actions
    assert not actions - by_key
