"""An evaluation repeats the run's own figures to the bit, and names samples."""

import shutil
from functools import partial

import pytest
from PIL import Image

from mptui.cli.main import _exit_code
from mptui.errors import DataError
from mptui.lab.use.evaluate import evaluate_run
from mptui.lab.use.trained import open_trained
from mptui.runs.store.directory import read_summary
from tests.data.prepared_sets import prepared
from tests.data.situations.pictures import pairs
from tests.lab.use.runs import class_pictures, train

slow = partial(pytest.param, marks=pytest.mark.slow)

HERE = {"data.workers": ("--workers", 0)}


def evaluated(run, given=None, *, checkpoint=None, flags=None, notes=None):
    told = notes if notes is not None else []
    trained = open_trained(run, checkpoint, {**HERE, **(flags or {})}, note=told.append)
    ignore = lambda done, total: None  # noqa: E731
    return evaluate_run(trained, given or {}, listed=5, on_progress=ignore, note=told.append)


@pytest.mark.parametrize("run", ["classifier", slow("segmenter"), slow("generator"), slow("class_generator")])
def test_it_equals_the_figures_of_the_run_to_the_bit(run, request):
    run = request.getfixturevalue(run)
    summary = read_summary(run)
    last = evaluated(run, checkpoint="last", flags={"data.workers": ("--workers", 1)})
    found = {"val_loss": last.result.loss, **last.result.metrics}
    assert {key: summary["final"][key] for key in found} == found
    assert last.recorded == found
    best = evaluated(run)
    assert best.result.metrics[summary["best"]["metric"]] == summary["best"]["value"]
    assert best.recorded == {"val_loss": best.result.loss, **best.result.metrics}


@pytest.mark.slow
def test_the_loss_of_a_sample_is_that_of_a_set_of_it_alone(classifier, segmenter):
    for run, samples in ((classifier, 6), (segmenter, 8)):
        found = evaluated(run, flags={"training.batch_size": ("--batch-size", 1)})
        assert len(found.data.split) == samples
        listed = [sample.loss for sample in found.worst]
        assert listed == sorted(listed, reverse=True)
        if run == classifier:
            continue
        alone = evaluated(run)
        assert [sample.name for sample in alone.worst] == [sample.name for sample in found.worst]
        assert listed == pytest.approx([sample.loss for sample in alone.worst], rel=1e-5)


def test_another_set_is_measured_as_a_whole_with_classes_by_name(tmp_path, classifier):
    # "grey" comes first in neither order; without blue, green is the first class of the set
    class_pictures(tmp_path / "test", {"green": 3, "red": 2})
    notes: list[str] = []
    found = evaluated(classifier, {"path": str(tmp_path / "test"), "name": None}, notes=notes)
    assert (found.data.part, len(found.data.split), found.recorded) == ("all samples", 5, None)
    assert any("blue" in message for message in notes)
    assert {sample.truth for sample in found.worst} == {"green", "red"}
    for sample in found.worst:
        assert f"/{sample.truth}/" in sample.name
    assert found.confusion is not None
    assert found.confusion.sum(dim=1).tolist() == [0, 3, 2]


def test_a_set_with_other_classes_is_refused_and_they_are_named(tmp_path, classifier):
    class_pictures(tmp_path / "test", {"green": 2, "grey": 2})
    with pytest.raises(DataError) as error:
        evaluated(classifier, {"path": str(tmp_path / "test"), "name": None})
    assert "only in the data: grey" in error.value.message
    assert "only in the run: blue, red" in error.value.message


