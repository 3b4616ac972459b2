"""The terminal's background: what it answers is taken out of the keys, in pieces and too late, too."""

import pytest

from mptui.tui.terminal.background import Answers, can_be_asked, is_light

LIGHT = "\x1b]11;rgb:ffff/ffff/dddd\x1b\\"


@pytest.fixture
def answers():
    answers = Answers()
    answers.asked()
    return answers


@pytest.mark.parametrize(
    ("colour", "light"),
    [
        ("rgb:ffff/ffff/dddd", True),
        ("rgb:00/00/8b", False),
        ("rgba:fd/f6/e3/ff", True),
        ("#1e1e2e", False),
        ("?", None),
        ("", None),
        ("rgb:1/2", None),
    ],
)
def test_a_colour_is_light_or_dark(colour, light):
    assert is_light(colour) is light


@pytest.mark.parametrize("answer", [LIGHT, "\x1b]11;rgb:ffff/ffff/dddd\x07"])
def test_an_answer_in_pieces_is_none_of_the_keys_around_it(answers, answer):
    for cut in range(len(answer)):
        answers.asked()
        told = [answers.take(part) for part in ("j" + answer[:cut], answer[cut:] + "k")]
        assert "".join(text for text, _ in told) == "jk"
        assert [light for _, light in told if light is not None] == [True]


def test_the_escape_key_is_given_back_when_nothing_follows(answers):
    assert answers.take("\x1b") == ("", None)
    assert answers.take("") == ("\x1b", None)
    assert answers.take("\x1b[A") == ("\x1b[A", None)


def test_once_the_answer_is_there_the_escape_key_waits_for_nothing(answers):
    answers.take(LIGHT)
    assert answers.take("\x1b") == ("\x1b", None)


def test_an_answer_that_is_too_late_is_taken_out_and_changes_nothing(answers, monkeypatch):
    monkeypatch.setattr("mptui.tui.terminal.background.PATIENCE_S", 0.0)
    answers.asked()
    assert answers.take("a" + LIGHT[:9]) == ("a", None)
    assert answers.take("") == ("", None)
    assert answers.take(LIGHT[9:] + "b") == ("b", None)
    answers.wait()


@pytest.mark.parametrize(
    ("term", "asked"), [("xterm-256color", True), ("tmux-256color", True), ("linux", False), ("vt100", False)]
)
def test_only_terminals_that_skip_what_they_do_not_know_are_asked(term, asked):
    assert can_be_asked({"TERM": term}) is asked
