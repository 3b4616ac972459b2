"""Small runs and pictures for tests of trained runs."""

import numpy as np
from PIL import Image

from tests.made.runs import QUIET, trained

LIMIT_S = 300
COLOURS = {"blue": (30, 30, 220), "green": (30, 200, 40), "red": (220, 30, 30), "grey": (128, 128, 128)}
_OF_CLASSES = "training.label_smoothing"
SMALL = {
    **QUIET,
    "data.name": "shapes",
    "data.image_size": 32,
    "data.samples": 16,
    "data.workers": 0,
    "training.batch_size": 8,
    "training.epochs": 2,
    "training.lr": 0.02,
    "training.ema_decay": 0.9,
    _OF_CLASSES: 0.1,
    "logging.step_interval_s": 0,
    "hardware.device": "cpu",
    "speed.compile": "off",
}
GENERATOR = {
    "model.name": "diffusion_unet",
    "model.width": 8,
    "model.depth": 1,
    "data.image_size": 8,
    "training.epochs": 1,
    "training.optimizer": "adamw",
    "training.lr": 1e-3,
    "training.prediction": "v",
    "speed.channels_last": True,
}


def train(run, settings):
    """Train a run on the CPU to its end; return its directory."""
    asked = {**SMALL, **settings}
    if settings.get("model.name") != "small_cnn":  # the others tell no classes
        del asked[_OF_CLASSES]
    if settings.get("data.path"):
        del asked["data.samples"]
    session = trained(run, asked)
    assert session.result.exit_code == 0, session.result.bug or session.result.error
    return run


def class_pictures(folder, counts):
    """Write noisy pictures of one colour into a folder for each class."""
    rng = np.random.default_rng(0)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            noise = rng.integers(-60, 60, (36, 40, 3))
            pixels = np.clip(np.array(COLOURS[name]) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder
