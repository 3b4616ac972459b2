"""Compilation happens only if it pays off, and never ends a run."""

import logging

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from mptui.engine.checkpoint import snapshots
from mptui.engine.checkpoint.files import read_newest
from mptui.engine.compile import PROBE_STEPS, Compiler
from mptui.engine.mailbox import Stopped
from mptui.events import PhaseChanged, Step, Validated, Warned
from tests.engine.blots import CLASSES, SIDE
from tests.engine.compilers import compiler_for, failing, probe
from tests.engine.small import CPU, build_trainer, config, diffusion_net, end, losses, of, small_net

CUDA = torch.device("cuda")

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def without_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_a_short_run_is_not_compiled_and_told_why(device):
    compiler, net, told = compiler_for(device, steps=100)
    assert probe(compiler, 0.1) == PROBE_STEPS
    assert net.compiled == []
    assert not compiler.active
    ((code, text),) = told
    assert code == "compile_skipped"
    assert "about 9 s are left" in text
    assert "--compile" in text


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(("device", "steps"), [(CPU, 9200), (CUDA, 2500)], ids=["cpu", "cuda"])
def test_a_long_run_is_compiled(device, steps):
    # steps of 0.1 s, 5 % fewer and 5 % more than the break-even
    short, long = compiler_for(device, round(steps * 0.95)), compiler_for(device, round(steps * 1.05))
    probe(short[0], 0.1)
    probe(long[0], 0.1)
    assert (short[0].active, long[0].active) == (False, True)
    assert (short[1].compiled, long[1].compiled) == ([], [None])
    assert long[2] == []


@pytest.mark.usefixtures("with_compiler")
def test_the_warm_up_of_the_first_step_does_not_count():
    compiler, net, _ = compiler_for(CPU, steps=1000)
    compiler.note_step(1e6)
    probe(compiler, 0.1)
    assert net.compiled == []


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    ("mode", "compiled"), [("default", [None]), ("max-autotune", ["max-autotune"]), ("off", [])]
)
def test_forced_it_is_compiled_at_once_in_its_mode(mode, compiled):
    compiler, net, told = compiler_for(CPU, 1, mode=mode, forced=True)
    assert net.compiled == compiled
    assert not compiler.undecided
    assert told == []


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_it_says_what_to_install():
    compiler, net, told = compiler_for(CPU, 10**9, forced=True)
    assert not compiler.active
    assert not compiler.undecided
    assert net.compiled == []
    assert "g++" in told[0][1]


@pytest.mark.parametrize(
    ("device", "mode", "static"),
    [(CUDA, "reduce-overhead", True), (CUDA, "max-autotune", True), (CUDA, "default", False)],
)
def test_graphs_need_gradients_that_stay_where_they_are(device, mode, static):
    assert compiler_for(device, 1, mode=mode, forced=True)[0].static_shapes is static


@pytest.mark.parametrize(
    ("device", "mode", "compiled"),
    [
        (CUDA, "reduce-overhead", None),
        (CUDA, "max-autotune", "max-autotune-no-cudagraphs"),
        (CUDA, "default", None),
        (CPU, "max-autotune", "max-autotune"),
    ],
)
@pytest.mark.usefixtures("with_compiler")
def test_without_graphs_it_does_all_else_of_its_mode_and_says_so(device, mode, compiled):
    compiler, net, told = compiler_for(device, 1, mode=mode, forced=True, graphs=False)
    assert net.compiled == [compiled]
    assert not compiler.static_shapes
    assert [code for code, _ in told] == ["compile_graphs"] * (device == CUDA and mode != "default")


def test_graphs_are_not_used_with_activation_checkpointing(tmp_path):
    for checkpointing in (False, True):
        run = config(memory={"activation_checkpointing": checkpointing})
        trainer, _ = build_trainer(run, tmp_path, model=diffusion_net())
        assert trainer.context.parts.compiler._graphs is not checkpointing
        end(trainer)


# -- a compile that fails


def failing_backward(error):
    """Return a net whose compiled form fails after its forward pass has changed BatchNorm and the RNG."""
    net = small_net(dropout=0.3)

    def fail(_gradient):
        raise error

    def compiled(images):
        outputs = net.forward(images)
        outputs.register_hook(fail)
        return outputs

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    return net


def run(folder, model, **training):
    settings = config(training=training, speed={"compile": "default"})
    return build_trainer(settings, folder, model=model, force_compile=True)


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    ("fails_in", "accumulate"),
    [
        (failing, 1),
        (failing_backward, 3),
        pytest.param(failing, 3, marks=pytest.mark.slow),
        pytest.param(failing_backward, 1, marks=pytest.mark.slow),
    ],
)
def test_a_failing_compile_is_one_warning_and_the_same_run(tmp_path, fails_in, accumulate):
    broken = InternalTorchDynamoError("ld: cannot find -lgomp\x1b[31m\nmore lines")
    trainer, events = run(tmp_path, fails_in(broken), accumulate=accumulate, epochs=1)
    trainer.train()
    end(trainer)
    eager, expected = build_trainer(
        config(training={"accumulate": accumulate, "epochs": 1}), tmp_path, model=small_net(dropout=0.3)
    )
    eager.train()
    end(eager)
    assert losses(events) == losses(expected)
    for one, other in zip(
        trainer.context.model.state_dict().values(), eager.context.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other)
    ((code, message),) = [(e.code, e.message) for e in of(events, Warned)]
    assert code == "compile_failed"
    assert "cannot find -lgomp" in message
    assert message.isprintable()
    assert "more lines" not in message


