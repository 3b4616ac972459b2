"""What a run relies on from a task, as tests; see `mptui.testing`."""

import math
from collections.abc import Sequence
from itertools import accumulate, product

import pytest
import torch

from mptui.data.batch import Batch, Window
from mptui.data.types import IGNORE
from mptui.engine.evaluate import SCORES
from mptui.registry.tasks import VAL_LOSS
from mptui.tasks.base import Metrics, Task
from mptui.testing.optimizer import HostReads

_CPU = torch.device("cpu")
_COUNT = 7
_SPLITS = ([7], [1, 6], [3, 4], [2, 2, 3], [1, 1, 1, 1, 3])
"""Sizes of batches that are the same samples together."""

State = dict[str, torch.Tensor]


class TaskContract:
    """What a run relies on from a task, as `build` of an entry of `TASKS` returns it.

    A subclass has the fixture `task` and the method `samples`.
    """

    @pytest.fixture
    def task(self) -> Task:
        """The task."""
        raise NotImplementedError

    def samples(self, count: int, seed: int) -> tuple[torch.Tensor, Batch]:
        """Return float32 outputs of a network for `count` samples, and the batch that they are of.

        They differ with the seed, as far as the task has kinds of batches: mixed ones, ignored pixels.
        """
        raise NotImplementedError

    def test_the_shares_of_a_window_add_up_to_the_whole_batch(self, task: Task) -> None:
        """The loss and its gradient don't depend on how a window is cut into micro-batches."""
        for seed, sizes in product(range(6), _SPLITS[1:]):
            outputs, batch = self.samples(_COUNT, seed)
            loss, gradient = _loss_and_gradient(task, outputs, _parts(batch, sizes))
            expected, expected_gradient = _loss_and_gradient(task, outputs, [batch])
            torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-8)
            assert gradient.isfinite().all()
            assert gradient.any()

    def test_the_sums_of_all_batches_give_the_loss(self, task: Task) -> None:
        """A validation divides `loss_sums` at its end: by the weight of all items, and by their number."""
        for seed, sizes in product(range(3), _SPLITS):
            outputs, batch = self.samples(_COUNT, seed)
            parts = _parts(batch, sizes)
            cut = zip(torch.split(outputs, sizes), parts, strict=True)
            over_items, over_samples = torch.stack([task.loss_sums(*each) for each in cut]).sum(dim=0)
            loss = over_items / task.window_weight(_window(parts)) + over_samples / _COUNT
            expected, _ = _loss_and_gradient(task, outputs, [batch])
            torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-7)

    def test_padding_counts_for_nothing(self, task: Task) -> None:
        """Rows after `size` are there for the shape alone; what is computed of them may be NaN."""
        for seed in range(3):
            outputs, batch = self.samples(_COUNT, seed)
            rows = torch.tensor([*range(_COUNT), 0, 1])
            padded = batch.rows(rows, size=batch.size, valid=batch.valid)
            answers = torch.cat((outputs, torch.full_like(outputs[:2], math.nan)))
            weight = task.window_weight(_window([batch]))
            one, other = (
                task.loss(each, of, weight, _COUNT) for each, of in ((outputs, batch), (answers, padded))
            )
            torch.testing.assert_close(other, one, rtol=1e-6, atol=0)
            plain, with_padding = task.metrics(_CPU), task.metrics(_CPU)
            plain.update(outputs, batch)
            with_padding.update(answers, padded)
            _assert_same(with_padding, plain)

    def test_outputs_of_16_bits_have_a_loss_of_32(self, task: Task) -> None:
        """The loss is computed outside autocast's 16 bits: it is 0-dim float32, and near."""
        outputs, batch = self.samples(_COUNT, 0)
        expected, _ = _loss_and_gradient(task, outputs, [batch])
        for dtype in (torch.float16, torch.bfloat16):
            loss, _ = _loss_and_gradient(task, outputs.to(dtype), [batch])
            torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.02)

    def test_metrics_add_up_over_batches_and_ranks(self, task: Task) -> None:
        """They depend on the samples alone: not on batches, nor on which rank had them, nor on a resume."""
        outputs, batch = self.samples(_COUNT, 0)
        expected = task.metrics(_CPU)
        expected.update(outputs, batch)
        for sizes, processes in product(_SPLITS, (1, 2, 3)):
            ranks = [task.metrics(_CPU) for _ in range(processes)]
            cut = zip(torch.split(outputs, sizes), _parts(batch, sizes), strict=True)
            for number, each in enumerate(cut):
                resumed, state = task.metrics(_CPU), ranks[number % processes].state_dict()
                resumed.load_state_dict({name: tensor.clone() for name, tensor in state.items()})
                resumed.update(*each)
                ranks[number % processes] = resumed
            whole = task.metrics(_CPU)
            whole.load_state_dict(_merged([each.state_dict() for each in ranks]))
            _assert_same(whole, expected)

    def test_metrics_of_nothing_are_nan(self, task: Task) -> None:
        """Before a batch, and after `reset`; the primary one is there."""
        metrics = task.metrics(_CPU)
        for _ in range(2):
            found = metrics.compute()
            assert task.primary in {*found, VAL_LOSS}
            assert all(math.isnan(value) for value in found.values())
            metrics.update(*self.samples(_COUNT, 0))
            assert all(type(value) is float for value in metrics.compute().values())
            assert math.isfinite(metrics.compute().get(task.primary, 0.0))
            metrics.reset()

    def test_training_metrics_stay_finite_where_a_step_is_not(self, task: Task) -> None:
        """Outputs that are not finite don't spoil those of the other steps."""
        metrics = task.metrics(_CPU, training=True)
        outputs, batch = self.samples(_COUNT, 0)
        metrics.update(outputs, batch)
        metrics.update(torch.full_like(outputs, math.nan), batch)
        assert all(math.isfinite(value) for value in metrics.compute().values())

    def test_no_step_waits_for_the_device(self, task: Task) -> None:
        """Weight, loss, sums and update leave their results on the device."""
        outputs, batch = self.samples(_COUNT, 0)
        validation, training = task.metrics(_CPU), task.metrics(_CPU, training=True)
        with HostReads() as reads:
            task.loss(outputs, batch, task.window_weight(_window([batch])), _COUNT)
            task.loss_sums(outputs, batch)
            for _ in range(40):  # some wait for others
                validation.update(outputs, batch)
                training.update(outputs, batch)
        assert reads.count == 0

    def test_a_made_up_batch_can_be_learnt(self, task: Task) -> None:
        """It times a step, and estimates its memory."""
        outputs, batch = self.samples(_COUNT, 0)
        made_up = task.dummy_batch(batch.images_BCHW)
        assert (made_up.size, made_up.images_BCHW.shape) == (_COUNT, batch.images_BCHW.shape)
        loss, _ = _loss_and_gradient(task, outputs, [made_up])
        assert loss.isfinite()


