"""A checkpoint is complete or absent, and any damage to one is detected."""

import hashlib
import json
import os
import random
import resource
import shutil
import stat

import pytest
import torch

from mptui.engine.checkpoint import files
from mptui.engine.checkpoint.files import (
    Snapshot,
    adopt,
    checkpoints,
    host_copy,
    keep_only,
    never_saved,
    point,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from mptui.errors import DiskError, RunDirectoryError
from tests.engine.checkpoints import names_of, same, snapshot


def test_what_is_written_is_read(tmp_path):
    read = read_checkpoint(write_checkpoint(tmp_path, snapshot(7)))
    same(read, snapshot(7))
    assert read.state["cursor"] == {"epoch": 0, "sample": 56}
    assert float(read.state["best"]["value"]) == -torch.inf


def test_the_manifest_names_every_file_and_its_hash(two):
    manifest = json.loads((two[1] / "manifest.json").read_text())
    assert manifest["version"] == files.FORMAT_VERSION
    assert set(manifest["files"]) == {"model.safetensors", "optimizer.safetensors", "state.json"}
    assert {p.name for p in two[1].iterdir()} == {*manifest["files"], "manifest.json"}


def test_nothing_in_it_is_a_pickle_or_an_archive(two):
    for path in two[1].iterdir():
        assert path.suffix in {".json", ".safetensors"}
        # safetensors: the length of a JSON header in eight bytes, then the header
        assert path.read_bytes()[8 if path.suffix == ".safetensors" else 0 :].startswith(b"{")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_it_is_for_its_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = write_checkpoint(tmp_path / "checkpoints", snapshot())
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.iterdir()} == {0o600}


def test_a_host_copy_does_not_follow_its_source():
    source = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    copy = host_copy({"weight": source})["weight"]
    with torch.no_grad():
        source.fill_(1)
    assert copy.is_contiguous()
    assert not copy.requires_grad
    assert float(copy.sum()) == 0


# -- damage


def assert_noticed(path):
    with pytest.raises(RunDirectoryError) as caught:
        read_checkpoint(path)
    assert str(path) in caught.value.message


def test_a_flipped_bit_is_noticed(two):
    chance = random.Random(0)
    for name in names_of(two[1]):
        with (two[1] / name).open("r+b") as file:
            whole = file.read()
            bits = range(len(whole) * 8)
            for bit in chance.sample(bits, 500 if name == "manifest.json" else 60):
                byte = whole[bit // 8]
                overwrite(file, bit // 8, byte ^ 1 << bit % 8)
                assert_noticed(two[1])
                overwrite(file, bit // 8, byte)
    same(read_checkpoint(two[1]), snapshot(2))


def overwrite(file, place, byte):
    file.seek(place)
    file.write(bytes([byte]))
    file.flush()


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_every_cut_is_noticed(two, step):
    for name in names_of(two[1]):
        whole = (two[1] / name).read_bytes()
        for length in reversed([0, *range((len(whole) - 1) % step, len(whole), step)]):
            os.truncate(two[1] / name, length)
            assert_noticed(two[1])
        (two[1] / name).write_bytes(whole)
    same(read_checkpoint(two[1]), snapshot(2))


def test_bytes_added_are_noticed(two):
    for name in names_of(two[1]):
        file = two[1] / name
        whole = file.read_bytes()
        file.write_bytes(whole + b"\0")
        assert_noticed(two[1])
        file.write_bytes(whole)


def test_a_missing_file_is_noticed(two):
    for name in names_of(two[1]):
        away = (two[1] / name).rename(two[1].parent / "away")
        assert_noticed(two[1])
        away.rename(two[1] / name)


def test_what_others_leave_in_a_checkpoint_is_ignored_and_named(tmp_path, two):
    (two[1] / "average.safetensors").write_bytes((two[1] / "model.safetensors").read_bytes())
    for name in (".DS_Store", "._state.json", "state.json~", "README.md"):
        (two[1] / name).write_text("theirs")
    (two[1] / "my notes").mkdir()
    read, complaints = read_newest(tmp_path)
    same(read, snapshot(2))
    assert complaints == []
    theirs = (".DS_Store", "._state.json", "README.md", "average.safetensors", "my notes", "state.json~")
    assert read.ignored == theirs


def test_files_that_changed_places_are_noticed(two):
    one, other = two[1] / "model.safetensors", two[1] / "optimizer.safetensors"
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])
    assert_noticed(two[1])


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "state.json"])
def test_a_file_of_another_checkpoint_is_noticed(two, name):
    shutil.copy(two[0] / name, two[1] / name)
    assert_noticed(two[1])


@pytest.mark.parametrize(
    "manifest",
    ["", "null", "[]", "\xff", "{}", '{"version": 1}', '{"version": "1"}', '{"version": 1, "files": [1]}'],
)
def test_a_manifest_that_is_none_is_noticed(two, manifest):
    (two[1] / "manifest.json").write_bytes(manifest.encode("latin-1"))
    assert_noticed(two[1])


