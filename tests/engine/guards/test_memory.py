"""Out of memory: the same batch is repeated in smaller pieces, with the same result."""

import errno
import random
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.distributed as dist

from mptui.config.schema import GuardsConfig, MemoryConfig
from mptui.engine import micro_batches
from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.guards import memory
from mptui.engine.mailbox import Stopped
from mptui.errors import MemoryExhaustedError
from mptui.events import EpochFinished, Recovered, Step, Validated, Warned
from tests.engine.blots import CLASSES, SIDE, Scene
from tests.engine.guards.sick import bits, limit_memory
from tests.engine.small import build_trainer, config, end, losses, of, small_net

HOUR = 3600.0
PHASES = ("forward", "backward", "optimizer", "average", "validating")


def group_net(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.GroupNorm(2, 8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(8 * SIDE * SIDE, len(CLASSES)),
    )


def build(folder, model=None, **tables):
    tables["training"] = {"lr": 0.02, "momentum": 0.5, **tables.get("training", {})}
    run = config(**{"data": {"augment": "none"}, **tables})
    return build_trainer(run, folder, model=model or group_net())


def finish(trainer):
    try:
        trainer.train()
    finally:
        end(trainer)


def fail(trainer, phase, step, samples):
    """From optimizer step `step` (from 0) on, let `phase` run out of memory with more than `samples`."""

    def check(count):
        if trainer.state.step >= step and count > samples:
            raise torch.OutOfMemoryError(f"no room for {count} samples in the {phase} pass")

    def after_forward(module, inputs, outputs):
        if phase == "forward" or (phase == "validating" and not module.training):
            check(len(outputs))
        elif phase == "backward" and outputs.requires_grad:
            outputs.register_hook(lambda gradient: check(len(gradient)))

    def once(owner, name):
        whole = getattr(owner, name)
        done: list[bool] = []

        def failing(*args):
            if trainer.state.step >= step and not done:
                done.append(True)
                check(samples + 1)
            return whole(*args)

        setattr(owner, name, failing)

    # in the middle, after half of the network
    trainer.context.model[2].register_forward_hook(after_forward)
    if phase == "optimizer":
        once(trainer.context.parts.precision, "unscale")
    elif phase == "average":
        once(trainer.context.parts.average, "update")


def distance(one, other):
    """Return the largest relative L2 difference of any weight tensor."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


def averaged(accumulate):
    return {
        "training": {"ema_decay": 0.9, "accumulate": accumulate},
        "guards": {"snapshot_every": 3},
    }


@pytest.fixture(scope="module")
def undisturbed_run(tmp_path_factory):
    """A run to its end by its `accumulate`, and its events."""

    @cache
    def run(accumulate):
        trainer, events = build(tmp_path_factory.mktemp("undisturbed") / "one", **averaged(accumulate))
        finish(trainer)
        return trainer, events

    return run


def assert_as_undisturbed(undisturbed_run, folder, phase, step, samples, accumulate=1, interval_s=0.0):
    undisturbed, whole = undisturbed_run(accumulate)
    trainer, events = build(folder, **averaged(accumulate), logging={"step_interval_s": interval_s})
    fail(trainer, phase, step, samples)
    finish(trainer)
    assert trainer.state.step == undisturbed.state.step
    assert distance(trainer.context.model, undisturbed.context.model) < 1e-6
    # a run that rolled back to the end of an epoch finishes it again: the last event counts
    mine_by_epoch = {e.epoch: e for e in of(events, EpochFinished)}
    for theirs in of(whole, EpochFinished):
        mine = mine_by_epoch[theirs.epoch]
        assert mine.train_loss == pytest.approx(theirs.train_loss, rel=1e-5)
        assert mine.train_metrics == theirs.train_metrics  # each sample is counted once
        assert mine.val_loss == pytest.approx(theirs.val_loss, rel=1e-5)
        assert mine.val_metrics == theirs.val_metrics
    told = of(events, Recovered)
    assert {e.problem for e in told} == {"out of memory"}
    assert all(e.action.startswith("validating") for e in told) == (phase == "validating")


@pytest.mark.parametrize("phase", PHASES)
def test_the_run_goes_on_and_ends_where_the_undisturbed_one_does(undisturbed_run, tmp_path, phase):
    assert_as_undisturbed(undisturbed_run, tmp_path, phase, step=4, samples=3)


@pytest.mark.parametrize("phase", ["backward", "average"])
def test_steps_whose_figures_are_read_late_are_counted_once(undisturbed_run, tmp_path, phase):
    assert_as_undisturbed(undisturbed_run, tmp_path, phase, step=4, samples=3, interval_s=HOUR)


def test_each_micro_batch_of_a_window_is_cut(undisturbed_run, tmp_path):
    assert_as_undisturbed(undisturbed_run, tmp_path, "backward", step=1, samples=5, accumulate=3)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(50))
def test_out_of_memory_at_fifty_random_steps(undisturbed_run, tmp_path, seed):
    numbers = random.Random(seed)
    phase, accumulate = numbers.choice(PHASES), numbers.choice([1, 1, 2])
    step = numbers.randrange(10 // accumulate - 1)
    assert_as_undisturbed(undisturbed_run, tmp_path, phase, step, numbers.randint(1, 7), accumulate)


# -- side effects of a failed attempt


def test_a_failed_try_moves_neither_buffers_nor_random_numbers(tmp_path):
    """With BatchNorm and dropout: bit-identical to a run with such small batches from the start."""
    once = {"epochs": 1}
    asked, _ = build(tmp_path / "asked", small_net(dropout=0.5), memory={"micro_batch": 4}, training=once)
    finish(asked)
    for phase in ("forward", "backward"):
        trainer, events = build(tmp_path / phase, small_net(dropout=0.5), training=once)
        fail(trainer, phase, 0, 4)
        finish(trainer)
        assert bits(trainer) == bits(asked), phase
        assert losses(events)
        assert trainer.context.micro_batches.limits["training"] == 4


def test_where_the_optimizer_was_interrupted_the_run_goes_back(tmp_path):
    trainer, events = build(tmp_path, training={"ema_decay": 0.9}, guards={"snapshot_every": 3})
    fail(trainer, "average", 5, 4)
    finish(trainer)
    assert [e.step for e in of(events, Recovered)] == [5, 3]
    assert "back to step 3" in of(events, Recovered)[1].action
    steps = [e.step for e in of(events, Step)]
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10]


def test_an_interrupted_optimizer_without_a_way_back_is_the_end(tmp_path):
    trainer, _ = build(tmp_path, training={"ema_decay": 0.9}, guards={"on_nan": "stop"})
    fail(trainer, "average", 5, 4)
    with pytest.raises(MemoryExhaustedError):
        finish(trainer)


def test_the_cut_stays_and_a_resumed_run_begins_with_it(tmp_path):
    trainer, events = build(tmp_path)
    limit_memory(trainer, lambda: 2)
    events.then = lambda event: trainer.context.mailbox.stop(None) if event.step == 6 else None
    with pytest.raises(Stopped):
        finish(trainer)
    told = of(events, Recovered)
    assert [e.action.partition(",")[0] for e in told] == [
        *("training: micro-batch 8 → 4", "training: micro-batch 4 → 2"),
        *("validating: micro-batch 8 → 4", "validating: micro-batch 4 → 2"),
    ]
    resumed, events = build(tmp_path)
    limit_memory(resumed, lambda: 2)
    snapshots.restore(resumed.state, read_newest(tmp_path)[0])
    finish(resumed)
    assert of(events, Recovered) == []
    assert len(losses(events)) == 4


def test_batch_norm_is_said_to_see_the_difference(tmp_path):
    for model, codes in ((small_net(), ["batchnorm_split"]), (group_net(), [])):
        trainer, events = build(tmp_path, model, training={"max_steps": 2})
        limit_memory(trainer, lambda: 2)
        finish(trainer)
        assert [w.code for w in of(events, Warned)] == codes
        training = [e.action for e in of(events, Recovered) if e.action.startswith("training")]
        effect = "BatchNorm statistics per micro-batch" if codes else "same result"
        assert training
        assert all(action.endswith(effect) for action in training)


def test_masks_are_cut_too_however_much_of_them_is_ignored(tmp_path):
    def trained(folder, limit):
        run = config(training={"lr": 0.05, "epochs": 1}, data={"augment": "none"})
        trainer, events = build_trainer(run, folder, kind=Scene)
        limit_memory(trainer, lambda: limit)
        finish(trainer)
        return trainer, events

    whole, undisturbed = trained(tmp_path / "whole", 8)
    cut, events = trained(tmp_path / "cut", 3)
    assert distance(cut.context.model, whole.context.model) < 1e-6
    for mine, theirs in zip(of(events, Validated), of(undisturbed, Validated), strict=True):
        assert mine.metrics == pytest.approx(theirs.metrics, rel=1e-6)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-6)


# -- the end


def test_where_not_even_one_sample_fits_it_ends(tmp_path):
    trainer, _ = build(tmp_path)
    limit_memory(trainer, lambda: 0)
    with pytest.raises(MemoryExhaustedError, match="micro-batch of one sample") as caught:
        finish(trainer)
    assert caught.value.exit_code == 5
    assert "--precision" in caught.value.hint


def test_others_who_hold_the_memory_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "held_by_others", lambda: "python (pid 4117) has 70.0 GiB on this GPU")
    trainer, events = build(tmp_path, training={"epochs": 1})
    limit_memory(trainer, lambda: 4)
    finish(trainer)
    assert {each.message for each in of(events, Warned) if each.code == "memory_owners"} == {
        "the memory was full: python (pid 4117) has 70.0 GiB on this GPU"
    }


def test_asked_to_stop_it_stops(tmp_path):
    trainer, events = build(tmp_path, guards={"on_oom": "stop"})
    limit_memory(trainer, lambda: 4)
    with pytest.raises(MemoryExhaustedError, match="micro-batch of 8 samples") as caught:
        finish(trainer)
    assert "guards.on_oom=split" in caught.value.hint
    assert of(events, Recovered) == []


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "HIP error: out of memory",
        "MPS backend out of memory (MPS allocated: 8 GB)",
        "CUDA ran out of memory outside PyTorch's allocator.",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "cuFFT error: CUFFT_ALLOC_FAILED",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "could not create a primitive",  # oneDNN, of a convolution under a limit of memory
        "could not create a memory object",
        "[enforce fail at alloc_cpu.cpp:126] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
    ],
)
def test_what_drivers_say_in_words_counts(text):
    assert micro_batches.is_out_of_memory(RuntimeError(text))
    assert not micro_batches.is_out_of_memory(ValueError(text))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-"
        ),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED_SHAPE"),
        RuntimeError("could not create a primitive descriptor for a convolution forward propagation"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        dist.DistBackendError("NCCL error in: NCCLUtils.cpp:94, Last error:\nCuda failure 2 'out of memory'"),
    ],
)
def test_a_fault_that_a_smaller_batch_does_not_mend_is_not_one_of_memory(error):
    assert not micro_batches.is_out_of_memory(error)


@pytest.mark.parametrize(
    "text",
    [
        "FIND was unable to find an engine to execute this computation after trying 12 plans.",
        "GET was unable to find an engine to execute this computation",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
@pytest.mark.parametrize(
    ("free", "reserved", "allocated", "fraction", "is_full"),
    [
        (1, 77, 76, 1.0, True),
        (1, 77, 40, 1.0, False),  # of what is reserved, much is unused
        (40, 39, 39, 0.5, True),  # of the budget, little is left
        (40, 39, 39, 1.0, False),
    ],
)
def test_an_error_with_several_causes_is_one_of_memory_if_the_device_is_nearly_full(
    monkeypatch, text, free, reserved, allocated, fraction, is_full
):
    assert not micro_batches.is_out_of_memory(RuntimeError(text)), "there is no device"
    for name, value in {
        "is_initialized": True,
        "mem_get_info": (free, 80),
        "memory_reserved": reserved,
        "memory_allocated": allocated,
        "get_per_process_memory_fraction": fraction,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert micro_batches.is_out_of_memory(RuntimeError(text)) == is_full


def test_a_fault_of_the_program_is_raised_at_once(tmp_path):
    trainer, events = build(tmp_path)

    def break_it(module, inputs):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    trainer.context.model.register_forward_pre_hook(break_it)
    with pytest.raises(RuntimeError, match="mat1"):
        finish(trainer)
    assert of(events, Recovered) == []


# -- host memory


class Starved:
    """A loader whose passes sometimes fail, as long as it prefetches more than `least` batches."""

    def __init__(self, loader, error, least):
        self._whole, self._loader, self._error, self._least = loader.windows, loader, error, least
        loader.windows = self._windows

    def _windows(self, epoch, accumulate, start=0):
        for number, window in enumerate(self._whole(epoch, accumulate, start)):
            if number == 2 and self._loader._ahead > self._least:
                raise self._error
            yield window


def test_a_full_host_reads_fewer_batches_ahead_and_loses_none(tmp_path):
    run = config(data={"augment": "none"}, training={"epochs": 1})
    undisturbed, _ = build_trainer(run, tmp_path / "one", model=group_net())
    finish(undisturbed)
    for error in (MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")):
        trainer, events = build_trainer(run, tmp_path / repr(error), model=group_net(), workers=1)
        before = trainer.context.job.train_loader._ahead
        Starved(trainer.context.job.train_loader, error, before // 2)
        finish(trainer)
        assert [e.problem for e in of(events, Recovered)] == ["host memory"]
        assert trainer.context.job.train_loader._ahead == before // 2
        assert bits(trainer) == bits(undisturbed)


def test_a_host_that_stays_full_ends_the_run(tmp_path):
    trainer, _ = build_trainer(config(), tmp_path, model=group_net(), workers=1)
    Starved(trainer.context.job.train_loader, MemoryError(), 0)
    with pytest.raises(MemoryError):
        finish(trainer)


def test_both_guards_are_on_unless_said_otherwise():
    assert (GuardsConfig().on_nan, GuardsConfig().on_oom) == ("rollback", "split")


def test_another_preset_may_ask_for_another_micro_batch(tmp_path):
    trainer, _ = build(tmp_path, group_net(), memory={"micro_batch": 4})
    sizes: list[int] = []
    trainer.context.model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    other = trainer.context.job.config.model_copy(update={"memory": MemoryConfig(micro_batch=2)})
    trainer.context.take_job(replace(trainer.context.job, config=other))
    finish(trainer)
    assert set(sizes) == {2, 8}  # a validation uses the largest size that fits


def test_pieces_too_small_for_batch_norm_are_the_end(tmp_path):
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, SIDE),
        torch.nn.BatchNorm2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(8, len(CLASSES)),
    )
    trainer, _ = build(tmp_path, model)
    limit_memory(trainer, lambda: 1)
    with pytest.raises(
        MemoryExhaustedError, match="leaves a single sample, on which BatchNorm can't be trained"
    ):
        finish(trainer)


@pytest.mark.parametrize("asked", [None, 2, pytest.param("auto", marks=pytest.mark.slow)])
def test_an_odd_batch_in_pairs_trains_batch_norm(tmp_path, asked):
    """Of the last 5 samples one is left, which is computed beside another and counts once."""
    norm = torch.nn.BatchNorm2d(8)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, SIDE), norm, torch.nn.Flatten(), torch.nn.Linear(8, len(CLASSES))
    )
    run = config(training={"epochs": 1}, memory={"micro_batch": asked})
    trainer, events = build_trainer(run, tmp_path, model=model, train=37)
    limit_memory(trainer, lambda: 3 if model.training and asked != "auto" else 2)
    finish(trainer)
    assert trainer.context.micro_batches.limits["training"] == 2
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 4 * 4 + 3
    assert trainer.context.reporter.totals.samples_seen == 37
    hits = 37 * of(events, EpochFinished)[0].train_metrics["acc1"]
    assert hits == pytest.approx(round(hits))


@pytest.mark.parametrize("rows", [3, 5, 7])
def test_a_neighbour_adds_nothing_to_the_gradient(tmp_path, rows):
    trainer, _ = build(tmp_path)
    context, model = trainer.context, trainer.context.model
    windows = context.job.train_loader.windows(0, 1)
    (batch,) = next(windows)
    odd = batch.rows(slice(0, rows), size=rows, valid=rows)

    def gradient():
        for piece in context.micro_batches.split(odd):
            assert len(piece.images_BCHW) >= 2
            context.task.loss(model(*piece.inputs), piece, rows, rows).backward()
        found = [weight.grad.clone() for weight in model.parameters()]
        model.zero_grad()
        return found

    whole = gradient()
    context.micro_batches.limits["training"] = 2
    torch.testing.assert_close(gradient(), whole)
    end(trainer)


def test_gradients_that_were_unscaled_already_can_come_again(tmp_path):
    trainer, events = build_trainer(config(), tmp_path, precision="fp16", model=group_net())
    apply = trainer.context.parts.updater.apply
    failed: list[bool] = []

    def failing():
        if trainer.state.step == 3 and not failed:
            failed.append(True)
            raise torch.OutOfMemoryError("no room for the optimizer")
        apply()

    trainer.context.parts.updater.apply = failing  # type: ignore[method-assign]
    finish(trainer)
    assert trainer.state.step == 10
    assert {e.problem for e in of(events, Recovered)} == {"out of memory"}


@pytest.mark.parametrize(("size", "cuts"), [(5, ["5 → 3"]), (7, ["7 → 4", "4 → 2"]), (3, ["3 → 2", "2 → 1"])])
def test_a_limit_is_halved_and_rounded_up(tmp_path, size, cuts):
    trainer, events = build_trainer(
        config(training={"batch_size": size, "epochs": 1}), tmp_path, model=group_net(), train=2 * size
    )
    limit_memory(trainer, lambda: {5: 3, 7: 2, 3: 1}[size])
    finish(trainer)
    actions = [e.action for e in of(events, Recovered) if e.action.startswith("training")]
    assert [action.partition("micro-batch ")[2].partition(",")[0] for action in actions] == cuts
