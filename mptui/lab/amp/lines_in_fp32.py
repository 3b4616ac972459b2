"""Tries a remedy for operations outside of layers: lines of the person's code that compute in fp32."""

from collections.abc import Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from mptui.engine.precision.fp32_region import as_fp32
from mptui.registry.own_code import running_line


class LinesInFp32(TorchFunctionMode):
    """Runs the operations of some lines outside autocast, on float32 inputs.

    Args:
        lines: The lines, as `running_line` gives them.
        device: The device of the passes.
    """

    def __init__(self, lines: Collection[str], device: torch.device) -> None:
        super().__init__()
        self._lines, self._device = lines, device

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - a function of torch
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever it gives
        if running_line() not in self._lines:
            return func(*args, **(kwargs or {}))
        with torch.autocast(self._device.type, enabled=False):
            return func(*tree_map(as_fp32, args), **tree_map(as_fp32, kwargs or {}))