def test_a_folder_that_is_not_there_is_noticed(tmp_path):
    assert_noticed(tmp_path / "step-000000009")


def newer_version(path):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest = {"version": 99, "files": manifest["files"]}
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    whole = json.dumps({**manifest, "sha256": own}, indent=1, sort_keys=True)
    (path / "manifest.json").write_text(whole)


def test_a_newer_version_is_left_alone_and_says_so(tmp_path, two):
    newer_version(two[1])
    with pytest.raises(RunDirectoryError, match=r"newer mptui.*version 99"):
        read_newest(tmp_path)
    assert two[1].is_dir()


# -- the newest undamaged one


def damage(path):
    (path / "state.json").write_text("{}")


def test_a_damaged_one_is_set_aside_and_the_one_before_it_taken(tmp_path, two):
    damage(two[1])
    read, complaints = read_newest(tmp_path)
    same(read, snapshot(1))
    assert len(complaints) == 1
    assert "state.json" in complaints[0]
    assert checkpoints(tmp_path) == [two[0]]
    assert (tmp_path / "damaged-step-000000002").is_dir()
    assert len(read_newest(tmp_path)[1]) == 1  # looked at again


def test_a_damaged_one_that_is_repaired_is_read_again(tmp_path, two):
    state = (two[1] / "state.json").read_bytes()
    damage(two[1])
    same(read_newest(tmp_path)[0], snapshot(1))
    (tmp_path / "damaged-step-000000002" / "state.json").write_bytes(state)
    same(read_newest(tmp_path)[0], snapshot(2))
    assert checkpoints(tmp_path) == two


def test_the_same_step_can_be_damaged_twice(tmp_path, two):
    for _ in range(3):
        damage(two[1])
        same(read_newest(tmp_path)[0], snapshot(1))
        write_checkpoint(tmp_path, snapshot(2))


def test_where_none_is_whole_each_damage_is_told(tmp_path, two):
    for path in two:
        damage(path)
    with pytest.raises(RunDirectoryError) as caught:
        read_newest(tmp_path)
    assert caught.value.message.count("damaged checkpoint") == 2


@pytest.mark.parametrize("folder", ["", "missing"])
def test_where_there_is_none_it_says_so(tmp_path, folder):
    with pytest.raises(RunDirectoryError, match="no usable checkpoint"):
        read_newest(tmp_path / folder)


def test_saved_again_at_the_same_step_the_last_one_counts(tmp_path):
    for save in range(25):
        again = snapshot(5)
        again.state["cursor"] = {"sample": save}
        point(tmp_path, "last", write_checkpoint(tmp_path, again))
        keep_only(tmp_path, 1 + save % 3)
        assert read_newest(tmp_path)[0].state["cursor"] == {"sample": save}
    assert len(checkpoints(tmp_path)) <= 3


def test_the_highest_step_is_the_newest_however_many_digits_it_has(tmp_path):
    for step in (999_999_999, 1_000_000_000):
        write_checkpoint(tmp_path, snapshot(step))
    assert read_newest(tmp_path)[0].step == 1_000_000_000


def test_a_path_that_is_not_utf8_is_read_and_written(tmp_path):
    folder = tmp_path / os.fsdecode(b"runs-\xff")
    for step in (1, 2):
        point(folder, "last", write_checkpoint(folder, snapshot(step)))
    read, complaints = read_newest(folder)
    same(read, snapshot(2))
    assert complaints == []


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "state.json"])
@pytest.mark.parametrize("kind", ["fifo", "zero", "link"])
def test_what_is_no_file_in_a_checkpoint_is_damage_and_nobody_waits_for_it(tmp_path, two, name, kind):
    content = (two[1] / name).rename(tmp_path / "elsewhere")
    odd(two[1] / name, kind, content)
    assert_noticed(two[1])
    same(read_newest(tmp_path)[0], snapshot(1))
    assert content.exists()


def odd(path, kind, target):
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else target)


# -- the disk


