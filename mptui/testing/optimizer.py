"""What a run relies on from an optimizer, as tests; see `mptui.testing`."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from typing_extensions import override

from mptui.config.schema import GradScalerConfig, TrainingConfig
from mptui.engine.optim.fused import FusedOptimizer
from mptui.engine.optim.guarded_step import Updater
from mptui.engine.optim.optimizers import (
    OptimizerState,
    build_optimizer,
    shrink_momentum,
    supports_fused,
    take_settings,
    trained_rates,
)
from mptui.engine.precision import build_precision
from mptui.registry.optimizers import OPTIMIZERS, OptimizerSpec
from mptui.torch_private import LOCAL_SCALAR, OperatorMode

_CPU = torch.device("cpu")
_NAME = "contract"
"""The name of an entry while it is tested."""
_LR, _STEPS = 0.01, 100


class HostReads(OperatorMode):  # type: ignore[no-untyped-call]
    """Counts how often the host reads the value of a tensor, which would wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @override
    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reads = LOCAL_SCALAR, torch.ops.aten.is_nonzero, torch.ops.aten.equal
        self.count += func.overloadpacket in reads
        return func(*args, **kwargs)


class _Trained:
    """A small network that is trained by an optimizer, in channels last, with rates that rise."""

    def __init__(self, *, fused: bool, settings: Mapping[str, Any], **others: object) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, bias=False),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 12, 3, stride=2),
            torch.nn.Flatten(),
            torch.nn.Linear(48, 16),
            torch.nn.Linear(16, 5),
        ).to(memory_format=torch.channels_last)
        self.settings: dict[str, Any] = {"lr": _LR, "weight_decay": 0.1, **settings, **others}
        self.lr = torch.zeros(())
        self.optimizer = build_optimizer(self.model, self.training(), self.lr, fused=fused)
        rates = self.settings["lr"] * np.linspace(0.1, 1.0, _STEPS, dtype=np.float32)
        self.updater = Updater(
            self.model,
            self.optimizer,
            build_precision("fp32", _CPU, GradScalerConfig()),
            lr=self.lr,
            rates=lambda applied: rates[applied:],
            clip_grad_norm=None,
            average=None,
        )

    def training(self, **others: object) -> TrainingConfig:
        """Return the table [training], with some other settings."""
        return TrainingConfig.model_validate({"optimizer": _NAME, **self.settings, **others})

    def backward(self, number: int) -> torch.Tensor:
        """Compute the gradients of a batch; return its loss."""
        images = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(number))
        loss: torch.Tensor = self.model(images).square().mean()
        torch.autograd.backward(loss)
        return loss.detach()

    def step(self, number: int) -> None:
        """Take a step."""
        self.updater.step(self.backward(number))

    def step_with_bad_gradients(self, number: int) -> None:
        """Take a step in which the gradients are NaN, infinite, or too large to be squared."""
        bad = (torch.nan, torch.inf, 3e38) * 9
        hooks = [
            p.register_hook(partial(torch.full_like, fill_value=value))  # type: ignore[no-untyped-call]
            for p, value in zip(self.model.parameters(), bad, strict=False)
        ]
        self.step(number)
        for hook in hooks:
            hook.remove()

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state, as a checkpoint has it."""
        return OptimizerState(_NAME, self.model, self.optimizer).state_dict()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the optimizer's state from a checkpoint."""
        OptimizerState(_NAME, self.model, self.optimizer).load_state_dict(state)

    def bits(self) -> dict[str, bytes]:
        """Return the bits of all weights, buffers and state, by name."""
        tensors = {**self.model.state_dict(), **self.state()}
        return {
            name: tensor.detach().contiguous().numpy().tobytes()
            for name, tensor in tensors.items()
            if isinstance(tensor, torch.Tensor)
        }

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of the weights by name."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


