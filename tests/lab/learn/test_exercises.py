"""The exercises of `mptui learn` on small runs: their numbers are those of torch's own casts and autocast."""

import math
from dataclasses import replace

import pytest
import torch
from torchvision.models import VisionTransformer

from mptui.engine.precision import DTYPES
from mptui.engine.progress import StepSeeds
from mptui.errors import ConfigError
from mptui.lab.learn.exercises import EXERCISES, choices_of, exercise_named, run_exercise
from mptui.lab.learn.formats import LearnChoices, text_of
from mptui.lab.learn.runs import AT_STEP, DOUBLINGS, FORMAT_STEPS, STEPS, TOO_HIGH, SmallRun
from mptui.registry.models import MODELS, ModelSpec
from mptui.registry.tasks import CLASSIFICATION
from tests.made.runs import request_of

SMALL = {"model__name": "small_cnn"}
"""Trains in half the time that the network of the exercises takes."""


def request(**flags):
    settings = {"hardware.device": "cpu", **{key.replace("__", "."): value for key, value in flags.items()}}
    return request_of(settings, None)


def learn(name, report=lambda _: None, **flags):
    return run_exercise(name, LearnChoices(request(**flags)), report)


def texts(lesson, focus=0):
    """Return its lines for 76 cells, which must hold them."""
    lines = [text_of(line) for line in lesson.lines(76, focus)]
    assert max(map(len, lines)) <= 76
    return lines


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
    lesson = learn("scaling")
    found, gradients = lesson.document, real_gradients()
    assert found["gradients"] == len(gradients)
    there = gradients[gradients != 0]
    assert found["zeros"] == pytest.approx(1 - len(there) / len(gradients))
    assert [shares["scale"] for shares in found["scales"]] == [2.0**doublings for doublings in DOUBLINGS]
    for shares in found["scales"]:
        cast = (there.double() * shares["scale"]).float().half()
        assert shares["to_zero"] == pytest.approx(float((cast == 0).double().mean()), abs=1e-12)
        assert shares["overflow"] == pytest.approx(float(cast.isinf().double().mean()), abs=1e-12)
        small = (cast != 0) & (cast.abs() < torch.finfo(torch.float16).tiny)
        assert shares["subnormal"] == pytest.approx(float(small.double().mean()), abs=1e-12)
    scales = {shares["scale"]: shares for shares in found["scales"]}
    assert not scales[found["best_scale"]]["overflow"]
    exponents = torch.frexp(there)[1] - 1
    assert found["first_exponent"] == int(exponents.min())
    share = (exponents == found["first_exponent"] + 20).double().mean()
    assert found["exponents_per_mille"][20] == pytest.approx(1000 * float(share), abs=1)
    ends = lesson.limited(-99), lesson.limited(99)
    assert [found["best_scale"] * 2.0 ** (DOUBLINGS.step * steps) for steps in ends] == [
        min(scales),
        max(scales),
    ]
    for focus in (ends[0], 0, ends[1]):
        assert sum(text.startswith("▸") for text in texts(lesson, focus)) == 1


def test_the_scaler_repairs_the_overflow_that_ends_a_constant_scale():
    seen = []
    lesson = learn("overflow", lambda lesson: seen.append(len(lesson.document["steps"])), **SMALL)
    assert tuple(lesson.curves) == EXERCISES["overflow"].charts
    assert seen == list(range(1, STEPS + 1))
    steps, skipped = lesson.document["steps"], lesson.document["skipped_steps"]
    first = skipped[0]
    assert first == AT_STEP
    assert all(math.isfinite(step["loss"]) for step in steps)
    assert not steps[-1]["skipped"]
    # GradScaler halves the scale for each skipped step
    assert steps[-1]["loss_scale"] == 2.0 ** (TOO_HIGH - len(skipped))
    plain = [math.isfinite(step["plain_loss"]) for step in steps]
    assert plain == [True] * first + [False] * (STEPS - first)
    for step in steps[: first - 1]:  # before that the two loops do the same
        assert step["loss"] == pytest.approx(step["plain_loss"], rel=0.01)
    assert "repaired at step" in "\n".join(texts(lesson))


