"""A clock that does not count the time in which its own process was suspended."""

from mptui.processes.waiting import AwakeClock


def test_an_absence_counts_as_no_more_than_the_longest_gap():
    machine = [100.0]
    clock = AwakeClock(2.0, lambda: machine[0])
    seen = []
    for passed in (0.5, 1.0, 3600.0, 1.0):
        machine[0] += passed
        seen.append(clock())
    assert seen == [0.5, 1.5, 3.5, 4.5]
