"""The cockpit of a mixed-precision training run.

`train` and `resume` are for Python programs (`docs/python.md`); they are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptui.api import TrainedRun, resume, train

__version__ = "0.1.0"
__all__ = ["TrainedRun", "__version__", "resume", "train"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - of whatever type the public name has
    if name in __all__:
        return getattr(importlib.import_module("mptui.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
