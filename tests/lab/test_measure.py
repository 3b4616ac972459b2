"""Short runs in separate processes: their measurements, and their isolation."""

import os
import shutil
import signal

import psutil
import pytest

from mptui.events import EpochStarted
from mptui.lab.measure.core import (
    LOSS_AT,
    Effort,
    MeasureError,
    Measurer,
    RunListener,
    StoppedError,
    UnsavedSession,
)
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.store.directory import create_run
from tests.made.events import step_of
from tests.made.waiting import wait_until
from tests.program import Program

pytestmark = pytest.mark.slow

DEADLINE_S = 300
SMALL = {
    "model.name": ("test", "unet"),
    "model.width": ("test", 4),
    "model.depth": ("test", 1),
    "data.name": ("test", "shapes"),
    "data.image_size": ("test", 16),
    "data.samples": ("test", 48),
    "training.batch_size": ("test", 2),
    "training.epochs": ("test", 100_000),
    "hardware.device": ("test", "cpu"),
}
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}
REQUEST = Request(None, SMALL, (), ENVIRON)
SHORT = Effort(0.1)


class Hook:
    """Callbacks during a measured run."""

    def __init__(self):
        self.asked = lambda: False


@pytest.fixture(scope="module")
def hook():
    return Hook()


@pytest.fixture(scope="module")
def lab(hook, forked_servers):
    with Measurer(ENVIRON, lambda: hook.asked()) as measurer:
        yield measurer


def step_event(step, rate=100.0, steps=5, loss=2.0, seconds=0.1):
    measured = {"samples_per_second": rate, "step_time_s": seconds, "data_wait_fraction": 0.5}
    return step_of(step, loss=loss, steps=steps, **measured)


def test_a_run_whose_first_step_takes_too_long_is_given_up(lab):
    slow = Effort(0.1, first_step_limit_s=0.0)

    with pytest.raises(MeasureError, match=r"its first step took more than 0\.0 s"):
        lab.measure(REQUEST, {"training.batch_size": 8, "data.image_size": 128, "model.width": 32}, slow)
    assert lab.measure(REQUEST, {}, Effort(0.1, first_step_limit_s=DEADLINE_S)).run_s > 0


def test_all_steps_after_the_warm_up_are_measured_with_the_start_of_an_epoch():
    watch = RunListener(seconds=2.0, loss_at=0)
    watch.handle(step_event(5, rate=1.0))
    watch.handle(step_event(10, rate=100.0))
    watch.handle(EpochStarted(epoch=2, epochs=3, steps=10))
    watch.handle(step_event(15, rate=20.0, seconds=0.5))
    before = watch.enough
    watch.handle(step_event(20, rate=100.0))

    assert watch.span == pytest.approx((50 + 50 + 50, 0.5 + 2.5 + 0.5))
    assert watch.wait == 0.5
    assert watch.epoch_steps == 10
    assert (before, watch.enough) == (True, True)


def test_epochs_of_one_step_are_measured_all_the_same():
    watch = RunListener(seconds=1.0, loss_at=0)
    for step in range(1, 20):
        watch.handle(EpochStarted(epoch=step, epochs=100, steps=1))
        watch.handle(step_event(step, steps=1))

    assert watch.enough


def test_slow_steps_are_warm_after_some_seconds():
    watch = RunListener(seconds=1.0, loss_at=0)
    for step, rate in enumerate((1.0, 2.0, 3.0, 100.0), 1):
        watch.handle(step_event(step, rate=rate, steps=1, seconds=1.5))

    assert watch.span.rate == 100.0
    assert watch.enough


def test_it_is_not_enough_before_the_losses_can_be_compared():
    watch = RunListener(seconds=0.0)
    for step in range(1, LOSS_AT):
        watch.handle(step_event(step, steps=1, loss=float(step)))
    before = watch.enough
    watch.handle(step_event(LOSS_AT, steps=1, loss=float(LOSS_AT)))
    watch.handle(step_event(LOSS_AT + 1, steps=1, loss=100.0))

    assert (before, watch.enough) == (False, True)
    assert watch.loss == 8.0  # the mean of 6 to 10


