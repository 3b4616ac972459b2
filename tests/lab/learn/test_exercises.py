"""The exercises of `mptui learn` on small runs: their numbers are those of torch's own casts and autocast."""

import math
from dataclasses import replace

import pytest
import torch

from mptui.engine.precision import DTYPES
from mptui.engine.progress import StepSeeds
from mptui.errors import ConfigError
from mptui.lab.learn import runs
from mptui.lab.learn.exercises import EXERCISES, choices_of, exercise_named
from mptui.lab.learn.formats import text_of
from mptui.lab.learn.runs import (
    STEPS,
    SmallRun,
    autocast_lesson,
    batch_norm_lesson,
    overflow_lesson,
    scaling_lesson,
    training_lesson,
)
from mptui.runs.planning.plan import Request


def request(**flags):
    settings = {"hardware.device": "cpu", **{key.replace("__", "."): value for key, value in flags.items()}}
    return Request(None, {key: ("--set", value) for key, value in settings.items()}, (), {})


def real_gradients():
    """Return the gradients that the exercise counts, of every output of a layer and of every weight."""
    gradients: list[torch.Tensor] = []
    with SmallRun(request(), {"precision.mode": "fp32"}) as run:
        model = run.job.model.train()
        StepSeeds(run.job.config.training.seed, run.job.device).set(0, 0)
        for module in model.modules():
            if not any(module.children()):
                module.register_forward_hook(
                    lambda _module, _inputs, output: output.register_hook(gradients.append) and None
                )
        (batch,) = run.batches(1)
        run.job.task.loss(model(*batch.inputs), batch, batch.valid, batch.size).backward()
    gradients += [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


def test_what_a_scale_loses_is_what_a_cast_loses():
    lesson = scaling_lesson(request())
    gradients = real_gradients()
    assert lesson.gradients == len(gradients)
    there = gradients[gradients != 0]
    assert lesson.zeros == pytest.approx(1 - len(there) / len(gradients))
    for doublings, shares in lesson.at_scale.items():
        cast = (there.double() * 2.0**doublings).float().half()
        assert shares.zeroed == pytest.approx(float((cast == 0).double().mean()), abs=1e-12)
        assert shares.overflow == pytest.approx(float(cast.isinf().double().mean()), abs=1e-12)
        small = (cast != 0) & (cast.abs() < torch.finfo(torch.float16).tiny)
        assert shares.subnormal == pytest.approx(float(small.double().mean()), abs=1e-12)
    assert not lesson.at_scale[lesson.best].overflow
    exponents = torch.frexp(there)[1] - 1
    assert lesson.first_exponent == int(exponents.min())
    share = (exponents == lesson.first_exponent + 20).double().mean()
    assert lesson.exponents[20] == pytest.approx(1000 * float(share), abs=1)
    ends = lesson.limited(-99), lesson.limited(99)
    scales = list(lesson.at_scale)
    assert [lesson.best + (scales[1] - scales[0]) * steps for steps in ends] == [scales[0], scales[-1]]
    for focus in (ends[0], 0, ends[1]):
        texts = [text_of(line) for line in lesson.lines(76, focus)]
        assert max(map(len, texts)) <= 76
        assert sum(text.startswith("▸") for text in texts) == 1


def test_the_scaler_repairs_the_overflow_that_ends_a_constant_scale():
    seen = []
    lesson = overflow_lesson(request(model__depth=1), lambda lesson: seen.append(len(lesson.steps)))
    assert seen == list(range(1, STEPS + 1))
    first = lesson.skipped[0]
    assert first == runs.AT_STEP
    assert all(math.isfinite(step.loss) for step in lesson.steps)
    assert not lesson.steps[-1].skipped
    # GradScaler halves the scale for each skipped step
    assert lesson.steps[-1].loss_scale == 2.0 ** (runs.TOO_HIGH - len(lesson.skipped))
    plain = [math.isfinite(step.plain_loss) for step in lesson.steps]
    assert plain == [True] * first + [False] * (STEPS - first)
    for step in lesson.steps[: first - 1]:  # before that the two loops do the same
        assert step.loss == pytest.approx(step.plain_loss, rel=0.01)
    assert "repaired at step" in "\n".join(text_of(line) for line in lesson.lines(76, 0))


def test_the_skipped_step_poisons_the_statistics_of_the_plain_loop_only():
    lesson = batch_norm_lesson(request(model__depth=1), lambda _: None)
    assert (lesson.plain.skipped, lesson.mptui.skipped) == (1, 1)
    assert lesson.plain.finite_weights
    assert lesson.mptui.finite_weights
    assert (lesson.plain.poisoned, lesson.mptui.poisoned) == (lesson.plain.norms, 0)
    assert math.isnan(lesson.plain.evaluation_loss or 0.0)
    assert math.isfinite(lesson.mptui.evaluation_loss or math.nan)
    assert lesson.plain.steps == STEPS > runs.AT_STEP


def test_a_network_without_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="has no BatchNorm"):
        batch_norm_lesson(request(model__name="unet", model__norm="group"), lambda _: None)


