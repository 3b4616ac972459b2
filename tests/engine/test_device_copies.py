"""Copies of a checkpoint leave a device beside training, with a stand-in of `torch.cuda`."""

import threading
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import host_copy, read_newest
from mptui.engine.checkpoint.snapshots import Layout, in_parts, row_beside_a_step
from mptui.engine.guards import rollback
from tests.engine.small import build_trainer, config, end

GIB = 1 << 30


class Copies(TorchDispatchMode):
    """Notes which copies write to `buffer` (i) and which read it (o)."""

    def __init__(self, buffer):
        super().__init__()
        self.seen, self._buffer = "", buffer.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            self.seen += "i" if args[0].untyped_storage().data_ptr() == self._buffer else "o"
        return func(*args, **(kwargs or {}))


def test_each_part_is_read_once_it_has_arrived():
    row, buffer = torch.arange(95, dtype=torch.uint8), torch.empty(40, dtype=torch.uint8)
    with Copies(buffer) as copies:

        def wait():
            copies.seen += "w"

        assert torch.equal(in_parts(row, buffer, wait), row)
    assert copies.seen == "iwoiwoiwo"


def test_tensors_of_any_kind_lie_in_one_row():
    groups = {
        "model": {
            "planes": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "part": torch.randn(4, 6)[:, 1:4],
            "count": torch.tensor(1 << 40),
            "empty": torch.empty(0, 3),
        },
        "other": {
            "on": torch.tensor([True, False, True]),
            "half": torch.randn(3).bfloat16(),
            "one": torch.tensor(1j),
        },
        "none": {},
    }
    layout = Layout(groups)
    row = torch.empty(layout.size, dtype=torch.uint8)
    layout.write(groups, row)
    found = layout.views(row)
    assert found.keys() == groups.keys()
    for name, tensors in groups.items():
        assert found[name].keys() == tensors.keys()
        for key, own in tensors.items():
            assert found[name][key].dtype == own.dtype
            assert torch.equal(found[name][key], own)
    planes = found["model"]["planes"]
    assert planes.stride() == groups["model"]["planes"].stride()  # so that one kernel copies all


@pytest.mark.parametrize(
    ("size", "share", "fits"), [(1 * GIB, 1.0, True), (4 * GIB, 1.0, False), (1 * GIB, 0.7, False)]
)
@pytest.mark.parametrize("name", ["cuda:0", "cuda"])
def test_copies_need_room_beside_the_largest_step_and_in_the_budget(monkeypatch, name, size, share, fits):
    """Of 16 GiB, others hold 2, and a step takes 11 at most."""

    def fraction(device):
        torch.cuda._utils._get_device_index(device)  # refuses one without an index, as the real function
        return share

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", fraction)
    for function, value in {
        "mem_get_info": (2 * GIB, 16 * GIB),
        "memory_reserved": 12 * GIB,
        "max_memory_allocated": 11 * GIB,
    }.items():
        monkeypatch.setattr(torch.cuda, function, lambda device, value=value: value)
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: size)
    assert row_beside_a_step(size, torch.device(name)) == (size if fits else None)
    assert row_beside_a_step(size, torch.device("cpu")) is None


class StandIn:
    """Streams and events of no device, which note what is called, and in which thread."""

    def __init__(self, calls, *args, **kwargs):
        self._calls = calls

    def __getattr__(self, name):
        def call(*args):
            self._calls.append((name, threading.current_thread().name.partition("_")[0]))
            return self

        return call


def on_a_device(monkeypatch, module):
    """Let all tensors count as those of a device that has room for copies of them."""
    monkeypatch.setattr(module, "split", lambda groups: (groups, {name: {} for name in groups}))
    monkeypatch.setattr(
        module, "row_beside_a_step", lambda size, device: torch.empty(size, dtype=torch.uint8, device=device)
    )


@pytest.fixture
def stand_ins(monkeypatch):
    """The calls of streams and events, and an event until which nothing arrives."""
    calls: list[tuple[str, str]] = []
    may_arrive, empty = threading.Event(), torch.empty

    @contextmanager
    def arriving(stream):
        assert may_arrive.wait(60)
        yield

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: StandIn(calls))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: StandIn(calls))
    monkeypatch.setattr(torch.cuda, "Event", lambda blocking: StandIn(calls))
    monkeypatch.setattr(torch.cuda, "stream", arriving)
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory=False, **named: empty(*args, **named))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return calls, may_arrive


def test_a_save_keeps_its_step_while_training_goes_on(tmp_path, monkeypatch, stand_ins):
    calls, may_arrive = stand_ins
    on_a_device(monkeypatch, snapshots)
    monkeypatch.setattr(snapshots, "PART", 1000)
    trainer, _ = build_trainer(config(training={"ema_decay": 0.9}), tmp_path / "checkpoints")
    state, saver = trainer.state, trainer.context.saver
    expected = host_copy(state.model.state_dict())
    saver.save(snapshots.take(state), "time")
    spoil(state.model)
    assert calls == [("record_event", "MainThread")]
    may_arrive.set()
    end(trainer)
    found, _ = read_newest(tmp_path / "checkpoints")
    assert found.tensors["model"].keys() == expected.keys()
    assert all(torch.equal(found.tensors["model"][name], own) for name, own in expected.items())
    assert calls[1] == ("wait_event", "mptui-arrive")
    assert {thread for _, thread in calls[1:]} == {"mptui-arrive"}


def spoil(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


def test_a_rollback_goes_to_what_was_copied_beside_training(tmp_path, monkeypatch, stand_ins):
    calls, may_arrive = stand_ins
    may_arrive.set()
    on_a_device(monkeypatch, rollback)
    trainer, _ = build_trainer(config(), tmp_path)
    kept, state = rollback.Rollback(lambda code, message: None), trainer.state
    for _ in range(2):  # the second time in the memory of the first
        expected = host_copy(state.model.state_dict())
        calls.clear()
        kept.keep(state)
        assert [name for name, _ in calls] == ["wait_stream", "record_event"]
        spoil(state.model)
        kept.go_back(state)
        assert calls[-1] == ("synchronize", "MainThread")
        assert all(torch.equal(own, expected[name]) for name, own in state.model.state_dict().items())
        spoil(state.model)
        kept.forget()
    end(trainer)
