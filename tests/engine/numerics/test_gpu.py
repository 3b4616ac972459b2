"""The numerics monitor on a GPU: no probed step waits for the device, and counts equal the CPU's."""

import pytest
import torch

from mptui.engine import spectrum
from mptui.engine.numerics import Probe
from mptui.engine.reporting.step_time import HostCopy
from tests.engine.numerics.networks import network
from tests.engine.numerics.rows import values

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_counts_are_those_of_the_cpu(dtype):
    tensor = values(0, dtype)
    rows = [spectrum.new_rows(1, torch.device(device)) for device in ("cpu", "cuda")]
    for row in rows:
        spectrum.add(row[0], tensor.to(row.device))
    assert torch.equal(rows[0], rows[1].cpu())


def test_two_hundred_steps_are_looked_at_without_a_sync():
    device = torch.device("cuda")
    model = network(0)[0].to(device)
    images_BCHW = torch.randn(8, 3, 24, 24, device=device)
    scaler = torch.amp.GradScaler("cuda")
    labels = torch.zeros(8, dtype=torch.int64, device=device)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(200):
            look = Probe(model, device)
            with look.hooks(), torch.autocast("cuda", dtype=torch.float16):
                loss = torch.nn.functional.cross_entropy(model(images_BCHW), labels)
            scaler.scale(loss).backward()
            look.add_weights()
            reading = HostCopy([look.rows, loss.detach()])
            model.zero_grad(set_to_none=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert reading.arrived
    rows, _ = reading
    assert look.seen(rows)
