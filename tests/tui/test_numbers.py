"""The numbers of now in the titles of charts, and in a line of a narrow screen."""

import random
import re

import pytest

from mptui.events import Validated
from mptui.runs.view.numbers import fitted, line_of_numbers, named, numbers_of
from mptui.runs.view.run_view import RunView
from tests.tui.events import START, run_started, step_event


def view_of(*losses, task="classification", primary="acc1", metric="acc1"):
    """A run whose accuracy is the best in epoch 2."""
    view = RunView()
    view.handle(run_started(task=task, primary=primary))
    for epoch, (loss, value) in enumerate(zip(losses, (0.5, 0.784, 0.769), strict=False), 1):
        step = 100 * epoch
        view.handle(step_event(step, START + step, random.Random(0), loss=0.264, loss_min=0.2, loss_max=0.3))
        view.handle(
            Validated(
                time=START + step,
                step=step,
                epoch=epoch,
                loss=loss,
                metrics={metric: value},
                primary=primary,
                seconds=1.0,
                best=epoch <= 2,
            )
        )
    return view


def words(view, chart, width=200):
    return "".join(each.before + each.words for each in fitted(numbers_of(view, chart), width))


def test_the_lowest_loss_and_the_best_metric_are_each_told_with_its_epoch():
    view = view_of(0.9, 1.1, 0.639)
    assert words(view, "loss") == " · train 0.264 · val 0.639 · lowest 0.639 in epoch 3"
    assert named(view, "top-1") == "top-1"
    assert words(view, "top-1") == " · val 76.9 % · best 78.4 % in epoch 2"
    assert words(view_of(0.522, 1.1, 0.639), "loss").endswith("val 0.639 · lowest 0.522 in epoch 1")
    assert words(view_of(0.522, float("nan")), "loss").endswith("val nan · lowest 0.522 in epoch 1")


def test_a_run_that_goes_back_has_the_lowest_loss_and_the_best_of_then():
    view = view_of(0.9, 1.1, 0.639)
    view.go_back(150)
    assert (view.best["loss"].epoch, view.best["loss"].value) == (1, 0.9)
    assert view.best["top-1"].epoch == 1


def test_where_the_loss_decides_the_metric_is_told_of_that_epoch():
    view = view_of(0.9, 0.7, primary="val_loss")
    assert words(view, "loss").endswith("lowest 0.700 in epoch 2")
    assert words(view, "top-1").endswith("at the best 78.4 % in epoch 2")


@pytest.mark.parametrize(("task", "metric"), [("classification", "acc1"), ("segmentation", "dice")])
def test_a_number_is_left_out_and_never_cut(task, metric):
    view = view_of(0.9, 1.1, 0.639, task=task, primary=metric, metric=metric)
    whole = "".join(each.before + each.words for each in line_of_numbers(view, 200))
    figures = set(re.findall(r"\d[\d.]*", whole))
    assert {"76.9", "78.4", "0.264", "0.639"} <= figures
    for width in range(20, 120):
        line = "".join(each.before + each.words for each in line_of_numbers(view, width))
        assert len(line) <= width
        assert set(re.findall(r"\d[\d.]*", line)) <= figures
        assert "val 76.9 %" in line
    assert "best 78.4 % in epoch 2" in "".join(each.before + each.words for each in line_of_numbers(view, 76))


def test_nothing_is_told_before_it_is_there():
    assert line_of_numbers(RunView(), 76) == []
