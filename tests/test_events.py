"""Every event survives the round trip through JSON, NaN included."""

import json
import math
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mptui.events import Event, Validated, Warned, finite_json, to_record
from mptui.runs.view.specs import EVENTS, event_of
from tests.made.events import step_of

numbers = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf])
whole_numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text() | st.sampled_from(["nan", "inf", "-inf", "NaN"])


def values_of(kind: Any) -> st.SearchStrategy[object]:
    """Return a strategy for values of a field's type."""
    if isinstance(kind, UnionType):
        return st.one_of([st.none() if part is NoneType else values_of(part) for part in get_args(kind)])
    if get_origin(kind) is list:
        return st.lists(values_of(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is dict:
        return st.dictionaries(texts, values_of(get_args(kind)[1]), max_size=3)
    if isinstance(kind, type) and is_dataclass(kind):
        return st.builds(kind, **{f.name: values_of(f.type) for f in fields(kind)})
    return VALUES[kind]


VALUES: dict[object, st.SearchStrategy[object]] = {
    str: texts,
    int: whole_numbers,
    bool: st.booleans(),
    float: numbers,
}


def of_kind(kind: type[Event]) -> st.SearchStrategy[Event]:
    values = {f.name: values_of(f.type) for f in fields(kind)}
    values["time"] = st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)
    values["clock"] = st.none() | values["time"]
    return st.builds(kind, **values)


any_event = st.one_of([of_kind(spec.event) for spec in EVENTS.values()])


@settings(max_examples=50)
@given(any_event)
def test_an_event_comes_back_as_it_was(event):
    line = json.dumps(to_record(event), allow_nan=False)
    # repr, since NaN doesn't equal itself; it also distinguishes a number from a text
    assert repr(event_of(json.loads(line))) == repr(event)


@settings(max_examples=20)
@given(any_event)
def test_a_record_begins_with_what_all_events_have(event):
    record = to_record(event)
    assert list(record)[:3] == ["event", "time", "step"]
    assert (record["event"], record["step"]) == (event.kind, event.step)


def test_a_kind_of_a_later_version_is_left_out():
    assert event_of({"event": "teleported", "time": 0.0, "step": 1}) is None
    assert event_of({}) is None
    assert event_of({"event": ["step"]}) is None


def test_a_field_of_a_later_version_is_left_out():
    record = to_record(Warned(code="a", message="b"))
    assert event_of({**record, "colour": "red"}) == event_of(record)


def test_a_record_without_what_it_needs_is_left_out():
    assert event_of({"event": "warning", "time": 0.0, "step": 1, "code": "a"}) is None


any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["nan", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(any_event, any_json, st.data())
def test_a_garbled_field_gives_an_event_of_the_right_types_or_none(event, value, data):
    record = to_record(event)
    name = data.draw(st.sampled_from(list(record)))
    back = event_of({**record, name: value})
    if back is not None:
        assert event_of(json.loads(json.dumps(to_record(back)))) is not None
        datetime.fromtimestamp(back.time, tz=timezone.utc)
        assert type(back.step) is int
        assert repr(back)


@pytest.mark.parametrize(
    "field",
    [
        *({"step": "9"}, {"step": True}, {"step": None}, {"step": 10**30}, {"step": 1.0}),
        *({"time": "nan"}, {"time": 1e300}, {"time": -1}, {"time": "late"}, {"time": [1]}),
        *({"loss": "low"}, {"loss": None}, {"loss": True}, {"loss": 10**400}),
        *({"metrics": [1]}, {"metrics": {"acc1": "high"}}, {"metrics": {"acc1": {}}}),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_no_event(field):
    step = step_of()
    assert event_of({**to_record(step), **field}) is None


def test_the_names_of_numbers_are_texts_where_a_text_is_meant():
    event = Warned(time=1.0, code="nan", message="inf")
    assert event_of(to_record(event)) == event


@pytest.mark.parametrize(("number", "name"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_json_has_a_name_for_what_is_not_finite(number, name):
    assert finite_json({"a": [number, {"b": number}], "c": (1.5, number)}) == {
        "a": [name, {"b": name}],
        "c": [1.5, name],
    }


def test_nan_is_seen_on_the_other_side():
    event = Validated(epoch=1, loss=math.nan, metrics={"acc1": math.inf}, seconds=1.0, best=False)
    back = event_of(to_record(event))
    assert isinstance(back, Validated)
    assert math.isnan(back.loss)
    assert back.metrics == {"acc1": math.inf}


def test_events_can_not_be_changed():
    event = step_of()
    with pytest.raises(AttributeError):
        event.loss = 2.0
