"""micro_batch = "auto": the largest that fits with a margin, found before the start, without side effects."""

import math
import random
from functools import partial

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.guards.memory import largest
from mptui.errors import MemoryExhaustedError
from mptui.events import Recovered
from tests.engine.blots import CLASSES, Scene
from tests.engine.guards.sick import bits, limit_memory
from tests.engine.small import build_trainer, config, end, of, small_net

slow = partial(pytest.param, marks=pytest.mark.slow)

BATCH = 24
LIMITS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 19, 20, 21, 23, 26]


def build(folder, micro_batch="auto", **more):
    run = config(
        training={"batch_size": BATCH, "epochs": 1, "ema_decay": 0.9, "lr": 0.01},
        memory={"micro_batch": micro_batch},
    )
    return build_trainer(run, folder, train=2 * BATCH, **more)


def found(folder, limit, **more):
    trainer, _ = build(folder, **more)
    limit_memory(trainer, lambda: limit)
    trainer.context.model.train()
    trainer.context.begin()
    end(trainer)
    return trainer.context.micro_batches.limits["training"]


@pytest.mark.parametrize(
    "limit",
    [each if each in {1, 3, 19} else slow(each) for each in LIMITS],
)
def test_it_finds_the_limit_less_a_tenth(tmp_path, limit):
    assert found(tmp_path, limit) == max(min(limit, 2), limit * 9 // 10)


def test_the_update_counts_too(tmp_path, monkeypatch):
    """Its temporary tensors are not there in forward and backward passes."""
    trainer, _ = build(tmp_path)
    updater, tried = trainer.context.parts.updater, []
    before = bits(trainer)

    def update(found_inf, whole=updater._fused.update):
        assert bool(found_inf == 1)
        tried.append(True)
        if len(tried) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        whole(found_inf)

    monkeypatch.setattr(updater._fused, "update", update)
    trainer.context.begin()
    end(trainer)
    limit = trainer.context.micro_batches.limits["training"]
    assert limit is not None
    assert limit < BATCH
    assert bits(trainer) == before


def test_a_whole_batch_that_fits_with_room_to_spare_is_not_cut(tmp_path):
    assert found(tmp_path, math.ceil(BATCH / 0.9)) is None
    assert found(tmp_path, 10_000) is None


def test_where_nothing_fits_the_run_does_not_start(tmp_path):
    trainer, events = build(tmp_path)
    limit_memory(trainer, lambda: 0)
    with pytest.raises(MemoryExhaustedError, match="micro-batch of one sample") as caught:
        trainer.train()
    end(trainer)
    assert caught.value.exit_code == 5
    assert events == []


@pytest.mark.parametrize("precision", [slow("fp32"), slow("bf16"), "fp16"])
def test_looking_leaves_every_bit_where_it_was(tmp_path, precision):
    def state(trainer):
        return (
            bits(trainer),
            torch.get_rng_state().tolist(),
            repr(snapshots.take(trainer.state).state["scaler"]),
            trainer.state.metrics.compute(),
            [p.grad for p in trainer.context.model.parameters()],
        )

    trainer, _ = build(tmp_path, precision=precision, model=small_net(dropout=0.5))
    limit_memory(trainer, lambda: 13)
    trainer.context.model.train()
    before = state(trainer)
    trainer.context.hooks["memory"].run_begins()
    assert repr(state(trainer)) == repr(before)
    end(trainer)


def test_a_run_that_looked_is_the_run_that_was_told(tmp_path):
    looked, events = build(tmp_path / "looked", model=small_net(dropout=0.5))
    limit_memory(looked, lambda: 10)
    told, _ = build(tmp_path / "told", 9, model=small_net(dropout=0.5))
    for trainer in (looked, told):
        trainer.train()
        end(trainer)
    assert bits(looked) == bits(told)
    assert "training" not in "".join(e.action for e in of(events, Recovered))


def test_a_resumed_run_does_not_look_again(tmp_path):
    first, _ = build(tmp_path)
    limit_memory(first, lambda: 10)
    first.train()
    end(first)
    second, _ = build(tmp_path)
    snapshots.restore(second.state, read_newest(tmp_path)[0])
    limit_memory(second, lambda: 3)  # another search would find this
    second.context.begin()
    end(second)
    assert second.context.micro_batches.limits["training"] == 9


def test_masks_are_tried_with_their_network(tmp_path):
    assert found(tmp_path, 10, kind=Scene) == 9


def test_a_fault_of_the_program_is_not_taken_for_a_limit(tmp_path):
    trainer, _ = build(tmp_path)

    def break_it(module, inputs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    trainer.context.model.register_forward_pre_hook(break_it)
    with pytest.raises(RuntimeError, match="mat1"):
        trainer.train()
    end(trainer)


def test_the_search_finds_any_limit_in_few_tries():
    numbers = random.Random(0)
    for _ in range(300):
        most = numbers.randint(1, 5000)
        limit = numbers.randint(0, most + 5)
        tries: list[int] = []

        def fits(count, limit=limit, tries=tries):
            tries.append(count)
            return count <= limit

        assert largest(fits, most) == min(limit, most)
        assert len(tries) <= 2 + math.log2(most)


@pytest.mark.parametrize("fitting", [2, 3])
def test_no_single_sample_is_found_where_two_fit(tmp_path, fitting):
    pooled = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8, len(CLASSES)),
    )
    trainer, _ = build(tmp_path, model=pooled)
    limit_memory(trainer, lambda: fitting)
    trainer.context.begin()
    end(trainer)
    assert trainer.context.micro_batches.limits["training"] == 2
