"""A resumed run keeps its results, and can be extended."""

import json
import os
import shutil
import time

import pytest

from mptui.errors import ConfigError, RunDirectoryError
from mptui.events import RunFinished, Step, Warned
from mptui.runs.planning.plan import Request, plan_run
from mptui.runs.session import watchdog
from mptui.runs.session.session import Session
from mptui.runs.store import files
from mptui.runs.store.directory import create_run, read_summary, write_json
from mptui.runs.store.index import read_run
from mptui.runs.store.journal import read_journal
from mptui.runs.store.lock import owner_of
from tests.data.images import class_folders
from tests.made.runs import LIMIT_S, UNET, ended, session_of, trained


def test_a_run_that_is_done_keeps_its_figures_and_made_longer_its_rate_goes_on_in_the_longer_schedule(
    done, tmp_path
):
    def figures(epochs):
        session, run = done(**{"training.epochs": epochs})
        assert session.result.exit_code == 0, session.result.bug
        return read_summary(run), [event.lr for event in read_journal(run) if isinstance(event, Step)]

    first = read_summary(tmp_path / "run")
    again, rates = figures(epochs=1)
    assert len(rates) == 4
    assert first["best"]["value"] is not None
    for name in ("epochs", "optimizer_steps", "samples_seen", "final", "best", "samples_per_second"):
        assert again[name] == first[name]

    summary, rates = figures(epochs=3)
    assert (summary["epochs"], summary["optimizer_steps"]) == (3, 12)
    assert summary["best"]["value"] is not None
    longer = rates[4:]
    top = longer.index(max(longer))  # it rises to the longer schedule's in a ramp
    assert longer[: top + 1] == sorted(longer[: top + 1])
    assert longer[top:] == sorted(longer[top:], reverse=True)
    assert longer[0] > rates[3]
    assert longer[-1] > 0


def test_a_run_that_another_process_took_over_is_left_to_it(tmp_path, monkeypatch):
    """As after minutes of being stopped, when a process's lock looks abandoned to another machine."""
    monkeypatch.setattr(files, "WRITTEN_EVERY_S", 3600.0)
    monkeypatch.setattr(watchdog, "PULSE_S", 0.01)
    run = tmp_path / "run"
    session = session_of(run, UNET | {"training.epochs": 100_000})
    heard = session.listen()
    session.start()
    until = time.monotonic() + LIMIT_S
    while not any(isinstance(event, Step) for event in heard.drain()):
        assert time.monotonic() < until
        heard.wait(0.1)
    lock = {**json.loads((run / "lock.json").read_text()), "pid": 7, "boot": "another", "host": "node7"}
    write_json(run / "lock.json", lock)
    (run / "summary.json").write_text('{"status": "running", "run": "theirs"}')
    assert session.wait(LIMIT_S)
    assert (session.result.status, session.result.exit_code) == ("failed", 6)
    assert "process 7 on node7 has taken this run over" in str(session.result.error)
    assert not any(isinstance(event, RunFinished) for event in read_journal(run))
    assert read_summary(run) == {"status": "running", "run": "theirs"}
    assert json.loads((run / "lock.json").read_text()) == lock
    assert not (run / "traceback.txt").exists()


def test_a_run_whose_journal_can_not_be_opened_is_nobodys(tmp_path):
    run = tmp_path / "run"
    session = session_of(run, UNET)
    (run / "events.jsonl").mkdir()
    with pytest.raises(RunDirectoryError, match=r"events\.jsonl"):
        session.start()
    assert owner_of(run) is None


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory):
    """A finished run of one epoch."""
    return trained(tmp_path_factory.mktemp("made") / "run", UNET | {"training.epochs": 1}).run


@pytest.fixture
def done(tmp_path, one_epoch):
    """A finished run of one epoch, and a function that resumes it with other settings."""
    run = shutil.copytree(one_epoch, tmp_path / "run", symlinks=True)

    def go(**changed):
        return trained(run, {**UNET, "training.epochs": 1, **changed}, resume=True), run

    return go


@pytest.mark.parametrize("changed", [{"training.seed": 5}, {"model.width": 4}, {"data.samples": 64}])
def test_what_a_run_can_not_have_is_refused_and_leaves_the_run_as_it_was(done, changed, tmp_path):
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=next(iter(changed))):
        done(**changed)
    assert {path: path.read_bytes() for path in before} == before


def test_what_a_resume_is_asked_for_is_kept(done):
    changed = {"memory.micro_batch": 4, "training.ema_decay": 0.9, "training.epochs": 2}
    session, run = done(**changed)
    assert session.result.exit_code == 0
    assert "micro_batch = 4" in (run / "run.toml").read_text()
    again, _ = done(**changed)
    assert again.result.exit_code == 0


def warnings_of(run):
    return [event.message for event in read_journal(run) if isinstance(event, Warned)]


def test_a_run_that_is_done_keeps_settings_that_repeat_it(done, tmp_path):
    settings = (tmp_path / "run" / "run.toml").read_text()
    chosen = dict.fromkeys(("speed.channels_last", "speed.fused"), "auto")
    session, run = done(**{"training.lr": 0.5, "memory.micro_batch": 4, **chosen})
    assert session.result.exit_code == 0
    assert (run / "run.toml").read_text() == settings
    told = warnings_of(run)[-1]
    assert "nothing is left to train (training.epochs = 1" in told
    assert told.endswith("): memory.micro_batch, training.lr, training.lr_batch_size stay as they were")


