"""Every event has a registry entry with its handling by each reader."""

import mptui.events
from mptui.events import Event
from mptui.runs.view.specs import EVENTS


def test_every_event_has_one_entry_under_its_name():
    found = {each for each in vars(mptui.events).values() if isinstance(each, type)}
    events = {each for each in found if issubclass(each, Event) and each is not Event}
    assert {kind: spec.event for kind, spec in EVENTS.items()} == {event.kind: event for event in events}


def test_kinds_that_are_thinned_otherwise_are_told_apart_by_eight_bytes():
    """A long journal is filtered by the first eight bytes of each line's kind."""
    tags: dict[str, set[str]] = {}
    for kind, spec in EVENTS.items():
        tags.setdefault(f'{kind}","t'[:8], set()).add(spec.thinned)
    assert all(len(thinned) == 1 for thinned in tags.values())
    assert 'step","t' in tags
