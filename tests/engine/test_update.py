"""A step is a transaction: with non-finite gradients, no state changes."""

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from mptui.engine.optim.schedule import Schedule
from mptui.testing.optimizer import HostReads
from tests.engine.small import build_trainer, config, small_net
from tests.engine.updates import FINITE, backward, take_step

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "plain": {"optimizer": "sgd", "momentum": 0.0},
    "adamw": {"optimizer": "adamw"},
}
BAD = ("nan image", "overflowing loss")


@pytest.fixture(autouse=True)
def _unwritten_memory_is_nan():
    """With deterministic algorithms torch fills uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def build(folder, optimizer="momentum", fused=True, precision="fp32", accumulate=1, model=None, **tables):
    training = {"epochs": 4, "ema_decay": 0.9, "accumulate": accumulate, **OPTIMIZERS[optimizer]}
    tables["training"] = {**training, **tables.get("training", {})}
    run = config(speed={"fused": fused}, **tables)
    trainer, _ = build_trainer(run, folder, precision=precision, model=model)
    return trainer


def state_of(trainer):
    """Return all state that a skipped step must not change."""
    named = {f"model {name}": t for name, t in trainer.context.model.state_dict().items()}
    names = {p: name for name, p in trainer.context.model.named_parameters()}
    for p, state in trainer.context.parts.optimizer.state.items():
        named |= {f"optimizer {key} {names[p]}": t for key, t in state.items() if t is not None}
    named |= {f"average {name}": t for name, t in trainer.context.parts.average.state_dict().items()}
    bits = {name: t.detach().numpy().tobytes() for name, t in named.items()}
    return {**bits, "position": trainer.context.parts.updater.position()}


def moved(before, after):
    """Return the names of differing entries. Missing optimizer state counts as zeros."""
    missing = {name for name in before.keys() ^ after.keys() if any((before | after)[name])}
    return missing | {name for name in before.keys() & after.keys() if before[name] != after[name]}


def a_quarter_is_fast(*values):
    """The product of sequences, of which the fast suite has all triples of the first three, and all pairs."""
    for case in itertools.product(*map(enumerate, values)):
        is_fast = sum(place for place, _ in case) % 4 == 0
        yield pytest.param(*(value for _, value in case), marks=[pytest.mark.slow] * (not is_fast))


@pytest.mark.parametrize(
    ("optimizer", "fused", "precision", "accumulate", "good_before", "bad"),
    [*a_quarter_is_fast(OPTIMIZERS, [True, False], ["fp32", "bf16", "fp16"], [1, 3], [0, 2], BAD)],
)
def test_a_refused_step_leaves_no_trace(tmp_path, optimizer, fused, precision, accumulate, good_before, bad):
    trainer, twin = (build(tmp_path, optimizer, fused, precision, accumulate) for _ in range(2))
    for number in range(good_before):
        take_step(trainer, number)
        take_step(twin, number)
    before = state_of(trainer)

    take_step(trainer, 99, bad)

    assert float(trainer.context.parts.updater.found_inf) == 1.0
    assert moved(before, state_of(trainer)) == set()
    # the scale has backed off, as it should; the twin never saw the bad batch and uses that scale
    twin.context.parts.precision.load_state_dict(trainer.context.parts.precision.state_dict())
    for number in range(10, 12):
        take_step(trainer, number)
        take_step(twin, number)
        assert moved(state_of(twin), state_of(trainer)) == set()
        assert float(trainer.context.parts.updater.lr) == float(twin.context.parts.updater.lr)
    assert trainer.context.parts.updater.position() == good_before + 2


def test_buffers_are_held_the_same_where_nobody_asks_whether_the_step_was_good(tmp_path):
    asked, unasked = (build(tmp_path) for _ in range(2))
    assert asked.context.parts.updater.buffers.sync  # on a CPU, where nobody has to be waited for
    unasked.context.parts.updater.buffers.sync = False
    for number, bad in enumerate([None, "nan image", None, None, "overflowing loss", "nan image", None]):
        take_step(asked, number, bad)
        take_step(unasked, number, bad)
        assert moved(state_of(asked), state_of(unasked)) == set()


@pytest.mark.parametrize(
    ("step", "gives_away"),
    [("always", "model 0.weight"), ("if finite", "model 1.running_mean")],
)
def test_the_usual_ways_do_leave_a_trace(tmp_path, step, gives_away):
    trainer = build(tmp_path, fused=False)
    take_step(trainer, 0)
    before = state_of(trainer)
    backward(trainer, 99, bad="nan image")
    finite = all(p.grad.isfinite().all() for p in trainer.context.model.parameters())
    if step == "always" or finite:
        trainer.context.parts.optimizer.step()
    assert gives_away in moved(before, state_of(trainer))


def test_a_norm_that_is_not_training_keeps_its_count_on_a_refusal(tmp_path):
    model = small_net()
    trainer = build(tmp_path, model=model)
    model.get_submodule("1").eval()
    before = state_of(trainer)
    take_step(trainer, 0, "nan image")
    assert moved(before, state_of(trainer)) == set()


def test_momentum_that_a_preset_brings_starts_at_zero_even_if_its_first_step_is_refused(tmp_path):
    trainer = build(tmp_path, "plain")
    take_step(trainer, 0)
    job = trainer.context.job
    training = job.config.training.model_copy(update={"momentum": 0.9})
    job = replace(job, config=job.config.model_copy(update={"training": training}))
    trainer.state.build(job, trainer.context.parts)
    take_step(trainer, 1, "nan image")
    take_step(trainer, 2)
    assert all(p.isfinite().all() for p in trainer.context.model.parameters())


def test_weight_decay_that_a_preset_brings_is_in_force_and_spares_norms_and_biases(tmp_path):
    trainer = build(tmp_path, training={"weight_decay": 0.0})
    training = trainer.context.job.config.training.model_copy(update={"weight_decay": 0.5})
    job = replace(
        trainer.context.job, config=trainer.context.job.config.model_copy(update={"training": training})
    )
    trainer.context.take_job(job)
    decayed = {
        name: group["weight_decay"]
        for group in trainer.context.parts.optimizer.param_groups
        for name, p in trainer.context.model.named_parameters()
        if any(p is other for other in group["params"])
    }
    assert decayed == {name: 0.5 * (p.ndim > 1) for name, p in trainer.context.model.named_parameters()}


def test_gradients_that_are_kept_have_memory_of_their_own_from_the_first_step_on(tmp_path):
    """A first gradient made by a CUDA graph is in the graph's memory, which its next replay overwrites."""
    trainer, twin = build(tmp_path), build(tmp_path)
    updater = trainer.context.parts.updater
    updater.keep_grads(True)
    kept = {name: p.grad for name, p in trainer.context.model.named_parameters()}
    assert all(grad is not None and not grad.any() for grad in kept.values())
    for number in range(3):
        take_step(trainer, number)
        take_step(twin, number)
    backward(trainer, 3)
    updater.forget()
    for name, p in trainer.context.model.named_parameters():
        assert p.grad is kept[name]
        assert not p.grad.any()
    assert moved(state_of(twin), state_of(trainer)) == set()
    updater.keep_grads(False)
    assert all(p.grad is None for p in trainer.context.model.parameters())


