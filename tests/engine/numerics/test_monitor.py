"""The numerics monitor in a real run: its events, its cost, and that it doesn't change the run."""

import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from mptui.engine import numerics as engine_numerics
from mptui.engine.mailbox import Command
from mptui.engine.numerics import LAYERS_REPORTED, NumericsMonitor, Probe
from mptui.errors import DivergedError
from mptui.events import NUMERICS_BUDGET, Advice, Numerics, Step, to_record
from mptui.runs.view.specs import event_of
from mptui.testing.optimizer import HostReads
from tests.engine.numerics.networks import CPU, Gain, network
from tests.engine.small import build_trainer, config, end, of, small_net


@pytest.fixture
def _every_step(monkeypatch):
    """Probe every other step: the ones between are the reference."""
    for mode in ("summary", "full"):
        monkeypatch.setitem(engine_numerics.EVERY_S, mode, 0.0)
        monkeypatch.setitem(NUMERICS_BUDGET, mode, 1e9)


@pytest.fixture
def _once(monkeypatch):
    """Probe once, however slow the machine is."""
    for mode in ("summary", "full"):
        monkeypatch.setitem(engine_numerics.EVERY_S, mode, 1e9)


def run(folder, mode, *, precision="fp32", model=None, **tables):
    """Train to the end; returns the events and the weights."""
    trainer, events = build_trainer(
        config(guards={"numerics": mode}, **tables), folder, precision=precision, model=model
    )
    trainer.train()
    end(trainer)
    return events, [p.detach().clone() for p in trainer.context.model.parameters()]


@pytest.mark.usefixtures("_every_step")
@pytest.mark.parametrize(
    "precision",
    [
        pytest.param("fp32", marks=pytest.mark.slow),
        pytest.param("bf16", marks=pytest.mark.slow),
        "fp16",
    ],
)
def test_looking_changes_no_bit_of_the_run(tmp_path, precision):
    events, weights = run(tmp_path / "a", "full", precision=precision, model=small_net(dropout=0.2))
    unseen, others = run(tmp_path / "b", "off", precision=precision, model=small_net(dropout=0.2))
    assert len(of(events, Numerics)) >= 3
    assert not of(unseen, Numerics)
    assert [e.loss for e in of(events, Step)] == [e.loss for e in of(unseen, Step)]
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@pytest.mark.usefixtures("_every_step")
@pytest.mark.parametrize("mode", ["summary", "full"])
def test_it_tells_forward_gradient_and_weights_of_every_layer(tmp_path, mode):
    events, _ = run(tmp_path, mode, precision="fp16")
    for event in of(events, Numerics):
        assert (event.mode, event.precision, event.eager) == (mode, "fp16", False)
        assert event.loss_scale == 65536.0
        assert len(event.layers) == LAYERS_REPORTED
        parts = {part: {layer.name for layer in event.layers if layer.part == part} for part in PARTS}
        assert parts["forward"] <= {"0", "1", "2", "3", "4", "7"}
        assert parts["weights"] <= {"0", "1", "3", "7"}
        assert len(event.layers) + event.others == 6 + 6 + 4
        assert event.cost_s is None or event.cost_s >= 0
        again = event_of(to_record(event))
        assert isinstance(again, Numerics)
        assert again.layers == event.layers


PARTS = ("forward", "gradient", "weights")


@pytest.mark.usefixtures("_once")
def test_by_default_a_run_is_looked_at_now_and_then(tmp_path):
    trainer, events = build_trainer(config(guards={"numerics": type(config().guards)().numerics}), tmp_path)
    trainer.train()
    end(trainer)
    (event,) = of(events, Numerics)
    assert event.mode == "summary"


def test_off_adds_no_hooks_and_reads_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.nn.Module, "register_forward_hook", forbidden)
    monkeypatch.setattr(torch.Tensor, "register_hook", forbidden)
    monkeypatch.setattr(Probe, "__init__", forbidden)
    events, _ = run(tmp_path, "off")
    assert of(events, Step)


def numerics(trainer):
    monitor = trainer.context.hooks["numerics"]
    assert isinstance(monitor, NumericsMonitor)
    return monitor


@contextmanager
def probing(trainer):
    """Run a window's forward and backward passes, as the trainer does between two hooks."""
    numerics(trainer).step_begins()
    try:
        yield
    except BaseException:
        numerics(trainer).step_abandoned()
        raise
    numerics(trainer).gradients_ready()


def forbidden(*_arguments, **_named):
    raise AssertionError("the numerics monitor is off")


