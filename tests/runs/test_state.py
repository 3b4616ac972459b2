import gc
import math
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from mptui import text as fmt
from mptui.events import (
    Advice,
    CommandAnswered,
    DeviceSample,
    EpochFinished,
    EpochStarted,
    Paused,
    PhaseChanged,
    PrecisionChanged,
    PresetSwitched,
    Recovered,
    Resumed,
    StepSkipped,
    Validated,
    Warned,
)
from mptui.runs.view.run_view import RunView
from mptui.runs.view.state import LOG_LINES, METRICS, Branch
from mptui.tui.widgets.header import headline
from tests.tui.events import START, demo, finished, left, run_started, step_event, switched, training


def folded(*events):
    view = RunView()
    for event in events:
        view.handle(event)
    return view


def steps(first, last, chance, **changes):
    return (step_event(i * 12, START + i, chance, **changes) for i in range(first, last))


def test_demo_run_is_told():
    view = folded(*demo())
    assert (view.profile, view.precision, view.phase, view.epoch) == ("fast", "fp16", "training", 12)
    assert view.skipped_steps == 2
    assert view.best["loss"][0] == 11 * 1267
    assert [mark.label for mark in view.marks] == ["stable → fast"]
    assert set(view.histories["loss"]) == {"train", "validation"}
    assert view.histories["top-1"].keys() == {"top-1 validation"}
    assert view.histories["top-5"].keys() == {"top-5 validation"}
    assert view.histories["device"].keys() == {"busy", "memory"}


def test_a_planned_rate_that_is_none_is_not_shown():
    assert folded(run_started(planned_lr=[[0.0, 0.1], [9.0, float("nan")]])).planned_lr == []
    assert folded(run_started(planned_lr=[[0.0]])).planned_lr == []


def test_memory_stays_flat_however_long_the_run(chance):
    view = folded(run_started(), *steps(0, 2_000, chance))
    gc.collect()
    gc.freeze()  # what other tests have left need not be searched again
    tracemalloc.start()
    for event in steps(2_000, 3_000, chance):
        view.handle(event)
        if event.step % 36 == 0:
            view.handle(Warned(step=event.step, code="w", message=f"warning {event.step}"))
            view.handle(Recovered(step=event.step, problem="nan", action="rolled back"))
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000
    assert len(view.log) == LOG_LINES


def test_a_run_can_not_grow_the_view_by_inventing_metrics(chance):
    view = folded(*(step_event(i, START + i, chance, metrics={f"m{i}": 1.0}) for i in range(500)))
    assert sum(len(group) for group in view.histories.values()) == METRICS


def test_eta_counts_the_validations_still_to_come():
    view = folded(run_started(), *training(epochs=2, extra_steps=0))
    steps_left, validations_left = 98 * 1267, 98
    expected = steps_left * 0.0842 + validations_left * 24
    assert view.remaining_s() == pytest.approx(expected, rel=0.01)


def test_a_pause_does_not_slow_the_estimate(chance):
    view = folded(run_started(), *steps(1, 200, chance))
    before = view.pace.step_s()
    view.handle(Paused(time=START + 200, step=2400))
    view.handle(Resumed(time=START + 9000, step=2400))
    view.handle(step_event(2412, START + 9001, chance))
    assert view.pace.step_s() == pytest.approx(before, rel=0.05)


def test_nothing_is_known_before_the_first_step():
    view = folded(run_started(), PhaseChanged(time=START, phase="compiling"))
    assert view.remaining_s() is None
    assert view.latest is None
    assert view.phase == "compiling"


def test_a_command_is_one_line_that_grows():
    view = RunView()
    for state, step in (("asked", 90), ("taken", 100), ("done", 100)):
        view.handle(CommandAnswered(step=step, command="checkpoint", state=state))
    assert [line.text for line in view.log] == ["checkpoint requested … taken at step 100 done"]


