"""External text as it is shown on a terminal."""

import shlex
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptui.text import UNKNOWN, cell, clean, clean_name, clock_on_day, duration, markdown, shell_word

DANGEROUS = {"Cc", "Cs", "Zl", "Zp"}
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
any_text = st.text(
    st.one_of(
        st.characters(),
        st.characters(categories=["Cc", "Cs"]),
        st.sampled_from([*sorted(BIDI), "\u2028", "\u2029"]),
    )
)
without_backslash = any_text.map(lambda text: text.replace("\\", "/"))


@given(any_text, st.integers(2, 50))
def test_nothing_in_the_result_steers_a_terminal(text, limit):
    cleaned = clean(text, limit)
    assert not {unicodedata.category(c) for c in cleaned} & DANGEROUS
    assert not BIDI & set(cleaned)
    assert len(cleaned) <= limit
    assert len(cleaned.splitlines()) <= 1
    cleaned.encode()


@given(any_text)
def test_cleaned_twice_is_cleaned_once(text):
    assert clean(clean(text)) == clean(text)


@given(without_backslash, without_backslash)
def test_two_names_stay_two(one, other):
    assert (clean(one) == clean(other)) == (one == other)


looks_escaped = st.lists(
    st.sampled_from(["\\", "x", "u", "1b", "5c", "202e", "\x1b", "\u202e", "\ud800", "\x5c"]), max_size=6
).map("".join)


@given(any_text | looks_escaped, any_text | looks_escaped)
def test_two_names_stay_two_even_if_one_spells_the_escape_of_the_other(one, other):
    assert (clean_name(one) == clean_name(other)) == (one == other)
    assert clean(clean_name(one)) == clean_name(one)


def test_a_backslash_that_spells_nothing_stays():
    for name in (r"C:\new\x", r"a\b", "\\", r"\x1", r"\xZZ", r"\u12"):
        assert clean_name(name) == name
    assert clean_name(r"\x1b") == r"\x5cx1b"


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=50))
def test_plain_text_stays_as_it_is(text):
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc", "a\\x0ab\\x09c"),
        ("invoice\u202egnp.exe", "invoice\\u202egnp.exe"),
        ("\x9b31m", "\\x9b31m"),
        ("caf\udce9", "caf\\udce9"),
        ("naïve 猫 …", "naïve 猫 …"),
    ],
)
def test_what_is_escaped_can_still_be_read(text, cleaned):
    assert clean(text) == cleaned


@pytest.mark.parametrize("length", [9, 10, 11, 1000])
def test_what_is_too_long_ends_with_an_ellipsis(length):
    text = "a" * length
    assert clean(text, limit=10) == (text if length <= 10 else "a" * 9 + "…")
    assert len(clean("\n" * length, limit=10)) == 10


@pytest.mark.parametrize("path", ["runs/one", "my runs/one", "it's $HOME/`x`", "a;b", "-n"])
def test_a_path_in_a_command_is_one_word_of_a_shell(path):
    assert shlex.split(f"mptui resume {shell_word(path)}") == ["mptui", "resume", path]


@pytest.mark.parametrize("text", ["=HYPERLINK(A1)", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3", "\tx", "\r=1"])
def test_a_cell_is_no_formula(text):
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "cat", "-1", "+2.5e-3", "-.5", "a=b", "'quoted"])
def test_a_cell_that_is_no_formula_stays(text):
    assert cell(text) == text


def test_markdown_shows_the_text_and_does_nothing():
    assert markdown("<b>a|b</b> [x](http://y)\n# c") == r"\<b\>a\|b\</b\> \[x\](http://y) # c"


def test_a_time_of_another_day_has_its_day():
    now = time.mktime((2026, 11, 27, 20, 0, 0, 0, 0, -1))
    assert clock_on_day(now + 600, now) == "20:10"
    assert clock_on_day(now + 8 * 3600, now) == "Sat 04:00"
    assert clock_on_day(now + 30 * 86400, now) == "27 Dec 2026"
    assert clock_on_day(float("inf"), now) == UNKNOWN


def test_a_duration_of_years_has_no_figure():
    assert duration(30 * 86400) == "30 d 0 h"
    assert duration(131_260 * 86400) == "over a year"
