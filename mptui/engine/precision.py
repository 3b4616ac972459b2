"""Mixed precision behind one interface: autocast, loss scaling, and parts that stay in fp32."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import override

from mptui.config.schema import GradScalerConfig
from mptui.engine.reporting.step_time import read_now
from mptui.models.layers import Forward, WrappedForward, layers_named
from mptui.registry.names import LOSS_SCALED, SIXTEEN_BIT

# Mixed precision behind one interface: the loop is the same for every number format
# ----------------------------------------------------------------------------------
# Weights, their gradients and the optimizer stay in float32 in every mode (master weights, Micikevicius et
# al. 2018, "Mixed Precision Training"). fp16 scales the loss by torch.amp.GradScaler; bf16 has float32's
# range and needs none.

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in SIXTEEN_BIT.items()}


class Precision:
    """fp32 and bf16: autocast or none, and no loss scaling."""

    scaled = False
    """Whether the loss is scaled, so that an overflowing gradient may be due to the scale."""
    floor: float | None = None
    """Lower limit of the loss scale; None without loss scaling."""
    init_scale: float | None = None
    """The loss scale that it begins with; None without loss scaling."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        # made once, not at each step: torch checks the device at each autocast that is made
        self._forward: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if name in DTYPES:
            self._forward = torch.autocast(device.type, dtype=DTYPES[name])
        self._one = torch.ones((), device=device)

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a forward pass and its loss; exit it before the backward pass, or another."""
        return self._forward

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of `loss` (0-dim) into the parameters."""
        torch.autograd.backward(loss, self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients; called once per window, before clipping."""

    def found_anywhere(self, found_inf: torch.Tensor) -> None:
        """Take over whether a gradient of any rank is not finite (0-dim float32: 1), after `unscale`."""

    def update(self, loss: torch.Tensor) -> None:
        """Update the loss scale by a window and its `loss` (0-dim); called once, after the optimizer."""

    def forget(self) -> None:
        """Reset after a window was abandoned, so that a retry can unscale again."""

    def loss_scale(self) -> torch.Tensor | None:
        """Return the loss scale, a 0-dim tensor on the device; None if the loss is not scaled."""
        return None

    def set_scale(self, scale: float) -> None:
        """Set the loss scale."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, JSON-ready."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state`."""


class ScaledPrecision(Precision):
    """fp16 with dynamic loss scaling."""

    scaled = True

    def __init__(self, device: torch.device, scaler: GradScalerConfig) -> None:
        super().__init__("fp16", device)
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=scaler.init_scale,
            growth_factor=scaler.growth_factor,
            backoff_factor=scaler.backoff_factor,
            growth_interval=scaler.growth_interval,
        )
        self.floor = self._min_scale = scaler.min_scale
        self.init_scale = scaler.init_scale
        if not self._scaler.is_enabled():
            raise RuntimeError(
                f"torch turned its GradScaler off on {device}: fp16 would train without scaling"
            )

    def backward(self, loss: torch.Tensor) -> None:
        """Accumulate the gradients of the scaled loss into the parameters."""
        torch.autograd.backward(self._scaler.scale(loss), self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, and record on the device whether one is not finite."""
        self._scaler.unscale_(optimizer)

    @override
    def found_anywhere(self, found_inf: torch.Tensor) -> None:
        """GradScaler saw the gradients of this rank's shards alone."""
        for state in self._scaler._per_optimizer_states.values():
            for found in state["found_inf_per_device"].values():
                found.copy_(found_inf)

    def update(self, loss: torch.Tensor) -> None:
        """Back off after a non-finite gradient, grow after `growth_interval` good windows.

        If the loss itself is not finite, the scale is not the cause: scale and growth tracker stay unchanged.
        The scale never falls below its floor: at 0, one finite step turns all weights NaN.
        """
        scale, tracker = self._scaler._scale, self._scaler._growth_tracker
        assert scale is not None, "the window's loss was scaled"
        assert tracker is not None, "made with the scale"
        scale_before, tracker_before = scale.clone(), tracker.clone()
        self._scaler.update()
        zero_or_nan = loss - loss
        finite = torch.eq(zero_or_nan, zero_or_nan)  # in half as many kernels as `isfinite`
        torch.where(finite, scale, scale_before, out=scale)
        torch.where(finite, tracker, tracker_before, out=tracker)
        scale.clamp_(min=self._min_scale)

    def forget(self) -> None:
        """Reset GradScaler's per-optimizer state, so that a retry can unscale again."""
        self._scaler._per_optimizer_states.clear()

    def set_scale(self, scale: float) -> None:
        """Set the loss scale, and reset the growth tracker."""
        self.load_state_dict({"scale": scale, "_growth_tracker": 0})

    def loss_scale(self) -> torch.Tensor | None:
        """Return the current scale without a sync, unlike `GradScaler.get_scale`."""
        scale = self._scaler._scale
        return self._scaler.scale(self._one) if scale is None else scale

    def state_dict(self) -> dict[str, Any]:
        """Return GradScaler's state: scale, growth tracker and its three settings. Waits for the device."""
        scaler = self._scaler
        if scaler._scale is None or scaler._growth_tracker is None:
            return scaler.state_dict()
        scale, tracker = read_now(scaler._scale, scaler._growth_tracker)
        return {
            "scale": scale,
            "growth_factor": scaler.get_growth_factor(),
            "backoff_factor": scaler.get_backoff_factor(),
            "growth_interval": scaler.get_growth_interval(),
            "_growth_tracker": int(tracker),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scale and the growth tracker; the other settings stay as configured."""
        if state:
            own = self._scaler.state_dict()
            own.update(scale=state["scale"], _growth_tracker=state["_growth_tracker"])
            self._scaler.load_state_dict(own)


def build_precision(name: str, device: torch.device, scaler: GradScalerConfig) -> Precision:
    """Build the precision called `name` ("fp32", "bf16" or "fp16") on `device`."""
    return ScaledPrecision(device, scaler) if name in LOSS_SCALED else Precision(name, device)


# A layer that computes in fp32 inside a mixed-precision network
# --------------------------------------------------------------


class Fp32Region(WrappedForward):
    """Runs one module outside autocast, on float32 inputs; its state_dict is unchanged."""

    def __init__(self, model: torch.nn.Module, name: str, device: torch.device) -> None:
        kind = device.type

        def around(inner: Forward) -> Forward:
            def in_fp32(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the module takes and gives
                with torch.autocast(kind, enabled=False):
                    return inner(
                        *(as_fp32(value) for value in inputs),
                        **{name: as_fp32(value) for name, value in named.items()},
                    )

            return in_fp32

        super().__init__(model.get_submodule(name), around)


def as_fp32(value: Any) -> Any:  # noqa: ANN401 - whatever a module takes
    """Return a 16-bit tensor in float32, and anything else as it is."""
    is_low = isinstance(value, torch.Tensor) and value.dtype in {torch.float16, torch.bfloat16}
    return value.float() if is_low else value


# Layers that are configured to compute in fp32: `precision.fp32_layers`
# ----------------------------------------------------------------------


def apply_fp32_layers(
    model: torch.nn.Module, patterns: Sequence[str], device: torch.device
) -> list[Fp32Region]:
    """Make the layers that match `patterns` compute in fp32, until the result is removed.

    Raises:
        ConfigError: A pattern matches no module.
    """
    names = layers_named(model, patterns, key="precision.fp32_layers")
    return [Fp32Region(model, name, device) for name in names]
