"""Small trained runs, with an EMA: a classifier of pictures in folders, a segmenter, a diffusion model."""

import pytest

from mptui.lab.use.export import SETTINGS, ExportRequest, export_run
from mptui.lab.use.trained import open_trained
from tests.lab.use.runs import GENERATOR, class_pictures, train


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder with pictures of three classes."""
    return class_pictures(tmp_path_factory.mktemp("pictures"), {"blue": 8, "green": 8, "red": 8})


@pytest.fixture(scope="session")
def classifier(tmp_path_factory, pictures):
    """A run on `pictures`."""
    settings = {"model.name": "small_cnn", "data.name": "none", "data.path": str(pictures)}
    return train(tmp_path_factory.mktemp("runs") / "classifier", settings)


@pytest.fixture(scope="session")
def segmenter(tmp_path_factory):
    """A run on the built-in shapes."""
    settings = {"model.name": "unet", "model.width": 4, "model.depth": 2}
    return train(tmp_path_factory.mktemp("runs") / "segmenter", settings)


@pytest.fixture(scope="session")
def generator(tmp_path_factory):
    """A diffusion model of the built-in shapes, which has hardly learnt."""
    return train(tmp_path_factory.mktemp("runs") / "generator", GENERATOR)


@pytest.fixture(scope="session")
def vae(tmp_path_factory, pictures):
    """A VAE of `pictures`, which has hardly learnt: latents of 4 px for images of 8."""
    settings = {
        "model.name": "vae",
        "model.width": 4,
        "model.depth": 1,
        "data.name": "none",
        "data.path": str(pictures),
        "data.image_size": 8,
        "training.optimizer": "adamw",
        "training.lr": 2e-3,
        "guards.check_batches": True,
    }
    return train(tmp_path_factory.mktemp("runs") / "vae", settings)


@pytest.fixture(scope="session")
def vae_folder(vae, tmp_path_factory):
    """The exported VAE."""
    trained = open_trained(vae, None, dict(SETTINGS), note=lambda text: None)
    request = ExportRequest(
        format="diffusers", folder=tmp_path_factory.mktemp("vae"), data={}, images=1, licence=None
    )
    done = export_run(trained, request, on_progress=lambda *_: None, note=lambda text: None)
    return done.file.parent


@pytest.fixture(scope="session")
def latent_generator(vae_folder, pictures, tmp_path_factory):
    """A diffusion model of the latents of `pictures`, which has hardly learnt."""
    settings = {
        "model.name": "latent_diffusion",
        "model.vae": str(vae_folder),
        "model.width": 8,
        "model.depth": 1,
        "data.name": "none",
        "data.path": str(pictures),
        "data.image_size": 8,
        "training.optimizer": "adamw",
        "training.lr": 1e-3,
        "training.noise_schedule": "linear",
        "sampling.count": 2,
        "sampling.steps": 3,
    }
    return train(tmp_path_factory.mktemp("runs") / "latent", settings)


@pytest.fixture(scope="session")
def class_generator(tmp_path_factory, pictures):
    """A diffusion model of the classes of `pictures`, which has hardly learnt."""
    settings = class_generator_settings(pictures, epochs=1)
    return train(tmp_path_factory.mktemp("runs") / "class_generator", settings)


@pytest.fixture(scope="session")
def learnt_class_generator(tmp_path_factory, pictures):
    """A diffusion model of the classes of `pictures`, which differ in colour."""
    settings = class_generator_settings(pictures, epochs=60)
    return train(tmp_path_factory.mktemp("runs") / "learnt_class_generator", settings)


def class_generator_settings(pictures, epochs):
    """Return the settings of a diffusion model of classes."""
    return {
        "model.name": "diffusion_unet",
        "model.width": 8,
        "model.depth": 1,
        "model.class_conditional": True,
        "data.name": "none",
        "data.path": str(pictures),
        "data.image_size": 8,
        "training.batch_size": 4,
        "training.epochs": epochs,
        "training.optimizer": "adamw",
        "training.lr": 6e-3,
        "training.lr_scaling": "off",
        "training.warmup_epochs": 0.0,
        "training.prediction": "v",
        "sampling.count": 0,
    }