def test_the_same_training_in_each_format_begins_as_torchs_own():
    lesson = training_lesson(request(model__depth=1), lambda _: None)
    assert all(len(run.losses) == runs.FORMAT_STEPS for run in lesson.runs.values())
    for name, run in lesson.runs.items():
        with SmallRun(request(model__depth=1), {"precision.mode": "fp32"}) as small:
            StepSeeds(small.job.config.training.seed, small.job.device).set(0, 0)
            (batch,) = small.batches(1)
            with torch.autocast("cpu", DTYPES.get(name), enabled=name in DTYPES):
                outputs = small.job.model.train()(*batch.inputs)
                loss = small.job.task.loss(outputs, batch, batch.valid, batch.size)
        assert run.losses[0] == pytest.approx(loss.item(), rel=1e-6)
    full, half, brain = (lesson.runs[name] for name in ("fp32", "fp16", "bf16"))
    assert full.losses[-1] == pytest.approx(half.losses[-1], rel=0.05)
    assert half.losses != full.losses != brain.losses
    # as many bits, of the same operations
    assert half.activations == brain.activations
    assert 0 < (half.activations or 0) < (full.activations or 0)
    apart = lesson.curves()["loss minus fp32's"]
    assert apart[1].values[0] == brain.losses[0] - full.losses[0]
    assert max(len(text_of(line)) for line in lesson.lines(76, 0)) <= 76


def test_autocast_is_that_of_torch():
    """Beside a real pass on the CPU; the GPU's rules are those of torch's documentation."""
    lesson = autocast_lesson(request(), device="cpu", precision="bf16")
    with SmallRun(request()) as run:
        convolutions: list[torch.dtype] = []
        norms: list[torch.dtype] = []
        for module in run.job.model.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.ConvTranspose2d, torch.nn.BatchNorm2d)):
                kept = norms if isinstance(module, torch.nn.BatchNorm2d) else convolutions
                module.register_forward_hook(lambda m, i, o, kept=kept: kept.append(o.dtype) or None)
        (batch,) = run.batches(1)
        with torch.autocast("cpu", torch.bfloat16):
            run.job.model.train()(*batch.inputs)
    assert {*convolutions, *norms} == {torch.bfloat16}
    rules = {(rule.operation, rule.where): rule.calls for rule in lesson.operations}
    assert rules["convolution", "16 bits"] == len(convolutions)
    assert rules["native_batch_norm", "mixed"] == len(norms)
    assert rules["_log_softmax", "fp32"] == 1


def test_the_rules_of_a_gpu_are_shown_without_one():
    """Layer norm is in CUDA's list of operations in fp32. Attention counts as one operation."""
    vit = request(model__name="vit_b_16", data__image_size=32)
    vit = Request(None, {**vit.flags, "data.name": ("--set", "shapes")}, (), {})
    rules = autocast_lesson(vit, device="cuda", precision="fp16").operations
    gpu = {rule.operation: rule for rule in rules}
    assert gpu["native_layer_norm"].where == "fp32"
    attention = gpu["scaled_dot_product_attention"]
    assert (attention.where, attention.calls) == ("16 bits", 12)
    assert "bmm" not in gpu
    assert gpu["addmm"].where == "16 bits"
    # 16 bits are added to the fp32 of the positions and of all residuals after them: the sum is fp32
    assert not any(rule.where == "mixed" for rule in rules)
    assert not torch.is_autocast_enabled("cuda")
    assert torch.get_autocast_dtype("cuda") == torch.float16


def test_a_network_whose_shapes_depend_on_values_is_refused(tmp_path, monkeypatch):
    (tmp_path / "by_values.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__()\n"
        "    def forward(self, images):\n"
        "        return images[images > 0].mean() * torch.ones(len(images), 10)\n"
    )
    monkeypatch.chdir(tmp_path)
    own = replace(request(model__name="by_values:Net", data__name="shapes"), trust_code=True)
    with pytest.raises(ConfigError, match="be traced without values: aten"):
        autocast_lesson(own, device="cuda", precision="fp16")


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"number": "x"}, "not a finite number"),
        ({"precision": "fp32"}, "autocast has no such format"),
        ({"rules": "tpu"}, "--rules tpu"),
    ],
)
def test_mistakes_are_told(choices, words):
    with pytest.raises(ConfigError, match=words):
        choices_of(request(), **{"number": "1", "precision": None, "rules": "cuda", **choices})


def test_an_unknown_exercise_has_its_nearest_name():
    with pytest.raises(ConfigError, match="nearest: batchnorm"):
        exercise_named("batch_norm")
    assert list(EXERCISES) == ["formats", "scaling", "overflow", "autocast", "batchnorm", "training"]
