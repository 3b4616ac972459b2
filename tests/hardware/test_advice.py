from dataclasses import replace

import pytest

from mptui.hardware.advice import choose_precision, default_workers, recommend
from mptui.hardware.formats import has_code_for
from tests.hardware.machines import (
    B200,
    GIB,
    GTX_1080,
    GTX_1660,
    H200,
    MPS,
    OLD_MPS,
    P100,
    RTX_3090,
    RTX_4090,
    RTX_5090,
    T4,
    V100,
    XPU,
    amd,
    card,
    cpu,
    other,
)

# what each device trains in for: auto, bf16 asked, fp16 asked
TABLE = [
    pytest.param(card("GTX 750 Ti", (5, 0)), "fp32", "fp32", "fp32", id="sm_50"),
    pytest.param(card("GTX 980", (5, 2)), "fp32", "fp32", "fp32", id="sm_52"),
    pytest.param(P100, "fp32", "fp32", "fp16", id="sm_60"),
    pytest.param(GTX_1080, "fp32", "fp32", "fp32", id="sm_61"),
    pytest.param(card("Jetson TX2", (6, 2)), "fp32", "fp32", "fp16", id="sm_62"),
    pytest.param(V100, "fp16", "fp16", "fp16", id="sm_70"),
    pytest.param(card("Jetson Xavier", (7, 2)), "fp16", "fp16", "fp16", id="sm_72"),
    pytest.param(T4, "fp16", "fp16", "fp16", id="sm_75"),
    pytest.param(card("NVIDIA GeForce RTX 2080 Ti", (7, 5)), "fp16", "fp16", "fp16", id="rtx_2080"),
    pytest.param(GTX_1660, "fp32", "fp32", "fp16", id="gtx_16xx"),
    pytest.param(card("NVIDIA T1000 8GB", (7, 5)), "fp32", "fp32", "fp16", id="t1000"),
    pytest.param(card("NVIDIA A100-SXM4-40GB", (8, 0)), "bf16", "bf16", "fp16", id="sm_80"),
    pytest.param(RTX_3090, "bf16", "bf16", "fp16", id="sm_86"),
    pytest.param(RTX_4090, "bf16", "bf16", "fp16", id="sm_89"),
    pytest.param(H200, "bf16", "bf16", "fp16", id="sm_90"),
    pytest.param(B200, "bf16", "bf16", "fp16", id="sm_100"),
    pytest.param(RTX_5090, "bf16", "bf16", "fp16", id="sm_120"),
    pytest.param(amd("gfx906"), "fp16", "fp16", "fp16", id="gfx906"),
    pytest.param(amd("gfx90a:sramecc+:xnack-"), "bf16", "bf16", "fp16", id="gfx90a"),
    pytest.param(amd("gfx942"), "bf16", "bf16", "fp16", id="gfx942"),
    pytest.param(amd("gfx1100"), "bf16", "bf16", "fp16", id="gfx1100"),
    pytest.param(XPU, "bf16", "bf16", "fp16", id="xpu"),
    pytest.param(MPS, "bf16", "bf16", "fp16", id="mps"),
    pytest.param(OLD_MPS, "fp16", "fp16", "fp16", id="mps before macOS 14"),
    pytest.param(cpu("avx2", "avx512f"), "fp32", "bf16", "fp16", id="cpu"),
    pytest.param(cpu("avx512_bf16"), "bf16", "bf16", "fp16", id="cpu avx512_bf16"),
    pytest.param(cpu("amx_bf16"), "bf16", "bf16", "fp16", id="cpu amx"),
]


@pytest.mark.parametrize(("device", "auto", "bf16", "fp16"), TABLE)
def test_the_precision_of_each_device(device, auto, bf16, fp16):
    choices = [choose_precision(mode, device) for mode in ("auto", "bf16", "fp16", "fp32")]

    assert [choice.used for choice in choices] == [auto, bf16, fp16, "fp32"]
    assert choices[0].warning is None
    assert all(choice.grad_scaler == (choice.used == "fp16") for choice in choices)
    assert all(choice.warning for choice in choices if choice.used != choice.requested != "auto")
    assert all(choice.reason for choice in choices)


