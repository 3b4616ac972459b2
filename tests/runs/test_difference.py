"""The difference between a run and its fork in words: what was measured over equal steps, and no more."""

import pytest

from mptui.config.keys import SETTINGS
from mptui.runs.listing.difference import STEPS, VALUES, ForkParent, difference, fork_words
from mptui.runs.listing.rows import setting_words
from mptui.runs.view.run_view import RunView
from tests.tui.events import START, run_started, step_event, switched

SINCE = 100

PRECISION = {"precision.mode": ["fp32", "bf16"]}


def run_of(chance, precision="fp32", rate=100.0, loss=1.0, *, steps=range(1, 151), noise=0.01):
    """A run with a value for each of `steps`, whose figures vary by a share `noise`."""
    view = RunView()
    view.handle(run_started(precision=precision))
    for step in steps:
        values = {
            "loss": loss * (1 + 10 / step) * (1 + chance.uniform(-noise, noise)),
            "samples_per_second": rate * (1 + chance.uniform(-noise, noise)),
        }
        view.handle(step_event(step, START + step, chance, **values))
    return view


def fork_of(chance, *arguments, steps=50, every=1, **options):
    return run_of(chance, *arguments, steps=range(SINCE + every, SINCE + steps + 1, every), **options)


def test_who_is_faster_and_whose_loss_is_lower_is_told(chance):
    parent, fork = run_of(chance), fork_of(chance, "bf16", 190.0, 0.5)
    found = difference(parent, fork, SINCE, PRECISION)
    words = "loss -0.54 at step 150; only precision differs"
    assert found.sentence == f"bf16 is 1.9x ahead of fp32, {words}"
    assert found.title == "bf16 is 1.9x ahead, loss -0.54"
    assert found.short == "1.9x ahead, loss -0.54"
    slower = difference(parent, fork_of(chance, "bf16", 50.0, 1.5), SINCE, PRECISION)
    assert slower.sentence.startswith("bf16 is 2.0x behind fp32, loss +0.54 at step 150;")


BATCH = {"training.batch_size": [8, 64]}
VERSION = {"torch": ["2.9", "2.10"]}


@pytest.mark.parametrize(
    ("differing", "names", "cause"),
    [
        (BATCH, "batch size 64 is 3.3x ahead of 8, loss", "; only batch size differs"),
        (VERSION, "torch 2.10 is 3.3x ahead of 2.9, loss", "; only torch differs"),
        (
            {"training.momentum": [None, 0.5]},
            "momentum 0.5 is 3.3x ahead of unset,",
            "; only momentum differs",
        ),
        ({}, "fork is 3.3x ahead of its parent, loss", "; no setting, version or device differs"),
        (
            {**BATCH, **PRECISION, **VERSION},
            "fork is 3.3x ahead of its parent, loss",
            "; 3 things differ, so that none is known as the cause: batch size, precision,",
        ),
    ],
    ids=["batch", "version", "unset", "nothing", "more"],
)
def test_a_cause_is_named_only_where_one_thing_differs(chance, differing, names, cause):
    """A fork in bf16 with eight times the batch is not ahead by its precision."""
    found = difference(run_of(chance), fork_of(chance, "bf16", 330.0, 0.5), SINCE, differing)
    assert found.sentence.startswith(names)
    assert cause in found.sentence
    assert found.title.endswith(", 3 things differ") == (len(differing) == 3)
    assert found.within(200) == found.sentence
    clause = found.sentence.partition(";")[0]
    assert found.within(len(clause) + 17) == (f"{clause}, 3 things differ" if len(differing) == 3 else clause)
    assert found.within(20) == found.title


def test_what_changed_after_the_fork_is_one_of_the_things_that_differ(chance):
    """A switch, or a parent that has gone back to before the fork: it is no longer the same run."""
    parent, fork = run_of(chance), fork_of(chance, "bf16", 190.0)
    fork.handle(switched(150))
    both = difference(parent, fork, SINCE, PRECISION)
    assert both.sentence.startswith("fork is 1.9x ahead of its parent")
    assert both.differing == ("precision.mode", "changes during the run")
    parent.handle(run_started(time=START + 500, step=50, resumed_from_step=50))
    for step in range(51, 151):
        parent.handle(step_event(step, START + 500 + step, chance, loss=1.0))
    again = difference(parent, fork_of(chance, "bf16", 190.0), SINCE, PRECISION)
    assert again.differing == ("precision.mode", "changes during the run")


