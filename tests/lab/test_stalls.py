"""A setting that stalls now and then, measured in processes of their own."""

import os

import pytest

from mptui.lab.measure.core import Effort, Measurer
from mptui.runs.planning.plan import Request

pytestmark = pytest.mark.slow

ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = {
    "data.name": ("test", "shapes"),
    "data.image_size": ("test", 16),
    "training.batch_size": ("test", 2),
    "training.epochs": ("test", 100_000),
    "hardware.device": ("test", "cpu"),
}
NET = """
import time
import torch

class Stalls(torch.nn.Module):
    \"\"\"Sleeps 20 ms a training pass in fp32; under autocast 2 s in each 25th alone.\"\"\"

    def __init__(self, num_classes):
        super().__init__()
        self.head, self.passes = torch.nn.Linear(3, num_classes), 0

    def forward(self, images):
        if self.training:
            self.passes += 1
            if not torch.is_autocast_enabled("cpu"):
                time.sleep(0.02)
            elif self.passes % 25 == 0:
                time.sleep(2.0)
        return self.head(images.mean((2, 3)))
"""


def test_a_setting_that_stalls_now_and_then_is_slower_and_not_faster(tmp_path, monkeypatch):
    (tmp_path / "stalling.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    flags = {**SMALL, "model.name": ("test", "stalling:Stalls"), "data.samples": ("test", 800)}
    request = Request(None, flags, (), ENVIRON, trust_code=True)
    with Measurer(ENVIRON) as lab:
        plain, rarely = (
            lab.measure(request, {"precision.mode": mode}, Effort(2.0)) for mode in ("fp32", "bf16")
        )

    # 25 passes sleep 0.5 s in fp32, and 2 s under autocast; most steps under autocast are the faster ones
    assert rarely.samples_per_second < plain.samples_per_second
