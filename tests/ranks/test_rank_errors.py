"""Errors of one rank, as another one tells them."""

from mptui.engine.ranks.group import RankFailure


def test_an_error_of_several_lines_is_told_as_lines():
    failure = RankFailure.of(ValueError("two sizes:\n  [3, 4]\n  [5, 4]\x1b[2J"), 1)
    first, *rest = failure.error().message.splitlines()
    assert first == "rank 1: ValueError: two sizes:"
    assert [line.strip()[:6] for line in rest] == ["[3, 4]", "[5, 4]"]
    assert "\\x0a" not in failure.error().message
    assert "\x1b" not in failure.error().message
