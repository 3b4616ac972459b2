"""The picker's estimate of the memory of each profile, for each kind of network and device."""

import pytest
from safetensors.torch import save_file

from mptui.config.profiles import list_profiles
from mptui.models.vae import Autoencoder
from mptui.models.vae_layout import CONFIG, WEIGHTS, VaeLayout
from mptui.registry.models import task_of_model
from mptui.tui.selection import Fit, Picked, Picks, every_profile, fits
from tests.hardware.machines import GIB, card, cpu

DEVICES = {"cpu": cpu("avx2"), "cuda": card("NVIDIA H200", (9, 0), 140, memory_free=100 * GIB)}
TINY = {"data.image_size": 32, "model.width": 8, "model.depth": 1, "training.batch_size": 4}
NETWORKS = {
    "small_cnn": {},
    "resnet18": {},
    "unet": {},
    "diffusion_unet": {"model.attention": [16]},
    "vae": {},
    "latent_diffusion": {"model.attention": [8]},
}


@pytest.fixture(scope="module")
def vae(tmp_path_factory):
    """The folder of a VAE of 4 channels, which halves twice."""
    folder, layout = tmp_path_factory.mktemp("vae"), VaeLayout.of_width(4, 2)
    (folder / CONFIG).write_text(layout.as_text())
    save_file(Autoencoder(layout).state_dict(), folder / WEIGHTS)
    return folder


def estimates(model, device, profiles=None, **edits):
    """Return the estimates as the picker makes them, and the profiles that are impossible by themselves."""
    profiles = profiles or list_profiles({})
    picks = Picks(Picked(profiles[0].name, DEVICES[device].torch_name, model))
    edited = {**TINY, **NETWORKS[model], **edits}
    for info in profiles:
        picks.choose(info.name)
        picks.now = Picked(info.name, picks.now.device, model, edits=edited)
    runs, faults = every_profile(profiles, picks, task_of_model(model), {})
    assert len(runs) + len(faults) == len(profiles)
    return runs, fits(runs, DEVICES[device], 1, 10, wanted=lambda: True)


# these take seconds, and differ little from the others
SLOW = {
    *((model, device) for model in ("diffusion_unet", "vae", "latent_diffusion") for device in DEVICES),
    *(("resnet18", device) for device in DEVICES),
    *(("unet", device) for device in DEVICES),
    ("small_cnn", "cpu"),
    ("small_cnn", "cuda"),
}
PROFILES = [info for info in list_profiles({}) if info.name in {"fast", "memory-limited", "debug"}]
RUNS = [
    pytest.param(model, device, None, marks=[pytest.mark.slow] if (model, device) in SLOW else [])
    for model in NETWORKS
    for device in DEVICES
]


@pytest.mark.parametrize(("model", "device", "profiles"), [("small_cnn", "cuda", PROFILES), *RUNS])
def test_each_profile_is_estimated_or_says_why_not(model, device, profiles, vae):
    latent = {"model.vae": str(vae)} if model == "latent_diffusion" else {}
    runs, found = estimates(model, device, profiles, **latent)
    assert profiles or len(list_profiles({})) >= 10
    assert runs
    assert found.keys() == runs.keys()
    counted = [fit for fit in found.values() if isinstance(fit, Fit)]
    assert len(counted) >= len(runs) - 1  # weights that there are none of
    assert all(fit.footprint.total > fit.footprint.weights > 0 for fit in counted)
    assert all(fit.words for fit in counted)


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), "cuda"])
def test_latent_diffusion_without_a_vae_says_so(device):
    runs, found = estimates("latent_diffusion", device)
    assert found.keys() == runs.keys()
    assert "no pretrained weights" in found.pop("finetune")
    assert all("model.vae" in fault for fault in found.values())