def _parts(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """Cut a batch as a loader would have."""
    ends = accumulate(sizes)
    return [_rows(batch, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _rows(batch: Batch, start: int, end: int) -> Batch:
    targets = batch.targets[start:end]
    has_masks = targets.ndim > 1 and not targets.is_floating_point()
    valid = int((targets != IGNORE).sum()) if has_masks else end - start
    return batch.rows(slice(start, end), size=end - start, valid=valid)


def _window(batches: Sequence[Batch]) -> Window:
    return Window(
        index=0,
        size=sum(batch.size for batch in batches),
        valid=sum(batch.valid for batch in batches),
        wait_s=0.0,
        next_sample=0,
        batches=len(batches),
        load=batches.__getitem__,
        targets=lambda number: batches[number].targets,
    )


def _loss_and_gradient(
    task: Task, outputs: torch.Tensor, batches: Sequence[Batch]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of a window by its micro-batches, and the gradient of all outputs."""
    window = _window(batches)
    weight, total = task.window_weight(window), torch.zeros(())
    leaves = [
        part.detach().clone().requires_grad_()
        for part in torch.split(outputs, [each.size for each in batches])
    ]
    for leaf, batch in zip(leaves, batches, strict=True):
        share = task.loss(leaf, batch, weight, window.size)
        assert (share.shape, share.dtype) == ((), torch.float32)
        torch.autograd.backward(share)
        total += share.detach()
    return total, torch.cat([leaf.grad for leaf in leaves if leaf.grad is not None])


def _merged(states: Sequence[State]) -> State:
    """Return the state of several processes together, as `mptui.engine.evaluate` does."""
    found: State = {}
    for state in states:
        for name, value in state.items():
            if name not in found:
                found[name] = value
            else:
                found[name] = torch.cat((found[name], value)) if name == SCORES else found[name] + value
    return found


def _assert_same(metrics: Metrics, expected: Metrics) -> None:
    assert metrics.compute() == pytest.approx(expected.compute(), rel=1e-5, nan_ok=True)
    one, other = metrics.per_class(), expected.per_class()
    assert one.keys() == other.keys()
    assert all(one[name] == pytest.approx(values) for name, values in other.items())
    first, second = metrics.confusion(), expected.confusion()
    assert (first is None) == (second is None)
    assert first is None or second is None or torch.equal(first, second)
