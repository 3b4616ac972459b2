"""Progress of preparation is reported by time, not by number of files."""

from mptui.events import Event, Progress
from mptui.runs.planning.find_data import PacedProgress


def test_a_million_files_are_told_a_few_times_a_second_and_to_their_end():
    told: list[Event] = []
    now = 100.0
    tell = PacedProgress(told.append, "scanning", clock=lambda: now)
    for done in range(0, 1_000_001, 250):
        now = 100.0 + done / 100_000  # ten seconds in total
        tell(done, 1_000_000)
    assert 10 <= len(told) <= 60
    steps = [event for event in told if isinstance(event, Progress) and event.phase == "scanning"]
    assert len(steps) == len(told)
    assert (steps[0].done, steps[-1].done) == (0, 1_000_000)
