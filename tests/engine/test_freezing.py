"""Frozen layers are unchanged to the bit, and train as others once they are thawed."""

from dataclasses import replace

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import Snapshot, read_newest
from mptui.engine.mailbox import Stopped
from mptui.engine.optim.optimizers import FrozenLayers
from mptui.errors import ConfigError
from mptui.events import EpochStarted, LayersThawed, Numerics, Step, Warned
from tests.engine.small import build_trainer, config, end, losses, of, small_net

HEAD = {"7.weight", "7.bias"}
ALL = {name for name, _ in small_net().named_parameters()}
ADAMW = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "ema_decay": 0.8, "epochs": 3}


def build(folder, model=None, **training):
    tables = {"training": ADAMW | training, "speed": {"fused": training.pop("fused", True)}}
    tables["training"].pop("fused", None)
    return build_trainer(config(**tables), folder, model=model or small_net(), train=24)


def bits(model):
    return {name: t.numpy().tobytes() for name, t in model.state_dict().items()}


def trained(trainer):
    """Return the names of the weights that the optimizer and the average have, which must agree."""
    names = {p: name for name, p in trainer.context.model.named_parameters()}
    groups = trainer.context.parts.optimizer.param_groups
    of_optimizer = {names[p] for group in groups for p in group["params"]}
    buffers = {name for name, _ in trainer.context.model.named_buffers()}
    assert of_optimizer == trainer.context.parts.average.state_dict().keys() - buffers
    assert {names[p] for p in trainer.context.parts.optimizer.state} <= of_optimizer
    return of_optimizer


@pytest.mark.parametrize(
    ("freeze", "layers", "fused"),
    [
        ("backbone", ("0.", "1.", "3."), True),
        (["0", "1"], ("0.", "1."), False),
        pytest.param("backbone", ("0.", "1.", "3."), False, marks=pytest.mark.slow),
        pytest.param(["0", "1"], ("0.", "1."), True, marks=pytest.mark.slow),
    ],
)
def test_frozen_weights_and_statistics_keep_their_bits_over_a_resume(tmp_path, freeze, layers, fused):
    before = bits(small_net())
    trainer, events = build(tmp_path, freeze=freeze, fused=fused)
    events.then = lambda event: trainer.context.mailbox.stop(None) if event.step == 5 else None
    with pytest.raises(Stopped):
        trainer.train()
    end(trainer)
    resumed, _ = build(tmp_path, freeze=freeze, fused=fused)
    snapshots.restore(resumed.state, read_newest(tmp_path)[0])
    resumed.train()
    end(resumed)
    after = bits(resumed.context.model)
    same = {name for name in before if after[name] == before[name]}
    frozen = {name for name in before if name.startswith(layers)}
    assert same == frozen
    assert trained(resumed) == ALL - frozen
    assert all(p.grad is None for name, p in resumed.context.model.named_parameters() if name in frozen)


def test_the_backbone_is_frozen_for_the_first_epochs_only(tmp_path):
    trainer, events = build(tmp_path, freeze=2)
    start, seen = bits(trainer.context.model), {}

    def look(event):
        if isinstance(event, EpochStarted):
            same = {name for name, value in bits(trainer.context.model).items() if value == start[name]}
            seen[event.epoch] = (trained(trainer), start.keys() - same)

    events.then = look
    trainer.train()
    end(trainer)
    (thawed,) = of(events, LayersThawed)
    assert (thawed.step, thawed.trained) == (6, thawed.parameters)
    assert seen == {1: (HEAD, set()), 2: (HEAD, HEAD), 3: (ALL, HEAD)}
    after = bits(trainer.context.model)
    assert all(after[name] != start[name] for name in start)


def test_adamw_counts_the_steps_of_thawed_weights_from_the_thaw(tmp_path):
    fused, plain = (build(tmp_path / str(fused), freeze=1, fused=fused) for fused in (True, False))
    for trainer, _ in (fused, plain):
        trainer.train()
        end(trainer)
    assert losses(fused[1]) == pytest.approx(losses(plain[1]), rel=1e-3)
    state = snapshots.take(fused[0].state).tensors["optimizer"]
    assert {name: int(state[f"step/{name}"]) for name in ALL} == {n: 9 if n in HEAD else 6 for n in ALL}


