"""Private names of torch: what each is for, and which public one is missing or does less.

No other module imports one, or takes it of a module of torch: what another version moves is changed here.
All are there in torch 2.10, the oldest that is allowed. Private methods of an object, such as the reducer of
`DistributedDataParallel`, are called where it is used.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.dropout import _DropoutNd as DropoutNd
from torch.optim import _muon
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

__all__ = [
    # the bases of layers in one to three dimensions, lazy and synchronized ones among them; public are the
    # classes of each number of dimensions
    "BatchNorm",
    "ConvNd",
    "DropoutNd",
    # tensors without storage, documented in https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    # running statistics, of instance norms too
    "NormBase",
    # what a dispatch mode is called with
    "OpOverload",
    # nested arguments and outputs
    "tree_map",
    "tree_map_only",
    "unset_fake_temporarily",
]

# Nested arguments and outputs
# ----------------------------


def tensors_in(values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - whatever a module or an operator takes
    """Return the tensors of nested lists, tuples and dictionaries, in order; other values are left out."""
    if isinstance(values, torch.Tensor):
        return [values]
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def floats_in(values: Any) -> list[torch.Tensor]:  # noqa: ANN401 - the same
    """Return the tensors of floating dtypes, as `tensors_in` does."""
    return [each for each in tensors_in(values) if each.is_floating_point()]


# Operators
# ---------
# Public methods of tensors have other names than the operators that they call, which a dispatch mode sees.

LOCAL_SCALAR = torch.ops.aten._local_scalar_dense
"""Reads a number of the device, as `Tensor.item` does."""
TO_COPY = torch.ops.aten._to_copy
"""Copies to another dtype or device, as `Tensor.to` does."""
CUDNN_RNN = torch.ops.aten._cudnn_rnn
"""A recurrent layer on CUDA."""


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator of its context by `watched`, those of autograd too.

    `torch.overrides.TorchFunctionMode` sees calls of Python alone.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        types: Any,  # noqa: ANN401 - of tensors
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator gives
        return self.watched(func, args, kwargs or {})

    def watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run an operator, and return its result."""
        raise NotImplementedError


def has_kernel(operator: OpOverload, key: str) -> bool:
    """Whether an operator has a kernel of its own for a dispatch key, such as `AutocastCPU`."""
    name: str = operator.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


# Updates of weights
# ------------------
# The kernels of `torch.optim.SGD`, `Adam` and `AdamW` with `fused=True`, and the iteration of
# `torch.optim.Muon`: those classes take no skipped step, and no rate on the device for all of them.

fused_sgd_ = torch._fused_sgd_
fused_adam_ = torch._fused_adam_
fused_adamw_ = torch._fused_adamw_

_COEFFICIENTS = (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C)


def nearest_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return about the nearest orthogonal matrix, in bfloat16, by torch's Newton-Schulz iteration."""
    return _muon._zeropower_via_newtonschulz(matrix, _COEFFICIENTS, _muon.DEFAULT_NS_STEPS, _muon.EPS)


def in_one_row(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a copy of all elements in one dimension, in one call."""
    return torch._C._nn.flatten_dense_tensors(tensors)


# A step, as autograd and the allocators see it
# ---------------------------------------------


def is_in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1


Convolve = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Convolves an input with a weight and a bias."""


def convolve_by(convolution: nn.Conv2d, compute: Callable[..., torch.Tensor]) -> None:
    """Let a convolution call `compute(own, input, weight, bias)`, `own` its method: a hook gets no weight."""
    own = partial(nn.Conv2d._conv_forward, convolution)
    convolution._conv_forward = partial(compute, own)  # type: ignore[method-assign]


def uses_of_storage(tensor: torch.Tensor) -> int:
    """Return how many tensors have the memory of `tensor`."""
    found: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return found


# The compiler
# ------------
# Inductor's settings and caches; imported where they are needed, since they take a second.


def inductor_config() -> Any:  # noqa: ANN401 - a module that torch fills at run time
    """Return the settings of Inductor, of which `torch.compile(options=...)` takes those of one network."""
    from torch._inductor import config

    return config


def compile_calls(model: nn.Module, mode: str | None) -> None:
    """Compile what a call of `model` does; `nn.Module.compile` compiles a method that is of torch itself."""

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = model._call_impl(*inputs)  # type: ignore[no-untyped-call]
        return outputs

    model._compiled_call_impl = torch.compile(call, mode=mode)


def default_cache_dir() -> str:
    """Return the folder that Inductor takes if no variable names one."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir as found

    folder: str = found()
    return folder


def move_precompiled_headers(folder: str) -> bool:
    """Cache precompiled headers in `folder`, which Inductor's variable does not move; returns if it can."""
    from torch._inductor import codecache

    if not (hasattr(codecache, "_HEADER_DIR") and hasattr(codecache, "_HEADER_LOCK_DIR")):
        return False  # another version, with another location
    codecache._HEADER_DIR = folder
    codecache._HEADER_LOCK_DIR = f"{folder}/locks"
    return True


# CUDA graphs of the compiler
# ---------------------------

GRAPH_TREES = "torch._inductor.cudagraph_trees"
"""The module that records them; an error is known by it."""


def graph_trees() -> Any:  # noqa: ANN401 - a module of which mypy reads nothing
    """Return the module that records CUDA graphs."""
    from torch._inductor import cudagraph_trees

    return cudagraph_trees


def prepare_thread() -> None:
    """Let this thread record CUDA graphs: before 2.14, only the first one that imports the trees can."""
    local = graph_trees().local
    containers, locks = "tree_manager_containers", "tree_manager_locks"
    if hasattr(local, containers) or torch._C._is_key_in_tls(containers):
        return
    local.tree_manager_containers = {}
    local.tree_manager_locks = defaultdict(threading.Lock)
    # for the threads of autograd
    torch._C._stash_obj_in_tls(containers, local.tree_manager_containers)
    torch._C._stash_obj_in_tls(locks, local.tree_manager_locks)


def leave_pool_of_recording(index: int) -> bool:
    """End what a failed recording has left of the allocator's state; returns whether one was under way."""
    manager = graph_trees().get_manager(index, create_if_none_exists=False)
    if manager is None:
        return False
    pool = manager.cuda_graphs_thread_pool
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError:  # nothing is being recorded
        return False
    torch._C._cuda_releasePool(index, pool)
    return True


# Gradients of several processes
# ------------------------------


def buckets_of(gradients: list[torch.Tensor], limits: list[int]) -> list[list[int]]:
    """Return the places of the gradients that `DistributedDataParallel` sums together.

    Args:
        gradients: In the order in which they are ready.
        limits: Bytes of the first bucket, and of all others.
    """
    buckets, _ = dist._compute_bucket_assignment_by_size(gradients, limits)  # type: ignore[attr-defined]
    return buckets


def begin_fake_group(ranks: int) -> None:
    """Begin the group of this process, rank 0, and of ranks that are not there: collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
