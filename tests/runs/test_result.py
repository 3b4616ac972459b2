"""Messages for errors that torch raises, and for full memory."""

import errno
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mptui.engine.memory import ledger
from mptui.engine.memory.ledger import footprint
from mptui.errors import MemoryExhaustedError
from mptui.hardware.devices import USABLE
from mptui.runs.session.ending import not_deterministic, out_of_memory, with_lever
from tests.hardware.conftest import driver
from tests.hardware.fake_nvml import GIB, h200
from tests.made.runs import plan_of

__all__ = ["driver"]


def test_an_operation_without_a_deterministic_way_is_a_setting_to_change():
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as caught:
            torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(False)
    told = not_deterministic(caught.value)
    assert told is not None
    assert (told.exit_code, told.__cause__) == (2, caught.value)
    assert told.message == "training.deterministic: put_ has no deterministic implementation on this device"
    assert "training.deterministic=false" in told.hint


def test_cublas_that_was_used_before_a_deterministic_run_is_told_with_the_remedy():
    words = "this operation is not deterministic because it uses CuBLAS: CUBLAS_WORKSPACE_CONFIG=:4096:8"
    told = not_deterministic(RuntimeError(f"Deterministic behavior was enabled, but {words}"))
    assert told is not None
    assert "had used cuBLAS before" in told.message
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:8" in told.hint


@pytest.mark.parametrize("error", [RuntimeError("no way"), KeyError("x does not have a deterministic one")])
def test_other_errors_are_bugs(error):
    assert not_deterministic(error) is None


@pytest.mark.parametrize(
    ("error", "of_host"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), False),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False),
        (RuntimeError("backend failed: torch.OutOfMemoryError: CUDA out of memory"), False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("Caught MemoryError in worker 1"), True),
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
    ],
)
def test_whose_memory_was_full_is_told(error, of_host):
    told = out_of_memory(error)
    assert told is not None
    assert told.message.startswith("out of host memory") == of_host
    assert ("--workers" in told.hint) == of_host


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        (
            [(4117, 70 * GIB), (os.getpid(), GIB)],
            "python (pid 4117) has 70.0 GiB on this GPU: end it, or choose",
        ),
        ([(4117, GIB), (os.getpid(), 70 * GIB)], ""),
        ([(4117, 70 * GIB)], ""),  # a container: one of these PIDs is this process
    ],
)
def test_who_else_holds_the_memory_of_the_gpu_is_told(monkeypatch, driver, processes, told):
    nvml = driver(h200(uuid="GPU-other"), h200(uuid="GPU-mine", compute=processes))
    nvml.process_names[4117] = "/usr/bin/python"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="mine"))
    raised = out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert raised is not None
    assert raised.hint.startswith(told or "use a smaller --batch-size")
    assert "use a smaller --batch-size" in raised.hint


def test_full_memory_is_told_with_the_setting_that_would_be_enough():
    plan = plan_of({"model.name": "small_cnn", "data.image_size": 64, "hardware.device": "cpu"})
    parts = plan.config.memory.model_copy(update={"micro_batch": 1})
    least = plan.config.model_copy(update={"memory": parts})
    whole, half = (
        footprint(least, plan.task, device="cpu", precision=p, classes=10).total for p in ("fp32", "bf16")
    )
    error = MemoryExhaustedError("out of memory with a micro-batch of one sample", hint="try less")

    def told(room):
        return with_lever(
            error, replace(plan, device=replace(plan.device, memory_free=int(room / USABLE))), 10
        )

    enough = told((whole + half) / 2)
    assert enough.message == error.message
    assert enough.hint.startswith("--set precision.mode=bf16 would be enough by the ledger: ")
    assert told(2 * whole) is told(1000) is told(0) is error  # it fits, or nothing is enough
    full = MemoryExhaustedError("out of host memory", hint="use fewer --workers")
    full.__cause__ = MemoryError()
    assert with_lever(full, plan, 10) is full


def test_a_count_that_fails_keeps_no_run_from_its_end(monkeypatch):
    def broken(*_arguments, **_settings):
        raise RuntimeError("no such operation on fake tensors")

    monkeypatch.setattr(ledger, "enough", broken)
    plan = plan_of({"model.name": "unet", "hardware.device": "cpu"})
    error = MemoryExhaustedError("out of memory with a micro-batch of one sample", hint="try less")
    assert with_lever(error, replace(plan, device=replace(plan.device, memory_free=1 << 30)), 10) is error
