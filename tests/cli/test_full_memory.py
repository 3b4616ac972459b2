"""Full memory in any command is a line with a remedy and the exit code of its own, not a traceback."""

import pytest
import torch

from mptui.cli.main import _exit_code
from mptui.runs.planning import plan


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "mptui: CUDA out of memory.",
        ),
        (RuntimeError("CUDA error: out of memory\nCompile with"), "mptui: CUDA error: out of memory\n"),
        (MemoryError(), "mptui: out of host memory"),
    ],
)
@pytest.mark.parametrize("command", ["bench", "check-amp", "memory"])
def test_full_memory_is_a_line_with_a_remedy(monkeypatch, capsys, command, error, line):
    def find_machine(with_torch):
        raise error

    monkeypatch.setattr(plan, "find_machine", find_machine)
    assert _exit_code([command, "--model", "resnet18", "--data", "shapes"], debug=False) == 5
    told = capsys.readouterr().err
    assert line in told
    assert "Traceback" not in told


def test_other_errors_keep_their_traceback(monkeypatch):
    def find_machine(with_torch):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(plan, "find_machine", find_machine)
    with pytest.raises(RuntimeError, match="device-side assert"):
        _exit_code(["bench", "--model", "resnet18", "--data", "shapes"], debug=False)
