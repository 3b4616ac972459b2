"""Automatic choices: measured, cached, and never fatal to a run."""

import pytest
import torch

from mptui.config.schema import RunConfig
from mptui.engine.choose import (
    OUT_OF_TIME,
    ROUNDS,
    MeasuringTime,
    Selection,
    StepTimer,
    choose,
    layouts,
    precisions,
    updates,
)
from mptui.engine.compile import CachedResult
from mptui.engine.mailbox import Mailbox, Stopped
from mptui.tasks.build_task import build_task
from tests.engine.blots import SIDE
from tests.engine.small import CPU, mask_net, small_net

LONG = 10_000


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def kept(**facts):
    return CachedResult("test", {"device": "card", **facts})


class Card:
    """A device with given step times, which counts the steps, and a clock that they move."""

    def __init__(self, **seconds):
        self.seconds, self.taken, self.now = seconds, [], 0.0

    def timers(self, name):
        def step():
            self.taken.append(name)
            seconds = self.seconds[name]
            if isinstance(seconds, BaseException):
                raise seconds
            seconds = seconds if isinstance(seconds, float) else next(seconds)
            self.now += seconds
            return seconds

        return step


def decided(card, candidates=None, *, steps=LONG, place=None, check_stop=lambda: None, limit=None):
    candidates = candidates or precisions(list(card.seconds), "fp32")
    limit = limit or MeasuringTime()
    return choose(candidates, place or kept(), card.timers, steps=steps, limit=limit, check_stop=check_stop)


def lasting(card, seconds):
    """Return the time for the measurements on a card."""
    return MeasuringTime(seconds, lambda: card.now)


@pytest.mark.parametrize(
    ("step_s", "limit_s", "taken"),
    [
        (5.0, 14.0, 2),  # the first step of each shows that three more would take too long
        (8.0, 15.0, 2),
        (20.0, 15.0, 1),  # there is no time for the other one
        (1.0, 15.0, 8),
    ],
)
def test_a_measurement_ends_where_it_would_take_longer_than_there_is_time_for(step_s, limit_s, taken):
    card = Card(fp32=step_s, bf16=0.8 * step_s)
    limit = lasting(card, limit_s)
    choice = decided(card, limit=limit)
    assert len(card.taken) == taken
    if taken < 8:
        assert choice == Selection("fp32", OUT_OF_TIME)
        assert decided(card, layouts("true"), limit=limit) == Selection("true", OUT_OF_TIME)
        assert len(card.taken) == taken
        assert decided(card, limit=lasting(card, 1000.0)).name == "bf16"  # nothing was kept
    assert decided(card, limit=lasting(card, 0.0)).name == "bf16"  # as kept


def test_what_is_measured_by_the_end_of_the_time_decides_where_it_suffices():
    close = Card(fp32=iter([1.0, 0.9, 1.1] * 9), bf16=iter([0.9, 0.8, 1.0] * 9))
    assert decided(close, limit=lasting(close, 9.0)).seconds.keys() == {"fp32", "bf16"}
    assert len(close.taken) == 2 * (1 + 3)


def test_the_fastest_is_taken_and_said_why():
    assert decided(Card(fp32=0.4, bf16=0.2)) == Selection(
        "bf16", "2.00x fp32 here (200 ms per step against 400 ms)"
    )
    assert decided(Card(fp32=0.4, bf16=1.5), place=kept(n=2)) == Selection(
        "fp32", "3.75x bf16 here (400 ms per step against 1.50 s)"
    )


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({"fp32": 1.00, "bf16": 0.96}, "fp32"),
        ({"fp32": 1.00, "bf16": 0.94}, "bf16"),
        ({"fp32": 1.00, "bf16": 0.50, "fp16": 0.47}, "bf16"),
        ({"fp32": 1.00, "bf16": 0.50, "fp16": 0.44}, "fp16"),
        ({"fp32": 1.00, "fp16": 0.95}, "fp32"),
    ],
)
def test_fewer_digits_have_to_earn_it(seconds, taken):
    assert decided(Card(**seconds)).name == taken


def test_a_format_that_gains_too_little_is_told():
    assert decided(Card(fp32=1.0, bf16=0.98)).reason == (
        "bf16 gains only 1.02x here (1.00 s per step against 980 ms)"
    )


@pytest.mark.parametrize(("true", "false", "taken"), [(1.0, 0.9, "false"), (1.0, 0.99, "true")])
def test_channels_first_has_to_be_clearly_faster(true, false, taken):
    assert decided(Card(true=true, false=false), layouts("true")).name == taken


def test_the_update_that_waits_for_the_device_has_to_be_much_faster():
    assert decided(Card(true=1.0, false=0.9), updates()).name == "true"
    assert decided(Card(true=1.0, false=0.8), updates(), place=kept(n=2)).name == "false"


def test_what_was_measured_is_kept_and_taken_again_in_a_short_run():
    first = Card(fp32=1.0, bf16=0.5)
    later = Card(fp32=0.5, bf16=1.0)
    assert decided(first) == decided(later, steps=1)
    assert first.taken
    assert later.taken == []


@pytest.mark.parametrize("other", [{"device": "other card"}, {"side": 224}])
def test_another_card_or_shape_is_measured_anew(other):
    decided(Card(fp32=1.0, bf16=0.5))
    card = Card(fp32=0.5, bf16=1.0)
    assert decided(card, place=kept(**other)).name == "fp32"
    assert card.taken


