"""CUDA graphs, as torch records them (`torch._inductor.cudagraph_trees`): their threads, and their errors.

torch has no way back from a recording that fails (`torch.cuda.graph` ends it without `finally`, to 2.14 at
least): the thread stays on the stream of the recording, the allocator believes that the recording goes on, so
that `empty_cache` fails, and the generator of random numbers refuses to draw.
"""

import threading
from collections import defaultdict
from contextlib import suppress
from traceback import walk_tb

import torch

_TREES = "torch._inductor.cudagraph_trees"
_RECORDS = "record_function"
"""The function there through which each recording goes."""

_OVERWRITTEN = "CUDAGraphs that has been overwritten"
"""In the message of torch where a tensor in a graph's memory is read too late."""


def prepare_thread() -> None:
    """Let this thread record graphs: before torch 2.14, only the first one that imports the trees can."""
    from torch._inductor import cudagraph_trees as trees

    if hasattr(trees.local, "tree_manager_containers") or torch._C._is_key_in_tls("tree_manager_containers"):
        return
    trees.local.tree_manager_containers = {}
    trees.local.tree_manager_locks = defaultdict(threading.Lock)
    # for the threads of autograd
    torch._C._stash_obj_in_tls("tree_manager_containers", trees.local.tree_manager_containers)
    torch._C._stash_obj_in_tls("tree_manager_locks", trees.local.tree_manager_locks)


def is_of_graphs(error: BaseException) -> bool:
    """Whether `error` was raised while a graph was recorded, or by a tensor that a graph has overwritten."""
    return _OVERWRITTEN in str(error) or any(
        frame.f_code.co_name == _RECORDS and frame.f_globals.get("__name__") == _TREES
        for frame, _ in walk_tb(error.__traceback__)
    )


def leave_recording(device: torch.device) -> None:
    """Put stream, allocator and generator right after an error, which may have ended a recording halfway."""
    if device.type != "cuda":
        return
    from torch._inductor import cudagraph_trees as trees

    index = device.index if device.index is not None else torch.cuda.current_device()
    torch.cuda.set_stream(torch.cuda.default_stream(device))
    with suppress(RuntimeError):  # an error that is still on its way from the device will come again
        torch.cuda.synchronize(device)  # with the stream of the warm-up, which may still write to buffers
    manager = trees.get_manager(index, create_if_none_exists=False)
    if manager is None:
        return
    pool = manager.cuda_graphs_thread_pool
    try:
        torch._C._cuda_endAllocateToPool(index, pool)
    except RuntimeError:  # nothing is being recorded
        return
    torch._C._cuda_releasePool(index, pool)
    generator, usable = torch.cuda.default_generators[index], torch.Generator(device)
    usable.set_state(generator.get_state())
    generator.graphsafe_set_state(usable)
