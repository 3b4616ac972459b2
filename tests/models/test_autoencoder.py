"""The VAE: its outputs, and the folder that diffusers reads and writes too."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mptui.errors import ConfigError
from mptui.models.vae import Autoencoder, read_layout, read_vae
from mptui.models.vae_layout import CONFIG, WEIGHTS, VaeLayout

SMALL = VaeLayout.of_width(4, 2)


@pytest.fixture
def folder(tmp_path):
    """A small VAE on disk."""
    torch.manual_seed(0)
    (tmp_path / CONFIG).write_text(SMALL.as_text())
    save_file(Autoencoder(SMALL).state_dict(), tmp_path / WEIGHTS)
    return tmp_path


def edited(folder, **values):
    document = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(document | values))


def test_an_image_is_reconstructed_from_fewer_latents_and_their_divergence_is_told():
    torch.manual_seed(0)
    vae = Autoencoder(SMALL).eval()
    images_BCHW = torch.randn(2, 3, 16, 16)
    assert vae.encode(images_BCHW).shape == (2, 4, 4, 4)
    outputs_BCHW = vae(images_BCHW)
    torch.testing.assert_close(outputs_BCHW[:, :3], vae.decode(vae.encode(images_BCHW)))
    means, log_variances = vae.moments(images_BCHW).chunk(2, dim=1)
    posterior = torch.distributions.Normal(means, (0.5 * log_variances).exp())
    normal = torch.distributions.Normal(torch.zeros_like(means), torch.ones_like(means))
    nats_B = torch.distributions.kl_divergence(posterior, normal).sum((1, 2, 3))
    torch.testing.assert_close(outputs_BCHW[:, 3].mean((1, 2)) * 3 * 16 * 16, nats_B)
    vae.train()
    assert not torch.equal(vae(images_BCHW), vae(images_BCHW))  # latents are random in training


def test_latents_times_the_scaling_factor_have_a_deviation_of_one():
    vae, images_BCHW = Autoencoder(SMALL).eval(), torch.randn(8, 3, 16, 16)
    scaled = vae.encode(images_BCHW) * vae.scaling_factor(images_BCHW)
    assert scaled.std().item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("width", [1, 4, 6, 16, 48, 64, 128])
def test_any_width_has_groups_that_divide_it(width):
    assert VaeLayout.of_width(width, 3).fits


def test_a_folder_is_read_as_it_was_written(folder):
    layout = read_layout(folder)
    assert layout == SMALL
    vae, kept = read_vae(folder, layout), load_file(folder / WEIGHTS)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in vae.state_dict().items())


def test_older_names_of_the_attention_are_read(folder):
    new = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}
    state = load_file(folder / WEIGHTS)
    for now, former in new.items():
        state = {name.replace(f".{now}.", f".{former}."): tensor for name, tensor in state.items()}
    assert any(".query." in name for name in state)
    save_file(state, folder / WEIGHTS)
    read_vae(folder, SMALL)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"_class_name": "AutoencoderDC"}, "_class_name"),
        ({"down_block_types": ["AttnDownEncoderBlock2D"] * 3}, "down_block_types"),
        ({"block_out_channels": [4, 8]}, "fit together"),
        ({"norm_num_groups": 3}, "fit together"),
        ({"scaling_factor": 0}, "scaling_factor"),
        ({"latent_channels": 10**9}, "latent_channels"),
    ],
)
def test_another_network_is_refused_by_its_configuration(folder, values, said):
    edited(folder, **values)
    with pytest.raises(ConfigError, match=said):
        read_layout(folder)


def test_what_is_not_there_or_not_safe_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        read_layout(folder / "nothing")
    (folder / "run.toml").write_text("")
    (folder / CONFIG).rename(folder / "kept")
    with pytest.raises(ConfigError) as caught:
        read_layout(folder)
    assert "--format diffusers" in caught.value.hint
    (folder / CONFIG).write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        read_layout(folder)
    (folder / WEIGHTS).rename(folder / "diffusion_pytorch_model.bin")
    with pytest.raises(ConfigError, match="could run code"):
        read_vae(folder, SMALL)


@pytest.mark.parametrize("fault", ["damaged", "other", "nan"])
def test_wrong_weights_are_refused(folder, fault):
    state = load_file(folder / WEIGHTS)
    if fault == "damaged":
        (folder / WEIGHTS).write_bytes(b"\0" * 100)
    else:
        name = next(iter(state))
        state[name] = state[name][:1].clone() if fault == "other" else torch.full_like(state[name], torch.nan)
        save_file(state, folder / WEIGHTS)
    said = {"damaged": "cannot read", "other": "another network", "nan": "not finite"}[fault]
    with pytest.raises(ConfigError, match=said):
        read_vae(folder, SMALL)
