"""Synchronized BatchNorm, on a stand-in for that of torch, which a CPU does not have: it meets as torch's."""

from pathlib import Path

import pytest
import torch
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from mptui.engine.compile import Compiler
from mptui.engine.guards import memory
from mptui.engine.mailbox import Mailbox
from mptui.engine.ranks.group import Ranks
from mptui.errors import MptuiError
from mptui.models.layers import has_synchronized_norm
from mptui.runs.planning.build import prepare
from tests.engine.blots import SIDE
from tests.engine.small import build_trainer, config, end
from tests.made.runs import UNET, plan_of
from tests.ranks.groups import in_group, own_device
from tests.ranks.training import Fault, told


def _normalized(norm, images_BCHW):
    """Normalize by the values of all ranks: one exchange in the forward pass, one in the backward pass."""
    world = norm.process_group or torch.distributed.group.WORLD
    if not norm.training or torch.distributed.get_world_size(world) < 2:
        return _BatchNorm.forward(norm, images_BCHW)
    images_BCHW = images_BCHW.float()
    per_channel = images_BCHW.numel() // images_BCHW.shape[1]
    sums = [images_BCHW.sum((0, 2, 3)), images_BCHW.square().sum((0, 2, 3))]
    total, squares, (count,) = all_reduce(
        torch.cat([*sums, sums[0].new_tensor([per_channel])]), group=world
    ).split([norm.num_features, norm.num_features, 1])
    mean, var = total / count, squares / count - (total / count).square()
    with torch.no_grad():
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(var * count / (count - 1), norm.momentum)
    scaled = (images_BCHW - mean.view(-1, 1, 1)) * (var.view(-1, 1, 1) + norm.eps).rsqrt()
    return scaled * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)


def _trainer(ranks, folder, *, train=42, precision="fp32", **tables):
    torch.manual_seed(3)
    layers = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8 * SIDE**2, 3))
    if not ranks.is_alone and own_device().type == "cpu":
        patch = pytest.MonkeyPatch()
        patch.setattr(torch.nn.SyncBatchNorm, "forward", _normalized)
        # it refuses the layers on a CPU
        patch.setattr(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)
    if not ranks.is_alone:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    settings = config(data={"image_size": SIDE}, **tables)
    return build_trainer(
        settings,
        Path(folder),
        model=model,
        train=train,
        val=5,
        precision=precision,
        ranks=ranks,
        device=own_device(),
    )


def train_synchronized(ranks, folder, options):
    trainer, events = _trainer(ranks, folder, **options)
    trainer.train()
    end(trainer)
    return {**told(trainer, events), "step": trainer.state.step}


def _train_each(ranks, folder, forms):
    return [train_synchronized(ranks, f"{folder}/{number}", form) for number, form in enumerate(forms)]


def _training(**more):
    return {"training": {"epochs": 2, "batch_size": 8, "lr": 0.005, **more}}


ACCUMULATED = _training(accumulate=2)
SPLIT = {**_training(batch_size=7), "memory": {"micro_batch": 3}, "train": 35}


@pytest.mark.slow
def test_ranks_take_the_steps_of_one_with_accumulation_and_as_many_passes_as_each_other(tmp_path):
    """The last window of an epoch has a batch of two samples, both of rank 0; SPLIT has 2, 2 and 3."""
    (alone,) = in_group(1, train_synchronized, str(tmp_path / "1"), ACCUMULATED)
    first, last = in_group(2, _train_each, str(tmp_path / "2"), [ACCUMULATED, SPLIT])
    assert first == last
    for what in ("losses", "weights", "val_losses"):
        assert first[0][what] == pytest.approx(alone[what], rel=1e-4)
    assert first[1]["step"] == 10
    assert all(loss < 3 for loss in first[1]["losses"])


def _find_micro_batch(ranks, folder):
    """Find what fits where the last rank has less room, and so tries other sizes; then train."""
    fits, most = memory._fits, 3 if ranks.rank else 99
    memory._fits = lambda *given: fits(*given) and given[-1] <= most
    trainer, _ = _trainer(ranks, folder, **_training(), memory={"micro_batch": "auto"})
    trainer.train()
    end(trainer)
    return [trainer.context.micro_batches.limits["training"], trainer.state.step]


@pytest.mark.slow
def test_each_rank_tries_by_itself_which_micro_batch_fits(tmp_path):
    assert in_group(2, _find_micro_batch, str(tmp_path)) == [[2, 12], [2, 12]]


def _train_with_a_fault(ranks, folder, kind, options):
    """Train with a fault on the last rank in its third pass; return how it ended."""
    trainer, events = _trainer(ranks, folder, **options)
    layers = trainer.context.model
    assert isinstance(layers, torch.nn.Sequential)
    if ranks.rank == ranks.world_size - 1:
        layers[2] = Fault(kind, 3)
    error = None
    try:
        trainer.train()
    except MptuiError as caught:
        reason = ranks.reason(caught)
        error = [type(reason).__name__, str(reason)]
    end(trainer)
    return {"error": error, "others": told(trainer, events)["others"], "step": trainer.state.step}


@pytest.mark.slow
def test_what_one_rank_finds_not_finite_is_looked_for_without_the_others(tmp_path):
    options = {**_training(), "precision": "fp16", "guards": {"max_skipped_streak": 1}}
    first, last = in_group(2, _train_with_a_fault, str(tmp_path), "not finite", options)
    assert first == last
    assert first["error"] is None
    assert "back to step 0" in first["others"][0]


@pytest.mark.slow
def test_if_one_rank_leaves_a_pass_in_which_others_wait_for_it_all_end_by_its_error(tmp_path):
    first, last = in_group(2, _train_with_a_fault, str(tmp_path), "no memory", _training())
    assert first["error"] == ["MemoryExhaustedError", f"rank 1: {last['error'][1]}"]
    assert last["error"][1].startswith(
        "with training.sync_batch_norm, a step that does not fit is not repeated"
    )


def test_rank_0_measures_a_network_that_waits_for_no_other():
    settings = {**UNET, "data.samples": 8, "training.batch_size": 4, "training.sync_batch_norm": True}
    seen: list[bool] = []

    def decide(plan, model, dataset):
        seen.append(has_synchronized_norm(model))
        return plan

    made = prepare(
        plan_of(settings, None),
        mailbox=Mailbox(),
        decide=decide,
        ranks=Ranks(0, 2),
    )
    assert seen == [False]
    assert has_synchronized_norm(made.job.model)
    told: list[tuple[str, str]] = []
    Compiler(
        made.job.model,
        "default",
        torch.device("cpu"),
        forced=True,
        steps=1,
        warn=lambda code, message: told.append((code, message)),
        ranks=made.job.ranks,
    )
    ((code, message),) = told
    assert code == "compile_impossible"
    assert "can't compile synchronized BatchNorm" in message