def test_a_command_says_who_asked_and_a_change_what_it_was_before_and_after():
    at: dict[str, Any] = {"time": START, "step": 100, "by": "script"}
    view = folded(
        CommandAnswered(**at, command="set", state="asked", detail="training.lr=0.2"),
        CommandAnswered(**at, command="set", state="taken"),
        PresetSwitched(**at, profile="fast", previous="fast", changes={"training.lr": ["0.1", "0.2"]}),
        CommandAnswered(**at, command="set", state="done"),
        CommandAnswered(time=START, step=101, command="checkpoint", state="taken", by="signal"),
        CommandAnswered(time=START, step=101, command="checkpoint", state="done", by="signal"),
        Paused(time=START, step=102, by="key"),
    )
    assert [line.text for line in view.log] == [
        "set training.lr=0.2 requested by script … taken at step 100 done",
        "changed at step 100 by script: training.lr 0.1 → 0.2",
        "checkpoint taken at step 101 by signal done",
        "paused at step 102 by key",
    ]


def test_an_undo_is_offered_only_where_settings_were_changed():
    renamed = replace(switched(30), changes={}, previous="fast", profile="mine")
    assert folded(run_started(), renamed).undo_step is None
    view = folded(run_started(), switched(20), renamed)
    assert (view.undo_step, view.undo_to) == (20, "stable")


def test_a_refused_command_says_why():
    view = RunView()
    view.handle(CommandAnswered(command="preset", state="asked", detail="fast"))
    view.handle(CommandAnswered(command="preset", state="refused", detail="another model"))
    assert view.log[-1].text == "profile fast requested … refused (another model)"
    assert view.log[-1].tone == "warn"


def test_a_validation_that_was_asked_for_is_told():
    view = folded(CommandAnswered(command="validate", state="asked"))
    view.handle(Validated(epoch=1, loss=0.5, metrics={"acc1": 0.75}, seconds=1.0, best=False))
    assert "validated  val 0.500  top-1 75.0 %" in [line.text for line in view.log]


def test_nan_loss_is_kept_as_such(chance):
    view = folded(
        step_event(1, START, chance, loss=math.nan, loss_min=math.nan, loss_max=math.nan, nonfinite=1)
    )
    assert view.histories["loss"]["train"].columns(0, 1, 2).broken.any()


def test_skips_in_a_row_share_a_line():
    view = RunView()
    for total in (1, 2, 3):
        view.handle(StepSkipped(step=total, count=1, total=total, streak=total, loss_scale=1024.0))
    assert len(view.log) == 1
    assert view.skip_streak == 3


def test_a_precision_fall_back_is_marked_and_shown():
    view = folded(PrecisionChanged(step=5, precision="bf16", previous="fp16", reason="too many skips"))
    assert view.precision == "bf16"
    assert view.marks[0].label == "fp16 → bf16"


def test_the_end_is_told_with_what_to_do():
    view = folded(*demo(), finished())
    assert view.phase == "finished"
    assert view.remaining_s() is None
    assert "completed after 50 min 0 s" in view.log[-1].text


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb", "\u202egnp.exe", "[/x]"])
def test_text_from_outside_is_cleaned(hostile):
    view = folded(run_started(profile=hostile, model=hostile, dataset=hostile))
    view.handle(Warned(code="w", message=hostile))
    view.handle(DeviceSample(name=hostile, throttle=[hostile]))
    step = step_event(1, START, random.Random(0), bound_by=hostile, split={hostile: 0.1})
    view.handle(step)
    shown = [view.profile, view.started.model, view.device.name, *view.device.throttle]
    shown += [view.latest.bound_by, *view.latest.split, *(line.text for line in view.log)]
    assert "".join(shown).isprintable()


def test_compiled_is_what_runs_and_not_what_was_asked_for():
    view = RunView()
    told = []
    for event in (
        run_started(compile_mode="default"),
        PhaseChanged(phase="compiling"),
        PresetSwitched(profile="debug", previous="fast", changes={"speed.compile": ["default", "off"]}),
        PhaseChanged(phase="compiling"),
        Warned(code="compile_failed", message="no compiler"),
    ):
        view.handle(event)
        told.append(view.compiled)
    assert told == [False, True, False, True, False]
    assert view.started is not None
    assert view.started.compile_mode == "off"


def test_after_a_kill_the_steps_taken_again_count_as_they_were_the_last_time():
    chance = random.Random(0)
    view = folded(run_started(), *(step_event(step, START, chance, loss=9.0) for step in range(1, 11)))
    view.handle(run_started(step=4, resumed_from_step=4))
    for step in range(5, 9):
        view.handle(step_event(step, START, chance, loss=1.0))
    seen = view.history("loss", "train").columns(1, 10, 10)
    assert [value for value in seen.mean.tolist() if not math.isnan(value)] == [9.0] * 4 + [1.0] * 4