def _other(value: object) -> object:
    """Return another value of a setting."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2
    return list(map(_other, value)) if isinstance(value, list | tuple) else value


class OptimizerContract:
    """What a run relies on from an optimizer, an entry of `OPTIMIZERS`.

    A subclass has the fixture `spec`; and `settings` if others than the defaults are to be tested. With
    `has_fused` each test tries both ways.
    """

    @pytest.fixture
    def spec(self) -> OptimizerSpec:
        """The entry."""
        raise NotImplementedError

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        """Keys of [training] and their values."""
        return {}

    @pytest.fixture
    def makers(
        self, spec: OptimizerSpec, settings: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> list[Callable[..., Any]]:
        """Each makes a small network that the optimizer trains: plain, and fused where there are two."""
        monkeypatch.setitem(OPTIMIZERS, _NAME, spec)
        assert supports_fused(_NAME, _CPU) == spec.has_fused
        return [
            partial(_Trained, fused=fused, settings=settings) for fused in (False, True)[: 1 + spec.has_fused]
        ]

    def test_a_refused_step_changes_no_bit(self, makers: list[Callable[..., _Trained]]) -> None:
        """A step whose gradients are not finite leaves no trace, the first one too."""
        for make in makers:
            one, twin = make(), make()
            for number in range(3):
                before = one.bits()
                one.step_with_bad_gradients(number)
                assert float(one.updater.found_inf) == 1.0
                assert one.bits() == before
                for each in (one, twin):
                    each.step(number)
                assert one.bits() == twin.bits() != before
            assert one.updater.position() == 3

    def test_resumed_it_goes_on_with_the_same_bits(self, makers: list[Callable[..., _Trained]]) -> None:
        """All that a later step depends on is in the tensors of its state."""
        for make in makers:
            one, resumed = make(), make()
            for number in range(3):
                one.step(number)
            resumed.model.load_state_dict(one.model.state_dict())
            resumed.restore(copy.deepcopy(one.state()))
            resumed.updater.seek(3)
            assert resumed.bits() == one.bits()
            for number in range(3, 6):
                one.step(number)
                resumed.step(number)
                assert resumed.bits() == one.bits()

    def test_a_weight_that_a_step_does_not_use_stays(self, makers: list[Callable[..., _Trained]]) -> None:
        """A part of the network without a gradient is left out, in the first step and in a later one."""
        for make in makers:
            one = make()
            for number in range(2):
                before, loss = one.weights(), one.backward(number)
                one.model.get_parameter("3.weight").grad = None
                one.updater.step(loss)
                after = one.weights()
                assert [name for name in after if torch.equal(after[name], before[name])] == ["3.weight"]
            one.step(2)
            assert not torch.equal(one.weights()["3.weight"], before["3.weight"])

    def test_each_layer_has_its_own_rate(self, makers: list[Callable[..., _Trained]]) -> None:
        """Each weight moves as with `lr_scale` times the rate, which the schedule may change at each step."""
        factors = {"layer_decay": 0.5, "head_lr_scale": 10.0}
        expected = {"0.weight": 0.125, "1.bias": 0.125, "3.weight": 0.25, "5.weight": 0.5, "6.weight": 10.0}
        for make in makers:
            start, scaled = make().weights(), make(**factors)
            scaled.step(0)
            for name, factor in expected.items():
                alone = make(lr=_LR * factor)
                alone.step(0)
                moved = scaled.weights()[name]
                assert not torch.equal(moved, start[name])
                torch.testing.assert_close(moved, alone.weights()[name], rtol=1e-6, atol=1e-7)

    def test_a_switch_of_settings_keeps_its_state_and_is_in_force(
        self, makers: list[Callable[..., _Trained]], spec: OptimizerSpec, settings: Mapping[str, Any]
    ) -> None:
        """Its groups have the keys of `settings`, and a step reads them there."""
        others = {key: _other(settings.get(key, value)) for key, value in spec.settings.items()}
        others["weight_decay"] = 0.05
        for make in makers:
            one, twin = make(), make(**others)
            one.step(0)
            before, training = one.bits(), one.training(**others)
            assert trained_rates(one.model, training) == trained_rates(one.model, one.training())  # it stays
            take_settings(one.optimizer, training)
            assert one.bits() == before
            for group in one.optimizer.param_groups:
                assert group["weight_decay"] == 0.05 * group["decays"]
                assert all(group[key] == getattr(training, key) for key in spec.settings)
            twin.model.load_state_dict(one.model.state_dict())
            twin.restore(one.state())
            twin.updater.seek(1)
            for each in (one, twin):
                each.step(1)
            assert one.bits() == twin.bits() != before

    def test_its_state_is_as_large_as_its_entry_says(
        self, makers: list[Callable[..., _Trained]], spec: OptimizerSpec
    ) -> None:
        """`state_bytes` is what the estimate of a run's memory counts; `momentum` is one of the states."""
        for make in makers:
            one = make()
            one.step(0)
            tensors = {key: each for key, each in one.state().items() if isinstance(each, torch.Tensor)}
            groups = one.optimizer.param_groups
            count = sum(p.numel() for p in one.model.parameters())
            hidden = sum(p.numel() for group in groups if group["hidden"] for p in group["params"])
            assert sum(each.nbytes for each in tensors.values() if each.ndim) == spec.state_of(count, hidden)
            if spec.momentum is not None:
                shrink_momentum(one.optimizer, _NAME, 0.0)
                of_momentum = [
                    each for key, each in one.state().items() if key.startswith(f"{spec.momentum}/")
                ]
                assert of_momentum
                assert not any(each.any() for each in of_momentum)

    def test_a_fused_step_waits_for_no_device(self, makers: list[Callable[..., _Trained]]) -> None:
        """A `FusedOptimizer` reads rate and refusal on the device; with `has_fused` there is one."""
        kinds = []
        for make in makers:
            one = make()
            kinds.append(isinstance(one.optimizer, FusedOptimizer))
            one.updater.buffers.sync = False  # as on a device, where it would have to be waited for
            loss = one.backward(0)
            with HostReads() as reads:
                one.updater.step(loss)
            assert reads.count == 0 or not kinds[-1]
        assert kinds in ([False], [True], [False, True])
