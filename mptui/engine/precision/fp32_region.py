"""A layer that computes in fp32 inside a mixed-precision network."""

from typing import Any

import torch


class Fp32Region:
    """Runs one module outside autocast, on float32 inputs; its state_dict is unchanged."""

    def __init__(self, model: torch.nn.Module, name: str, device: torch.device) -> None:
        self._module = model.get_submodule(name)
        inner, kind = self._module.forward, device.type

        def in_fp32(*inputs: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the module takes and gives
            with torch.autocast(kind, enabled=False):
                return inner(
                    *(_in_fp32(value) for value in inputs),
                    **{name: _in_fp32(value) for name, value in named.items()},
                )

        self._module.forward = in_fp32

    def remove(self) -> None:
        """Restore the module's original forward."""
        # the class's own forward remains; a layer can be wrapped twice, by settings and by a fallback
        vars(self._module).pop("forward", None)


def _in_fp32(value: Any) -> Any:  # noqa: ANN401 - whatever the module takes
    is_low = isinstance(value, torch.Tensor) and value.dtype in {torch.float16, torch.bfloat16}
    return value.float() if is_low else value
