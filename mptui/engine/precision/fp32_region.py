"""A layer that computes in fp32 inside a mixed-precision network."""

from typing import Any

import torch

from mptui.models.wrapped_forward import Forward, WrappedForward


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
