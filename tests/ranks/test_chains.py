"""Jobs of a stand-in for SLURM that are preempted and queued again, until their run is complete."""

import random
import signal
import time

import pytest

from mptui.events import CheckpointSaved, RunStarted, Step, Warned
from mptui.runs.store.directory import read_summary
from mptui.runs.store.journal import read_journal
from tests.chaos.killer import outcome_of
from tests.forks import FORKING
from tests.made.waiting import wait_until
from tests.program import run_to_end
from tests.ranks.cluster import Cluster

pytestmark = pytest.mark.slow

TINY = {
    "training.deterministic": "true",
    "model.width": 2,
    "model.depth": 1,
    "model.norm": "group",
    "data.samples": 16,
    "data.image_size": 16,
    "data.workers": 1,
    "logging.step_interval_s": 0,
    "checkpoint.every_steps": 10,
}
FLAGS = ("--model", "unet", "--batch-size", "4", "--seed", "3", "--device", "cpu")
SETS = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]


def flags(folder, epochs):
    return [*FLAGS, *SETS, "--epochs", str(epochs), "--runs-dir", str(folder / "runs")]


def chain(folder, gpus, epochs, preemptions):
    """Preempt a job again and again until its run ends; return the run.

    Each preemption is a number of steps after the start, or, below 0, of seconds after a signal is heard.
    """
    cluster, run = Cluster(folder), folder / "runs" / "run"
    cluster.submit("--gpus-per-node", gpus, "--name", "run", *flags(folder, epochs))
    for after in preemptions:
        job, before = cluster.start(), steps(run)
        if after < 0:
            wait_until(lambda job=job: job.listens() or not job.running())
            time.sleep(-after)
        else:
            wait_until(lambda b=before, n=after, j=job: steps(run) >= b + n or not j.running())
        job.send(signal.SIGUSR1)
        code, again = job.end()
        assert (code, again) in {(143, True), (0, False)}, job.output()
        if not again:
            break
    else:
        job = cluster.start()
        assert job.end() == (0, False), job.output()
    assert read_summary(run)["status"] == "completed"
    return run


def steps(run):
    """The number of steps in a run's journal, also of those that were repeated."""
    path = run / "events.jsonl"
    return path.read_text().count('"event":"step"') if path.exists() else 0


def steps_lost(run):
    """The steps after each save that the next start repeated."""
    lost, step, saved = [], 0, 0
    for event in read_journal(run):
        if (
            isinstance(event, CheckpointSaved) and event.reason != "best"
        ):  # that of an earlier step comes late
            saved = event.step
        elif isinstance(event, RunStarted):
            assert (event.resumed_from_step or 0) == saved
            lost.append(step - saved)
        elif isinstance(event, Step):
            step = event.step
    return lost


def undisturbed(folder, processes, epochs):
    group = ["--nproc-per-node", str(processes)] if processes > 1 else []
    ended = run_to_end("run", "--name", "straight", *group, *flags(folder, epochs), call=FORKING)
    assert ended.returncode == 0, ended.stderr
    return outcome_of(folder / "runs" / "straight")


def test_a_preempted_job_of_two_ranks_goes_on(tmp_path):
    run = chain(tmp_path, 2, 10, [15])
    assert steps_lost(run) == [0, 0]
    assert not [
        event for event in read_journal(run) if isinstance(event, Warned) and event.code == "rank_lost"
    ]


def test_a_job_that_is_preempted_before_its_run_begins_is_queued_again(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.submit("--gpus-per-node", 2, "--name", "run", *flags(tmp_path, 1))
    job = cluster.start()
    wait_until(lambda: not job.running() or (tmp_path / "runs" / "run" / "ranks").is_dir())
    job.send(signal.SIGUSR1)
    assert job.end() == (143, True), job.output()
    assert "Traceback" not in job.output()


@pytest.mark.chaos
@pytest.mark.parametrize("gpus", [1, 2])
def test_twenty_chains_lose_no_step(tmp_path, gpus):
    expected = undisturbed(tmp_path, gpus, epochs=60)
    chance = random.Random(gpus)
    starts = 0
    for number in range(20):
        preemptions = [chance.choice([-chance.uniform(0, 8), chance.randrange(120)]) for _ in range(3)]
        run = chain(tmp_path / str(number), gpus, 60, preemptions)
        assert set(steps_lost(run)) == {0}
        assert outcome_of(run) == expected
        starts += len(steps_lost(run))
    assert starts > 30
