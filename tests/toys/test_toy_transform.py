"""A new transform of images is one entry of `TRANSFORMS`; no other code changes."""

import pytest
import torch

from mptui.errors import ConfigError
from mptui.registry.names import SampleKind
from mptui.registry.transforms import TRANSFORMS, TransformSpec
from tests.data.loaders import batches, loader
from tests.data.samples import Samples
from tests.toys.training import bits, dry_run, trained, trained_whole_and_in_parts


def solarize(images_BCHW, draws_B1):
    """Invert what is above the mean, in half of the images."""
    chosen_B = torch.from_numpy(draws_B1[:, 0] < 0.5).to(images_BCHW.device)
    return torch.where(chosen_B.view(-1, 1, 1, 1), -images_BCHW.abs(), images_BCHW)


@pytest.fixture(autouse=True)
def solarized(monkeypatch):
    spec = TransformSpec(
        help="inverts what is bright", kinds=frozenset({SampleKind.CLASS}), apply=solarize, draws=1
    )
    monkeypatch.setitem(TRANSFORMS, "solarize", spec)


def test_the_command_line_knows_it(capsys):
    assert '"solarize"' in dry_run(capsys, "--set", 'data.augment=["solarize"]', "--device", "cpu")
    with pytest.raises(ConfigError, match="or 'solarize'"):
        dry_run(capsys, "--set", 'data.augment=["solarise"]')
    with pytest.raises(ConfigError, match="solarize does not suit images with masks"):
        dry_run(capsys, "--set", 'data.augment=["solarize"]', "--model", "unet")


def test_half_of_the_images_are_transformed_alike_by_any_worker():
    with (
        loader(Samples(40), names=("solarize",), workers=1) as it,
        loader(Samples(40), augment=False) as plain,
    ):
        found, expected = (torch.cat([b.images_BCHW for b in batches(each)]) for each in (it, plain))
    changed_B = (found != expected).flatten(1).any(dim=1)
    assert 10 < int(changed_B.sum()) < 30
    assert torch.equal(found[changed_B], -expected[changed_B].abs())


def test_a_run_is_resumed_with_it(tmp_path):
    network = {"model.name": "small_cnn"}
    with_it = trained_whole_and_in_parts(tmp_path, {**network, "data.augment": ["solarize", "flip"]})
    assert bits(with_it) != bits(trained(tmp_path / "plain", {**network, "data.augment": ["flip"]}, epochs=2))
