"""Copies of a checkpoint leave a device beside training, with a stand-in of `torch.cuda`."""

import re
import threading
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mptui.engine.checkpoint import device_copies, snapshots
from mptui.engine.checkpoint.device_copies import fit_beside_a_step, to_host
from mptui.engine.checkpoint.files import host_copy, read_newest
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


def test_each_part_is_read_once_it_has_arrived_and_has_room_in_the_buffer():
    tensors = [
        torch.randn(7, 11),
        torch.tensor(True),
        torch.tensor(1 << 40),
        torch.randn(3).bfloat16(),
        torch.empty(0),
        torch.randn(2, 3, dtype=torch.complex64),
    ]
    buffer = torch.empty(40, dtype=torch.uint8)
    with Copies(buffer) as copies:

        def wait():
            copies.seen += "w"

        found = to_host(tensors, buffer, wait)
    assert all(torch.equal(one, other) for one, other in zip(found, tensors, strict=True))
    assert all(one.dtype == other.dtype for one, other in zip(found, tensors, strict=True))
    assert re.fullmatch("(i+wo+){10}", copies.seen)  # 371 bytes


@pytest.mark.parametrize(
    ("size", "share", "fits"), [(1 * GIB, 1.0, True), (4 * GIB, 1.0, False), (1 * GIB, 0.7, False)]
)
def test_copies_need_room_beside_the_largest_step_and_in_the_budget(monkeypatch, size, share, fits):
    """Of 16 GiB, others hold 2, and a step takes 11 at most."""
    for name, value in {
        "mem_get_info": (2 * GIB, 16 * GIB),
        "memory_reserved": 12 * GIB,
        "max_memory_allocated": 11 * GIB,
        "get_per_process_memory_fraction": share,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert fit_beside_a_step(size, torch.device("cuda", 0)) is fits
    assert not fit_beside_a_step(size, torch.device("cpu"))


class StandIn:
    """Streams and events of no device, which note what is called, and in which thread."""

    def __init__(self, calls, *args, **kwargs):
        self._calls = calls

    def __getattr__(self, name):
        def call(*args):
            self._calls.append((name, threading.current_thread().name.partition("_")[0]))
            return self

        return call


def test_a_save_keeps_its_step_while_training_goes_on(tmp_path, monkeypatch):
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
    monkeypatch.setattr(snapshots, "fit_beside_a_step", lambda size, device: True)
    monkeypatch.setattr(device_copies, "PART", 1000)
    trainer, _ = build_trainer(config(training={"ema_decay": 0.9}), tmp_path / "checkpoints")
    state, saver = trainer.state, trainer.context.saver
    expected = host_copy(state.model.state_dict())
    saver.save(snapshots.take(state), "time")
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.add_(1)
    assert calls == [("record_event", "MainThread")]
    may_arrive.set()
    end(trainer)
    found, _ = read_newest(tmp_path / "checkpoints")
    assert found.tensors["model"].keys() == expected.keys()
    assert all(torch.equal(found.tensors["model"][name], own) for name, own in expected.items())
    assert calls[1] == ("wait_event", "mptui-arrive")
    assert {thread for _, thread in calls[1:]} == {"mptui-arrive"}