def test_a_real_run_is_measured(lab):
    measured = lab.measure(REQUEST, {"speed.fused": False}, SHORT)

    assert measured.samples_per_second > 0
    assert (measured.peak_bytes or 0) > 2**20
    assert (measured.loss or 0) > 0
    assert 0 <= measured.wait <= 1
    assert measured.epoch_steps == 24


def test_no_run_sees_what_another_has_set_or_kept(lab):
    switches = {"training.deterministic": True, "guards.detect_anomaly": True, "training.seed": 7}
    large = {"training.batch_size": 48, "data.image_size": 48, "model.width": 16}
    before = lab.measure(REQUEST, {}, SHORT)
    other = lab.measure(REQUEST, {**switches, **large}, SHORT)
    after = lab.measure(REQUEST, {}, SHORT)

    assert after.loss == before.loss != other.loss
    assert other.peak_bytes > before.peak_bytes + 2**24
    assert after.peak_bytes < (before.peak_bytes + other.peak_bytes) / 2


def test_a_run_that_can_not_be_measured_says_why_and_the_next_one_is(lab):
    with pytest.raises(MeasureError, match="abacus") as told:
        lab.measure(REQUEST, {"hardware.device": "abacus"}, SHORT)

    assert told.value.exit_code == 2
    assert not told.value.out_of_memory
    assert lab.measure(REQUEST, {}, SHORT).samples_per_second > 0


def test_a_measured_run_writes_no_checkpoint_and_needs_no_room_for_one(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("mptui.engine.checkpoint.files.shutil.disk_usage", lambda _: usage._replace(free=0))
    flags = {**SMALL, "training.max_steps": ("test", 30)}
    plan = plan_run(Request(None, flags, (), ENVIRON))
    session = UnsavedSession(plan, create_run(tmp_path, "bench", "unet", None))
    session.start()
    assert session.wait(DEADLINE_S)

    assert session.result.error is session.result.bug is None
    assert session.result.summary["optimizer_steps"] == 30
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert not any((session.run / "checkpoints").glob("*"))


def children_of(measurer):
    """Wait for the processes of a run that is being measured; return them."""
    if measurer._server is None:  # called before the first run started
        return []
    server = psutil.Process(measurer._server.pid)
    return server.children() if server.is_running() else []


def test_a_run_that_is_killed_is_told_by_its_signal_and_the_next_one_is_measured(lab, hook, monkeypatch):
    killed: list[psutil.Process] = []

    def kill_once():
        if not killed:
            killed.extend(children_of(lab))
            for child in killed:
                child.kill()
        return False

    monkeypatch.setattr(hook, "asked", kill_once)
    with pytest.raises(MeasureError, match="SIGKILL"):
        lab.measure(REQUEST, {}, Effort(DEADLINE_S))
    assert lab.measure(REQUEST, {}, SHORT).samples_per_second > 0


def test_a_stop_ends_the_run_at_once_and_leaves_no_process(lab, hook, monkeypatch):
    running = []

    def look():
        running.extend(children_of(lab))
        return bool(running)

    monkeypatch.setattr(hook, "asked", look)
    with pytest.raises(StoppedError):
        lab.measure(REQUEST, {}, Effort(DEADLINE_S))

    assert psutil.wait_procs(running, DEADLINE_S)[1] == []


def test_a_run_that_takes_too_long_is_given_up(lab):
    with pytest.raises(MeasureError, match="no result within"):
        lab.measure(REQUEST, {}, Effort(DEADLINE_S, limit_s=0.5))


def test_a_run_ends_with_the_process_that_asked_for_it():
    code = (
        "import os; from mptui.lab.measure import core; from mptui.runs.planning.plan import Request\n"
        "core._PRELOAD = ()  # its server forks at once\n"
        f"request = Request(None, {SMALL!r}, (), os.environ)\n"
        f"core.Measurer(os.environ).measure(request, {{}}, core.Effort({DEADLINE_S}))"
    )
    parent = Program(code, call="tests.program:execute")
    process = psutil.Process(parent.pid)
    wait_until(lambda: len(process.children(recursive=True)) >= 2 or parent.poll() is not None)
    family = process.children(recursive=True)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    assert psutil.wait_procs(family, DEADLINE_S)[1] == []
