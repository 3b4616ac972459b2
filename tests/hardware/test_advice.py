from dataclasses import replace

import pytest

from mptui.config.resolve import resolve
from mptui.engine.memory.ledger import footprint
from mptui.hardware.advice import (
    RESNET50_BYTES,
    choose_precision,
    default_workers,
    measurable_precisions,
    recommend,
    suited_batches,
)
from mptui.hardware.devices import Machine
from mptui.hardware.formats import has_code_for
from mptui.runs.planning.plan import Request, plan_run
from tests.hardware.machines import (
    B200,
    GIB,
    GTX_1080,
    GTX_1660,
    H200,
    HOST,
    INTEGRATED_XPU,
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

# the precision of each device for: auto, requested bf16, requested fp16
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
    pytest.param(INTEGRATED_XPU, "fp32", "fp32", "fp16", id="xpu without matrix units"),
    pytest.param(MPS, "bf16", "bf16", "fp16", id="mps"),
    pytest.param(OLD_MPS, "fp16", "fp16", "fp16", id="mps before macOS 14"),
    pytest.param(cpu("avx2", "avx512f"), "fp32", "bf16", "fp16", id="cpu"),
    pytest.param(cpu("avx512_bf16"), "bf16", "bf16", "fp16", id="cpu avx512_bf16"),
    pytest.param(cpu("avx512_fp16"), "fp32", "bf16", "fp16", id="cpu avx512_fp16"),
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
        ("fp16", GTX_1080, "64 times fp32's time (throughput of arithmetic, CUDA C++ Programming Guide)"),
        ("fp16", P100, "memory"),
        ("fp16", GTX_1660, "NaN"),
        ("bf16", cpu("avx2"), "slower than fp32"),
        ("bf16", cpu("avx2"), "1.7 to 3.1 times fp32's time (measured with torch"),
        ("fp16", cpu("avx2"), "16 to 36 times fp32's time (measured with torch 2.14"),
        ("fp16", cpu("amx_bf16"), "slower than fp32"),
        ("fp16", cpu("amx_bf16", "avx512_bf16", "avx512_fp16"), "44 times bf16's time"),
        ("fp16", amd("gfx803"), "saves memory but no time"),
        ("bf16", INTEGRATED_XPU, "is emulated here"),
    ],
)
def test_a_request_that_costs_has_a_warning_that_says_why(requested, device, words):
    assert words in str(choose_precision(requested, device).warning)


@pytest.mark.parametrize(("requested", "device"), [("bf16", H200), ("fp16", T4), ("bf16", cpu("amx_bf16"))])
def test_a_request_that_suits_the_device_has_no_warning(requested, device):
    assert choose_precision(requested, device).warning is None


@pytest.mark.parametrize("flags", [(), ("avx512_fp16",), ("amx_fp16", "amx_bf16")], ids=str)
def test_fp16_on_a_cpu_is_possible_and_never_native(flags):
    device = cpu(*flags)

    assert device.native["fp16"] == "slow"
    assert "fp16" not in measurable_precisions(device)
    assert any("fp16 takes" in note for note in recommend(device, cpus=2).notes)


def test_fp16_is_not_measured_beside_native_bf16_which_is_as_fast():
    assert measurable_precisions(H200) == ["fp32", "bf16"]
    assert measurable_precisions(T4) == ["fp32", "bf16", "fp16"]


def test_a_device_of_which_nothing_is_known_trains_in_fp32_or_as_asked():
    unknown = other("cuda", {})

    assert choose_precision("auto", unknown).used == "fp32"
    assert choose_precision("bf16", unknown).used == "bf16"
    assert choose_precision("bf16", unknown).warning


@pytest.mark.parametrize(
    ("device", "profile"),
    [
        (H200, "fast"),
        (B200, "fast"),
        (RTX_3090, "fast"),
        (RTX_4090, "fast"),
        (RTX_5090, "fast"),
        (V100, "older-gpu"),
        (T4, "older-gpu"),
        (card("NVIDIA GeForce RTX 2080 Ti", (7, 5), 11), "older-gpu"),
        (P100, "stable"),
        (GTX_1080, "stable"),
        (GTX_1660, "memory-limited"),
        (card("NVIDIA GeForce RTX 3050", (8, 6), 4), "memory-limited"),
        (replace(H200, memory_free=4 * GIB), "memory-limited"),
        (replace(RTX_3090, memory_total=None), "fast"),
        (cpu(), "stable"),
        (cpu("amx_bf16"), "fast"),
    ],
)
def test_the_suggested_profile_suits_the_device_and_the_batch_is_what_it_uses(device, profile):
    advice = recommend(device, cpus=8)
    run = plan_run(
        Request(profile, {"model.name": ("--model", "resnet18")}),
        Machine(host=HOST, driver=None, cuda=None, torch=None, devices=[device], notes=[]),
    )

    assert advice.profile == profile
    assert run.precision.used == advice.precision
    assert (advice.batch_size, advice.accumulate) == (
        run.config.training.batch_size,
        run.config.training.accumulate,
    )


def test_the_batch_is_that_of_the_profile_that_a_run_would_find(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    own = tmp_path / "profiles" / "fast.toml"
    own.write_text("[training]\nbatch_size = 48\n")

    assert recommend(H200, cpus=8).batch_size == 48

    own.write_text("[training]\nbatch_size = 'many'\n")
    assert recommend(H200, cpus=8).batch_size is None


@pytest.mark.parametrize(
    ("device", "batches"),
    [
        (V100, (32, 64)),
        (T4, (32, 64)),
        (card("NVIDIA GeForce RTX 2080 Ti", (7, 5), 11), (32, 64)),
        (RTX_3090, (64, 128)),
        (RTX_5090, (64, 128)),
        (card("NVIDIA A100-SXM4-40GB", (8, 0), 39.4), (128, 256)),
        (H200, (128, 256)),
        (replace(H200, memory_free=9 * GIB), (128, 128)),
        (replace(H200, memory_free=5 * GIB), None),
        (replace(T4, memory_free=3 * GIB), (32, 32)),
        (P100, None),
        (replace(RTX_3090, memory_total=None), None),
        (MPS, None),
        (cpu("amx_bf16"), None),
    ],
)
def test_the_batch_range_is_that_of_the_class_of_gpu_as_far_as_it_fits(device, batches):
    assert suited_batches(device) == batches


@pytest.mark.slow
def test_the_memory_of_resnet50_is_what_the_engine_counts():
    run = resolve(
        "fast",
        task="classification",
        flags={},
        sets=("model.name=resnet50", "data.image_size=224"),
        environ={},
    )
    fixed, per_image = RESNET50_BYTES
    for precision in ("bf16", "fp16"):
        counted = footprint(run.config, "classification", device="cuda", precision=precision, classes=10)
        expected = fixed + run.config.training.batch_size * per_image
        assert counted.total == pytest.approx(expected, rel=0.03)


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
