"""Long lists in a summary are shortened in the middle; the first and latest entries stay."""

import pytest

from mptui.events import Recovered, Warned
from mptui.runs.store.summary import Summary
from mptui.runs.view.events.recovery_specs import LIST_LIMIT

HALF = LIST_LIMIT // 2


def warning(n):
    return Warned(code=str(n), message="")


def recovery(n):
    return Recovered(step=n, problem="divergence", action="")


@pytest.mark.parametrize(
    ("event_of", "entries", "number"),
    [
        (warning, "warnings", lambda entry: int(entry["code"])),
        (recovery, "recoveries", lambda entry: entry["step"]),
    ],
    ids=["warnings", "recoveries"],
)
@pytest.mark.parametrize("count", [LIST_LIMIT - 1, LIST_LIMIT, LIST_LIMIT + 1, 3 * LIST_LIMIT])
def test_a_long_list_keeps_its_first_half_and_the_latest(event_of, entries, number, count):
    summary = Summary("run", "runs/run")
    for n in range(count):
        summary.handle(event_of(n))
    kept = [number(entry) for entry in summary.document[entries]]
    if count <= LIST_LIMIT:
        assert kept == list(range(count))
    else:
        assert kept == [*range(HALF), *range(count - HALF, count)]


def test_the_limit_is_a_hundred():
    assert LIST_LIMIT == 100