def test_a_run_too_short_to_repay_it_measures_nothing_and_takes_what_is_known_of_such_cards():
    card = Card(fp32=1.0, bf16=0.5)
    assert decided(card, steps=319) == Selection("fp32")
    assert card.taken == []
    assert decided(card, steps=320).name == "bf16"


@pytest.mark.parametrize("damaged", ["", "[]", '{"facts": 1}', '{"value": {"seconds": {"fp32": "x"}}}'])
def test_a_damaged_cache_is_measured_anew(tmp_path, damaged):
    decided(Card(fp32=1.0, bf16=0.5))
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text(damaged)
    assert decided(Card(fp32=0.5, bf16=1.0)).name == "fp32"


@pytest.mark.parametrize(
    "kept_value", [{"seconds": {"fp64": 1.0}}, {"seconds": {"fp32": -1.0, "bf16": None}}]
)
def test_kept_figures_that_can_not_be_are_not_used(kept_value):
    kept().save(kept_value)
    card = Card(fp32=1.0, bf16=0.5)
    assert decided(card).name == "bf16"


def test_a_candidate_that_fails_is_out_and_a_default_without_memory_is_not_replaced():
    card = Card(fp32=torch.OutOfMemoryError("out of memory"), bf16=0.5)
    choice = decided(card)
    assert choice == Selection("fp32", "not measured here, as the memory was full")
    again = Card(fp32=0.4, bf16=0.2)
    assert decided(again).name == "bf16"  # the memory may have been that of others: nothing was kept
    alone = Card(fp32=RuntimeError("no kernel"), bf16=0.5)
    assert decided(alone, place=kept(n=2)) == Selection("bf16", "the only one that works here")
    assert alone.taken.count("fp32") == 1
    larger = Card(fp32=torch.OutOfMemoryError("out of memory"), bf16=0.5)
    among = precisions(["fp32", "bf16"], "bf16")
    assert decided(larger, among, place=kept(n=3)) == Selection("bf16", "the only one that fits here")
    nothing = Card(fp32=RuntimeError("no kernel"), bf16=torch.OutOfMemoryError("out of memory"))
    assert decided(nothing, place=kept(n=4)) == Selection("fp32")


def test_a_stop_is_seen_before_each_step():
    mailbox = Mailbox()
    card = Card(fp32=1.0, bf16=0.5)

    def check():
        if len(card.taken) == 3:
            mailbox.stop(15)
        mailbox.check_stop()

    with pytest.raises(Stopped):
        decided(card, check_stop=check)
    assert len(card.taken) == 3
    assert kept().load() == {}


def test_a_hopeless_candidate_is_timed_twice_and_a_clear_case_is_short():
    card = Card(fp32=1.0, bf16=5.0)
    decided(card)
    assert card.taken.count("bf16") == 3  # one warm-up step, and two
    assert card.taken.count("fp32") == ROUNDS[0] + 1


def test_what_is_close_is_timed_longer_and_a_single_outlier_does_not_decide():
    def drifting(base, outlier):
        yield base
        yield outlier
        while True:
            yield base

    card = Card(fp32=drifting(1.0, 0.5), bf16=drifting(0.9, 3.0))
    assert decided(card).name == "bf16"
    assert card.taken.count("fp32") == ROUNDS[1] + 1


# -- real steps


def trial_of(net, task="classification", classes=("a", "b"), **training):
    config = RunConfig.model_validate(
        {
            "training": {"batch_size": 4, **training},
            "data": {"image_size": SIDE},
            "precision": {"mode": "auto"},
        }
    )
    return StepTimer(net, build_task(task, classes, config.training), config, CPU)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_trial_moves_nothing_of_the_run(precision, optimizer):
    net = small_net(dropout=0.5)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    strides = [p.stride() for p in net.parameters()]
    drawn = torch.get_rng_state()
    trial = trial_of(net, optimizer=optimizer)
    for channels_last in (True, False):
        assert trial.step(precision, channels_last=channels_last)() > 0
        for fused in (True, False):
            assert trial.update(channels_last=channels_last, fused=fused)() > 0
    assert torch.equal(drawn, torch.get_rng_state())
    assert [p.stride() for p in net.parameters()] == strides
    assert all(p.grad is None for p in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_no_candidate_holds_the_gradients_of_another(monkeypatch):
    monkeypatch.setattr("mptui.engine.optim.fused.LARGE", 1)
    monkeypatch.setattr("mptui.engine.optim.fused.CACHED", 1)
    trial = trial_of(small_net())
    for precision in ("fp32", "bf16"):
        trial.step(precision, channels_last=True)()
    assert not any(p._post_accumulate_grad_hooks for p in trial._network(True).parameters())


def test_a_trial_of_masks_has_the_shapes_of_the_run():
    seen = []
    net = mask_net()
    net.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    trial_of(net, task="segmentation").step("fp32", channels_last=True)()
    (images,) = seen
    assert tuple(images.shape) == (4, 3, SIDE, SIDE)
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_a_gpu_a_trial_leaves_its_random_numbers_too(precision):
    net = small_net(dropout=0.5)
    torch.rand(1, device="cuda")
    drawn = torch.cuda.get_rng_state()
    config = RunConfig.model_validate({"training": {"batch_size": 4}, "data": {"image_size": SIDE}})
    task = build_task("classification", ("a", "b"), config.training)
    trial = StepTimer(net, task, config, torch.device("cuda"))
    for channels_last in (True, False):
        assert trial.step(precision, channels_last=channels_last)() > 0
        assert trial.update(channels_last=channels_last, fused=False)() > 0
    trial.close()
    assert torch.equal(drawn, torch.cuda.get_rng_state())
    assert all(not p.is_cuda for p in net.parameters())
