"""Two configurations compared: a contradiction is an error with its fix."""

import re
from itertools import product

import pytest

from mptui.hardware.devices import Machine
from mptui.lab.doctor.foreign_files import read_config_file
from mptui.lab.doctor.other_trainers import (
    Accelerate,
    check_accelerate,
    compare,
    read_training,
    usual_place,
)
from tests.hardware.machines import HOST, RTX_3090, T4, cpu

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
gpu_ids: 1,2
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: false
"""
BEFORE = "trainer:\n  amp: False\n  fp16: False\n  lr: 1e-5\n  gradient_clip: 0.5\n"
AFTER = BEFORE.replace("amp: False", "amp: True")


@pytest.fixture
def told(tmp_path):
    """Compare a training file with an accelerate file; return the findings, the worst for each name."""

    def look(training, accelerate=ACCELERATE, name="train.yaml"):
        (tmp_path / name).write_text(training)
        (tmp_path / "acc.yaml").write_text(accelerate)
        ours = read_training(read_config_file(tmp_path / name))
        return compare(ours, Accelerate(read_config_file(tmp_path / "acc.yaml")))

    return look


def errors(findings):
    return [f for f in findings if f.state == "error"]


def test_the_pair_before_the_mend_is_a_conflict_with_the_line_to_change(told, tmp_path):
    (conflict,) = errors(told(BEFORE))
    assert conflict.what.startswith("conflicting precision settings")
    assert f"{tmp_path}/train.yaml:2 has amp: False, fp16: False (fp32)" in conflict.what
    assert f"{tmp_path}/acc.yaml:4 has mixed_precision: bf16" in conflict.what
    assert f"write `amp: True` in {tmp_path}/train.yaml:2" in conflict.do
    assert f"write `mixed_precision: 'no'` in {tmp_path}/acc.yaml:4" in conflict.do


def test_the_pair_after_the_mend_is_aligned_as_the_status_check_shows_it(told):
    found = told(AFTER)
    assert not errors(found)
    assert [f.what for f in found if f.state == "ok"] == [
        "Configuration is properly aligned!",
        "AMP: enabled (works with BF16 mixed precision)",
        "FP16: disabled (managed by AMP)",
        "Learning rate: 1e-05",
        "Gradient clipping: 0.5",
    ]


def test_the_mend_that_is_told_makes_the_pair_aligned(told):
    (conflict,) = errors(told(BEFORE))
    fix = conflict.do.split("`")[1]
    assert not errors(told(BEFORE.replace("amp: False", fix)))
    other = conflict.do.split("`")[3]
    assert not errors(told(BEFORE, ACCELERATE.replace("mixed_precision: bf16", other)))


def test_every_mend_that_is_told_makes_the_two_agree(told):
    switch, formats = (None, "true", "false"), (None, "fp16", "bf16")
    mended = 0
    for values in product(switch, switch, switch, formats, ("'no'", "bf16")):
        keys = dict(zip(("amp", "fp16", "bf16", "amp_dtype"), values[:4], strict=True))
        lines = [f"{key}: {value}" for key, value in keys.items() if value is not None]
        accelerate = ACCELERATE.replace("bf16", values[4])
        found = errors(told("\n".join(lines), accelerate)) if lines else []
        if not found or "acc.yaml" not in found[0].what:
            continue  # they agree, or the file contradicts itself
        in_training, in_accelerate = found[0].do.split("; or for ")
        (other,) = re.findall(r"write `([^`]*)`", in_accelerate)
        there = accelerate.replace(f"mixed_precision: {values[4]}", other)
        assert not errors(told("\n".join(lines), there)), (values, found[0].do)
        for text, line in re.findall(r"write `([^`]*)` in \S+:(\d+)", in_training):
            lines[int(line) - 1] = text
        lines += re.findall(r"add `([^`]*)`", in_training)
        assert not errors(told("\n".join(lines), accelerate)), (values, found[0].do)
        mended += 1
    assert mended > 40


@pytest.mark.parametrize(
    ("training", "precision", "agrees"),
    [
        ("amp: true", "bf16", True),
        ("amp: true", "fp16", True),
        ("amp: true", "'no'", False),
        ("amp: false", "'no'", True),
        ("fp16: true", "fp16", True),
        ("fp16: true", "bf16", False),
        ("bf16: true", "bf16", True),
        ("bf16: true", "fp16", False),
        ("use_amp: true\namp_dtype: bfloat16", "bf16", True),
        ("use_amp: true\namp_dtype: float16", "bf16", False),
        ("use_amp: false\namp_dtype: float16", "'no'", True),
        ("mixed_precision: fp16", "fp16", True),
        ("mixed_precision: 'no'", "bf16", False),
        ("precision: 16-mixed", "fp16", True),
        ("precision: 32", "bf16", False),
        ("fp16:\n  enabled: true", "bf16", False),
        ("amp:\n  enabled: true\n  dtype: fp16", "fp16", True),
        ("lr: 0.001", "bf16", True),
        ("model:\n  use_fp16: true\ntrainer:\n  fp16: false\n  amp: true", "bf16", True),
    ],
)
def test_what_is_said_twice_must_be_said_alike(told, training, precision, agrees):
    found = told(training, ACCELERATE.replace("bf16", precision))
    assert bool(errors(found)) is not agrees, found


@pytest.mark.parametrize(
    "training",
    [
        "amp: true\nfp16: true\nbf16: true",
        "amp: false\nfp16: true",
        "amp: true\namp: false",
        "trainer:\n  amp: true\ntrain:\n  amp: false",
        "amp: true\namp_dtype: fp16\nbf16: true",
    ],
)
def test_a_file_that_contradicts_itself_is_told_first(told, training):
    (found,) = errors(told(training))
    assert "conflicting precision settings" in found.what
    assert "acc.yaml" not in found.what


def test_text_where_a_switch_is_meant_counts_as_true(told):
    (found,) = errors(told('amp: "False"', ACCELERATE.replace("bf16", "'no'")))
    assert "is text" in found.what
    assert "`amp: False`" in found.do


def test_a_mend_is_written_in_the_manner_of_its_file(told):
    toml = errors(told("[trainer]\namp = false\n", name="t.toml"))
    assert "`amp = true`" in toml[0].do
    python = errors(told("config = {'use_amp': False, 'lr': 1e-5}\n", name="t.py"))
    assert "`'use_amp': True`" in python[0].do
    dtype = errors(told("use_amp: yes\namp_dtype: 'float16'\n"))
    assert "`amp_dtype: 'bf16'`" in dtype[0].do


def test_rates_and_clipping_that_end_in_nan_are_advised_against(told):
    found = {f.name: f for f in told("amp: true\nlr: 0.5\n")}
    assert (found["lr"].state, found["clip"].state) == ("advice", "advice")
    adam = {f.name: f for f in told("amp: true\noptimizer: adamw\nlr: 0.01\nmax_grad_norm: 1.0\n")}
    assert (adam["lr"].state, adam["clip"].state) == ("advice", "ok")
    assert errors(told("amp: true\nlr: -1\n"))
    as_text = next(f for f in told("amp: true\nlr: 1e5\n") if "PyYAML" in f.what)
    assert "`lr: 1.0e+5`" in as_text.do


def test_what_deepspeed_says_too_must_be_the_same(told):
    deepspeed = ACCELERATE + "deepspeed_config:\n  gradient_clipping: 1.0\n  gradient_accumulation_steps: 4\n"
    found = errors(told("amp: true\nmax_grad_norm: 0.5\ngradient_accumulation_steps: 2\n", deepspeed))
    assert {f.name for f in found} == {"clip", "accumulate"}
    assert not errors(told("amp: true\nmax_grad_norm: 1\ngradient_accumulation_steps: 4\n", deepspeed))


@pytest.mark.parametrize(
    ("old", "new", "name", "state"),
    [
        ("", "", None, None),
        ("MULTI_GPU", "NO", "distributed_type", "error"),
        ("MULTI_GPU", "'NO'", "distributed_type", "error"),
        ("MULTI_GPU", "MULTIGPU", "distributed_type", "error"),
        ("distributed_type: MULTI_GPU\n", "", "distributed_type", "error"),
        ("mixed_precision: bf16", "mixed_precision: no", "mixed_precision", "error"),
        ("num_processes: 2", "num_processes: 4", "num_processes", "error"),
        ("num_processes: 2", "num_processes: 1", "num_processes", "advice"),
        ("gpu_ids: 1,2", "gpu_ids: 1,7", "gpu_ids", "error"),
        ("gpu_ids: 1,2", "gpu_ids: some", "gpu_ids", "error"),
        ("gpu_ids: 1,2", "gpu_ids: all", None, None),
    ],
)
def test_an_accelerate_file_is_looked_at_by_itself(tmp_path, old, new, name, state):
    (tmp_path / "acc.yaml").write_text(ACCELERATE.replace(old, new) if old else ACCELERATE)
    found = check_accelerate(Accelerate(read_config_file(tmp_path / "acc.yaml")), machine(*[RTX_3090] * 3))
    assert [(f.name, f.state) for f in found] == ([] if name is None else [(name, state)])


def test_a_precision_that_the_gpu_has_not_is_advised_against(tmp_path):
    (tmp_path / "acc.yaml").write_text(ACCELERATE.replace("1,2", "all"))
    (found,) = check_accelerate(Accelerate(read_config_file(tmp_path / "acc.yaml")), machine(T4))
    assert "emulated" in found.what
    assert "`mixed_precision: fp16`" in found.do


def test_a_file_for_another_machine_is_no_error_on_one_without_gpus(tmp_path):
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    (found,) = check_accelerate(Accelerate(read_config_file(tmp_path / "acc.yaml")), machine(cpu()))
    assert (found.name, found.state) == ("gpu_ids", "advice")


def test_the_usual_place_is_where_accelerate_puts_its_file(tmp_path):
    end = "accelerate/default_config.yaml"
    assert usual_place({"HF_HOME": str(tmp_path)}) == tmp_path / end
    assert usual_place({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "huggingface" / end
    assert str(usual_place({})).endswith(f".cache/huggingface/{end}")


def machine(*devices):
    return Machine(host=HOST, driver=None, cuda=None, torch=None, devices=list(devices), notes=[])
