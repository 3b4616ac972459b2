"""Checks before a network is trained what it returns, and that it can be trained on so few samples at a time.

With outputs of another shape, a loss may be wrong without an error, or end a CUDA device.
"""

import torch

from mptui.config.schema import RunConfig
from mptui.data.loading.lengths import fewest_at_once
from mptui.engine.evaluate import in_eval_mode
from mptui.engine.guards.oom_errors import is_too_few_for_norm
from mptui.errors import ConfigError, OwnCodeError
from mptui.models.layers import has_batch_norm
from mptui.models.zoo import input_shape
from mptui.registry.own_code import fault_of, is_own
from mptui.registry.samples import SampleKind
from mptui.registry.tasks import TASKS
from mptui.runs.planning.plan import Plan
from mptui.tasks.base import Task
from mptui.tasks.build_task import build_task

_SAMPLES = 2


@torch.no_grad()
def check_outputs(plan: Plan, model: torch.nn.Module, num_classes: int) -> None:
    """Check the outputs of the network of `plan`, if it is the person's own; lazy modules get their shapes.

    Its parts stay in the modes that they are in.

    The outputs for a loss of the person's own may have any shape.

    Args:
        plan: The plan of the run.
        model: Its network, on the host.
        num_classes: Number of classes.

    Raises:
        OwnCodeError: They are no tensor, or have another shape than the task needs.
    """
    name, learns, side = (
        str(plan.config.model.name),
        plan.config.model.task,
        int(plan.config.data.image_size or 0),
    )
    if not is_own(name):
        return
    classes, counts = [str(number) for number in range(num_classes)], [1] * num_classes
    task = build_task(plan.task, classes, plan.config.training, counts=counts)
    batch = task.made_up_batch(torch.zeros(_SAMPLES, plan.config.data.channels, side, side))
    try:
        with torch.random.fork_rng(devices=[]), in_eval_mode(model):
            outputs = model(*batch.inputs)
    except Exception as error:
        if fault_of(error) is not None:
            raise
        what = f"{name} failed on images {list(batch.images_BCHW.shape)}: {type(error).__name__}: {error}"
        raise OwnCodeError(what, hint="correct your network; --debug shows the whole traceback") from error
    needed = {
        SampleKind.CLASS: [_SAMPLES, num_classes],
        SampleKind.MASK: [_SAMPLES, num_classes, side, side],
        SampleKind.IMAGE: [_SAMPLES, 3, side, side],
    }[TASKS[plan.task].sample]
    if not isinstance(outputs, torch.Tensor):
        raise OwnCodeError(f"{name} returned {type(outputs).__name__}", hint="return one tensor from forward")
    if list(outputs.shape) != needed and not is_own(learns):
        raise OwnCodeError(
            f"{name} returned {list(outputs.shape)} for {_SAMPLES} images, but {plan.task} needs {needed}",
            hint="change its last layer, or name a loss of your own with --task",
        )


def check_single_samples(
    model: torch.nn.Module, task: Task, config: RunConfig, *, count: int, processes: int
) -> None:
    """Check that BatchNorm has more than one value of a channel, where a process trains on a single sample.

    Only a trial tells: it depends on the size of the network's feature maps, which may be 1 x 1.

    Args:
        model: The network, on its device; its buffers stay.
        task: Its task.
        config: The configuration of the run.
        count: Samples of an epoch.
        processes: The processes that share each batch.

    Raises:
        ConfigError: BatchNorm has too few.
    """
    training, micro_batch = config.training, config.memory.micro_batch
    limit = micro_batch if isinstance(micro_batch, int) else None
    synchronized = training.sync_batch_norm and processes > 1
    alone = fewest_at_once(count, training.batch_size, processes, limit) == 1
    if not alone or synchronized or not has_batch_norm(model) or _trains_on_one(model, task, config):
        return
    if training.batch_size < 2 * processes:
        shared = f" over {processes} processes" if processes > 1 else ""
        cause = f"training.batch_size = {training.batch_size}{shared}"
        remedy = f"set --batch-size to {2 * processes} or more"
    elif count == 1:
        cause, remedy = "a training set of one sample", "add samples"
    else:
        cause, remedy = f"memory.micro_batch = {limit}", "set memory.micro_batch to 2 or more"
    raise ConfigError(
        f"{cause}: BatchNorm can't be trained on a single sample with feature maps of 1 x 1",
        hint=f"{remedy}; or a larger data.image_size, or a network without BatchNorm "
        "(unet: --set model.norm=group)",
    )


@torch.no_grad()
def _trains_on_one(model: torch.nn.Module, task: Task, config: RunConfig) -> bool:
    """Whether BatchNorm computes in training mode with one sample."""
    device = next(model.parameters()).device
    shape = input_shape(config.model, config.data.channels, int(config.data.image_size or 0))
    batch = task.made_up_batch(torch.zeros(1, *shape, device=device))
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with torch.random.fork_rng(devices=[]):
            model(*batch.inputs)
    except ValueError as error:
        if not is_too_few_for_norm(error):
            raise
        return False
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
    return True
