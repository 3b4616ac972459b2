"""Searches for garbage: what a long one has found to be none is not looked through again."""

import gc

import pytest

from mptui.tui.terminal import process


@pytest.mark.parametrize(("long_s", "is_searched"), [(0.0, False), (3600.0, True)])
def test_only_what_took_long_is_left_out_of_later_searches(monkeypatch, long_s, is_searched):
    monkeypatch.setattr(gc, "callbacks", [])
    monkeypatch.setattr(process, "LONG_SEARCH_S", long_s)
    kept: list[list[int]] = [[]]
    process.spare_searches()
    (measure,) = gc.callbacks
    measure("start", {})
    measure("stop", {})
    assert any(each is kept for each in gc.get_objects()) == is_searched