@pytest.mark.parametrize(("planned", "total"), [(250, 75 + 350), (200, 200)])
def test_another_batch_is_another_number_of_steps_to_the_end(planned, total):
    """Of five epochs of 50 steps, half of the second is done when the batch is halved; 200: by max_steps."""
    view = folded(run_started(epochs=5, steps_per_epoch=50, total_steps=planned))
    view.handle(EpochStarted(step=75, epoch=2, epochs=5, steps=100, first_step=50))
    assert view.steps_per_epoch == 100
    assert view.total_steps == total


# -- resumed with another batch: of 20 epochs of 8 steps, 9 are done

RESUMED = {"step": 72, "resumed_from_step": 72, "time": START + 80, "epochs": 20, "train_samples": 800}


@pytest.mark.parametrize(("batch", "steps"), [(50, 16), (400, 2)], ids=["half", "four times"])
@pytest.mark.parametrize("is_old", [False, True], ids=["now", "of an older journal"])
def test_a_resume_with_another_batch_counts_what_is_ahead_in_its_steps(batch, steps, is_old):
    """An older journal counts 20 epochs of the new batch at its resume, and nothing in an epoch."""
    view = folded(
        run_started(epochs=20, steps_per_epoch=8, total_steps=160, val_batches=0), *losses(1, 72, 2.0)
    )
    view.handle(PhaseChanged(time=START + 79, phase="starting"))
    assert view.remaining_s() is None
    total = 72 + 11 * steps
    said = {"steps_per_epoch": steps, "total_steps": 20 * steps if is_old else total, "val_batches": 0}
    view.handle(run_started(**RESUMED, batch_size=batch, **said))
    now = EpochStarted(time=START + 81, step=72, epoch=10, epochs=20, steps=steps)
    view.handle(now if is_old else replace(now, total_steps=total))
    assert view.remaining_s() is None  # the steps of the other batch say nothing of these
    view.handle(
        step_event(73, START + 83, random.Random(0), steps=1, epoch=10, epoch_step=1, step_time_s=2.0)
    )
    assert view.total_steps == total
    assert view.fraction_done == pytest.approx((9 + 1 / steps) / 20)
    assert view.remaining_s() == pytest.approx(2.0 * (11 * steps - 1))
    header = headline(view, START + 84, 140).plain
    assert "epoch 10/20" in header
    assert f"{fmt.duration(view.remaining_s(), aligned=True)} left" in header


def test_a_limit_of_steps_holds_in_each_batch():
    view = folded(run_started(epochs=20, steps_per_epoch=8, total_steps=100))
    view.handle(EpochStarted(step=72, epoch=10, epochs=20, steps=2, total_steps=94))
    view.handle(EpochStarted(step=72, epoch=10, epochs=20, steps=16, total_steps=100))
    assert view.total_steps == 100
    assert view.fraction_done == pytest.approx(9 * 16 / (9 * 16 + 28))


def test_the_header_names_the_profile_and_what_was_set_beside_it():
    def named():
        return headline(view, START, 140).plain.partition(" · ")[0].split("mptui")[1].strip()

    one = ["training.lr"]
    view = folded(run_started(profile="stable"))
    assert named() == "stable"
    view.handle(replace(switched(1), profile="stable", previous="stable", changed=one))
    assert named() == "stable + 1 setting"
    view.handle(run_started(step=1, resumed_from_step=1, profile="stable", changed=[*one, "training.epochs"]))
    assert named() == "stable + 2 settings"
    assert headline(view, START, 80).plain.startswith("mptui  stable +2  ")
    view.handle(replace(switched(2), changed=[]))
    assert named() == "fast"
    view.handle(replace(switched(2, undone=True), changed=[*one, "training.epochs"]))
    assert named() == "stable + 2 settings"
    view.handle(replace(switched(3), changed=None))  # of an older journal
    assert named() == "fast"


# -- branches: what an undo, a rollback or a resume leaves


def losses(first, last, loss):
    return [step_event(at, START + at, random.Random(0), loss=loss) for at in range(first, last + 1)]