def test_a_run_that_goes_back_before_the_thaw_repeats_its_steps_bit_for_bit(tmp_path):
    trainer, events = build(tmp_path, freeze=1)
    taken: list[Snapshot] = []
    events.then = lambda event: (
        taken.append(snapshots.take(trainer.state)) if isinstance(event, EpochStarted) and not taken else None
    )
    trainer.train()
    first = losses(events)
    events.clear()
    snapshots.restore(trainer.state, taken[0])
    assert trained(trainer) == HEAD
    trainer.train()
    end(trainer)
    assert losses(events) == first


def test_other_settings_thaw_a_run_and_keep_the_state_of_the_head(tmp_path):
    trainer, events = build(tmp_path, freeze="backbone")

    def thaw(event):
        if isinstance(event, Step) and event.step == 7:
            job = trainer.context.job
            training = job.config.training.model_copy(update={"freeze": None, "layer_decay": 0.5})
            before = snapshots.take(trainer.state).tensors["optimizer"]
            trainer.context.take_job(
                replace(job, config=job.config.model_copy(update={"training": training}))
            )
            after = snapshots.take(trainer.state).tensors["optimizer"]
            assert all(torch.equal(after[name], value) for name, value in before.items())

    events.then = thaw
    trainer.train()
    end(trainer)
    assert trained(trainer) == ALL
    assert len(losses(events)) == 9


def test_compiled_code_is_made_anew_at_a_thaw(tmp_path):
    model, compiled = small_net(), []

    def compile_it(**_):
        compiled.append({name for name, p in model.named_parameters() if p.requires_grad})
        model._compiled_call_impl = model.forward

    model.compile = compile_it  # type: ignore[method-assign]
    run = config(training={**ADAMW, "freeze": 1}, speed={"compile": "default"})
    trainer, _ = build_trainer(run, tmp_path, model=model, force_compile=True)
    trainer.train()
    end(trainer)
    assert compiled == [HEAD, ALL]


def test_the_numerics_monitor_sees_no_gradients_of_frozen_layers(tmp_path):
    run = config(training={"freeze": "backbone"}, guards={"numerics": "full"})
    trainer, events = build_trainer(run, tmp_path)
    trainer.train()
    end(trainer)
    seen = {(layer.name, layer.part) for event in of(events, Numerics) for layer in event.layers}
    assert ("7", "weights") in seen
    assert {name for name, part in seen if part != "forward"} == {"7"}


@pytest.mark.parametrize(("freeze", "told"), [(["*"], "no weights are left"), (["layer9"], "no layer")])
def test_what_can_not_be_frozen_is_refused(freeze, told):
    with pytest.raises(ConfigError, match=told):
        FrozenLayers(small_net(), freeze)


@pytest.mark.parametrize("freeze", [None, pytest.param(["0"], marks=pytest.mark.slow), 1])
def test_parts_that_the_network_has_put_into_evaluation_mode_stay_so_and_are_named(tmp_path, freeze):
    model = small_net(dropout=0.5)
    norm = next(layer for layer in model.children() if isinstance(layer, torch.nn.BatchNorm2d))
    dropout = next(layer for layer in model.children() if isinstance(layer, torch.nn.Dropout))
    norm.eval()
    assert norm.running_mean is not None
    before = norm.running_mean.clone()
    trainer, events = build(tmp_path, model, freeze=freeze)
    trainer.train()
    end(trainer)
    assert torch.equal(norm.running_mean, before)
    assert (norm.training, dropout.training) == (False, True)
    assert [e.message for e in of(events, Warned) if e.code == "kept_in_eval"] == [
        "the network has put these parts into evaluation mode, they stay so: 1"
    ]


def test_a_network_that_is_in_evaluation_mode_as_a_whole_is_trained(tmp_path):
    model = small_net().eval()
    trainer, events = build(tmp_path, model)
    trainer.train()
    end(trainer)
    assert all(module.training for module in model.modules())
    assert not [event for event in of(events, Warned) if event.code == "kept_in_eval"]
