"""Latent diffusion from nothing: a VAE is trained and exported, and a network learns its latents."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mptui.data.noise import Noising
from mptui.errors import ConfigError, DataError
from mptui.lab.use.evaluate import evaluate_run
from mptui.lab.use.export import SETTINGS, ExportRequest, export_run
from mptui.lab.use.sample import GenerationRequest, make_images
from mptui.lab.use.trained import open_trained
from mptui.models.vae_layout import CONFIG
from mptui.runs.planning.build import LoaderMaker
from mptui.runs.store.directory import read_summary


def nothing(*_):
    pass


def batches(trained, data, **changes):
    config = trained.config.model_copy(update={"data": trained.config.data.model_copy(update=changes)})
    plan = replace(trained.plan, resolved=replace(trained.plan.resolved, config=config))
    with LoaderMaker(plan, data, nothing, nothing, nothing).make(data.val, train=False) as loader:
        return [batch for window in loader.windows(0, 1) for batch in window]


def test_the_network_learns_noisy_latents_which_are_computed_once(latent_generator):
    trained = open_trained(latent_generator, note=nothing)
    data = evaluate_run(trained, {}, listed=0, on_progress=nothing, note=nothing)
    assert data.recorded == pytest.approx(data.result.metrics | {"val_loss": data.result.loss}, rel=1e-4)
    resident, streamed = (batches(trained, data.data.dataset, cache=cache) for cache in ("device", "off"))
    for one, other in zip(resident, streamed, strict=True):
        assert one.images_BCHW.shape[1:] == one.targets.shape[1:] == (4, 4, 4)
        assert one.images_BCHW.dtype == torch.float32
        torch.testing.assert_close(one.images_BCHW, other.images_BCHW)
    assert read_summary(latent_generator)["final"]["r2"] < 1


def test_images_are_decoded_and_the_same_to_the_bit(latent_generator, tmp_path):
    assert list((latent_generator / "samples").iterdir())  # grids of the run
    made = []
    for count in (3, 1):
        trained = open_trained(latent_generator, note=nothing)
        request = GenerationRequest(
            folder=tmp_path / str(count), count=count, steps=3, seed=0, method="ancestral"
        )
        files = make_images(trained, request, on_progress=nothing, note=nothing).files
        made.append([np.asarray(Image.open(path)) for path in files])
    assert made[0][0].shape == (8, 8, 3)
    assert np.array_equal(made[0][0], made[1][0])
    assert not np.array_equal(made[0][0], made[0][1])


def test_an_export_says_what_its_input_is(latent_generator, tmp_path):
    trained = open_trained(latent_generator, None, dict(SETTINGS), note=nothing)
    request = ExportRequest(format="safetensors", folder=tmp_path, data={}, images=3, licence=None)
    done = export_run(trained, request, on_progress=nothing, note=nothing)
    assert done.agreement.close
    assert "latents" in done.card.read_text()


def test_latents_that_are_not_finite_are_refused_with_a_file(latent_generator, monkeypatch):
    trained = open_trained(latent_generator, note=nothing)
    data = evaluate_run(trained, {}, listed=0, on_progress=nothing, note=nothing).data.dataset
    vae = Noising.of(trained.config, 0, torch.device("cpu")).vae
    assert vae is not None
    monkeypatch.setattr(
        vae._vae, "encode", lambda images_BCHW: torch.full((len(images_BCHW), 4, 4, 4), torch.inf)
    )
    with pytest.raises(DataError, match=r"not finite for \d+ of \d+ images: .*\.png"):
        batches(trained, data, cache="device")


def test_no_other_vae_takes_the_place_of_the_one_that_was_learnt_with(latent_generator, vae_folder, tmp_path):
    kept = (vae_folder / CONFIG).read_text()
    trained = open_trained(latent_generator, note=nothing)
    request = GenerationRequest(folder=tmp_path, count=1, steps=1, seed=0, method="ddim")
    try:
        (vae_folder / CONFIG).write_text(json.dumps(json.loads(kept) | {"scaling_factor": 1.0}))
        with pytest.raises(ConfigError, match="not the VAE that this run began with"):
            make_images(trained, request, on_progress=nothing, note=nothing)
    finally:
        (vae_folder / CONFIG).write_text(kept)
