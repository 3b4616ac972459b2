"""`check-amp`: safe precisions pass, unsafe layers are named, and the written profile fixes them."""

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import nn

from mptui.config.resolve import resolve
from mptui.engine.mailbox import Mailbox, Stopped
from mptui.errors import ConfigError, DataError, DivergedError
from mptui.lab.measure.amp import Judge, PrecisionChecker, check
from mptui.lab.measure.amp_trial import cosine
from tests.engine.numerics.networks import Gain
from tests.lab.trials import bench
from tests.made.runs import UNET, plan_of


def plan(**flags):
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return plan_of({**UNET, "model.width": 4, "data.samples": 16, **given}, None)


def head(width: int = 8) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 3)]


def test_a_healthy_network_is_safe_in_both_and_left_as_it_was(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), *head())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    checker = PrecisionChecker(bench(tmp_path, model), Mailbox())
    for precision in ("fp32", "bf16", "fp16"):
        checked = checker.check(precision)
        assert checked.safe
        assert not checked.fp32_layers
        assert checked.cosine > 0.99
        assert checked.loss_error < 0.02
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize(("gain", "fault"), [(1e6, "overflow"), (1e-7, "underflow")])
def test_a_layer_out_of_range_is_named_and_mended_by_fp32_layers(tmp_path, gain, fault):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        Gain(gain),
        nn.BatchNorm2d(8, eps=1e-20),
        nn.ReLU(),
        *head(),
    )
    checker = PrecisionChecker(bench(tmp_path, model), Mailbox())
    assert (checker.ranking.layers[0].name, checker.ranking.layers[0].fault) == ("2", fault)
    fp16 = checker.check("fp16")
    assert fp16.safe
    assert 1 <= len(fp16.fp32_layers) <= 2
    assert set(fp16.fp32_layers) <= {"1", "2", "3"}  # the gain's input, the gain, and its output
    assert fp16.why.startswith("safe with ")
    assert fp16.cosine > 0.9
    assert checker.check("bf16").safe


def test_what_no_fp32_layer_can_fix_is_not_safe(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        Gain(1e6),
        *[module for _ in range(12) for module in (nn.Conv2d(8, 8, 1), nn.ReLU(), Gain(2.5))],
        *head(),
    )
    fp16 = PrecisionChecker(bench(tmp_path, model), Mailbox()).check("fp16")
    assert not fp16.safe
    assert fp16.why.startswith(
        "the output of 1 is not finite (mul: infinity in float16 from values of up to "
    )


def test_numbers_that_are_not_finite_in_fp32_end_it(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Gain(float("inf")), *head())
    with pytest.raises(DivergedError, match="first in 1"):
        PrecisionChecker(bench(tmp_path, model), Mailbox())


@pytest.mark.slow
def test_a_network_that_turns_at_any_rounding_is_neither_blamed_on_bf16_nor_called_safe(tmp_path):
    """Many layers on a tiny batch: rounding just the images turns the gradients, also in fp32."""
    torch.manual_seed(1)
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(40):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    bf16 = PrecisionChecker(bench(tmp_path, model, batches=1), Mailbox()).check("bf16")
    assert bf16.control < 0.9
    assert not bf16.safe
    assert (bf16.verdict, bf16.fp32_layers) == ("can't tell", [])
    assert bf16.why.startswith("on these 1 batches: ")
    assert "rounding images and weights alone gives" in bf16.why
    assert bf16.why.endswith("would tell") or "more would (--batches " in bf16.why


@pytest.mark.parametrize(
    ("layer", "control", "verdict"),
    [
        (0.95, 0.99, "as fp32"),
        (0.714, 0.93, "as rounding"),
        (0.714, 0.99, "not safe"),
        (0.899, 0.97, "as rounding"),
        (0.2, 0.95, "not safe"),
        (0.714, 0.9, "can't tell"),
        (-0.9, 0.3, "can't tell"),
    ],
)
def test_the_words_follow_from_the_cosines(tmp_path, layer, control, verdict):
    """Gradients of one layer rotated by known angles, with the network otherwise as in fp32."""
    torch.manual_seed(0)
    setup = bench(tmp_path, nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *head()))
    reference, control_, trial = (setup.run("fp32") for _ in range(3))
    reference.gradients["0"] = torch.tensor([1.0, 0.0])
    trial.gradients["0"] = torch.tensor([layer, math.sqrt(1 - layer**2)])
    control_.gradients["0"] = torch.tensor([control, math.sqrt(1 - control**2)])

    checked = Judge(reference, control_, 2).judge(trial, [])

    assert checked.verdict == verdict
    if verdict == "as fp32":
        assert "gradients as in fp32" in checked.why
    else:
        assert f"differs from fp32's: cosine {layer:.3f}" in checked.why
        assert f"alone gives {control:.3f}" in checked.why