def raised_in(module, error):
    """Return a net whose compiled form raises an error, from code in a module of that name."""
    net = small_net()
    code = {"__name__": module, "error": error}
    exec("def compiled(images): raise error", code)
    net.compile = lambda **_: setattr(net, "_compiled_call_impl", code["compiled"])  # type: ignore[method-assign]
    return net


@pytest.mark.usefixtures("with_compiler")
def test_a_bare_assertion_in_the_compilers_code_is_a_failing_compile_too(tmp_path):
    trainer, events = run(tmp_path, raised_in("torch._inductor.cudagraph_trees", AssertionError()))
    trainer.train()
    end(trainer)
    assert [w.code for w in of(events, Warned)] == ["compile_failed"]


@pytest.mark.usefixtures("with_compiler")
def test_a_compile_that_fails_in_the_validation_is_one_warning_and_the_same_run(tmp_path):
    net = small_net()

    def compiled(images):
        if not net.training:
            raise InternalTorchDynamoError("no such operation")
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    trainer, events = run(tmp_path, net)
    trainer.train()
    end(trainer)
    eager, expected = build_trainer(config(), tmp_path)
    eager.train()
    end(eager)
    assert [w.code for w in of(events, Warned)] == ["compile_failed"]
    assert [e.loss for e in of(events, Validated)] == [e.loss for e in of(expected, Validated)]


@pytest.mark.usefixtures("with_compiler")
def test_outputs_that_the_next_ones_are_written_over_are_counted_as_they_were(tmp_path, monkeypatch):
    """As with CUDA graphs: each replay writes to the same memory."""
    monkeypatch.setattr(Compiler, "static_shapes", property(lambda self: self.active))
    net = small_net()
    places: dict[object, torch.Tensor] = {}

    def compiled(images):
        outputs = net.forward(images)
        if net.training:
            return outputs
        place = places.setdefault(tuple(outputs.shape), torch.empty_like(outputs))
        return place.copy_(outputs)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    settings = config(speed={"compile": "default"})
    trainer, events = build_trainer(settings, tmp_path, model=net, force_compile=True, train=16, val=32)
    trainer.train()
    end(trainer)
    eager, expected = build_trainer(config(), tmp_path, train=16, val=32)
    eager.train()
    end(eager)
    assert [e.metrics for e in of(events, Validated)] == [e.metrics for e in of(expected, Validated)]


@pytest.mark.usefixtures("with_compiler")
def test_the_search_for_a_micro_batch_compiles_nothing(tmp_path, graphs):
    net, counted = graphs
    settings = config(speed={"compile": "default"}, memory={"micro_batch": "auto"})
    trainer, _ = build_trainer(settings, tmp_path, model=net(), force_compile=True)
    trainer.context.begin()
    end(trainer)
    assert counted == []


@pytest.mark.usefixtures("with_compiler")
def test_the_phase_says_that_it_compiles_until_the_first_step_is_through(tmp_path):
    trainer, events = run(tmp_path, failing(AssertionError("never"), after=10**9), epochs=1)
    trainer.train()
    end(trainer)
    phases = [e.phase for e in of(events, PhaseChanged)]
    assert phases[:4] == ["compiling", "training", "compiling", "validating"]


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    ("error", "after"),
    [(ValueError("the net's own"), 0), (InternalTorchDynamoError("far too late"), 3)],
    ids=["not the compiler's", "after it has worked"],
)
def test_other_errors_are_raised_on(tmp_path, error, after):
    trainer, _ = run(tmp_path, failing(error, after))
    with pytest.raises(type(error), match=str(error)):
        trainer.train()
    end(trainer)


# -- other shapes


@pytest.fixture
def graphs(monkeypatch):
    """Count the graphs that Dynamo makes of a net, and run them unchanged."""
    counted = []

    def backend(graph, _inputs):
        counted.append(graph)
        return graph.forward

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **_: compile_(model, backend=backend))
    yield small_net, counted
    torch.compiler.reset()


