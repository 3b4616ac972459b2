"""`mptui learn`: what autocast costs in casts between the formats."""

import json

import torch

from mptui.cli.main import _exit_code
from mptui.config.schema import ModelConfig
from mptui.models.zoo import build
from tests.made.json_documents import checked

PRODUCTS = torch.nn.Conv2d | torch.nn.ConvTranspose2d | torch.nn.Linear
IMAGES, LOGITS = 1, 1
UNET = ("--set", "model.name=unet", "--set", "model.width=4", "--set", "model.depth=1")


def test_autocast_casts_the_images_each_weight_of_a_product_and_what_the_loss_is_of(capsys):
    network = build(ModelConfig(name="unet", width=4, depth=1), num_classes=10, task="segmentation", side=32)
    products = [layer for layer in network.modules() if isinstance(layer, PRODUCTS)]
    weights = sum(len(list(layer.parameters(recurse=False))) for layer in products)
    command = ["learn", "autocast", "--rules", "cpu", "--precision", "bf16", *UNET]
    assert _exit_code([*command, "--json"], debug=False) == 0
    found = checked("learn", json.loads(capsys.readouterr().out))["exercises"]["autocast"]
    assert found["casts"] == IMAGES + weights + LOGITS
    assert _exit_code(command, debug=False) == 0
    assert f"{found['casts']} casts between the formats" in capsys.readouterr().out