def test_masks_of_0_and_1_have_two_of_the_classes_of_a_run_with_more(tmp_path):
    pairs(tmp_path / "three", "images/{}.png", "masks/{}.png", 8, {0: 0, 1: 1, 2: 2}, 3)
    pairs(tmp_path / "two", "images/{}.png", "masks/{}.png", 4, {0: 0, 1: 1})
    pairs(tmp_path / "other", "images/{}.png", "masks/{}.png", 4, {0: 0, 1: 255})
    settings = {"model.name": "unet", "model.width": 4, "model.depth": 2, "data.name": "none"}
    run = train(tmp_path / "runs" / "numbers", {**settings, "data.path": str(tmp_path / "three")})
    notes: list[str] = []
    found = evaluated(run, {"path": str(tmp_path / "two"), "name": None}, notes=notes)
    assert found.data.dataset.classes == ("class_0", "class_1", "class_2")
    assert len(found.data.split) == 4
    assert any("values 0 and 1: they are class_0 and class_1" in note for note in notes)
    prepared(tmp_path / "other", tmp_path / "ready", size=16)  # there, 255 is stored as 1
    for other in ("other", "ready"):
        with pytest.raises(DataError, match="only in the data: background, foreground"):
            evaluated(run, {"path": str(tmp_path / other), "name": None})


def test_the_surest_mistake_is_named_with_both_classes(tmp_path, classifier):
    class_pictures(tmp_path / "test", {"blue": 2, "green": 2, "red": 2})
    Image.new("RGB", (36, 40), (20, 220, 30)).save(tmp_path / "test" / "red" / "wrong.png")
    found = evaluated(classifier, {"path": str(tmp_path / "test"), "name": None})
    for sample in found.confused:
        assert sample.truth != sample.predicted
        assert f"/{sample.truth}/" in sample.name
    confidences = [sample.confidence for sample in found.confused]
    assert confidences == sorted(confidences, reverse=True)


def test_changed_data_is_said_and_compared_with_nothing(tmp_path, classifier, pictures):
    moved = shutil.copytree(pictures, tmp_path / "moved")
    run = shutil.copytree(classifier, tmp_path / "run", symlinks=True)
    config = run / "run.toml"
    config.write_text(config.read_text().replace(str(pictures), str(moved)))
    assert evaluated(run).recorded is not None  # a copy is the same data
    next((moved / "red").iterdir()).unlink()
    notes: list[str] = []
    assert evaluated(run, notes=notes).recorded is None
    assert any("1 of 24 samples" in message for message in notes)


def test_batches_that_do_not_fit_are_halved_and_this_is_said_once(classifier, monkeypatch):
    notes: list[str] = []
    trained = open_trained(classifier, flags=HERE, note=notes.append)
    forward = trained.model.forward

    def small_memory(images):
        if len(images) > 2:
            raise MemoryError("out of memory")
        return forward(images)

    monkeypatch.setattr(trained.model, "forward", small_memory)
    ignore = lambda done, total: None  # noqa: E731
    found = evaluate_run(trained, {}, listed=5, on_progress=ignore, note=notes.append)
    assert found.limit == 2
    assert len([message for message in notes if "out of memory" in message]) == 1
    assert found.recorded is not None
    assert found.result.metrics["acc1"] == found.recorded["acc1"]
    assert found.result.loss == pytest.approx(found.recorded["val_loss"], rel=1e-5)


def test_a_fault_that_is_not_of_memory_is_told_as_it_is(classifier, monkeypatch):
    trained = open_trained(classifier, flags=HERE, note=lambda _: None)

    def faulty(images):
        raise ValueError("no such weight")

    monkeypatch.setattr(trained.model, "forward", faulty)
    with pytest.raises(ValueError, match="no such weight"):
        evaluate_run(trained, {}, listed=0, on_progress=lambda done, total: None, note=lambda _: None)


def test_the_figures_of_each_class_are_a_table_of_the_command(segmenter, capsys):
    found = evaluated(segmenter).result.per_class
    assert _exit_code(["evaluate", str(segmenter), "--workers", "0"], debug=False) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["class", *found] in lines
    for name in next(iter(found.values())):
        figures = [values[name] for values in found.values()]
        assert [name, *("–" if each is None else f"{each:.6f}" for each in figures)] in lines


def test_a_generator_has_no_table_of_classes(generator, capsys):
    assert _exit_code(["evaluate", str(generator), "--workers", "0"], debug=False) == 0
    assert "class" not in capsys.readouterr().out
