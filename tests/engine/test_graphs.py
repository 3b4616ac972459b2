"""CUDA graphs, as far as they show without a GPU: errors of recordings, and what a step launches."""

import threading
from functools import partial

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError
from torch.utils._python_dispatch import TorchDispatchMode

from mptui.engine import compile, epochs
from mptui.engine.compile import Compiler, leave_recording
from mptui.engine.epochs import enter_training
from mptui.events import Recovered, Validated, Warned
from mptui.torch_private import prepare_thread
from tests.engine.compilers import compiler_for, probe
from tests.engine.small import build_trainer, config, end, losses, of, small_net

pytestmark = pytest.mark.usefixtures("own_cache", "with_compiler")

slow = partial(pytest.param, marks=pytest.mark.slow)

GRAPHS, TREES = "torch.cuda.graphs", "torch._inductor.cudagraph_trees"


@pytest.fixture
def cudagraph_trees():
    """Torch's own; to import it takes seconds, which the process of other tests does not spend."""
    from torch._inductor import cudagraph_trees

    return cudagraph_trees


@pytest.fixture
def replayed(monkeypatch):
    """Makes a compiled network count as one that CUDA graphs replay."""
    monkeypatch.setattr(Compiler, "static_shapes", property(lambda self: self.active))


def failing_in(module, call, *, training=True, name="capture_end"):
    """Return a net whose compiled form fails in a call, in code of that module, with buffers moved."""
    net = small_net(dropout=0.3)
    calls: list[bool] = []

    def is_due():
        calls.append(net.training)
        return net.training is training and calls.count(training) == call

    code = {"__name__": module, "net": net, "is_due": is_due}
    message = "CUDA error: operation failed due to a previous error during capture"
    fail = f"    if is_due(): raise RuntimeError({message!r})"
    exec(f"def {name}(images):\n    outputs = net.forward(images)\n{fail}\n    return outputs", code)
    net.compile = lambda **_: setattr(net, "_compiled_call_impl", code[name])  # type: ignore[method-assign]
    return net


def run(folder, model, *, compiled=True, **more):
    settings = config(speed={"compile": "default"} if compiled else {})
    trainer, events = build_trainer(settings, folder, model=model, force_compile=compiled, **more)
    trainer.train()
    end(trainer)
    return trainer, events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The events of the same run without compiled code."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return run(folder, small_net(dropout=0.3), compiled=False, val=32)[1]


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize(
    ("module", "name", "call", "training"),
    [
        (GRAPHS, "capture_end", 2, True),  # the recording
        (TREES, "check_invariants", 3, False),  # the first replay
        slow(GRAPHS, "capture_end", 2, False),
        slow(TREES, "check_invariants", 3, True),
        slow(TREES, "record_function", 4, True),  # another recording
        slow(TREES, "record_function", 4, False),
    ],
)
def test_an_error_of_a_graph_is_one_warning_and_the_same_run(
    tmp_path, module, name, call, training, undisturbed
):
    """torch compiles and warms up in the first call, records in the second, and replays in the third."""
    net = failing_in(module, call, training=training, name=name)
    _, events = run(tmp_path, net, val=32)
    assert [w.code for w in of(events, Warned)] == ["compile_failed"]
    assert losses(events) == losses(undisturbed)
    assert [e.loss for e in of(events, Validated)] == [e.loss for e in of(undisturbed, Validated)]


@pytest.mark.usefixtures("replayed")
def test_an_error_of_code_that_has_been_replayed_is_raised_on(tmp_path):
    net = failing_in(TREES, 4, name="check_invariants")
    with pytest.raises(RuntimeError, match="previous error during capture"):
        run(tmp_path, net)


def test_a_compiler_that_fails_at_the_batch_cut_to_fit_is_one_warning(tmp_path):
    """Code for smaller batches is compiled long after that for whole ones was proven."""
    net, seen = small_net(), []

    def compiled(images):
        seen.append(len(images))
        if len(images) < 8:
            raise InternalTorchDynamoError("no code for this size")
        if len(seen) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    trainer, events = run(tmp_path, net)
    assert seen == [8, 8, 8, 4]
    assert [e.problem for e in of(events, Recovered)] == ["out of memory"]
    assert "compile_failed" in [w.code for w in of(events, Warned)]
    assert trainer.state.step == 10


@pytest.mark.parametrize("graphs", [True, False])
def test_memory_that_eager_steps_have_cached_is_free_for_graphs(tmp_path, monkeypatch, graphs):
    """While a graph is warmed up, torch frees no cached memory: the batch would not fit."""
    freed = []
    monkeypatch.setattr(Compiler, "static_shapes", property(lambda self: self.active and graphs))
    monkeypatch.setattr(epochs, "release", lambda device: freed.append(device.type))
    run(tmp_path, failing_in(GRAPHS, 0))
    assert freed == ["cpu", "cpu"] * graphs  # before the first step, and before the first validation


