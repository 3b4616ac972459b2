"""The alert of a disk that is nearly full."""

from mptui.engine.checkpoint.files import DiskWatch
from mptui.events import Alert, CheckpointSaved, Event, Recovered

HUGE = 1 << 60


def saved(size: int) -> CheckpointSaved:
    return CheckpointSaved(path="p", reason="epoch", seconds=1.0, size_bytes=size)


def test_few_further_checkpoints_are_an_alert_until_there_is_room(tmp_path):
    watch = DiskWatch(tmp_path)
    events: list[Event] = []
    watch.check(events.append, 1)
    assert events == []
    for size in (HUGE, HUGE, 1, 1):
        watch.handle(saved(size))
        watch.check(events.append, 2)
    alerts = [event for event in events if isinstance(event, Alert)]
    assert [(each.code, each.over, each.step) for each in alerts] == [("disk", False, 2), ("disk", True, 2)]
    assert "the disk is nearly full" in alerts[0].message


def test_it_is_told_again_after_a_wait_for_the_disk_has_ended(tmp_path):
    watch = DiskWatch(tmp_path)
    events: list[Event] = []
    for event in (saved(HUGE), Recovered(problem="disk", action="saved")):
        watch.handle(event)
        watch.check(events.append, 1)
    assert [event.over for event in events if isinstance(event, Alert)] == [False, False]


def test_a_folder_that_is_gone_is_no_alert(tmp_path):
    watch = DiskWatch(tmp_path / "gone")
    events: list[Event] = []
    watch.handle(saved(HUGE))
    watch.check(events.append, 1)
    assert events == []