@pytest.mark.parametrize("steps_of_a_table", [1, 2, 4, 100])
def test_the_rate_is_the_schedules_next_one_for_each_applied_step(tmp_path, steps_of_a_table):
    for fused in (True, False):
        trainer = build(tmp_path, fused=fused, training={"warmup_epochs": 0.5})
        training, parts = trainer.context.job.config.training, trainer.context.parts
        parts.updater.take_rates(partial(parts.schedule.rates, count=steps_of_a_table))
        parts.updater.seek(0)
        table = Schedule(training, training.lr, parts.schedule_steps, parts.steps_per_epoch).rates(0)
        used = []
        for number, bad in enumerate([None, "nan image", None, "nan image", None]):
            take_step(trainer, number, bad)
            used.append(float(parts.updater.lr))
        assert used == [table[0], table[1], table[1], table[2], table[2]]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fused_and_not_are_the_same_optimizer(tmp_path, optimizer):
    fused, plain = (build(tmp_path, optimizer, kind) for kind in (True, False))
    for number in range(5):
        take_step(fused, number)
        take_step(plain, number)
    for one, other in zip(fused.context.model.parameters(), plain.context.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


# -- the loss scale

SCALER: dict[str, Any] = {
    "init_scale": 1024.0,
    "growth_factor": 4.0,
    "backoff_factor": 0.125,
    "growth_interval": 3,
}
FLOOR = 2.0**-60


def build_scaled(folder):
    run = config(
        training={"epochs": 20, "ema_decay": 0.9, "lr": 0.001},
        precision={"grad_scaler": {**SCALER, "min_scale": FLOOR}},
    )
    return build_trainer(run, folder, precision="fp16")[0]


def test_the_scale_backs_off_and_grows_by_the_configured_numbers(tmp_path):
    trainer = build_scaled(tmp_path)
    scales = []
    for number, bad in enumerate([None, None, None, "nan image", None, None, "nan image", None, None, None]):
        take_step(trainer, number, bad)
        scales.append(float(trainer.context.parts.precision.loss_scale()))
    assert scales == [1024, 1024, 4096, 512, 512, 512, 64, 64, 64, 256]


def test_the_scale_goes_the_way_of_torchs_own_scaler(tmp_path):
    trainer = build_scaled(tmp_path)
    reference = torch.amp.GradScaler("cpu", **SCALER)
    weight = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    chances = torch.rand(60, generator=torch.Generator().manual_seed(3))
    for number, bad in enumerate((chances < 0.3).tolist()):
        take_step(trainer, number, "overflowing loss" if bad else None)
        optimizer.zero_grad()
        reference.scale(weight * (torch.nan if bad else 1.0)).backward()
        reference.step(optimizer)
        reference.update()
        assert float(trainer.context.parts.precision.loss_scale()) == reference.get_scale()


def test_a_scale_that_has_sunk_to_zero_writes_no_nan_into_the_weights(tmp_path):
    trainer = build_scaled(tmp_path)
    state = trainer.context.parts.precision.state_dict()
    trainer.context.parts.precision.load_state_dict({**state, "scale": 0.0})
    before = state_of(trainer)
    take_step(trainer, 0)
    assert float(trainer.context.parts.updater.found_inf) == 1.0
    assert moved(before, state_of(trainer)) == set()


# -- clipping


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "not_fused"])
def test_clipping_sees_the_true_gradient_and_bounds_the_step(tmp_path, precision, fused):
    training = {"schedule": "constant", "weight_decay": 0.0, "lr": 0.5}
    steps = {}
    for clip in (None, 0.01, 1e6):
        limits = training if clip is None else {**training, "clip_grad_norm": clip}
        trainer = build(tmp_path, "plain", fused, precision, training=limits)
        before = flat_weights(trainer)
        take_step(trainer, 0)
        steps[clip] = flat_weights(trainer) - before
        norm = trainer.context.parts.updater.norm
    backward(reference := build(tmp_path), 0)
    true_norm = torch.cat([p.grad.flatten() for p in reference.context.model.parameters()]).norm()
    assert 0.1 < true_norm < 100
    torch.testing.assert_close(norm, true_norm, rtol=1e-5 if precision == "fp32" else 2e-2, atol=0)
    torch.testing.assert_close(steps[None].norm(), 0.5 * norm, rtol=1e-4, atol=0)
    torch.testing.assert_close(steps[0.01].norm(), torch.tensor(0.5 * 0.01), rtol=1e-3, atol=0)
    assert torch.equal(steps[1e6], steps[None])


def flat_weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.context.model.parameters()])


# -- no waiting for the device


@pytest.mark.parametrize(
    ("optimizer", "precision"), list(itertools.product(OPTIMIZERS, ["fp32", "bf16", "fp16"]))
)
def test_a_fused_step_never_asks_the_device(tmp_path, optimizer, precision):
    trainer = build(tmp_path, optimizer, precision=precision, training={"clip_grad_norm": 1.0})
    trainer.context.parts.updater.buffers.sync = False  # as where it would have to be waited for
    for number, bad in enumerate([None, "nan image", None]):
        backward(trainer, number, bad=bad)
        with HostReads() as reads:
            trainer.context.parts.updater.step(FINITE)
            trainer.context.parts.precision.loss_scale()
        assert reads.count == 0


def test_a_step_without_a_fused_kernel_does_ask(tmp_path):
    trainer = build(tmp_path, fused=False)
    backward(trainer, 0)
    with HostReads() as reads:
        trainer.context.parts.updater.step(FINITE)
    assert reads.count > 0
