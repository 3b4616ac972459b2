"""The difference between a run and its fork in words."""

from mptui.runs.listing.difference import difference_words
from mptui.runs.view.run_view import RunView
from tests.tui.events import START, run_started, step_event


def run_of(chance, precision, rate, loss):
    view = RunView()
    view.handle(run_started(precision=precision))
    for step in range(1, 11):
        values = {"loss": loss, "samples_per_second": rate}
        view.handle(step_event(step, START + step, chance, **values))
    return view


def test_who_is_faster_and_whose_loss_is_lower_is_told(chance):
    slow, fast = run_of(chance, "fp32", 100.0, 1.0), run_of(chance, "bf16", 190.0, 0.5)
    assert difference_words(slow, fast) == "bf16 is 1.9x ahead of fp32, loss -0.5 at step 10"
    assert difference_words(fast, slow) == "fp32 is 1.9x behind bf16, loss +0.5 at step 10"
    alike = run_of(chance, "fp32", 102.0, 1.0)
    assert difference_words(slow, alike) == "the fork is as fast as its parent, loss +0 at step 10"
    assert difference_words(slow, RunView()) == ""