def best_of(step, loss):
    return Validated(time=START + step, step=step, epoch=1, loss=loss, metrics={}, best=True, seconds=1.0)


def curve(history):
    """Return the steps of a curve and its values."""
    width = int(history.end_x - history.first_x) + 1
    means = history.columns(history.first_x - 0.5, history.end_x + 0.5, width).mean
    return history.first_x, history.end_x, [round(float(each), 6) for each in means]


UNDONE = [
    run_started(), *losses(1, 10, 2.0), best_of(10, 2.0), switched(10), *losses(11, 30, 1.0),
    best_of(20, 1.0), left(30), switched(10, undone=True), *losses(11, 14, 3.0),
]  # fmt: skip


def test_an_undo_leaves_a_branch_whose_values_are_not_those_of_the_run():
    view = folded(*UNDONE)
    history = view.histories["loss"]["train"]
    assert curve(history) == (1, 14, [2.0] * 10 + [3.0] * 4)
    assert curve(history.abandoned) == (10, 30, [2.0] + [1.0] * 20)
    assert view.step == 14
    assert view.best["loss"][:2] == (10, 2.0)
    assert [mark.step for mark in view.marks] == [10, 10]
    assert (view.undo_step, view.undo_to) == (30, "fast")


def test_an_undo_of_the_undo_goes_on_with_the_branch_that_was_left():
    again = replace(switched(30, undone=True), profile="fast", previous="stable")
    view = folded(*UNDONE, left(14), again, *losses(31, 32, 0.5))
    history = view.histories["loss"]["train"]
    assert curve(history) == (1, 32, [2.0] * 10 + [1.0] * 20 + [0.5] * 2)
    assert curve(history.abandoned) == (10, 14, [2.0] + [3.0] * 4)
    assert view.best["loss"][:2] == (20, 1.0)
    assert (view.undo_step, view.undo_to) == (14, "stable")


def test_the_branches_of_a_run_are_listed_with_what_ended_them():
    again = replace(switched(30, undone=True), profile="fast", previous="stable")
    back = Recovered(time=START + 70, step=20, problem="divergence", action="back to step 20")
    resumed = replace(run_started(), step=18, resumed_from_step=18, time=START + 90)
    at_its_end = replace(resumed, step=19, resumed_from_step=19)
    events = [*UNDONE, left(14), again, *losses(31, 35, 0.5), best_of(35, 0.5), back, *losses(21, 22, 1.0)]
    view = folded(*events, resumed, *losses(19, 19, 1.0), at_its_end)
    undone_at = UNDONE[-5].time
    assert view.branches == [
        Branch(0, 30, START, "undo", "val_loss", 20, 1.0),
        Branch(10, 14, undone_at, "undo", "val_loss", 10, 2.0),
        Branch(30, 35, again.time, "rollback", "val_loss", 35, 0.5),
        Branch(20, 22, back.time, "resume", "val_loss", 20, 1.0),
    ]
    assert view.branch() == Branch(18, 19, resumed.time, "", "val_loss", 10, 2.0)


def test_advice_on_a_plateau_ends_with_the_branch_that_it_is_about():
    plateau = Advice(time=START + 29, step=29, code="plateau", message="no better", setting="training.lr=0.1")
    assert [alert.code for alert in folded(*UNDONE[:-6], plateau).alerts] == ["plateau"]
    assert folded(*UNDONE[:-6], plateau, *UNDONE[-6:]).alerts == []


def checked(epoch, loss, accuracy, *, best=False):
    metrics = {"acc1": accuracy}
    return Validated(
        time=START + epoch, step=epoch, epoch=epoch, loss=loss, metrics=metrics, primary="acc1", seconds=1.0,
        best=best,
    )  # fmt: skip


def test_a_loss_of_validation_that_explodes_is_an_alert_until_it_is_normal_again():
    good, high, higher = checked(1, 1.5, 0.6, best=True), checked(2, 6.7e10, 0.5), checked(3, 7e10, 0.5)
    (alert,) = folded(run_started(), good, high, higher).alerts
    assert alert.message == "its validation loss went from 1.50 up to 6.7e+10: try a lower learning rate"
    assert alert.time == high.time
    assert folded(run_started(), good, high, checked(3, 3.0, 0.5)).alerts == []


