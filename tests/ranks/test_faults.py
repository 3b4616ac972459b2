"""What goes wrong on one rank alone: all act alike, and none waits for ever."""

import pytest

from tests.ranks.groups import in_group
from tests.ranks.training import switch_in_vain, train, train_on_torn, train_with_a_fault

pytestmark = pytest.mark.slow

OPTIONS = {"training": {"epochs": 2, "batch_size": 8, "lr": 0.05}, "train": 24, "val": 4}
SHARDED = {**OPTIONS, "memory": {"shard": True}, "blocks": 2}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process without a fault gives."""
    (found,) = in_group(1, train, str(tmp_path_factory.mktemp("alone")), OPTIONS)
    return found


@pytest.mark.parametrize("kind", ["no memory", "no memory backward"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_if_one_rank_runs_out_of_memory_all_split_and_repeat_the_step(kind, at, alone, tmp_path):
    """In the first step, in the second, where DDP forms its buckets anew, and later."""
    found = in_group(2, train_with_a_fault, str(tmp_path), kind, at, OPTIONS)
    assert found[0] == found[1]
    assert any("micro-batch 4 → 2" in action for action in found[0]["others"]), found
    assert found[0]["error"] is None
    for what in ("losses", "val_losses", "weights"):
        assert found[0][what] == pytest.approx(alone[what], rel=1e-5)
    assert found[0]["validations"] == alone["validations"]


def test_if_the_data_of_one_rank_are_not_finite_all_refuse_the_step(tmp_path):
    found = in_group(3, train_with_a_fault, str(tmp_path), "not finite", 3, OPTIONS)
    assert found[0] == found[1] == found[2]
    assert found[0]["skipped"] == 1
    assert found[0]["error"] is None
    assert found[0]["step"] == 6


def test_if_gradients_of_one_rank_overflow_in_fp16_all_refuse_the_step_and_lower_the_scale(tmp_path):
    """The loss is finite; 16 bits round sums over other parts of a batch otherwise."""
    options = {**OPTIONS, "precision": "fp16"}
    (alone,) = in_group(1, train_with_a_fault, str(tmp_path / "1"), "overflow", 3, options)
    first, last = in_group(2, train_with_a_fault, str(tmp_path / "2"), "overflow", 3, options)
    assert first == last
    assert first["skipped"] == alone["skipped"] == 1
    assert first["scales"] == alone["scales"]
    assert first["scales"][2] == first["scales"][1] / 2
    assert first["losses"] == pytest.approx(alone["losses"], rel=1e-3)


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize(
    ("kind", "error"), [("data", "DataError"), ("reading", "DataError"), ("bug", "RankError")]
)
def test_if_one_rank_fails_all_end_by_its_error_and_save_what_they_have(kind, error, masks, tmp_path):
    options = {**OPTIONS, "masks": masks}
    first, last = in_group(2, train_with_a_fault, str(tmp_path), kind, 5, options)
    assert first["error"][0] == error
    assert first["error"][1].startswith("rank 1: ")
    assert last["error"][0] == ("KeyError" if kind == "bug" else error)
    assert first["step"] == last["step"] == 4
    saved = list((tmp_path / "checkpoints").glob("step-*4"))
    assert saved


def test_a_sample_that_can_not_be_read_is_told_once_whichever_rank_reads_it(tmp_path):
    ((alone, _),) = in_group(1, train_on_torn, str(tmp_path / "1"), 9)
    (first, error), (other, _) = in_group(2, train_on_torn, str(tmp_path / "2"), 9)
    assert error is None
    assert len(alone) == 4 + 2
    assert first == other == alone


def test_unreadable_samples_of_all_ranks_count_against_the_budget(tmp_path):
    (_, first), (_, last) = in_group(2, train_on_torn, str(tmp_path), 3)
    for error in (first, last):
        assert error.endswith("4 of 40 samples can't be used, data.bad_sample_budget allows 3")


def test_if_the_data_of_one_rank_are_not_finite_all_refuse_the_step_and_go_back_to_their_shards(tmp_path):
    options = {**SHARDED, "precision": "fp16", "guards": {"max_skipped_streak": 1}}
    first, last = in_group(2, train_with_a_fault, str(tmp_path), "not finite", 3, options)
    assert first == last
    assert first["error"] is None
    assert first["skipped"] == 1
    assert "precision fp16 → bf16, back to step 0" in first["others"][0]
    assert first["losses"][-1] < first["losses"][0]


def test_if_one_rank_can_not_read_all_save_their_shards(tmp_path):
    first, last = in_group(2, train_with_a_fault, str(tmp_path), "reading", 5, SHARDED)
    assert first["error"] == ["DataError", "rank 1: a broken file"]
    assert last["error"] == ["DataError", "a broken file"]
    assert len(list((tmp_path / "checkpoints").glob("step-*4"))) == 1


def test_if_one_rank_leaves_a_step_in_which_others_need_its_shards_all_end(tmp_path):
    first, last = in_group(2, train_with_a_fault, str(tmp_path), "no memory backward", 3, SHARDED)
    assert [first["error"][0], last["error"][0]] == ["MemoryExhaustedError"] * 2
    assert first["error"][1].startswith("rank 1: with memory.shard, a step that does not fit")
    assert not list((tmp_path / "checkpoints").glob("step-*2"))


@pytest.mark.parametrize(
    ("setting", "moment"),
    [
        *[("training.batch_size=4", moment) for moment in ("parts", "validation", "step", "second step")],
        *[("training.clip_grad_norm=0.5", moment) for moment in ("parts", "backward")],
    ],
)
def test_a_switch_that_one_rank_can_not_have_is_undone_by_all(setting, moment, tmp_path):
    first, last = in_group(2, switch_in_vain, str(tmp_path), moment, setting)
    assert (first["code"], last["code"]) == (0, 0), (first, last)
    assert first["steps"] == last["steps"] == 12
    (undone,) = first["undone"]
    assert f"set {setting} is undone: rank 1: " in undone
    assert "no memory for it" in undone
    assert first["settings"] == last["settings"]
    assert setting.partition("=")[2] not in map(str, first["settings"])
