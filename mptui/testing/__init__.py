"""Tests that whoever adds an optimizer, a tracker, a format of data or a task can inherit.

Each class tests what a run relies on. A subclass in a test file of pytest gives, as fixtures, the entry of
its registry and what is particular to it; mptui's own entries are tested by the same classes
(`CONTRIBUTING.md`). To see the values in an assertion that fails, begin `conftest.py` with
`pytest.register_assert_rewrite("mptui.testing")`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mptui.testing.format import FormatContract
    from mptui.testing.optimizer import OptimizerContract
    from mptui.testing.task import TaskContract
    from mptui.testing.tracker import TrackerContract

__all__ = ["FormatContract", "OptimizerContract", "TaskContract", "TrackerContract"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class; importing them all would import torch for each
    if name in __all__:
        module = f"mptui.testing.{name.removesuffix('Contract').lower()}"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
