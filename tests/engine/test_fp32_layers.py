"""Configured fp32 layers inside a network of lower precision."""

from dataclasses import replace

import pytest
import torch

from mptui.engine.guards.divergence import NanGuard
from mptui.errors import ConfigError
from mptui.models.layers import layers_named
from tests.engine.small import build_trainer, config, end, small_net


def dtypes(trainer) -> dict[str, torch.dtype]:
    """Return the dtype of each layer's output, in the precision of the run."""
    found: dict[str, torch.dtype] = {}
    handles = [
        module.register_forward_hook(lambda _m, _i, output, name=name: found.__setitem__(name, output.dtype))
        for name, module in trainer.context.model.named_children()
    ]
    with trainer.context.parts.precision.forward_context():
        trainer.context.model(torch.randn(2, 3, 8, 8))
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_layers_named_compute_in_fp32_and_the_others_do_not(tmp_path, precision):
    run = config(precision={"fp32_layers": ["3"]})
    trainer, _ = build_trainer(run, tmp_path, precision=precision)
    low = torch.bfloat16 if precision == "bf16" else torch.float16
    found = dtypes(trainer)
    assert (found["0"], found["3"], found["7"]) == (low, torch.float32, low)
    trainer.train()
    end(trainer)


def test_another_profile_takes_its_own_fp32_layers(tmp_path):
    trainer, _ = build_trainer(config(precision={"fp32_layers": ["3"]}), tmp_path, precision="bf16")
    other, _ = build_trainer(config(precision={"fp32_layers": ["7"]}), tmp_path, precision="bf16")
    trainer.context.take_job(replace(trainer.context.job, config=other.context.job.config))
    found = dtypes(trainer)
    assert (found["3"], found["7"]) == (torch.bfloat16, torch.float32)
    assert set(trainer.context.model.state_dict()) == set(small_net().state_dict())
    end(trainer)
    end(other)


def test_settings_that_could_not_be_had_leave_the_layers_as_they_were(tmp_path):
    trainer, _ = build_trainer(config(precision={"fp32_layers": ["3"]}), tmp_path, precision="bf16")
    before = trainer.context.job
    ends_late = {"precision": {"fp32_layers": ["7"]}, "memory": {"activation_checkpointing": True}}
    for asked in ({"precision": {"fp32_layers": ["none"]}}, ends_late):
        with pytest.raises(ConfigError):
            trainer.context.take_job(replace(before, config=config(**asked)))
        trainer.context.take_job(before)
        found = dtypes(trainer)
        assert (found["3"], found["7"]) == (torch.float32, torch.bfloat16)
    end(trainer)


def test_a_layer_that_a_repair_put_in_fp32_stays_so_when_another_preset_no_longer_names_it(tmp_path):
    trainer, _ = build_trainer(config(precision={"fp32_layers": ["3"]}), tmp_path, precision="bf16")
    guard = trainer.context.hooks["nan"]
    assert isinstance(guard, NanGuard)
    guard._fallbacks.fp32_layers.append("3")
    guard._apply_fp32_layers()
    for _ in range(2):
        trainer.context.take_job(replace(trainer.context.job, config=config()))
        assert dtypes(trainer)["3"] == torch.float32
    end(trainer)


def test_patterns_name_modules_the_outer_ones_for_their_inner_ones():
    model = torch.nn.ModuleDict({"a": small_net(), "b": small_net()})
    assert layers_named(model, ["a", "a.3", "b.*"], key="precision.fp32_layers") == [
        "a",
        *(f"b.{n}" for n in range(8)),
    ]
    assert layers_named(model, [], key="precision.fp32_layers") == []


def test_a_name_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r'no layer "b\.33"') as error:
        layers_named(torch.nn.ModuleDict({"b": small_net()}), ["b.33"], key="precision.fp32_layers")
    assert "b.3" in error.value.hint
