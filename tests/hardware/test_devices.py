from dataclasses import replace
from typing import Any

import pynvml
import pytest
import torch

from mptui.errors import ConfigError
from mptui.hardware.advice import recommend
from mptui.hardware.describe import device_lines, start_with, torch_line
from mptui.hardware.devices import Machine, default_reason, describe_machine, select_device
from mptui.hardware.formats import cuda_formats, rocm_formats
from mptui.hardware.nvml import read_gpus
from mptui.hardware.torch_view import TorchDevice, TorchView, read_torch
from tests.hardware.fake_nvml import GIB, NOBODY, FakeGpu, FakeSlice, h200, t4
from tests.hardware.machines import HOST

HEAT = pynvml.nvmlClocksEventReasonSwThermalSlowdown
BUILD = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


def a100() -> FakeGpu:
    return FakeGpu("NVIDIA A100-SXM4-80GB", (8, 0), 80 * GIB)


def seen_by_torch(index: int, gpu: FakeGpu, *, uuid: str, built_for: bool = True) -> TorchDevice:
    return TorchDevice(
        kind="cuda",
        index=index,
        name=gpu.name,
        architecture="x",
        capability=gpu.capability,
        uuid=uuid,
        memory_total=gpu.total,
        native=cuda_formats(gpu.capability, gpu.name),
        built_for=built_for,
    )


def torch_with(*devices: TorchDevice, **changes: Any) -> TorchView:
    view = TorchView(version="2.15.0", cuda="13.2", architectures=BUILD, devices=list(devices))
    return replace(view, **changes)


def look(torch: TorchView | None = None, **environment: str) -> Machine:
    return describe_machine(read_gpus(), HOST, torch, environment)


def test_without_torch_the_gpus_of_nvml_and_the_cpu_are_the_devices(driver):
    driver(h200(), t4())

    machine = look()

    assert [d.torch_name for d in machine.devices] == ["cuda:0", "cuda:1", "cpu"]
    assert machine.devices[1].native["bf16"] == "emulated"
    assert machine.devices[0].built_for is None


def test_cuda_visible_devices_renumbers_and_says_what_it_hides(driver):
    driver(h200(uuid="GPU-a"), t4(uuid="GPU-b"))

    machine = look(CUDA_VISIBLE_DEVICES="1")

    assert [(d.torch_name, d.name, d.uuid) for d in machine.devices[:-1]] == [("cuda:0", "Tesla T4", "GPU-b")]
    assert "hides 1 of 2 GPUs" in machine.notes[0]


def test_torch_and_nvml_may_number_the_gpus_differently(driver):
    slow, fast = t4(uuid="GPU-slow", used=6 * GIB), h200(uuid="GPU-fast")
    driver(slow, fast)

    machine = look(torch_with(seen_by_torch(0, fast, uuid="fast"), seen_by_torch(1, slow, uuid="slow")))

    assert [(d.name, d.uuid) for d in machine.devices[:-1]] == [
        ("NVIDIA H200", "GPU-fast"),
        ("Tesla T4", "GPU-slow"),
    ]
    assert machine.devices[1].memory_free == 9 * GIB
    assert machine.notes == []


def test_a_build_without_code_for_the_card_is_told_and_the_card_not_taken(driver):
    old = FakeGpu("NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, uuid="GPU-old")
    driver(old)

    machine = look(torch_with(seen_by_torch(0, old, uuid="old", built_for=False)))

    device = machine.devices[0]
    assert (device.built_for, device.usable) == (False, False)
    assert "no code for sm_61" in device.notes[0]
    assert "install torch for cu126" in device.notes[0]
    with pytest.raises(ConfigError, match="GTX 1080"):
        select_device("auto", machine)


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (torch_with(cuda=None, architectures=[]), "build without CUDA"),
        (torch_with(cuda="14.0"), "too old for torch 2.15.0"),
        (torch_with(), "can't start CUDA: see"),
        (
            torch_with(refusal="Error 999: unknown error"),
            "can't start CUDA (Error 999, unknown error): see",
        ),
        (
            torch_with(refusal="Error 802: system not yet initialized"),
            "(Error 802, system not yet initialized): start the service nvidia-fabricmanager",
        ),
        (TorchView(problem="torch can't be imported: no libcudart"), "no libcudart"),
    ],
)
def test_why_torch_sees_no_gpu_where_there_is_one(driver, torch, words):
    driver(h200())

    machine = look(torch)

    assert not machine.devices[0].usable
    assert words in machine.devices[0].notes[0]
    for asked in ("auto", "cuda", "cuda:0"):
        with pytest.raises(ConfigError) as refused:
            select_device(asked, machine)
        assert words in f"{refused.value.message}: {refused.value.hint}"
        assert "--device cpu" in refused.value.hint
    assert select_device("cpu", machine).kind == "cpu"


@pytest.mark.parametrize(
    ("card", "driver_cuda", "torch_cuda", "remedy"),
    [
        (h200(), (12, 4), "13.0", ["update the driver to 580", "--torch-backend=cu126 torch"]),
        (h200(), (12, 4), None, ["--torch-backend=cu126 torch"]),
        (h200(), (13, 0), None, ["--torch-backend=cu130 torch"]),
        (t4(), (11, 4), "12.6", ["update the driver to 525"]),
        (t4(), (11, 4), None, ["update the driver to 525"]),
        (FakeGpu("NVIDIA B200", (10, 0), 180 * GIB), (12, 8), "13.0", ["580", "--torch-backend=cu128 torch"]),
        (FakeGpu("Tesla V100", (7, 0), 16 * GIB), (13, 0), None, ["--torch-backend=cu126 torch"]),
    ],
)
def test_the_remedy_is_the_least_driver_and_the_build_of_torch_that_fits(
    driver, card, driver_cuda, torch_cuda, remedy
):
    driver(card)
    report = replace(read_gpus(), driver="550.54.15", cuda=driver_cuda)

    machine = describe_machine(report, HOST, torch_with(cuda=torch_cuda), {})

    with pytest.raises(ConfigError) as refused:
        select_device("auto", machine)
    assert card.name in refused.value.message
    for words in remedy:
        assert words in refused.value.hint
    assert ("cu1" in refused.value.hint) == ("cu1" in " ".join(remedy))


def test_a_card_without_code_beside_one_with_it_is_left_out(driver):
    old = FakeGpu("NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, uuid="GPU-old")
    driver(old, h200(uuid="GPU-new", used=139 * GIB))

    seen = [seen_by_torch(0, old, uuid="old", built_for=False), seen_by_torch(1, h200(), uuid="new")]
    assert select_device("auto", look(torch_with(*seen))).torch_name == "cuda:1"


@pytest.mark.parametrize(
    ("cards", "setting", "words"),
    [
        ([h200(lost=True)], None, "is lost"),
        ([h200(mig=True)], None, "MIG on and no slice"),
        ([h200()], "3", "CUDA_VISIBLE_DEVICES=3 names no GPU of this machine, which has 0"),
        ([h200()], "MIG-a", "names no GPU"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, None, "updated while it was loaded"),
        (pynvml.NVML_ERROR_UNKNOWN, None, "Unknown Error"),
    ],
)
def test_a_gpu_that_is_no_device_is_no_reason_to_train_on_the_cpu(driver, cards, setting, words):
    if isinstance(cards, int):
        driver().errors["nvmlInit"] = cards
    else:
        driver(*cards)
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}

    machine = look(torch_with(), **environment)

    assert words in " ".join(machine.notes)
    for asked in ("auto", "cuda"):
        with pytest.raises(ConfigError) as refused:
            select_device(asked, machine)
        assert words in f"{refused.value.message} {refused.value.hint}"
    assert select_device("cpu", machine).kind == "cpu"
    hidden = look(torch_with(), CUDA_VISIBLE_DEVICES="")
    assert select_device("auto", hidden).kind == "cpu"


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_machine_without_a_gpu_trains_on_the_cpu(driver, error):
    driver().errors["nvmlInit"] = error
    assert select_device("auto", look(torch_with())).kind == "cpu"