ENDS: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "by epochs": ({"training.epochs": 2}, {"training.epochs": 1}, "training.epochs = 1, and 2 epochs are"),
    "by steps": (
        {"training.epochs": 2, "training.max_steps": 6},
        {"training.epochs": 30, "training.max_steps": 6},
        "training.max_steps = 6, and 6 steps are taken",
    ),
    "by patience": (
        {"training.epochs": 6, "training.lr": 1e-12, "training.early_stopping_patience": 1},
        {"training.epochs": 30, "training.lr": 1e-12, "training.early_stopping_patience": 1},
        "training.early_stopping_patience = 1, and",
    ),
}


@pytest.mark.parametrize(
    "end", [end if end == "by epochs" else pytest.param(end, marks=pytest.mark.slow) for end in ENDS]
)
def test_another_length_is_refused_with_what_holds_the_run(tmp_path, end):
    had, asked, holds = ENDS[end]
    run = tmp_path / "run"

    def result(changed, resume=True):
        return trained(run, UNET | changed, resume=resume).result

    assert result(had, resume=False).exit_code == 0
    kept = {name: (run / name).read_bytes() for name in ("summary.json", "run.toml")}
    refused = result(asked)
    assert refused.exit_code == 2
    assert holds in str(refused.error)
    assert {name: (run / name).read_bytes() for name in kept} == kept
    assert result(had).exit_code == 0
    free = {
        **asked,
        "training.epochs": 4,
        "training.max_steps": None,
        "training.early_stopping_patience": None,
    }
    steps = read_summary(run)["optimizer_steps"]
    assert result(free).exit_code == 0
    assert read_summary(run)["optimizer_steps"] > steps


def test_more_epochs_are_refused_where_max_steps_ends_the_run_before(tmp_path):
    run = tmp_path / "run"

    def begun(**changed):
        settings = {**UNET, "training.epochs": 3_000, "training.max_steps": 10_000, **changed}
        return session_of(run, settings, resume=any(changed))

    first = begun()
    heard = first.listen()
    first.start()
    until = time.monotonic() + LIMIT_S
    while not any(isinstance(event, Step) for event in heard.drain()):
        assert time.monotonic() < until
        heard.wait(0.1)
    first.mailbox.stop(None)
    assert first.wait(LIMIT_S)
    assert first.result.status == "stopped"
    again = begun(**{"training.epochs": 30_000})
    again.start()
    assert again.wait(LIMIT_S)
    assert again.result.exit_code == 2
    told = "training.epochs = 30000: training.max_steps = 10000 ends this run in epoch 2500"
    assert told in str(again.result.error)


def test_a_resume_that_fails_before_its_checkpoint_leaves_the_settings_as_they_were(done, tmp_path):
    settings = (tmp_path / "run" / "run.toml").read_text()
    session, run = done(**{"precision.fp32_layers": ["no_such_layer"], "training.epochs": 3})
    assert session.result.exit_code == 2
    assert (run / "run.toml").read_text() == settings


def test_weights_that_are_gone_are_not_missed_at_a_resume(done, tmp_path, monkeypatch):
    given = tmp_path / "given.safetensors"
    session, run = done()
    assert session.result.exit_code == 0
    toml = (run / "run.toml").read_text()
    (run / "run.toml").write_text(toml.replace("[model]", f'[model]\nweights = "{given}"'))
    session, _ = done(**{"model.weights": str(given)})
    assert session.result.exit_code == 0


def test_a_resume_that_is_refused_leaves_a_completed_run_completed(tmp_path):
    photos = class_folders(tmp_path / "photos", {"cat": 8, "dog": 8})
    sets = {**UNET, "model.name": "small_cnn", "training.epochs": 1}
    flags = {
        key: ("test", value) for key, value in sets.items() if not key.startswith(("model.w", "model.d"))
    }
    flags = {k: v for k, v in flags.items() if k not in {"data.name", "data.samples"}}
    flags["data.path"] = ("--data", str(photos))
    run = create_run(tmp_path, "test", "test", "run")

    def result(resume):
        return ended(Session(plan_run(Request("stable", flags, (), os.environ)), run, resume=resume)).result

    assert result(resume=False).exit_code == 0
    kept = {name: (run / name).read_bytes() for name in ("summary.json", "data.json", "run.toml")}
    before = read_run(run)
    (photos / "cat").rename(photos / "ant")
    refused = result(resume=True)
    assert refused.exit_code == 3
    assert refused.status == "failed"
    assert {name: (run / name).read_bytes() for name in kept} == kept
    after = read_run(run)
    assert after.finished is not None
    assert before.finished is not None
    assert (after.finished.status, after.finished.step) == ("completed", before.finished.step)
    assert after.step == before.step
    warned = [event.message for event in read_journal(run) if isinstance(event, Warned)]
    assert "this resume has not started: this run can't go on with this data" in warned[-1]
    (photos / "ant").rename(photos / "cat")
    flags["training.epochs"] = ("test", 2)
    assert result(resume=True).exit_code == 0
    assert read_summary(run)["epochs"] == 2
