"""Random weights in the caches of torchvision and of Hugging Face, under the names of published ones."""

import torch

from mptui.models import zoo

NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
"""A proxy that refuses: real errors, and no access to a network."""


def own_caches(monkeypatch, folder):
    """Put the caches into an empty folder, out of reach of any network."""
    monkeypatch.setenv("TORCH_HOME", str(folder / "torch"))
    for name, value in NO_NETWORK.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(name.upper(), value)


def load(model, config, side):
    """Load `model.weights` as a run does; return the warnings."""
    path = zoo.weights_file(config)
    assert path is not None
    return zoo.load_weights_of(model, config, path, side)


def publish(config, state):
    """Save `state` as the published weights of the network of `config`."""
    place = zoo.pretrained(config).file.place
    place.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, place)
    return place
