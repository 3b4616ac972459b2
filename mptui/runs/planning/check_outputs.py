"""Checks what a network of the person's own returns, before it is trained.

With outputs of another shape, a loss may be wrong without an error, or end a CUDA device.
"""

import torch

from mptui.errors import OwnCodeError
from mptui.registry.own_code import fault_of, is_own
from mptui.registry.samples import SampleKind
from mptui.registry.tasks import TASKS
from mptui.runs.planning.plan import Plan
from mptui.tasks.build_task import build_task

_SAMPLES = 2


@torch.no_grad()
def check_outputs(plan: Plan, model: torch.nn.Module, num_classes: int) -> None:
    """Check the outputs of the network of `plan`, if it is the person's own; lazy modules get their shapes.

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
        with torch.random.fork_rng(devices=[]):
            outputs = model.eval()(*batch.inputs)
    except Exception as error:
        if fault_of(error) is not None:
            raise
        what = f"{name} failed on images {list(batch.images_BCHW.shape)}: {type(error).__name__}: {error}"
        raise OwnCodeError(what, hint="correct your network; --debug shows the whole traceback") from error
    model.train()
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
