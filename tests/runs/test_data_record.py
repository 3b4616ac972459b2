"""Data that changes between a run and its resume: the changes are reported, and nothing else."""

import json
import os
import shutil

import pytest
from safetensors.torch import save_file
from torchvision.models import squeezenet1_1

from mptui.config.resolve import to_toml
from mptui.config.schema import DataConfig
from mptui.data.open import open_dataset
from mptui.engine.mailbox import Mailbox
from mptui.events import Event, Warned
from mptui.registry.names import SampleKind
from mptui.runs.planning.build import prepare
from mptui.runs.planning.plan import Request, head_notes, plan_run
from mptui.runs.session.session import Session
from mptui.runs.store.directory import create_run
from mptui.runs.store.files import DATA_RECORD, note_data
from mptui.runs.store.journal import read_journal
from tests.data.images import class_folders

LIMIT_S = 300
CPU = {"hardware.device": ("--device", "cpu")}


@pytest.fixture
def photos(tmp_path):
    class_folders(tmp_path / "photos", {"cat": 20, "dog": 20})
    return tmp_path / "photos"


@pytest.fixture
def run(tmp_path):
    return create_run(tmp_path / "runs", "test", "resnet18", "run")


def warned(run, path, seed=0):
    """Return the warnings of a resume with the data at `path`."""
    dataset = open_dataset(
        DataConfig(path=path and str(path)),
        kind=SampleKind.CLASS,
        side=16,
        seed=seed,
        on_progress=lambda done, total: None,
        should_stop=lambda: False,
        on_warning=lambda warning: None,
    )
    told: list[str] = []
    note_data(run, dataset, lambda _code, message: told.append(message))
    return told


def first_of(folder, count=1):
    return sorted(folder.iterdir())[:count]


def remove(photos):
    for file in first_of(photos / "cat", 4):
        file.unlink()


def add(photos):
    (file,) = first_of(photos / "cat")
    shutil.copy(file, file.with_stem("another"))


def rename(photos):
    (file,) = first_of(photos / "cat")
    file.rename(file.with_stem("another"))


def replace(photos):
    (file,) = first_of(photos / "cat")
    file.write_bytes(file.read_bytes() + b"more")


def add_class(photos):
    shutil.copytree(photos / "cat", photos / "eel")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove, "gone: 4 of 40 samples"),
        (add, "new: 1 on top of 40 samples"),
        (rename, "files have other names"),
        (replace, "files have other sizes"),
        (add_class, "classes: 1 new (eel)"),
    ],
)
def test_what_changed_is_said_once(run, photos, change, said):
    assert warned(run, photos) == []
    change(photos)
    (told,) = warned(run, photos)
    assert said in told
    assert warned(run, photos) == []


def test_a_copy_elsewhere_with_other_times_is_the_same_set(run, tmp_path, photos):
    assert warned(run, photos) == []
    shutil.copytree(photos, tmp_path / "copy")
    for file in (tmp_path / "copy" / "cat").iterdir():
        os.utime(file, (1, 1))
    assert warned(run, tmp_path / "copy") == []


def test_other_validation_samples_of_the_same_set_are_no_change(run, photos):
    assert warned(run, photos) == []
    assert warned(run, photos, seed=5) == []


def test_drawn_images_recorded_by_an_older_version_have_not_changed(run):
    assert warned(run, None) == []
    record = json.loads((run / DATA_RECORD).read_text())
    (run / DATA_RECORD).write_text(json.dumps(record | {"names": "a digest of how they are drawn"}))
    assert warned(run, None) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"train_samples": "x"}', "[" * 5000, "\x00"])
def test_a_run_without_a_usable_record_resumes_as_before(run, photos, text):
    (run / DATA_RECORD).write_text(text)
    assert warned(run, photos) == []
    remove(photos)
    assert len(warned(run, photos)) == 1


def test_a_resumed_run_warns_of_files_that_are_gone(run, photos):
    settings = {"data.image_size": 16, "data.workers": 0, "training.epochs": 1, "model.name": "small_cnn"}
    flags = {**CPU, **{key: ("test", value) for key, value in settings.items()}}
    flags["data.path"] = ("--data", str(photos))

    def train(resume):
        session = Session(plan_run(Request(None, flags, (), {})), run, resume=resume)
        session.start()
        assert session.wait(LIMIT_S)
        assert session.result.exit_code == 0, session.result.bug
        return [event.code for event in read_journal(run) if isinstance(event, Warned)]

    assert "data_changed" not in train(resume=False)
    remove(photos)
    assert "data_changed" in train(resume=True)


def test_a_head_that_is_kept_for_other_classes_is_told(tmp_path, photos, run):
    flags = {**CPU, "data.path": ("--data", str(photos)), "model.name": ("--model", "squeezenet1_1")}
    file = run / "checkpoints" / "best" / "model.safetensors"
    file.parent.mkdir(parents=True)
    save_file(squeezenet1_1(num_classes=2).state_dict(), file)
    flags |= {"model.weights": ("--weights", str(file))}

    def told():
        events: list[Event] = []
        plan = plan_run(Request(None, flags, ["data.image_size=32"], {}))
        assert "is kept, even if they are others" in head_notes(plan)[0]
        prepared = prepare(
            plan, emit=events.append, mailbox=Mailbox(), on_bad=lambda problem: None, force_compile=False
        )
        prepared.job.train_loader.close()
        prepared.job.val_loader.close()
        return [event.message for event in events if isinstance(event, Warned) and event.code == "weights"]

    kept = "model.safetensors: its head for 2 classes is kept, "
    assert told() == [f"{kept}whose names are not known"]
    warned(run, photos)  # records the classes
    assert told() == []
    for name in ("cat", "dog"):
        (photos / name).rename(photos / f"{name}s")
    assert told() == [f"{kept}which were others: cat, dog"]
    save_file(squeezenet1_1(num_classes=3).state_dict(), file)
    (warning,) = told()
    assert "its head is for 3 classes, not 2" in warning


def test_a_relative_path_is_kept_in_full_and_resumes_from_anywhere(tmp_path, photos, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = {**CPU, "data.path": ("--data", "photos"), "model.weights": ("--set", "weights.pth")}
    plan = plan_run(Request(None, flags, (), {}))
    assert plan.config.data.path == str(photos)
    kept = tmp_path / "run.toml"
    kept.write_text(to_toml(plan.config))
    class_folders(tmp_path / "elsewhere" / "photos", {"ant": 2, "bee": 2})
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = plan_run(Request(str(kept), CPU, (), {})).config
    assert again.data.path == str(photos)
    assert again.model.weights == str(tmp_path / "weights.pth")