def test_an_accuracy_of_guesses_is_an_alert_from_the_third_epoch_on():
    started = run_started(classes=["ants", "bees"], val_samples=100)
    epochs = [checked(1, 0.7, 0.55, best=True), checked(2, 0.7, 0.5), checked(3, 0.7, 0.58, best=True)]
    assert folded(started, *epochs[:2]).alerts == []
    (alert,) = folded(started, *epochs).alerts
    assert alert.message.startswith("its best top-1 accuracy is 58.0 %, where guesses have 50.0 %: try")
    assert folded(started, *epochs, checked(4, 0.5, 0.75, best=True)).alerts == []
    (doubt,) = folded(started, *epochs, replace(finished(), concerns=["it is as good as guesses"])).alerts
    assert doubt.message == "it is as good as guesses"


def test_an_undo_to_a_branch_whose_curves_a_rollback_has_replaced_shows_no_others():
    """A rollback in the second branch: what charts have as abandoned is not what the undo goes back to."""
    back = Recovered(time=START + 40, step=12, problem="divergence", action="back to step 12")
    again = replace(switched(30, undone=True), profile="fast", previous="stable")
    view = folded(*UNDONE, back, *losses(13, 15, 3.0), left(15), again, *losses(31, 32, 0.5))
    first, last, values = curve(view.histories["loss"]["train"])
    assert (first, last) == (1, 32)
    assert values[:10] == [2.0] * 10
    assert all(math.isnan(each) for each in values[10:30])
    assert values[30:] == [0.5] * 2


def test_a_resume_where_the_run_was_keeps_the_branch_that_an_undo_goes_back_to():
    resumed = replace(run_started(), step=14, resumed_from_step=14, time=START + 60)
    again = replace(switched(30, undone=True), profile="fast", previous="stable")
    view = folded(*UNDONE, resumed, left(14), again)
    assert curve(view.histories["loss"]["train"]) == (1, 30, [2.0] * 10 + [1.0] * 20)


def test_figures_by_epoch_are_those_of_the_branch_too():
    def epoch(number, loss):
        begins = EpochStarted(time=START, step=number, epoch=number, epochs=9, steps=1)
        ends = EpochFinished(
            time=START, step=number, epoch=number, epochs=9, train_loss=loss, train_metrics={},
            val_metrics={}, lr=0.1, seconds=1.0,
        )  # fmt: skip
        return [begins, ends]

    first = [*epoch(1, 2.0), switched(1), *epoch(2, 1.0), *epoch(3, 1.0)]
    view = folded(run_started(), *first, left(3), switched(1, undone=True), *epoch(2, 3.0))
    assert curve(view.by_epoch["train_loss"]) == (1, 2, [2.0, 3.0])
    for event in (
        left(2),
        replace(switched(3, undone=True), profile="fast", previous="stable"),
        *epoch(4, 0.5),
    ):
        view.handle(event)
    assert curve(view.by_epoch["train_loss"]) == (1, 4, [2.0, 1.0, 1.0, 0.5])


def test_a_rollback_and_a_resume_leave_a_branch_too_and_other_recoveries_do_not():
    back = Recovered(time=START + 40, step=5, problem="divergence", action="back to step 5")
    view = folded(run_started(), *losses(1, 20, 2.0), best_of(20, 2.0), back, *losses(6, 8, 1.0))
    assert curve(view.histories["loss"]["train"]) == (1, 8, [2.0] * 5 + [1.0] * 3)
    assert view.best == {}
    assert view.undo_step is None
    resumed = replace(run_started(), step=6, resumed_from_step=6, time=START + 60)
    view.handle(resumed)
    assert curve(view.histories["loss"]["train"])[:2] == (1, 6)
    disk = Recovered(time=START + 61, step=2, problem="disk", action="written")
    view.handle(disk)
    assert view.histories["loss"]["train"].end_x == 6


def test_without_an_undo_nothing_is_abandoned_and_a_failed_switch_is_no_undo():
    view = folded(run_started(), *losses(1, 9, 2.0), switched(9))
    assert view.histories["loss"]["train"].abandoned is None
    assert (view.undo_step, view.undo_to) == (9, "stable")
    view.handle(switched(9, undone=True))  # by the run itself: nothing is kept
    assert view.undo_step is None
