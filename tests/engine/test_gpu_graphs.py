"""Training with CUDA graphs on a GPU: what they compute, errors of their recording, other settings."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import Snapshot
from mptui.engine.epochs import enter_training
from mptui.engine.job import ProfileSwitch
from mptui.engine.mailbox import Command
from mptui.events import PresetSwitched, Recovered, Step, Validated, Warned
from mptui.torch_private import prepare_thread
from tests.engine.small import build_trainer, config, end, losses, of, small_net

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
TOO_MUCH = 1 << 46
"""Bytes that no GPU has."""


def graphs(**tables):
    """Return settings with CUDA graphs, in the mode that compiles fastest, and small steps."""
    return config(**{"speed": {"compile": "reduce-overhead"}, "training": {"lr": 0.01}, **tables})


def build(folder, run, model=None, *, compiled=True, **more):
    model = small_net() if model is None else model
    if not compiled:
        run = run.model_copy(update={"speed": run.speed.model_copy(update={"compile": "off"})})
    more = {"val": 16, **more}  # a validation of several batches replays its graph
    return build_trainer(run, folder, model=model.to(GPU), device=GPU, force_compile=compiled, **more)


def train(trainer):
    """Train in a thread of its own, as a session does.

    Returns:
        The stream that the thread is left on, and the number of graphs that it has recorded since the last
        reset of the compiler.
    """

    from torch._inductor import cudagraph_trees  # takes seconds, which only tests of compiling spend

    def left():
        prepare_thread()
        manager = cudagraph_trees.get_manager(0, create_if_none_exists=False)
        return torch.cuda.current_stream(), 0 if manager is None else next(manager.graph_counter)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(trainer.train).result()
        found = thread.submit(left).result()
    end(trainer)
    return found


def figures(events):
    return losses(events) + [e.loss for e in of(events, Validated)]


def codes(events):
    return [w.code for w in of(events, Warned)]


@pytest.fixture(autouse=True)
def _no_code_of_others():
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autotuned_code_trains_as_eager_code_does(tmp_path, precision):
    if precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip("this GPU has no bf16")
    run = config(
        speed={"compile": "max-autotune"},
        training={"epochs": 1, "lr": 0.01},
        precision={"grad_scaler": {"init_scale": 1024.0}},  # none overflows: compiled code rounds less
    )
    found = []
    for compiled in (False, True):
        trainer, events = build(tmp_path / str(compiled), run, compiled=compiled, precision=precision)
        _, recorded = train(trainer)
        assert codes(events) == []
        assert (recorded >= 3) is compiled  # forward, backward, validation
        found.append(figures(events))
    assert found[1] == pytest.approx(found[0], rel=3e-2)


def test_a_second_run_of_a_process_has_graphs_too(tmp_path):
    """Each run has a thread, and torch before 2.14 lets only one of them record graphs."""
    for number, layers in enumerate([(), (torch.nn.Identity(), torch.nn.Tanh())]):
        trainer, events = build(tmp_path / str(number), graphs(), torch.nn.Sequential(small_net(), *layers))
        _, recorded = train(trainer)
        assert codes(events) == []
        assert recorded >= 3


# -- errors while a graph is recorded


class Fault:
    """What happens where a graph is recorded."""

    @staticmethod
    def sync(x):
        return x.sum().item()  # no graph can have it: the recording is lost

    @staticmethod
    def fill(x):
        if not filled:
            filled.append(True)
            torch.empty(TOO_MUCH, dtype=torch.uint8, device=x.device)


filled: list[bool] = []


@torch.library.custom_op("mptui_tests::faulty", mutates_args=())
def faulty(x: torch.Tensor, forward: str, backward: str) -> torch.Tensor:
    if forward and torch.cuda.is_current_stream_capturing():
        getattr(Fault, forward)(x)
    return x.clone()


@faulty.register_fake
def _(x, forward, backward):
    return torch.empty_like(x)


def _backward(ctx, grad):
    return faulty(grad, ctx.backward, ""), None, None


def _setup(ctx, inputs, output):
    ctx.backward = inputs[2]


faulty.register_autograd(_backward, setup_context=_setup)


class Faulty(torch.nn.Module):
    """A network in whose forward or backward pass something happens where it is recorded."""

    def __init__(self, forward="", backward=""):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.rest = torch.nn.Conv2d(3, 3, 1), small_net()
        self.faults = forward, backward

    def forward(self, images):
        return self.rest(faulty(self.first(images), *self.faults))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_recording_that_fails_is_one_warning_and_the_run_goes_on(tmp_path, where):
    fault = {where: "sync"}
    trainer, events = build(tmp_path / "graphs", graphs(), Faulty(**fault), train=48)
    stream, _ = train(trainer)
    eager, expected = build(tmp_path / "eager", graphs(), Faulty(**fault), compiled=False, train=48)
    train(eager)
    assert codes(events) == ["compile_failed"]
    assert figures(events) == pytest.approx(figures(expected), rel=1e-2)
    torch.cuda.empty_cache()  # fails where the allocator believes that it records
    assert stream == torch.cuda.default_stream()
    torch.rand(4, device=GPU)  # fails where the generator does


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_memory_that_is_full_in_a_recording_cuts_the_batch_and_graphs_stay(tmp_path, where):
    filled.clear()
    trainer, events = build(tmp_path, graphs(), Faulty(**{where: "fill"}), train=64)
    _, recorded = train(trainer)
    assert filled
    assert [e.problem for e in of(events, Recovered)] == ["out of memory"]
    assert set(codes(events)) <= {"memory_owners", "batchnorm_split"}
    assert trainer.context.micro_batches.limits["training"] == 4
    assert recorded >= 3
    assert trainer.state.step == 16
    torch.cuda.empty_cache()


# -- other settings


def test_a_switch_and_its_undo_record_graphs_anew(tmp_path):
    """Another precision is other code; the undo comes back to weights, steps and losses from before."""
    run = graphs(training={"epochs": 3, "lr": 0.01})
    trainer, events = build(tmp_path / "run", run, train=64)
    before: list[Snapshot] = []

    def rebuild(command):
        is_undo = command.name == "undo"
        precision = "fp32" if is_undo else "fp16"
        other, _ = build(tmp_path / precision, run, trainer.context.model, train=64, precision=precision)
        if is_undo:
            return ProfileSwitch(other.context.job, "first", "second", {}, back_to=before[0])
        before.append(snapshots.take(trainer.state))
        return ProfileSwitch(other.context.job, "second", "first", {"precision.mode": ["fp32", "fp16"]})

    trainer.context.rebuild = rebuild
    posts = {5: partial(Command, "set", "fp16"), 12: partial(Command, "undo")}

    def then(event):
        if isinstance(event, Step) and event.step in posts:
            trainer.context.mailbox.post(posts.pop(event.step)())

    events.then = then
    _, recorded = train(trainer)
    assert recorded >= 3
    assert codes(events) == []
    assert [e.undone for e in of(events, PresetSwitched)] == [False, True]
    steps = of(events, Step)
    (back,) = [n for n, step in enumerate(steps) if n and step.step <= steps[n - 1].step]
    again = {step.step: step.loss for step in steps[:back]}
    assert again[steps[back].step] == pytest.approx(steps[back].loss, rel=3e-2)
    assert trainer.state.step == 24


# -- what a step launches


def launches_of_a_step(folder, layers):
    """Return the graphs and the kernels beside them that a step launches, once graphs are replayed."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(layers)])
    model.append(small_net())
    trainer, _ = build(folder, graphs(), model, train=96, cache="device")
    trainer.context.begin()
    enter_training(trainer.context)
    windows = iter(trainer.context.job.train_loader.windows(0, 1))
    for _ in range(5):
        trainer._train_step(next(windows))
    torch.cuda.synchronize()
    with torch.profiler.profile() as profile:
        trainer._train_step(next(windows))
        torch.cuda.synchronize()
    end(trainer)
    calls = {event.key: event.count for event in profile.key_averages()}
    return calls["cudaGraphLaunch"], sum(n for key, n in calls.items() if "LaunchKernel" in key)


def test_a_step_launches_two_graphs_and_no_kernel_for_each_weight(tmp_path):
    few, many = launches_of_a_step(tmp_path / "few", 2), launches_of_a_step(tmp_path / "many", 10)
    assert few[0] == 2  # forward and backward
    assert few == many