def scaled(trial, *, outputs=1.0, layer=1.0):
    """Return a trial whose outputs, and the gradient of layer 0, are multiplied by these."""
    gradients = {**trial.gradients, "0": trial.gradients["0"] * layer}
    return replace(trial, outputs=trial.outputs * outputs, gradients=gradients)


@pytest.mark.parametrize(
    ("changed", "of_control", "verdict", "words"),
    [
        ({"outputs": 1.3}, {}, "not safe", "the outputs differ by 30.0%"),
        ({"outputs": 1.3}, {"outputs": 1.08}, "as rounding", "the outputs differ by 30.0%"),
        ({"outputs": 1.3}, {"outputs": 1.2}, "can't tell", "rounding images and weights alone gives 20.0%"),
        ({"layer": 0.25}, {}, "not safe", "the gradient of 0 is 0.25 times as large as fp32's"),
        ({"layer": 0.25}, {"layer": 0.5}, "can't tell", "the gradient of 0 is 0.25 times as large as fp32's"),
        ({"layer": 0.0}, {"layer": 1e-6}, "not safe", "the gradient of 0 is exactly zero"),
        ({"layer": 0.0}, {"layer": -1.0}, "not safe", "the gradient of 0 is exactly zero"),
    ],
)
def test_sizes_count_as_directions_do(tmp_path, changed, of_control, verdict, words):
    torch.manual_seed(0)
    reference = bench(tmp_path, nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *head())).run("fp32")
    judge = Judge(reference, scaled(reference, **of_control), 2)

    checked = judge.judge(scaled(reference, **changed), [])

    assert (checked.verdict, checked.safe) == (verdict, verdict == "as rounding")
    assert words in checked.why


def test_a_noisy_control_says_how_many_batches_would_tell(tmp_path):
    """Of a gradient with as much noise as signal in two batches, five times as many are needed."""
    torch.manual_seed(0)
    reference = bench(tmp_path, nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *head())).run("fp32")
    gradient = reference.gradients["0"]
    aside = torch.randn_like(gradient)
    aside -= gradient * (aside @ gradient) / gradient.square().sum()
    noisy = gradient + aside * gradient.norm() / aside.norm()
    control = replace(reference, gradients={**reference.gradients, "0": noisy})
    trial = replace(reference, gradients={**reference.gradients, "0": noisy * 1.0})

    checked = Judge(reference, control, 2).judge(trial, [])

    assert checked.verdict == "can't tell"
    assert checked.more_batches is not None
    assert checked.more_batches == pytest.approx(2 / 0.2076 - 2, abs=1)
    assert f"{checked.more_batches} more would (--batches {2 + checked.more_batches})" in checked.why


def test_it_is_deterministic_and_what_it_advises_can_be_trained(tmp_path):
    first, again = (check(plan(), 1, Mailbox()) for _ in range(2))
    assert first.checked == again.checked
    assert (first.model, first.batches, first.use) == ("unet", 1, first.use)
    advised = first.config(plan().config)
    assert advised.precision.mode == first.use
    assert resolve(None, task=None, flags={}, sets=(), environ={})  # the defaults stay unchanged
    assert not list(tmp_path.iterdir())


def test_it_obeys_a_stop():
    mailbox = Mailbox()
    mailbox.stop(15)
    with pytest.raises(Stopped):
        check(plan(), 1, mailbox)


def test_what_it_needs_is_in_the_profile():
    report = check(plan(precision__mode="fp16"), 1, Mailbox())
    assert report.use == "fp16"
    report.checked["fp16"].fp32_layers = ["decoder.*"]
    advised = report.config(plan().config).precision
    assert (advised.mode, advised.fp32_layers) == ("fp16", ["decoder.*"])
    assert advised.grad_scaler.init_scale == report.checked["fp16"].loss_scale


def test_a_model_that_is_not_there_is_refused():
    with pytest.raises(ConfigError):
        plan(model__name="resnet19")


def test_the_cosine_of_nothing():
    zeros, ones = torch.zeros(3), torch.ones(3)
    assert cosine(zeros, zeros) == 1.0
    assert cosine(zeros, ones) == 0.0
    assert cosine(ones, -ones) == pytest.approx(-1.0)
    assert cosine(ones, ones * float("nan")) != cosine(ones, ones)


def test_masks_that_are_ignored_as_a_whole_have_nothing_to_check(tmp_path):
    for part in ("train", "val"):
        for number in range(4):
            mask = Image.new("L", (32, 32), 255)
            if part == "val":
                mask.paste(number % 2, (0, 0, 16, 16))
            for folder, image in (("images", Image.new("RGB", (32, 32))), ("masks", mask)):
                (tmp_path / part / folder).mkdir(parents=True, exist_ok=True)
                image.save(tmp_path / part / folder / f"{number}.png")
    ignored = plan(data__name="none", data__samples="none", data__path=str(tmp_path), data__ignore_index=255)
    with pytest.raises(DataError, match="no batch has anything to learn"):
        check(ignored, 1, Mailbox())
