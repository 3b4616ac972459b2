"""Warnings of libraries in the terminal."""

import pytest

from tests.program import run_to_end

_CODE = """
import numpy, torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        numpy.float32(1) / numpy.float32(0)
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, num_classes))

    def forward(self, images):
        return self.layers(images)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_warning_of_numpy_is_one_line_without_its_source(tmp_path, ranks):
    (tmp_path / "noisy.py").write_text(_CODE)
    words = ("run", "--model", "noisy:Net", "--task", "classification", "--trust-code", "--device", "cpu")
    sets = ("data.image_size=16", "data.resize=16", "training.batch_size=8", "training.max_steps=1")
    kind = ("--workers", "0", "--nproc-per-node", str(ranks))
    ended = run_to_end(*words, *kind, *(w for s in sets for w in ("--set", s)), folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    logs = [log.read_text() for log in tmp_path.glob("runs/*/ranks/*.log")]  # of several, each has its own
    assert len(logs) == (ranks if ranks > 1 else 0)
    for told in logs or [ended.stderr]:
        assert "mptui: RuntimeWarning: divide by zero encountered" in told
    for told in (*logs, ended.stderr):
        assert "noisy.py:" not in told
        assert "numpy.float32(1) /" not in told
