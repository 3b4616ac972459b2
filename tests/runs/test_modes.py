"""The cache mode doesn't change a run: its metrics are bit-identical."""

import os
import shutil

import pytest
import tomli
from typer.testing import CliRunner

from mptui.cli.main import app
from mptui.errors import ConfigError
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run, read_summary
from tests.data.images import SHARED, photo
from tests.made.runs import QUIET

LIMIT_S = 300.0
FASHION = SHARED / "fashion-mini"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module", params=[90, 30])
def data(request, tmp_path_factory):
    """Three kinds of photos of a height, the small ones real if they are next to the repository."""
    root = tmp_path_factory.mktemp("set")
    if request.param == 30 and FASHION.is_dir():
        for half, count in (("train", 16), ("val", 6)):
            for folder in sorted((FASHION / half).iterdir())[:3]:
                (root / half / folder.name).mkdir(parents=True)
                for path in sorted(folder.iterdir())[:count]:
                    shutil.copy(path, root / half / folder.name)
        return root
    for number in range(60):
        folder = root / f"kind-{number % 3}"
        folder.mkdir(exist_ok=True)
        image = photo(200 - 50 * (number % 3), request.param, number % 3)
        image.rotate(number % 20 - 10).save(folder / f"{number}.png")
    return root


def trained(path, tmp_path, **changed):
    settings = {
        **QUIET, "model.name": "small_cnn", "data.path": str(path), "data.image_size": 32, "data.workers": 1,
        "training.batch_size": 12, "training.epochs": 2, "training.lr": 0.002, "hardware.device": "cpu",
        "precision.mode": "fp32", "speed.channels_last": True, "speed.fused": True, **changed,
    }  # fmt: skip
    plan = plan_run(Request("stable", {k: ("test", v) for k, v in settings.items()}, (), os.environ))
    run = create_run(tmp_path, "test", "small_cnn", None)
    session = Session(plan, run)
    session.start()
    assert session.wait(LIMIT_S)
    assert session.result.exit_code == 0
    return read_summary(run)["final"], tomli.loads((run / "run.toml").read_text())["data"]


@pytest.mark.parametrize(("data", "crop_scale"), [(90, [0.35, 1.0]), (30, [0.6, 1.0])], indirect=["data"])
def test_losses_and_accuracy_do_not_depend_on_the_cache_or_a_prepared_set(data, crop_scale, tmp_path):
    views = {"data.augment": ["crop", "flip", "colour"]}
    final, kept = trained(data, tmp_path, **views, **{"data.cache": "off"})
    assert (kept["resize"], kept["crop_scale"]) == (64, crop_scale)
    assert trained(data, tmp_path, **views, **{"data.cache": "device"})[0] == final
    out = tmp_path / "ready"
    asked = ["prepare", str(data), "--image-size", "32", "--lossless", "--out", str(out)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    assert trained(out, tmp_path, **views, **{"data.cache": "ram"})[0] == final


@pytest.mark.parametrize("data", [90], indirect=True)
def test_less_is_kept_where_that_is_asked_for_and_then_in_every_mode(data, tmp_path):
    settings = {"training.epochs": 1, "data.resize": 32, "data.crop_scale": [0.9, 1.0]}
    final, kept = trained(data, tmp_path, **settings, **{"data.cache": "off"})
    assert (kept["resize"], kept["crop_scale"]) == (32, [0.9, 1.0])
    assert trained(data, tmp_path, **settings, **{"data.cache": "device"})[0] == final


def planned(*sets):
    return plan_run(Request(None, {}, ("hardware.device=cpu", *sets), {})).config.data


@pytest.mark.parametrize(
    ("sets", "resize", "crop_scale"),
    [
        ((), 128, [0.35, 1.0]),
        (("data.image_size=128",), 256, [0.08, 1.0]),
        (("data.image_size=127",), 254, [0.35, 1.0]),
        (("data.image_size=128", "data.resize=200", "data.crop_scale=[0.2, 0.7]"), 200, [0.2, 0.7]),
        (("model.name=unet",), 256, [0.4, 1.0]),
        (("model.name=diffusion_unet",), 64, None),
    ],
)
def test_what_is_left_open_of_the_views_is_chosen_and_written_down(sets, resize, crop_scale):
    data = planned(*sets)
    assert (data.resize, data.crop_scale, data.crop_ratio) == (resize, crop_scale, [3 / 4, 4 / 3])


@pytest.mark.parametrize(
    ("sets", "mean", "std"),
    [
        ((), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        (("data.mean=[0.1, 0.2, 0.3]",), [0.1, 0.2, 0.3], [0.229, 0.224, 0.225]),
        (("model.name=diffusion_unet",), [0.5] * 3, [0.5] * 3),
    ],
)
def test_what_is_left_open_of_the_normalisation_is_chosen_and_written_down(sets, mean, std):
    data = planned(*sets)
    assert (data.mean, data.std) == (mean, std)


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (("data.image_size=64", "data.resize=63"), "data.resize = 63 is below data.image_size = 64"),
        (("data.crop_scale=[0.5, 0.2]",), "data.crop_scale: 0.5 is above 0.2"),
        (("data.crop_scale=[0.5, 1.5]",), "data.crop_scale: 1.5 is more than the whole image"),
        (("data.crop_scale=[0.5]",), "data.crop_scale"),
        (("data.crop_scale=[0, 1]",), "data.crop_scale"),
        (("data.crop_ratio=[2.0, 1.0]",), "data.crop_ratio: 2 is above 1"),
        (("data.crop_ratio=wide",), "data.crop_ratio"),
        (("data.mean=[0.5]",), "data.mean = [0.5]: images have 3 channels"),
        (("data.mean=[]",), "data.mean"),
        (("data.std=[0.5, 0.5, 0]",), "data.std"),
    ],
)
def test_views_and_normalisations_that_can_not_be_are_refused(sets, told):
    with pytest.raises(ConfigError) as error:
        planned(*sets)
    assert told in error.value.message