@pytest.mark.parametrize(
    ("requested", "device", "words"),
    [
        ("bf16", T4, "emulated here, which is slower than fp32: training in fp16"),
        ("bf16", GTX_1080, "training in fp32"),
        ("fp16", GTX_1080, "1/64"),
        ("fp16", P100, "memory"),
        ("fp16", GTX_1660, "NaN"),
        ("bf16", cpu("avx2"), "slower than fp32"),
        ("fp16", cpu("amx_bf16"), "slower than fp32"),
    ],
)
def test_a_request_that_costs_has_a_warning_that_says_why(requested, device, words):
    assert words in str(choose_precision(requested, device).warning)


@pytest.mark.parametrize(("requested", "device"), [("bf16", H200), ("fp16", T4), ("bf16", cpu("amx_bf16"))])
def test_a_request_that_suits_the_device_has_no_warning(requested, device):
    assert choose_precision(requested, device).warning is None


def test_a_device_of_which_nothing_is_known_trains_in_fp32_or_as_asked():
    unknown = other("cuda", {})

    assert choose_precision("auto", unknown).used == "fp32"
    assert choose_precision("bf16", unknown).used == "bf16"
    assert choose_precision("bf16", unknown).warning


@pytest.mark.parametrize(
    ("device", "batch_range", "profile"),
    [
        (H200, (128, 256), "fast"),
        (B200, (128, 256), "fast"),
        (RTX_3090, (64, 128), "fast"),
        (RTX_4090, (64, 128), "fast"),
        (RTX_5090, (64, 128), "fast"),
        (V100, (32, 64), "fast"),
        (T4, (32, 64), "fast"),
        (P100, (16, 32), "stable"),
        (GTX_1080, (16, 32), "stable"),
        (GTX_1660, (8, 16), "memory-limited"),
        (card("NVIDIA GeForce RTX 3050", (8, 6), 4), (16, 32), "memory-limited"),
        (cpu(), (32, 64), "stable"),
    ],
)
def test_the_batch_and_the_profile_follow_class_and_memory(device, batch_range, profile):
    advice = recommend(device, cpus=8)

    assert (advice.batch_range, advice.profile) == (batch_range, profile)


def test_memory_that_others_hold_lowers_the_batch():
    assert recommend(replace(H200, memory_free=9 * GIB), cpus=8).batch_range == (32, 64)
    assert recommend(replace(H200, memory_free=0), cpus=8).batch_range == (1, 1)


def test_a_card_that_does_not_tell_its_memory_gets_the_range_of_its_class():
    assert recommend(replace(RTX_3090, memory_total=None), cpus=8).batch_range == (64, 128)


def test_fp8_and_tf32_are_put_right():
    notes = " ".join(recommend(H200, cpus=8).notes)

    assert "TF32" in notes
    assert "fp8 only helps Linear layers" in notes
    assert recommend(V100, cpus=8).notes == []


@pytest.mark.parametrize(("cpus", "workers"), [(1, 0), (2, 1), (8, 7), (16, 15), (128, 16)])
def test_workers_leave_a_cpu_to_the_device_and_have_an_end(cpus, workers):
    assert default_workers(cpus) == workers


def test_on_a_cpu_the_workers_leave_it_to_the_training():
    assert recommend(cpu(), cpus=16).workers == 2


@pytest.mark.parametrize(
    ("capability", "build", "runs"),
    [
        ((8, 9), ["sm_80", "sm_86"], True),
        ((8, 0), ["sm_86"], False),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_80", "compute_80"], True),
        ((7, 0), ["sm_75", "compute_75"], False),
        ((6, 1), ["sm_75", "sm_80"], False),
        ((6, 1), ["sm_60"], True),
        ((12, 1), ["sm_120"], True),
        ((12, 0), ["sm_100"], False),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((10, 3), ["compute_100a"], False),
        ((9, 0), ["sm_90a"], True),
        ((9, 0), [], False),
    ],
)
def test_which_builds_have_code_for_a_card(capability, build, runs):
    assert has_code_for(capability, build) is runs
