"""Intel GPUs as torch tells of them: a torch with the functions and units of its documentation."""

import sys
from types import SimpleNamespace

import pytest

from mptui.hardware import other_gpus
from mptui.hardware.other_gpus import XpuSource
from mptui.hardware.sampler import DeviceSampler, is_sampled


def not_allowed(_index):
    raise RuntimeError("GPU power draw querying is not available. Try running with elevated privileges.")


@pytest.fixture
def xpu(monkeypatch):
    """An Intel GPU that torch tells of, except its power."""
    found = SimpleNamespace(name="Arc B580 \x1b[2J", total_memory=12 << 30)
    functions = SimpleNamespace(
        get_device_properties=lambda index: found,
        utilization=lambda index: 87.0,
        device_memory_used=lambda index: 3 << 30,
        power_draw=not_allowed,
        temperature=lambda index: 61.0,
        clock_rate=lambda index: 2450.0,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(xpu=functions))
    monkeypatch.setattr(other_gpus, "find_spec", lambda name: object())
    return functions


def test_a_sample_has_the_units_of_the_others_and_no_field_fails_another(xpu):
    source = XpuSource(1)
    source.open()
    sample = source.read()
    assert sample.name == "Arc B580 \\x1b[2J"
    assert (sample.utilisation, sample.memory_used, sample.memory_total) == (0.87, 3 << 30, 12 << 30)
    assert (sample.power_w, sample.temperature_c, sample.sm_clock_mhz) == (None, 61, 2450)


def test_an_intel_gpu_is_sampled_where_torch_can(xpu, monkeypatch):
    assert is_sampled("xpu")
    assert isinstance(DeviceSampler("xpu:0")._source, XpuSource)
    del xpu.utilization  # an older torch
    assert not is_sampled("xpu")
    assert not isinstance(DeviceSampler("xpu:0")._source, XpuSource)
