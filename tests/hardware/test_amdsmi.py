"""AMD GPUs as amdsmi tells of them: a library with the names and answers of AMD's documentation."""

import os
import sys
from types import SimpleNamespace

import pytest

from mptui.hardware import other_gpus
from mptui.hardware.nvml import NvmlUnavailableError
from mptui.hardware.other_gpus import AmdSmiSource, physical_index
from mptui.hardware.sampler import DeviceSampler, is_sampled


class AmdSmiException(Exception):  # noqa: N818 - the library's name
    pass


def lacking(*_):
    raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")


def library(**changes):
    own = {"name": "N/A", "pid": os.getpid(), "memory_usage": {"vram_mem": 3 << 30}}
    other = {"name": "python3", "pid": 2**22 + 1, "memory_usage": {"vram_mem": 5 << 30}}
    answers = {
        "AmdSmiException": AmdSmiException,
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hotspot", EDGE="edge"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="current"),
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["gpu 0", "gpu 1"],
        "amdsmi_get_gpu_asic_info": lambda handle: {"market_name": f"Instinct MI300X ({handle})"},
        "amdsmi_get_gpu_activity": lambda handle: {
            "gfx_activity": 87,
            "umc_activity": 41,
            "mm_activity": "N/A",
        },
        "amdsmi_get_gpu_vram_usage": lambda handle: {"vram_total": 196592, "vram_used": 8192},
        "amdsmi_get_power_info": lambda handle: {"current_socket_power": 512, "average_socket_power": "N/A"},
        "amdsmi_get_temp_metric": lambda handle, sensor, metric: {"hotspot": 71, "edge": 60}[sensor],
        "amdsmi_get_clock_info": lambda handle, kind: {"clk": {"gfx": 2100, "mem": 1300}[kind]},
        "amdsmi_get_gpu_process_list": lambda handle: [own, other],
    }
    return SimpleNamespace(**{**answers, **changes})


def sample_of(monkeypatch, index=0, environ=None, **changes):
    monkeypatch.setitem(sys.modules, "amdsmi", library(**changes))
    source = AmdSmiSource(index, environ or {})
    source.open()
    try:
        return source.read()
    finally:
        source.close()


def test_a_sample_has_the_units_of_the_others(monkeypatch):
    sample = sample_of(monkeypatch, 1)
    assert sample.name == "Instinct MI300X (gpu 1)"
    assert (sample.utilisation, sample.memory_utilisation) == (0.87, 0.41)
    assert (sample.memory_used, sample.memory_total) == (8192 << 20, 196592 << 20)
    assert (sample.power_w, sample.temperature_c) == (512, 71)
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz) == (2100, 1300)
    assert sample.memory_own == 3 << 30
    assert [process.memory for process in sample.processes or ()] == [5 << 30, 3 << 30]


def test_what_a_card_lacks_is_unknown_and_the_rest_is_there(monkeypatch):
    queries = ("gpu_activity", "gpu_vram_usage", "temp_metric", "gpu_process_list", "gpu_asic_info")
    sample = sample_of(monkeypatch, **{f"amdsmi_get_{name}": lacking for name in queries})
    assert sample.name == "AMD GPU"
    assert (sample.utilisation, sample.memory_used, sample.temperature_c, sample.processes) == (None,) * 4
    assert sample.power_w == 512


def test_what_can_not_be_sampled_is_a_sentence(monkeypatch):
    with pytest.raises(NvmlUnavailableError, match="amdsmi can't be used"):
        sample_of(monkeypatch, amdsmi_init=lacking)
    with pytest.raises(NvmlUnavailableError, match="no GPU 2"):
        sample_of(monkeypatch, 2)


@pytest.mark.parametrize(
    ("index", "environ", "place"),
    [
        (1, {}, 1),
        (0, {"HIP_VISIBLE_DEVICES": "3,1"}, 3),
        (1, {"HIP_VISIBLE_DEVICES": "1,0", "ROCR_VISIBLE_DEVICES": "4,6"}, 4),
        (0, {"CUDA_VISIBLE_DEVICES": "2"}, 2),
        (0, {"ROCR_VISIBLE_DEVICES": "GPU-abc"}, None),
        (1, {"HIP_VISIBLE_DEVICES": "0"}, None),
    ],
)
def test_the_place_of_a_device_among_all_gpus(index, environ, place):
    assert physical_index(index, environ) == place


def test_the_sampler_reads_an_amd_gpu_where_there_is_one(monkeypatch):
    monkeypatch.setattr(other_gpus, "amd_is_there", lambda: True)
    assert isinstance(DeviceSampler("cuda:0")._source, AmdSmiSource)
    assert is_sampled("rocm")
    monkeypatch.setattr(other_gpus, "amd_is_there", lambda: False)
    assert not isinstance(DeviceSampler("cuda:0")._source, AmdSmiSource)
    assert not is_sampled("rocm")