def test_what_cuda_says_where_it_shows_no_device_is_told(monkeypatch):
    def init():
        raise RuntimeError("Error 802: system not yet initialized\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert read_torch().refusal == "Error 802: system not yet initialized"
    monkeypatch.setattr(torch.version, "cuda", None)
    assert read_torch().refusal is None


def test_a_rocm_machine_has_no_word_of_nvidia(driver):
    nvml = driver()
    nvml.errors["nvmlInit"] = 12
    amd = TorchDevice(
        kind="rocm",
        index=0,
        name="AMD",
        architecture="gfx942",
        memory_total=GIB,
        native=rocm_formats("gfx942"),
    )

    machine = look(torch_with(amd, cuda=None, hip="6.4", architectures=["gfx942"]))

    assert [d.torch_name for d in machine.devices] == ["cuda:0", "cpu"]
    assert machine.notes == []
    assert torch_line(machine) == "torch 2.15.0, built for ROCm 6.4, gfx942"


def test_a_gpu_with_mig_is_a_slice_with_a_sentence(driver):
    parts = [FakeSlice("MIG-a1", "NVIDIA H200 MIG 1g.18gb", 18 * GIB), FakeSlice("MIG-b2", "other", GIB)]
    driver(h200(mig=True, slices=parts))

    device = look().devices[0]

    assert (device.name, device.memory_total, device.uuid) == ("NVIDIA H200 MIG 1g.18gb", 18 * GIB, "MIG-a1")
    assert "one of its 2 slices" in device.notes[0]


@pytest.mark.parametrize("setting", ["MIG-b2", "MIG-GPU-c3/2/0"])
@pytest.mark.parametrize("of_cuda", ["b2", "c3"], ids=["its own", "that of its GPU"])
def test_the_slice_that_torch_trains_on_is_that_of_the_variable(driver, setting, of_cuda):
    parts = [FakeSlice("MIG-a1", "first", GIB), FakeSlice("MIG-b2", "second", 18 * GIB, instances=(2, 0))]
    driver(h200(mig=True, slices=parts, uuid="GPU-c3"), h200(uuid="GPU-d4"))

    view = torch_with(seen_by_torch(0, h200(), uuid=of_cuda))
    device = look(view, CUDA_VISIBLE_DEVICES=setting).devices[0]

    assert (device.uuid, device.memory_free) == ("MIG-b2", 18 * GIB)


def test_mig_without_slices_and_a_lost_gpu_are_sentences(driver):
    driver(h200(mig=True), t4(lost=True))

    machine = look()

    assert [d.kind for d in machine.devices] == ["cpu"]
    assert any("MIG on and no slice" in note for note in machine.notes)
    assert any("is lost" in note for note in machine.notes)


def test_different_gpus_without_torch_warn_of_their_order(driver):
    driver(t4(uuid="GPU-a"), h200(uuid="GPU-b"))

    assert any("CUDA_DEVICE_ORDER" in note for note in look().notes)
    assert look(CUDA_DEVICE_ORDER="PCI_BUS_ID").notes == []


def test_a_device_is_chosen_by_name(driver):
    driver(h200(), t4(uuid="GPU-b"))
    machine = look()

    assert select_device("auto", machine).torch_name == "cuda:0"
    assert select_device("cuda", machine).torch_name == "cuda:0"
    assert select_device("cuda:1", machine).name == "Tesla T4"
    assert select_device("cpu", machine).kind == "cpu"
    with pytest.raises(ConfigError, match=r"this machine has cuda:0, cuda:1, cpu"):
        select_device("cuda:2", machine)


@pytest.mark.parametrize(
    ("cards", "default"),
    [
        ([h200(utilisation=93, used=100 * GIB), h200()], "cuda:1"),
        ([h200(utilisation=93), h200()], "cuda:1"),
        ([h200(used=100 * GIB), h200()], "cuda:1"),
        ([h200(utilisation=4, used=GIB), h200()], "cuda:0"),
        ([h200(utilisation=40), t4()], "cuda:0"),
        ([h200(utilisation=95, used=70 * GIB), t4()], "cuda:1"),
        ([t4(lost=True), h200(utilisation=93), h200(utilisation=10)], "cuda:2"),
        ([a100(), h200(used=60 * GIB)], "cuda:1"),
        ([a100(), a100()], "cuda:0"),
        ([h200(reasons=HEAT), h200()], "cuda:1"),
        ([h200(reasons=HEAT), h200(utilisation=40)], "cuda:0"),
        ([h200(reasons=HEAT), a100()], "cuda:0"),
    ],
    ids=[
        "busy and full",
        "busy",
        "full",
        "about equal",
        "large and half busy",
        "small but free",
        "lost",
        "newer",
        "the same",
        "throttled",
        "throttled but freer",
        "throttled but newer",
    ],
)
def test_the_default_is_the_freest_gpu(driver, cards, default):
    driver(*cards)
    machine = look()
    chosen = select_device("auto", machine)

    assert chosen.gpu is not None
    assert f"cuda:{chosen.gpu.index}" == default
    assert (default_reason(machine.devices) is None) == chosen.torch_name.endswith(":0")


def test_why_the_default_is_not_the_first_gpu_is_a_sentence(driver):
    driver(h200(utilisation=93, used=100 * GIB), h200(uuid="GPU-b"))

    assert default_reason(look().devices) == (
        "cuda:1 has the most free capacity of 2 GPUs and is the default: "
        "cuda:0 is 93% busy and has 40.0 of 140.0 GiB free."
    )


def test_that_the_first_gpu_is_throttled_is_told(driver):
    driver(h200(reasons=HEAT), h200(uuid="GPU-b"))

    assert default_reason(look().devices) == "cuda:1 is the default: cuda:0 is as free, but throttled (heat)."


def test_of_gpus_that_are_as_free_the_newest_is_the_default(driver):
    driver(a100(), h200(used=60 * GIB))

    assert default_reason(look().devices) == (
        "cuda:1 is the newest of the GPUs with the most free capacity, and the default."
    )


def test_the_lines_of_a_device(driver):
    nvml = driver(t4(used=6 * GIB, utilisation=5, compute=[(NOBODY, 6 * GIB), (NOBODY + 1, GIB)]))
    nvml.process_names[NOBODY] = "/usr/bin/python"
    machine = look()

    lines = device_lines(machine.devices[0], recommend(machine.devices[0], cpus=8), machine)

    assert lines == [
        "Turing, compute capability 7.5   15 GiB, 9 free   driver 580 CUDA 13.1",
        f"busy 5%   34 °C   77 of 700 W   no throttling   python (pid {NOBODY}) has 6.0 GiB, and 1 more",
        "fp16 native   bf16 emulated, slow   TF32 no",
        "use fp16: native here, with loss scaling; bf16 is not",
        "profile older-gpu   batch 32 (a ResNet; 32 to 64 suit it)   workers 7",
    ]


def test_a_range_of_one_batch_is_one_number(driver):
    driver(t4())
    found = recommend(look().devices[0], cpus=8)
    assert "128 suits it" in " ".join(start_with(replace(found, batch_range=(128, 128))))
    assert "128 to 256 suit it" in " ".join(start_with(replace(found, batch_range=(128, 256))))


def test_what_a_card_does_not_tell_is_left_out(driver):
    driver(t4(errors={"nvmlDeviceGetPowerUsage": 3, "nvmlDeviceGetUtilizationRates": 3}))
    machine = look()

    activity = device_lines(machine.devices[0], recommend(machine.devices[0], cpus=8), machine)[1]

    assert activity == "34 °C   no throttling   no other processes"