@pytest.mark.usefixtures("_every_step")
def test_hooks_are_gone_after_the_step_even_if_it_fails(tmp_path):
    trainer, _ = build_trainer(config(guards={"numerics": "full"}), tmp_path)
    trainer.context.phase = "training"
    with probing(trainer):
        pass
    during = []

    def break_down():
        with probing(trainer):
            during.append(hooks(trainer.context.model))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        break_down()
    assert during[0] > 0
    assert hooks(trainer.context.model) == 0
    numerics(trainer).report_due()
    end(trainer)


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.usefixtures("_every_step")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_that_is_looked_at_never_asks_the_device(tmp_path, precision):
    trainer, _ = build_trainer(config(guards={"numerics": "full"}), tmp_path, precision=precision)
    trainer.context.phase = "training"
    trainer.context.begin()
    windows = trainer.context.job.train_loader.windows(0, 1)
    (batch,) = next(windows)
    with probing(trainer):
        pass
    with HostReads() as reads, probing(trainer):
        with trainer.context.parts.precision.forward_context():
            outputs = trainer.context.model(batch.images_BCHW)
            loss = trainer.context.task.loss(outputs, batch, batch.valid, batch.size)
        trainer.context.parts.precision.backward(loss)
    assert reads.count == 0
    end(trainer)


@pytest.mark.usefixtures("_every_step")
def test_a_sick_layer_of_a_run_is_named_with_what_helps(tmp_path):
    model = small_net()
    assert isinstance(model, torch.nn.Sequential)
    model.insert(2, Gain(1e6))
    trainer, events = build_trainer(
        config(guards={"numerics": "full", "on_nan": "ignore"}), tmp_path, precision="fp16", model=model
    )
    with pytest.raises(DivergedError, match="no step was applied"):
        trainer.train()
    end(trainer)
    worst = of(events, Numerics)[0].layers[0]
    assert (worst.name, worst.part, worst.fault) == ("2", "forward", "overflow")
    (advice,) = [e for e in of(events, Advice) if e.code.startswith("numerics")]
    assert advice.message.startswith("2: ")
    assert advice.setting == "precision.mode=bf16"


@pytest.mark.usefixtures("_once")
def test_it_can_be_asked_for_while_the_run_goes(tmp_path):
    trainer, events = build_trainer(config(guards={"numerics": "off"}), tmp_path)
    trainer.context.mailbox.post(Command("numerics", "full"))
    trainer.train()
    assert [e.mode for e in of(events, Numerics)] == ["full"]
    numerics(trainer).ask(None)
    assert numerics(trainer).mode == "off"
    end(trainer)


def test_looks_keep_to_their_share_of_the_time(tmp_path, monkeypatch):
    """With a simulated clock: a probe takes 4 s more than its step, so the next one is 80 s later."""
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trainer, events = build_trainer(config(guards={"numerics": "full"}), tmp_path)
    trainer.context.phase = "training"
    looked = []
    for _ in range(400):
        with probing(trainer):
            now[0] += 1.0
            if hooks(trainer.context.model):
                looked.append(now[0])
                now[0] += 4.0
        numerics(trainer).report_due()
    assert len(looked) >= 4
    assert all(later - earlier >= 80 for earlier, later in pairwise(looked))
    assert {event.every_s for event in of(events, Numerics)} == {80.0}
    assert {event.cost_s for event in of(events, Numerics)[:3]} == {None}  # one step is no measurement
    assert {event.cost_s for event in of(events, Numerics)[3:]} == {4.0}
    end(trainer)


@pytest.mark.usefixtures("_once")
def test_a_network_of_many_layers_does_not_flood_the_journal(tmp_path):
    deep = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        *(torch.nn.Conv2d(4, 4, 1) for _ in range(40)),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 64, 3),
    )
    events, _ = run(tmp_path, "summary", model=deep, training={"max_steps": 3})
    (event,) = of(events, Numerics)
    assert event.others == 3 * 42 - LAYERS_REPORTED
    assert len(str(to_record(event))) < 16_000


def test_the_rest_is_summed_up(tmp_path):
    model, place = network(1, Gain(1e-7))
    look = Probe(model, CPU)
    with look.hooks():
        model(torch.randn(4, 3, 24, 24))
    seen = look.seen(look.rows)
    assert place in {each.layer for each in seen}
    assert {each.part for each in seen} == {"forward"}


@pytest.mark.usefixtures("_once")
def test_a_compiled_network_is_looked_at_eagerly_and_stays_compiled(tmp_path, monkeypatch):
    trainer, events = build_trainer(config(guards={"numerics": "full"}), tmp_path, val=16)
    calls = []

    def compiled(images_BCHW):
        calls.append(1)
        return trainer.context.model.forward(images_BCHW)

    trainer.context.model._compiled_call_impl = compiled
    monkeypatch.setattr(trainer.context.parts.compiler, "active", True)
    trainer.context.parts.compiler.succeeded("training")
    trainer.train()
    (event,) = of(events, Numerics)
    assert event.eager
    assert "forward" in {layer.part for layer in event.layers}
    assert trainer.context.model._compiled_call_impl is compiled
    assert len(calls) == trainer.state.step - 1 + 4  # all steps but one, and two validations of two batches
    numerics(trainer).ask("summary")
    trainer.context.phase = "training"
    with probing(trainer):
        pass
    with probing(trainer):
        assert hooks(trainer.context.model) == 0
    end(trainer)


def test_nothing_is_looked_at_before_the_first_step_is_through(tmp_path):
    trainer, _ = build_trainer(config(guards={"numerics": "full"}), tmp_path)
    assert numerics(trainer).active
    trainer.context.phase = "compiling"
    for _ in range(3):
        with probing(trainer):
            assert hooks(trainer.context.model) == 0
    end(trainer)
