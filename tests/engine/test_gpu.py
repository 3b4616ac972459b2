"""The training loop on a GPU: no step waits for the device."""

import itertools
import threading
import time

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import host_copy, read_newest
from mptui.engine.guards.rollback import Rollback
from mptui.events import EpochFinished, Warned
from tests.engine.blots import Blot, Scene
from tests.engine.small import build_trainer, config, end, losses, of

pytestmark = pytest.mark.gpu
WARM_UP, STEPS, BATCH = 20, 200, 4


def take(trainer, windows, count):
    """Take steps as the loop does, with everything that runs between two of them."""
    for window in itertools.islice(windows, count):
        trainer._train_step(window)
        if trainer.context.reporter.due(time.perf_counter()):
            trainer._between_steps()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("kind", [Blot, Scene])
@pytest.mark.parametrize("training", [{}, {"accumulate": 2, "clip_grad_norm": 1.0, "ema_decay": 0.9}])
def test_two_hundred_steps_with_logging_guards_and_lens_wait_for_nothing(tmp_path, precision, kind, training):
    accumulate = training.get("accumulate", 1)
    run = config(
        training={"batch_size": BATCH, **training},
        data={"augment": "default" if kind is Blot else "none"},
        guards={"snapshot_every": 1_000_000, "numerics": "full"},
        logging={"step_interval_s": 0.05},
    )
    trainer, _ = build_trainer(
        run,
        tmp_path,
        precision=precision,
        kind=kind,
        train=BATCH * accumulate * (WARM_UP + STEPS),
        cache="device",
        device=torch.device("cuda"),
    )
    trainer.context.begin()
    trainer.context.enter("training")
    windows = iter(trainer.context.job.train_loader.windows(0, accumulate))
    take(trainer, windows, WARM_UP)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        take(trainer, windows, STEPS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert trainer.state.step == WARM_UP + STEPS
    end(trainer)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_cuda_graphs_train_as_eager_code_does(tmp_path, accumulate):
    """In a separate thread, as in a session; over epochs, so that CUDA graphs are replayed and left."""
    found = {}
    for mode in ("off", "reduce-overhead"):
        run = config(
            training={"epochs": 3, "accumulate": accumulate, "ema_decay": 0.9, "lr": 0.01},
            speed={"compile": mode},
        )
        trainer, events = build_trainer(
            run, tmp_path / mode, train=64, val=16, force_compile=mode != "off", device=torch.device("cuda")
        )
        thread = threading.Thread(target=trainer.train)
        thread.start()
        thread.join()
        end(trainer)
        assert of(events, Warned) == []
        found[mode] = losses(events), [(e.val_loss, e.val_metrics) for e in of(events, EpochFinished)]
    (eager, eager_epochs), (graphs, graph_epochs) = found.values()
    assert graphs == pytest.approx(eager, rel=1e-2)
    assert len(graph_epochs) == len(eager_epochs) == 3
    for (loss, metrics), (expected, expected_metrics) in zip(graph_epochs, eager_epochs, strict=True):
        assert loss == pytest.approx(expected, rel=1e-2)
        assert metrics == pytest.approx(expected_metrics, abs=0.1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_saves_and_snapshots_wait_for_no_copy_and_keep_their_step(tmp_path, precision, monkeypatch):
    monkeypatch.setattr(snapshots, "PART", 4096)  # so that there are many parts
    run = config(
        training={"batch_size": BATCH, "ema_decay": 0.9},
        guards={"snapshot_every": 1_000_000},
        logging={"step_interval_s": 0.05},
    )
    trainer, _ = build_trainer(
        run,
        tmp_path / "checkpoints",
        precision=precision,
        train=BATCH * (WARM_UP + STEPS),
        cache="device",
        device=torch.device("cuda"),
    )
    trainer.context.begin()
    trainer.context.enter("training")
    windows = iter(trainer.context.job.train_loader.windows(0, 1))
    take(trainer, windows, WARM_UP)
    state = trainer.state
    kept = Rollback(lambda code, message: None)

    def tensors():
        return {
            name: host_copy({key: value for key, value in part.items() if isinstance(value, torch.Tensor)})
            for name in ("model", "optimizer", "average")
            for part in [getattr(state, name).state_dict()]
        }

    expected = tensors()
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.context.saver.save(snapshots.take(state), "time")
        kept.keep(state)
        take(trainer, windows, STEPS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trainer.context.saver.wait_until_saved()
    found, _ = read_newest(tmp_path / "checkpoints")
    kept.go_back(state)
    assert found.step == state.step == WARM_UP
    for there in (found.tensors, tensors()):
        for name, own in expected.items():
            assert there[name].keys() == own.keys()
            assert all(torch.equal(there[name][key], value) for key, value in own.items())
    end(trainer)