@pytest.mark.parametrize("forced", [False, True], ids=["eager steps fit", "no eager step was taken"])
def test_graphs_that_do_not_fit_are_left_out_before_the_batch_is_cut(monkeypatch, forced):
    monkeypatch.setattr(compile, "leave_recording", lambda device: None)
    compiler, net, told = compiler_for(torch.device("cuda"), 10**6, mode="max-autotune", forced=forced)
    if not forced:
        probe(compiler, 0.1)
    full = torch.OutOfMemoryError("CUDA out of memory")
    assert not compiler.gave_up_on(full, "validating")
    assert compiler.gave_up_on(full, "training") is not forced
    assert compiler.static_shapes is forced
    assert net.compiled == ["max-autotune", "max-autotune-no-cudagraphs"][: 2 - forced]
    assert [("memory" in text) for code, text in told if code == "compile_graphs"] == [True] * (not forced)
    assert not compiler.gave_up_on(full, "training")  # without graphs, too


class Launches(TorchDispatchMode):
    """Counts operations that compute: a view, as of a gradient that is taken over, launches nothing."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def launches_of_a_step(folder, **tables):
    """Count the operations of the second step."""
    trainer, _ = build_trainer(
        config(**tables), folder, model=failing_in(GRAPHS, 0), train=64, force_compile=True
    )
    trainer.context.begin()
    enter_training(trainer.context)
    windows = iter(
        trainer.context.job.train_loader.windows(0, trainer.context.job.config.training.accumulate)
    )
    trainer._train_step(next(windows))
    with Launches() as launches:
        trainer._train_step(next(windows))
    end(trainer)
    return launches.count


def test_graphs_add_no_launch_to_a_step_of_one_batch(tmp_path, monkeypatch):
    """Gradients that are kept cost one for each weight."""
    compiled = {"compile": "default"}
    plain = launches_of_a_step(tmp_path / "plain", speed=compiled)
    monkeypatch.setattr(Compiler, "static_shapes", property(lambda self: self.active))
    assert launches_of_a_step(tmp_path / "graphs", speed=compiled) == plain + 1  # a copy of the outputs


@pytest.mark.usefixtures("replayed")
@pytest.mark.parametrize(
    "how", [{"training": {"accumulate": 2}}, slow({"memory": {"micro_batch": 4}})], ids=str
)
def test_gradients_that_add_up_are_kept_where_graphs_do_not_write(tmp_path, how):
    trainer, _ = build_trainer(
        config(speed={"compile": "default"}, **how),
        tmp_path,
        model=failing_in(GRAPHS, 0),
        force_compile=True,
    )
    job = trainer.context.job
    trainer.context.begin()
    enter_training(trainer.context)
    kept = []
    for window in job.train_loader.windows(0, job.config.training.accumulate):
        trainer._train_step(window)
        kept.append([p.grad for p in trainer.context.model.parameters()])
    end(trainer)
    assert all(grad is not None for grad in kept[0])
    *same, last = kept
    assert all(now is first for grads in same for now, first in zip(grads, kept[0], strict=True))
    assert all(grad is None for grad in last) is ("training" in how)  # the last window has one batch


def test_each_thread_can_record_graphs(cudagraph_trees):
    """Each run has a thread of its own; torch before 2.14 knows only the first that imports the trees."""
    found = []

    def work():
        prepare_thread()
        found.append(torch._C._is_key_in_tls("tree_manager_containers"))
        found.append(cudagraph_trees.get_container(0) is cudagraph_trees.get_container(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, True]


@pytest.mark.parametrize("halfway", [True, False], ids=["a recording failed", "nothing was recorded"])
def test_an_error_leaves_neither_stream_nor_allocator_nor_generator_in_a_recording(
    monkeypatch, cudagraph_trees, halfway
):
    """With a stand-in for the parts of CUDA that a recording changes."""
    done: list[object] = []

    def end_allocate(device, pool):
        if not halfway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        done.append(("end", device, pool))

    class Generator:
        def __init__(self, device=None):
            self.state = None

        def get_state(self):
            return "seed and offset"

        def set_state(self, state):
            self.state = state

        def graphsafe_set_state(self, other):
            done.append(("generator", other.state))

    manager = type("Manager", (), {"cuda_graphs_thread_pool": (0, 7)})
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda index, create_if_none_exists: manager)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end_allocate, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_releasePool", lambda *pool: done.append(("release", *pool)), raising=False
    )
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch.cuda, "default_generators", (None, Generator()))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: done.append(stream))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("synchronized"))
    leave_recording(torch.device("cuda:1"))
    assert done[:2] == ["default of cuda:1", "synchronized"]
    ended = [("end", 1, (0, 7)), ("release", 1, (0, 7)), ("generator", "seed and offset")]
    assert done[2:] == (ended if halfway else [])
