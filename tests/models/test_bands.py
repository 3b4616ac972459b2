"""Networks for images of another number of bands than 3."""

from pathlib import Path

import pytest
import torch

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.layers import adapted_filters
from mptui.models.zoo import build, load_weights_of

NETWORKS = (
    ("resnet18", "classification"),
    ("vit_b_16", "classification"),
    ("swin_t", "classification"),
    ("squeezenet1_1", "classification"),
    ("convnext_tiny", "classification"),
    ("inception_v3", "classification"),
    ("unet", "segmentation"),
    ("timm/vit_tiny_patch16_224", "classification"),
    ("timm/efficientnet_b0", "classification"),
    ("timm/test_vit", "classification"),
)
QUICK = {"resnet18", "squeezenet1_1", "unet", "timm/test_vit"}


@pytest.mark.parametrize(
    ("name", "task", "bands"),
    [
        pytest.param(
            *network, bands, marks=[pytest.mark.slow] * ((number + place) % 2 or network[0] not in QUICK)
        )
        for number, network in enumerate(NETWORKS)
        for place, bands in enumerate([1, 13])
    ],
)
def test_any_network_takes_any_number_of_bands(name: str, task: str, bands: int) -> None:
    with torch.device("meta"):
        side = 96 if name == "inception_v3" else 32
        network = build(ModelConfig(name=name, width=8), num_classes=5, task=task, side=side, bands=bands)
        assert network(torch.zeros(2, bands, side, side)).shape[:2] == (2, 5)


def test_random_filters_keep_the_variance_of_their_outputs() -> None:
    torch.manual_seed(0)
    for bands in (1, 30):
        network = build(
            ModelConfig(name="squeezenet1_1"), num_classes=2, task="classification", side=32, bands=bands
        )
        usual = build(ModelConfig(name="squeezenet1_1"), num_classes=2, task="classification", side=32)
        stds = [
            n.get_submodule("features.0")(torch.randn(8, c, 32, 32)).std().detach()
            for n, c in ((network, bands), (usual, 3))
        ]
        assert abs(float(stds[0] / stds[1]) - 1) < 0.1


def test_filters_of_rgb_fit_other_bands_as_in_timm() -> None:
    from timm.models import adapt_input_conv

    weight = torch.randn(4, 3, 7, 7)
    for bands in (1, 2, 4, 13):
        torch.testing.assert_close(adapted_filters(weight, bands), adapt_input_conv(bands, weight))


def test_weights_of_rgb_are_loaded_for_other_bands(tmp_path: Path) -> None:
    how = {"num_classes": 5, "task": "classification", "side": 32}
    config = ModelConfig(name="squeezenet1_1", weights=str(tmp_path / "rgb.pth"))
    usual = build(config, **how)  # type: ignore[arg-type]
    torch.save(usual.state_dict(), tmp_path / "rgb.pth")
    network = build(config, **how, bands=4)  # type: ignore[arg-type]
    told = load_weights_of(network, config, tmp_path / "rgb.pth", 32)
    assert told == [
        "rgb.pth: features.0 is for RGB, not for 4 bands: its filters are repeated and scaled by 3/4"
    ]
    weights, expected = network.state_dict(), usual.state_dict()
    first = expected.pop("features.0.weight")
    assert torch.equal(weights["features.0.weight"], torch.cat([first, first[:, :1]], dim=1) * 0.75)
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    torch.save(network.state_dict(), tmp_path / "rgb.pth")
    again = build(config, **how, bands=4)  # type: ignore[arg-type]
    assert load_weights_of(again, config, tmp_path / "rgb.pth", 32) == []
    with pytest.raises(ConfigError, match="these are the weights of another network"):
        load_weights_of(build(config, **how, bands=5), config, tmp_path / "rgb.pth", 32)  # type: ignore[arg-type]
