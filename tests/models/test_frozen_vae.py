"""A frozen VAE computes in float32 whatever surrounds it, and in 16 bits only where that is as good."""

import pytest
import torch
from safetensors.torch import save_file

from mptui.config.schema import ModelConfig
from mptui.errors import ConfigError
from mptui.models.latents import FrozenVae, open_vae, vae_bytes
from mptui.models.vae import Autoencoder
from mptui.models.vae_layout import CONFIG, WEIGHTS, VaeLayout, digest

LAYOUT = VaeLayout.of_width(4, 2).model_copy(update={"scaling_factor": 0.5, "shift_factor": 0.25})
CPU = torch.device("cpu")


class Loud(torch.nn.Module):
    """A VAE of one latent for a pixel, whose activations are `gain` times as large."""

    def __init__(self, gain):
        super().__init__()
        self.gain, self.seen = gain, []
        self.inner, self.outer = torch.nn.Conv2d(3, 4, 1, bias=False), torch.nn.Conv2d(4, 3, 1, bias=False)
        for conv in (self.inner, self.outer):
            torch.nn.init.ones_(conv.weight)

    def encode(self, images_BCHW):
        loud = self.inner(images_BCHW * self.gain)
        self.seen.append(loud.dtype)
        return loud / self.gain

    def decode(self, latents_BCHW):
        loud = self.outer(latents_BCHW * self.gain)
        self.seen.append(loud.dtype)
        return loud / self.gain


@pytest.mark.parametrize("outer", [torch.float16, torch.bfloat16])
def test_activations_of_a_million_are_finite_inside_autocast(outer):
    loud = Loud(1e6)
    vae, images_BCHW = FrozenVae(loud, LAYOUT), torch.rand(3, 3, 8, 8)
    with torch.autocast("cpu", outer):
        assert loud.inner(images_BCHW).dtype == outer  # it is in force
        latents_BCHW = vae.encode(images_BCHW)
        again_BCHW = vae.decode(latents_BCHW)
    assert loud.seen == [torch.float32] * 2
    for found_BCHW in (latents_BCHW, again_BCHW):
        assert found_BCHW.dtype == torch.float32
        assert bool(torch.isfinite(found_BCHW).all())
        assert not found_BCHW.requires_grad
    expected = (images_BCHW.sum(1, keepdim=True).expand(-1, 4, -1, -1) - 0.25) * 0.5
    torch.testing.assert_close(latents_BCHW, expected)


def test_16_bits_are_refused_where_they_overflow_and_taken_where_they_are_close():
    images_BCHW = torch.rand(3, 3, 8, 8)
    with pytest.raises(ConfigError, match=r"vae_precision = fp16: .* not finite"):
        FrozenVae(Loud(1e6), LAYOUT, "fp16").encode(images_BCHW)
    full = FrozenVae(Loud(1.0), LAYOUT).encode(images_BCHW)
    for precision in ("fp16", "bf16"):
        vae = FrozenVae(Loud(1.0), LAYOUT, precision)
        low = vae.encode(images_BCHW)
        assert low.dtype == torch.float32
        assert not torch.equal(low, full)
        torch.testing.assert_close(low, full, rtol=0, atol=0.02)
        assert vae.decode(low).dtype == torch.float32
    coarse = LAYOUT.model_copy(update={"scaling_factor": 100.0})  # so that rounding is large
    with pytest.raises(ConfigError, match=r"vae_precision = bf16: .* differ by"):
        FrozenVae(Loud(1.0), coarse, "bf16").encode(images_BCHW)


def test_a_vae_is_read_once_for_all_who_use_it_and_again_when_it_has_changed(tmp_path):
    torch.manual_seed(0)
    (tmp_path / CONFIG).write_text(LAYOUT.as_text())
    network = Autoencoder(LAYOUT).eval()
    save_file(network.state_dict(), tmp_path / WEIGHTS)
    model = ModelConfig(vae=str(tmp_path))
    vae = open_vae(model, CPU)
    assert vae is not None
    begun = ModelConfig(vae=str(tmp_path), vae_sha256=digest(tmp_path))
    assert open_vae(begun, CPU) is vae
    assert open_vae(model, CPU) is vae
    assert open_vae(ModelConfig(), CPU) is None
    images_BCHW = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(vae.encode(images_BCHW), (network.encode(images_BCHW) - 0.25) * 0.5)
    assert vae.encode(images_BCHW).shape[1:] == vae.shape(8) == (4, 2, 2)
    assert vae_bytes(model) == sum(p.numel() * 4 for p in network.parameters())
    (tmp_path / CONFIG).write_text(VaeLayout.of_width(4, 2).as_text())
    assert open_vae(model, CPU) is not vae
    with pytest.raises(ConfigError, match="not the VAE that this run began with"):
        open_vae(begun, CPU)
