"""Probabilities averaged over mirror images: of which views, turned back, and only where there are some."""

import pytest
import torch

from mptui.cli.main import _exit_code
from mptui.errors import ConfigError
from mptui.lab.use.evaluate import evaluate_run
from mptui.lab.use.mirrored import AveragedNetwork, mirror_views
from mptui.lab.use.trained import open_trained
from tests.lab.use.runs import train

LEFT_RIGHT = ["as_it_is", "left_right"]
UPRIGHT = [*LEFT_RIGHT, "top_bottom", "turned_180"]
HERE = {"data.workers": ("--workers", 0)}


def opened(run):
    return open_trained(run, None, HERE, note=lambda message: None)


def evaluated(trained, **more):
    return evaluate_run(trained, {}, listed=0, on_progress=lambda *_: None, note=lambda _: None, **more)


def segmenter_with(folder, *names):
    settings = {
        "model.name": "unet",
        "model.width": 4,
        "model.depth": 1,
        "data.image_size": 16,
        "training.epochs": 1,
        "data.augment": list(names),
    }
    return train(folder / "_".join(names), settings)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs on masks by the transforms that they were trained with."""
    folder = tmp_path_factory.mktemp("mirrored")
    return {
        names: segmenter_with(folder, *names) for names in [("flip",), ("flip", "vertical_flip"), ("turn",)]
    }


def test_views_are_those_that_the_run_was_trained_with_beside_the_mirror_image(runs, classifier):
    found = {names: [view.name for view in mirror_views(opened(run))] for names, run in runs.items()}
    assert found["flip",] == LEFT_RIGHT
    assert found["flip", "vertical_flip"] == UPRIGHT
    assert found["turn",][:4] == UPRIGHT
    assert len(set(found["turn",])) == 8
    assert [view.name for view in mirror_views(opened(classifier))] == LEFT_RIGHT


def test_the_eight_views_differ_and_are_turned_back(runs):
    images_BCHW = torch.rand(2, 3, 6, 6).to(memory_format=torch.channels_last)
    views = mirror_views(opened(runs["turn",]))
    seen = [view.of(images_BCHW) for view in views]
    for number, (view, turned) in enumerate(zip(views, seen, strict=True)):
        assert torch.equal(view.undone(turned), images_BCHW), view.name
        assert turned.is_contiguous(memory_format=torch.channels_last)
        assert not any(torch.equal(turned, other) for other in seen[:number])
    named = dict(zip((view.name for view in views), seen, strict=True))
    assert torch.equal(named["left_right"], images_BCHW.flip(3))
    assert torch.equal(named["turned_right"], images_BCHW.rot90(-1, (2, 3)))


def test_the_average_is_the_mean_of_the_probabilities_of_all_views(runs):
    trained = opened(runs["flip",])
    images_BCHW = torch.rand(2, 3, 16, 16)
    with torch.inference_mode():
        plain = trained.model(images_BCHW).softmax(1)
        turned_back = trained.model(images_BCHW.flip(3)).softmax(1).flip(3)
        found = AveragedNetwork(trained.model, mirror_views(trained))(images_BCHW)
    torch.testing.assert_close(found.exp(), (plain + turned_back) / 2)
    assert not torch.allclose(found.exp(), plain, atol=1e-3)


def test_a_network_that_treats_views_alike_keeps_its_result(runs):
    of_each_pixel = torch.nn.Conv2d(3, 4, kernel_size=1)
    images_BCHW = torch.rand(2, 3, 8, 8)
    averaged = AveragedNetwork(of_each_pixel, mirror_views(opened(runs["turn",])))
    torch.testing.assert_close(averaged(images_BCHW), of_each_pixel(images_BCHW).log_softmax(1))


def test_an_evaluation_has_the_figures_of_both(runs, classifier):
    for run in (runs["flip", "vertical_flip"], classifier):
        trained = opened(run)
        plain, found = evaluated(trained), evaluated(trained, mirror=True)
        assert plain.mirrored is None
        assert found.mirrored.views == [view.name for view in mirror_views(trained)]
        assert found.mirrored.alone.metrics == plain.result.metrics
        assert found.mirrored.alone.loss == plain.result.loss
        assert found.result.loss != plain.result.loss
        assert min(found.mirrored.images_per_second, found.mirrored.images_per_second_alone) > 0


def test_what_predicts_no_classes_is_refused_with_one_line(generator, capsys):
    with pytest.raises(ConfigError, match="no classes to average"):
        mirror_views(opened(generator))
    assert _exit_code(["evaluate", str(generator), "--workers", "0", "--mirror"], debug=False) == 2
    assert "--mirror" in capsys.readouterr().err


def test_precisions_are_compared_without_mirror_images(classifier, capsys):
    assert _exit_code(["evaluate", str(classifier), "--mirror", "--precisions", "fp32"], debug=False) == 2
    assert "leave --mirror out" in " ".join(capsys.readouterr().err.split())


def test_the_command_shows_both(runs, capsys):
    assert _exit_code(["evaluate", str(runs["flip",]), "--workers", "0", "--mirror"], debug=False) == 0
    told = capsys.readouterr().out
    assert "averaged over 2 views: as_it_is, left_right" in told
    assert [line.split()[0] for line in told.splitlines() if line.startswith("  images/s")] == ["images/s"]
