"""Mixed precision as an object: the loop asks it for a context and a backward, never which one it is.

Weights, their gradients and the optimizer stay in float32 in every mode (master weights, Micikevicius et
al. 2018, "Mixed Precision Training"). fp16 scales the loss by torch.amp.GradScaler; bf16 has float32's range
and needs none.
"""

import contextlib
from typing import Any

import torch

from mptui.config.precisions import LOSS_SCALED, SIXTEEN_BIT
from mptui.config.schema import GradScalerConfig

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in SIXTEEN_BIT.items()}


class Precision:
    """fp32 and bf16: autocast or none, and no loss scaling."""

    scaled = False
    """Whether the loss is scaled, so that a gradient beyond the range may be the scale's doing."""
    floor: float | None = None
    """What the scale never falls below; None where there is none."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self._device = device
        self._dtype = DTYPES.get(name)
        self._one = torch.ones((), device=device)  # made once, not at each backward

    def forward_context(self) -> contextlib.AbstractContextManager[Any]:
        """The context of one forward and its loss; left before anything touches the weights."""
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss` (0-dim) to the parameters'."""
        torch.autograd.backward(loss, self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradients to their true size: once a window, before clipping."""

    def update(self, loss: torch.Tensor) -> None:
        """Learn from the window that ended, whose loss was `loss` (0-dim); once, after the optimizer."""

    def forget(self) -> None:
        """A window was given up after it was unscaled, and comes again."""

    def loss_scale(self) -> torch.Tensor | None:
        """The current loss scale, a 0-dim tensor on the device; None where the loss is not scaled."""
        return None

    def set_scale(self, scale: float) -> None:
        """Go on with another loss scale."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, JSON-ready."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""


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
        if not self._scaler.is_enabled():
            raise RuntimeError(
                f"torch turned its GradScaler off on {device}: fp16 would train without scaling"
            )

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of the scaled loss, in float16 range, to the parameters'."""
        torch.autograd.backward(self._scaler.scale(loss), self._one)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, noting on the device whether one is not finite."""
        self._scaler.unscale_(optimizer)

    def update(self, loss: torch.Tensor) -> None:
        """Back off after a non-finite gradient, grow after `growth_interval` good windows.

        Where the loss itself is not finite no scale would have helped: then nothing changes, as if the window
        had never been. And the scale keeps its floor: at 0, one clean step turns all weights NaN.
        """
        scale, tracker = self._scaler._scale, self._scaler._growth_tracker
        assert scale is not None, "the window's loss was scaled"
        assert tracker is not None, "made with the scale"
        scale_before, tracker_before = scale.clone(), tracker.clone()
        self._scaler.update()
        finite = torch.isfinite(loss)
        torch.where(finite, scale, scale_before, out=scale)
        torch.where(finite, tracker, tracker_before, out=tracker)
        scale.clamp_(min=self._min_scale)

    def forget(self) -> None:
        """Let the same optimizer be unscaled again."""
        self._scaler._per_optimizer_states.clear()

    def set_scale(self, scale: float) -> None:
        """Go on with another loss scale, and count good windows anew."""
        self.load_state_dict({"scale": scale, "_growth_tracker": 0})

    def loss_scale(self) -> torch.Tensor | None:
        """The current scale; `GradScaler.get_scale` would sync."""
        return self._scaler.scale(self._one)

    def state_dict(self) -> dict[str, Any]:
        """GradScaler's own state: scale, growth tracker and the four numbers."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the scale and the growth tracker; the four numbers stay the configuration's."""
        if state:
            own = self._scaler.state_dict()
            own.update(scale=state["scale"], _growth_tracker=state["_growth_tracker"])
            self._scaler.load_state_dict(own)


def build_precision(name: str, device: torch.device, scaler: GradScalerConfig) -> Precision:
    """The precision called `name` ("fp32", "bf16" or "fp16") on `device`."""
    return ScaledPrecision(device, scaler) if name in LOSS_SCALED else Precision(name, device)