def test_the_skipped_step_poisons_the_statistics_of_the_plain_loop_only():
    found = learn("batchnorm", **SMALL).document
    ours, plain = found["mptui"], found["plain"]
    assert (plain["skipped"], ours["skipped"]) == (1, 1)
    assert plain["finite_weights"]
    assert ours["finite_weights"]
    assert (plain["poisoned"], ours["poisoned"]) == (plain["norms"], 0)
    assert math.isnan(plain["evaluation_loss"] or 0.0)
    assert math.isfinite(ours["evaluation_loss"] or math.nan)
    assert plain["steps"] == STEPS > AT_STEP


def test_a_network_without_batch_norm_is_refused():
    with pytest.raises(ConfigError, match="has no BatchNorm"):
        learn("batchnorm", model__name="unet", model__norm="group")


@pytest.fixture(scope="module")
def training():
    return learn("training", **SMALL)


def test_the_same_training_in_each_format_begins_as_torchs_own(training):
    runs = training.document["runs"]
    with SmallRun(request(**SMALL), {"precision.mode": "fp32"}) as small:
        (batch,) = small.batches(1)
        for name, run in runs.items():
            assert len(run["losses"]) == FORMAT_STEPS
            StepSeeds(small.job.config.training.seed, small.job.device).set(0, 0)
            with torch.autocast("cpu", DTYPES.get(name), enabled=name in DTYPES):
                loss = small.loss(small.job.model.train(), batch)
            assert run["losses"][0] == pytest.approx(loss.item(), rel=1e-6)


def test_16_bits_train_as_32_and_keep_fewer_activations(training):
    full, half, brain = (training.document["runs"][name] for name in ("fp32", "fp16", "bf16"))
    assert full["losses"][-1] == pytest.approx(half["losses"][-1], rel=0.05)
    assert half["losses"] != full["losses"] != brain["losses"]
    # as many bits, of the same operations
    assert half["activations"] == brain["activations"]
    assert 0 < half["activations"] < full["activations"]
    apart = training.curves["loss minus fp32's"]
    assert apart["bf16"][0] == brain["losses"][0] - full["losses"][0]
    assert tuple(training.curves) == EXERCISES["training"].charts
    assert len(texts(training)) == 5


def rules_of(device, precision, **flags):
    choices = LearnChoices(request(**flags), rules_of=device, precision=precision)
    return run_exercise("autocast", choices).document["operations"]


def test_autocast_is_that_of_torch():
    """Beside a real pass on the CPU; the GPU's rules are those of torch's documentation."""
    rules = {(rule["operation"], rule["where"]): rule["calls"] for rule in rules_of("cpu", "bf16", **SMALL)}
    with SmallRun(request(**SMALL)) as run:
        convolutions: list[torch.dtype] = []
        norms: list[torch.dtype] = []
        for module in run.job.model.modules():
            if isinstance(module, torch.nn.Conv2d | torch.nn.BatchNorm2d):
                kept = norms if isinstance(module, torch.nn.BatchNorm2d) else convolutions
                module.register_forward_hook(lambda m, i, o, kept=kept: kept.append(o.dtype) or None)
        (batch,) = run.batches(1)
        with torch.autocast("cpu", torch.bfloat16):
            run.job.model.train()(*batch.inputs)
    assert {*convolutions, *norms} == {torch.bfloat16}
    assert rules["convolution", "16 bits"] == len(convolutions)
    assert rules["native_batch_norm", "mixed"] == len(norms)
    assert rules["_log_softmax", "fp32"] == 1


def two_layers(*, num_classes, side):
    """Return a vision transformer of two layers."""
    return VisionTransformer(side, 16, 2, num_heads=2, hidden_dim=8, mlp_dim=8, num_classes=num_classes)


def test_the_rules_of_a_gpu_are_shown_without_one(monkeypatch):
    """Layer norm is in CUDA's list of operations in fp32. Attention counts as one operation."""
    monkeypatch.setitem(MODELS, "vit", ModelSpec(task=CLASSIFICATION, build=two_layers))
    rules = rules_of("cuda", "fp16", model__name="vit", data__image_size=32, data__name="shapes")
    gpu = {rule["operation"]: rule for rule in rules}
    assert gpu["native_layer_norm"]["where"] == "fp32"
    attention = gpu["scaled_dot_product_attention"]
    assert (attention["where"], attention["calls"]) == ("16 bits", 2)
    assert "bmm" not in gpu
    assert gpu["addmm"]["where"] == "16 bits"
    # 16 bits are added to the fp32 of the positions and of all residuals after them: the sum is fp32
    assert not any(rule["where"] == "mixed" for rule in rules)
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
        run_exercise("autocast", LearnChoices(own))


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