class OfTwo(torch.nn.Module):
    """A network of two parts, of a class of its own."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, images):
        return self.second(self.first(images))


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(lambda: small_net(), marks=pytest.mark.slow),
        lambda: torch.nn.Sequential(
            OfTwo(torch.nn.Identity(), small_net()), OfTwo(torch.nn.ReLU(), torch.nn.ReLU())
        ),
        pytest.param(lambda: OfTwo(small_net(), torch.nn.ReLU()), marks=pytest.mark.slow),
    ],
    ids=["of torch's parts", "of one's own parts", "of one's own class"],
)
def test_a_network_of_any_class_is_one_graph(tmp_path, graphs, network):
    """torch before 2.14 does not trace the calls of its own classes."""
    _, counted = graphs
    trainer, _ = build_trainer(
        config(speed={"compile": "default"}), tmp_path, model=network(), force_compile=True
    )
    windows = trainer.context.job.train_loader.windows(0, 1)
    trainer._train_step(next(windows))
    end(trainer)
    assert len(counted) == 1


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("asked_for", [False, True])
def test_candidates_of_autotuning_that_a_gpu_cannot_run_are_no_errors_on_the_terminal(monkeypatch, asked_for):
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    if asked_for:
        monkeypatch.setenv("TORCH_LOGS", "inductor")
    log = logging.getLogger("torch._inductor.select_algorithm")
    monkeypatch.setattr(log, "level", logging.NOTSET)
    compiler_for(CPU, 1, mode="max-autotune", forced=True)
    assert log.level == (logging.NOTSET if asked_for else logging.CRITICAL)


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize(
    "samples", [pytest.param(40, marks=pytest.mark.slow), 20], ids=["even", "a short last batch"]
)
def test_short_batches_and_validations_make_one_graph_each(tmp_path, graphs, samples):
    net, counted = graphs
    settings = config(speed={"compile": "default"})
    trainer, _ = build_trainer(settings, tmp_path, model=net(), force_compile=True, train=samples, val=20)
    trainer.train()
    end(trainer)
    assert len(counted) == 2  # training and validation; their last batches of 4 are computed eagerly


@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_compiled_code_stays_for_whole_batches_and_all_samples_are_used(tmp_path, accumulate):
    net, seen = small_net(), []

    def compiled(images):
        seen.append((net.training, len(images)))
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    trainer, events = build_trainer(
        config(training={"accumulate": accumulate}, speed={"compile": "default"}),
        tmp_path,
        model=net,
        force_compile=True,
        train=30,
        val=20,
    )
    trainer.train()
    end(trainer)
    assert seen == 2 * (3 * [(True, 8)] + 2 * [(False, 8)])
    eager, expected = build_trainer(config(training={"accumulate": accumulate}), tmp_path, train=30, val=20)
    eager.train()
    end(eager)
    assert trainer.context.reporter.totals.samples_seen == 2 * 30
    assert losses(events) == losses(expected)
    assert [e.loss for e in of(events, Validated)] == [e.loss for e in of(expected, Validated)]


@pytest.mark.usefixtures("with_compiler")
def test_a_short_first_step_does_not_prove_that_compiled_code_works(tmp_path):
    """A run that is resumed before the last batch of an epoch compiles in the one after it."""
    settings = config(speed={"compile": "default"})
    before, heard = build_trainer(settings, tmp_path, train=20)
    heard.then = lambda e: before.context.mailbox.stop(None) if isinstance(e, Step) and e.step == 2 else None
    with pytest.raises(Stopped):
        before.train()
    end(before)
    broken = InternalTorchDynamoError("no such operation")
    net = small_net()

    def compiled(images):
        if net.training:
            raise broken
        return net.forward(images)

    net.compile = lambda **_: setattr(net, "_compiled_call_impl", compiled)  # type: ignore[method-assign]
    trainer, events = build_trainer(settings, tmp_path, train=20, model=net, force_compile=True)
    snapshots.restore(trainer.state, read_newest(tmp_path)[0])
    trainer.train()
    end(trainer)
    assert [w.code for w in of(events, Warned)] == ["compile_failed"]
    assert trainer.state.step == 6


class CentredOverTheBatch(torch.nn.Module):
    """A layer that looks across the batch, in evaluation mode too."""

    def forward(self, x):
        return x - x.mean(0, keepdim=True)


def test_layers_across_the_batch_see_each_validation_sample_once(tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), CentredOverTheBatch(), torch.nn.LazyLinear(len(CLASSES)))
    net(torch.zeros(2, 3, SIDE, SIDE))
    trainer, events = build_trainer(config(training={"epochs": 1}), tmp_path, model=net, val=19)
    trainer.train()
    total = 0.0
    with torch.no_grad():
        for window in trainer.context.job.val_loader.windows(0, 1):
            for batch in window:
                rows = slice(batch.size)
                outputs = net(batch.images_BCHW[rows])
                total += float(
                    torch.nn.functional.cross_entropy(outputs, batch.targets[rows], reduction="sum")
                )
    end(trainer)
    assert of(events, Validated)[0].loss == pytest.approx(total / 19, rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("with_compiler")
def test_pieces_of_a_batch_that_did_not_fit_make_one_graph_more_at_most_twice(tmp_path, graphs):
    net, counted = graphs
    settings = config(training={"epochs": 2}, speed={"compile": "default"}, memory={"micro_batch": 3})
    trainer, _ = build_trainer(settings, tmp_path, model=net(), force_compile=True, val=16)
    trainer.train()
    end(trainer)
    # batches of 8 in pieces of 2, 3, 3: a graph of a fixed size, then one for all sizes; the validation's
    assert len(counted) <= 3
