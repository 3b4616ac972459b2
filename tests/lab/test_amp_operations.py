"""`check-amp` on a person's network: operations that don't follow autocast, with the person's line.

The examples are those of docs/custom_operations.md.
"""

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from mptui.engine.mailbox import Mailbox
from mptui.lab.measure.amp import check
from tests.made.runs import UNET, plan_of

PAGE = Path(__file__).parents[2] / "docs" / "custom_operations.md"

CASTS = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4, num_classes)

    def forward(self, images):
        features = self.body(images).half()
        with torch.autocast(images.device.type, enabled=False):
            features = features.float() @ torch.eye(4)
        features = features * torch.from_numpy(np.ones(4))
        return self.head(features.to(torch.float32))
"""

OWN_OPERATIONS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, num_classes)

    def forward(self, images):
        features = torch.relu(self.body(images)).flatten(2)
"""
PRODUCT = """\
        energy = (100 * features) @ (100 * features).transpose(1, 2)
        return self.head(energy.float().mean(2) / 2e7)
"""
SUM = """\
        total = torch.zeros_like(features[..., 0])
        for column in features.unbind(2):
            total = total + column
        return self.head(total / features.shape[2])
"""


def block(title):
    """Return the code of the page below a title."""
    after = PAGE.read_text().split(f"    # {title}\n")[1].splitlines()
    lines = []
    for line in after:
        if line and not line.startswith("    "):
            break
        lines.append(line)
    return f"# {title}\n{textwrap.dedent(chr(10).join(lines))}"


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Return the report on the class `Net` of some code."""
    monkeypatch.chdir(tmp_path)

    def report(code, name, side=16):
        (tmp_path / f"{name}.py").write_text(code)
        settings = {
            "model.name": f"{name}:Net",
            "data.name": "shapes",
            "data.samples": 8,
            "data.image_size": side,
            "training.batch_size": 8,
            "hardware.device": "cpu",
        }
        return check(plan_of(settings, None, trust_code=True), 1, Mailbox())

    return report


def lines_of(report, kind):
    return [finding.line.split(": ", 1)[1] for finding in report.operations if finding.kind == kind]


def test_the_function_of_the_page_is_refused_with_its_line_and_its_corrected_form_is_not(checked):
    wrong = block("mine/net.py")
    report = checked(wrong, "wrong_net")
    bf16 = report.checked["bf16"]
    assert not bf16.safe
    assert bf16.why.startswith("wrong_net.py:14: RuntimeError: expected m1 and m2 to have the same dtype")
    assert lines_of(report, "refuses") == ["return grad @ weight, grad.t() @ x"]
    assert lines_of(report, "no rule") == ["def forward(ctx, x, weight):"]
    assert {finding.precisions for finding in report.operations} == {("bf16", "fp16")}

    report = checked(wrong + block("mine/net.py, corrected"), "right_net")
    assert report.operations == []
    assert report.checked["bf16"].safe
    assert report.checked["fp16"].safe


def test_the_corrected_functions_compute_what_torch_does():
    names: dict[str, Any] = {"torch": torch}
    exec(block("mine/net.py, corrected"), names)
    product, energy = names["Product"].apply, names["Energy"].apply
    x, weight = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((5, 8), (3, 8)))
    assert torch.autograd.gradcheck(product, (x, weight))
    assert torch.autograd.gradcheck(energy, (x,))
    x = torch.full((2, 4), 12.0, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        told = energy(x.half())
        assert product(x, torch.eye(4)).dtype == torch.float16
    assert told.dtype == torch.float32
    assert torch.allclose(told, x.logsumexp(dim=1, keepdim=True))


def test_casts_and_products_in_another_dtype_are_named(checked):
    report = checked(CASTS, "casting_net")
    casts = [finding.what for finding in report.operations if finding.kind == "cast"]
    assert casts == ["casts to float16 by itself", "casts to float32 by itself", "casts to float32 by itself"]
    assert [finding.what for finding in report.operations if finding.kind == "dtype"] == [
        "mm computes in float32, where autocast would use bfloat16",
        "mul computes in float64",
        "mm computes in float32, where autocast would use float16",
    ]
    assert lines_of(report, "cast")[0] == "features = self.body(images).half()"


def test_a_kernel_without_an_autocast_rule_is_named_until_it_has_one(checked):
    net = CASTS.split("    def forward")[0]
    net += """    def forward(self, images):
        return torch.ops.mine.shrink(self.head(self.body(images)), torch.tensor(0.1, device=images.device))
"""
    kernel, rule = block("mine/kernel.py").split("for device in")
    kernel += "shrink.register_autograd(lambda ctx, grad: (grad, None))\n"
    report = checked(kernel + net, "kernel_net")
    (finding,) = report.operations
    assert finding.kind == "no rule"
    assert finding.what.startswith("mine::shrink has no autocast rule")
    assert finding.what.endswith("gets mixed dtypes")

    exec("import torch\nfor device in" + rule)
    report = checked(net, "ruled_net")
    assert report.operations == []


def test_an_operation_of_the_network_itself_is_named_with_its_line_and_with_what_was_tried(checked):
    """A product runs in 16 bits whatever its inputs are: no layer in fp32 mends it."""
    fp16 = checked(OWN_OPERATIONS + PRODUCT, "product_net").checked["fp16"]
    assert not fp16.safe
    line = "energy = (100 * features) @ (100 * features).transpose(1, 2)"
    place = f"bmm of the network in the forward pass (product_net.py:13 in forward: {line})"
    assert f"no layer in fp32 mends it; the first operation that differs: {place}; " in fp16.why
    assert "it is safe with that line in fp32" in fp16.why

    mended = f'with torch.autocast("cpu", enabled=False): {line.replace("features)", "features.float())")}'
    assert checked(OWN_OPERATIONS + PRODUCT.replace(line, mended), "mended_net").checked["fp16"].safe


def test_an_operation_of_the_network_itself_is_mended_by_the_layer_that_it_takes_values_of(checked):
    bf16 = checked(OWN_OPERATIONS + SUM, "sum_net", side=28).checked["bf16"]
    assert bf16.safe
    assert bf16.fp32_layers == ["body"]


@pytest.mark.slow
def test_networks_of_mptui_have_no_findings(checked):
    assert check(plan_of(UNET | {"model.depth": 2, "data.samples": 8}, None), 1, Mailbox()).operations == []