def test_what_differs_by_less_than_its_spread_is_even(chance):
    parent, fork = run_of(chance, noise=0.2), fork_of(chance, rate=104.0, loss=1.005, noise=0.2)
    words = "fork: speed even with its parent, loss even at step 150; no setting, version or device differs"
    assert difference(parent, fork, SINCE, {}).sentence == words
    fork = fork_of(chance, rate=104.0, loss=1.005, noise=0.001)
    parent = run_of(chance, noise=0.001)
    assert difference(parent, fork, SINCE, PRECISION).title == "fork is 1.04x ahead, loss +0.0054"


def test_a_spike_and_a_slow_step_change_nothing(chance):
    parent, fork = run_of(chance), fork_of(chance, "bf16", 190.0)
    for step in (SINCE + 48, SINCE + 49):
        fork.handle(step_event(step, START + step, chance, loss=900.0, samples_per_second=1.0))
    assert difference(parent, fork, SINCE, PRECISION).title == "bf16 is 1.9x ahead, loss even"


@pytest.mark.parametrize(("steps", "every"), [(STEPS - 1, 1), (7 * 50, 50)])
def test_nothing_is_claimed_before_there_are_enough_steps_and_values(chance, steps, every):
    parent = run_of(chance, steps=range(1, 1000))
    before, after = (fork_of(chance, "bf16", 190.0, steps=n, every=every) for n in (steps, steps + every))
    assert VALUES == 8
    assert difference(parent, before, SINCE, PRECISION).sentence == ""
    assert difference(parent, after, SINCE, PRECISION).title.startswith("bf16 is 1.9x ahead")


def test_a_loss_is_compared_from_eight_places_on_and_noise_is_no_difference(chance):
    parent = run_of(chance, steps=range(1, 1000))
    told = [
        difference(parent, fork_of(chance, steps=n), SINCE, PRECISION).loss
        for n in range(STEPS, STEPS + 400, 50)
    ]
    assert difference(parent, fork_of(chance, steps=15 * 50, every=50), SINCE, PRECISION).loss is None
    assert sum(loss != 0 for loss in told) <= 1


def test_a_parent_that_ended_at_the_fork_gives_its_speed_and_no_loss(chance):
    parent = run_of(chance, steps=range(1, SINCE + 1))
    found = difference(parent, fork_of(chance, "bf16", 190.0, 0.5), SINCE, PRECISION)
    assert found.sentence == "bf16 is 1.9x ahead of fp32; only precision differs"
    assert difference(RunView(), fork_of(chance), SINCE, PRECISION).sentence == ""


def test_runs_that_report_other_steps_are_compared_at_equal_ones(chance):
    parent = run_of(chance, steps=range(7, 400, 7), noise=0)
    fork = fork_of(chance, loss=1.0, steps=290, every=5, noise=0)
    assert difference(parent, fork, SINCE, PRECISION).loss == pytest.approx(0, abs=2e-3)


def test_the_screen_says_from_which_step_on_it_compares(chance):
    parent = ForkParent(SINCE, "parent", run_of(chance), differing=PRECISION)
    few = fork_words(parent, fork_of(chance, "bf16", 190.0, steps=STEPS - 1))
    assert (few.long, few.compares) == ("compares from step 120", False)
    enough = fork_words(parent, fork_of(chance, "bf16", 190.0, steps=STEPS))
    assert (enough.long, enough.short) == ("bf16 is 1.9x ahead, loss even", "1.9x ahead, loss even")
    assert enough.compares
    assert fork_words(ForkParent(SINCE), fork_of(chance)).long == "its parent is gone"


def test_each_setting_that_may_differ_has_a_name_of_its_own_without_abbreviations_of_code():
    names = {key: setting_words(key) for key in SETTINGS}
    shared = [key for key, words in names.items() if list(names.values()).count(words) > 1]
    assert shared == ["data.name", "data.path"]
    abbreviated = {
        "eps",
        "pct",
        "std",
        "oom",
        "nan",
        "gib",
        "s",
        "grad",
        "max",
        "min",
        "val",
        "init",
        "sha256",
    }
    assert not {key for key, words in names.items() if abbreviated & set(words.split())}
    assert names["training.eps"] == "optimizer epsilon"
    assert setting_words("own.eps") == "eps"  # of a later version
