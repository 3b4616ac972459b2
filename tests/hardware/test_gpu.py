"""What NVML and torch say of the same GPUs."""

import os
import time

import pytest
import torch

from mptui.hardware.devices import find_machine
from mptui.hardware.nvml import read_gpus, visible_gpus
from mptui.hardware.sampler import DeviceSampler

pytestmark = pytest.mark.gpu
MIB = 1 << 20
LIMIT_S = 20


@pytest.fixture
def seen():
    """GPUs and slices that CUDA sees, as NVML tells them; those of AMD have no NVML."""
    report = read_gpus()
    if report.driver is None:
        pytest.skip(report.problem or "no NVIDIA driver")
    return visible_gpus(report.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def test_each_gpu_of_torch_is_found_in_nvml_by_its_uuid_with_the_same_name_and_memory(seen):
    devices = [device for device in find_machine(with_torch=True).devices if device.kind == "cuda"]
    assert len(devices) == torch.cuda.device_count() == len(seen)
    for device in devices:
        properties = torch.cuda.get_device_properties(device.index)
        assert device.usable
        assert device.gpu is not None, f"NVML has no {properties.uuid}"
        uuids = [device.gpu.uuid, *(part.uuid for part in device.gpu.slices)]
        assert any((uuid or "").endswith(str(properties.uuid)) for uuid in uuids)
        assert device.uuid in uuids
        assert device.capability == (properties.major, properties.minor)
        assert device.name in properties.name or properties.name in device.name
        assert device.memory_total == pytest.approx(properties.total_memory, rel=0.05)
        assert any(gpu.uuid == device.gpu.uuid for gpu, _ in seen)  # CUDA may begin with the fastest


def test_the_sampler_sees_the_memory_that_torch_takes(seen):
    (device, *_) = (each for each in find_machine(with_torch=True).devices if each.kind == "cuda")
    torch.zeros(1, device=device.torch_name)  # a context, which takes memory itself
    torch.cuda.empty_cache()  # else what earlier tests have freed would do
    sampler = DeviceSampler(device.torch_name, uuid=device.uuid, interval_s=0.05)
    sampler.start()
    try:
        before = sample_after(sampler, None)
        held = torch.ones(1024 * MIB, dtype=torch.uint8, device=device.torch_name)
        torch.cuda.synchronize()
        after = sample_after(sampler, before)
        assert after.name in {device.name, "" if device.gpu is None else device.gpu.name}
        assert after.memory_used - before.memory_used >= held.nbytes // 2  # others may free theirs meanwhile
    finally:
        sampler.stop()


def sample_after(sampler, other):
    """Return a sample that began after this call."""
    asked = time.time()
    while time.time() < asked + LIMIT_S:
        sample = sampler.latest()
        if sample is not None and sample != other and sample.time > asked + 0.1:
            return sample
        time.sleep(0.01)
    raise AssertionError(sampler.problem() or "no sample")