def test_too_little_room_names_what_is_needed(tmp_path, two):
    huge = Snapshot(3, {"model": {"weight": torch.zeros(1).expand(10**15)}})
    with pytest.raises(DiskError, match=r"3725290\.3 GiB are needed") as caught:
        write_checkpoint(tmp_path, huge)
    assert "the checkpoints before it are intact" in caught.value.hint
    same(read_newest(tmp_path)[0], snapshot(2))


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path, two):
    before = names_of(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(DiskError, match="cannot save"):
            write_checkpoint(tmp_path, snapshot(3, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names_of(tmp_path) == before
    same(read_newest(tmp_path)[0], snapshot(2))


def test_a_file_in_the_way_of_the_folder_is_told(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(DiskError):
        write_checkpoint(tmp_path / "checkpoints", snapshot())


# -- which ones are kept


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_newest_and_those_that_are_led_to_are_kept(tmp_path, count):
    written = [write_checkpoint(tmp_path, snapshot(step)) for step in range(1, 7)]
    point(tmp_path, "best", written[0])
    point(tmp_path, "last", written[5])
    keep_only(tmp_path, count)
    assert checkpoints(tmp_path) == sorted({written[0], *written[-count:]})
    assert read_checkpoint(tmp_path / "best").step == 1
    assert read_checkpoint(tmp_path / "last").step == 6


def test_what_lies_beyond_the_last_is_no_longer_the_runs(tmp_path):
    """The run rolled back behind steps 4 and 5, and continued differently."""
    written = {step: write_checkpoint(tmp_path, snapshot(step)) for step in (1, 4, 5, 2, 3)}
    point(tmp_path, "best", written[5])
    point(tmp_path, "last", written[3])
    assert read_newest(tmp_path)[0].step == 3
    keep_only(tmp_path, 2)
    assert checkpoints(tmp_path) == [written[5], written[2], written[3]]
    shutil.rmtree(written[3])
    assert read_newest(tmp_path)[0].step == 2  # its target is gone, and it is still reported
    shutil.rmtree(written[2])
    assert read_newest(tmp_path)[0].step == 5  # better than none


def test_a_copy_whose_links_were_resolved_is_saved_to_and_read(tmp_path):
    path = write_checkpoint(tmp_path, snapshot(1))
    for name in ("last", "best"):
        shutil.copytree(path, tmp_path / name)
    shutil.rmtree(path)
    assert not never_saved(tmp_path)
    adopt(tmp_path)
    same(read_newest(tmp_path)[0], snapshot(1))
    newer = write_checkpoint(tmp_path, snapshot(2))
    point(tmp_path, "last", newer)
    keep_only(tmp_path, 1)
    assert (tmp_path / "last").resolve() == newer
    same(read_checkpoint(tmp_path / "best"), snapshot(1))
    assert {p.name for p in tmp_path.iterdir()} == {"last", "best", newer.name, "step-000000001.1"}


@pytest.mark.parametrize("link", ["absolute", "left out"])
def test_a_copy_whose_links_are_absolute_or_left_out_keeps_its_best(tmp_path, link):
    written = []
    for step, best, since, sample in ((1, 1, 0, 0), (2, 2, 0, 0), (3, 2, 0, 8), (4, 2, 1, 0), (5, 2, 2, 0)):
        taken = snapshot(step)
        taken.state["best"] = {"metric": "acc1", "value": 0.5, "epoch": best, "epochs_since": since}
        taken.state["cursor"] = {"epoch": step, "sample": sample}
        written.append(write_checkpoint(tmp_path, taken))
    if link == "absolute":
        (tmp_path / "best").symlink_to(written[1].resolve())
    adopt(tmp_path)
    keep_only(tmp_path, 1)
    assert (tmp_path / "best").resolve() == written[1]
    assert checkpoints(tmp_path) == [written[1], written[4]]


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_folder_in_place_of_a_link_that_is_no_checkpoint_is_kept(tmp_path, two, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.pt").write_text("theirs")
    with pytest.raises(RunDirectoryError, match="in place of a link") as caught:
        adopt(tmp_path)
    assert "move it" in caught.value.hint
    point(tmp_path, name, two[1])
    keep_only(tmp_path, 1)
    assert (tmp_path / f"{name}.others" / "model.pt").read_text() == "theirs"
    assert read_checkpoint(tmp_path / name).step == 2


# -- what is not the run's


def test_only_checkpoints_are_removed_and_only_what_they_name(tmp_path):
    written = [write_checkpoint(tmp_path, snapshot(step)) for step in range(1, 4)]
    (written[0] / "notes.txt").write_text("theirs")
    theirs = [
        ".draft.partial",
        "step-000000009/model.pt",
        "epoch-1/model.pt",
        ".step-000000002.x.partial/model",
    ]
    for name in theirs:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("theirs")
    (tmp_path / "step-000000008").symlink_to(tmp_path / "epoch-1")
    keep_only(tmp_path, 1)
    for name in (*theirs, "step-000000001.others/notes.txt", "step-000000008/model.pt"):
        assert (tmp_path / name).read_text() == "theirs", name
    assert not any(path.exists() for path in written[:2])


def test_a_pointer_moves(tmp_path, two):
    for path in (*two, two[0]):
        point(tmp_path, "last", path)
        assert (tmp_path / "last").resolve() == path


def test_a_further_name_keeps_what_it_leads_to(tmp_path):
    written = [write_checkpoint(tmp_path, snapshot(step)) for step in range(1, 4)]
    point(tmp_path, "before-switch", written[0])
    (tmp_path / ".last.1-0123abcd.partial").symlink_to(written[1].name)  # left by a killed process
    keep_only(tmp_path, 1)
    assert checkpoints(tmp_path) == [written[0], written[2]]
    assert names_of(tmp_path) == ["before-switch", written[0].name, written[2].name]


def test_other_folders_are_no_checkpoints(tmp_path, two):
    for name in ("step-by-step", ".step-000000003.1.partial", "damaged-step-000000003"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000000009").write_text("")
    assert checkpoints(tmp_path) == two
