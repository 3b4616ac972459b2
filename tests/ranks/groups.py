"""Groups of real processes that run one function, as a launcher starts them."""

import json
import os
import socket

import torch

from tests.program import Program

CALL = """
import json, sys, importlib, os
import torch
torch.set_num_threads(1)
from mptui.engine.ranks.group import join
from mptui.processes.rank_place import rank_place
from tests.ranks.groups import own_device
module, name, arguments = json.loads(sys.argv.pop(1))
ranks = join(rank_place(os.environ), own_device(), uuid=os.environ.get("OF_DEVICE"))
print(json.dumps(getattr(importlib.import_module(module), name)(ranks, *arguments)), flush=True)
ranks.close()
"""


KIND = "KIND_OF_DEVICE"
"""Environment variable: cuda, where each rank of a test has a GPU; unset: a CPU."""


def own_device():
    """The device of this rank."""
    kind = os.environ.get(KIND, "cpu")
    return torch.device(kind) if kind == "cpu" else torch.device(kind, int(os.environ.get("LOCAL_RANK", 0)))


def environs(world_size, **more):
    """The environment of each rank, as torchrun sets it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    sizes = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return [
        {**group, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", **more}
        for rank in range(world_size)
    ]


def started(function, *arguments, environs):
    """Call a module's function with the `Ranks` and JSON `arguments` in a rank of each environment."""
    what = json.dumps([function.__module__, function.__name__, arguments])
    return [Program(CALL, what, environ=environ, call="tests.program:execute") for environ in environs]


def in_group(world_size, function, *arguments, **environ):
    """Call a module's function with the `Ranks` and JSON `arguments` in each rank; return their results."""
    each = environs(world_size, **environ) if world_size > 1 else [environ]
    ranks = started(function, *arguments, environs=each)
    ends = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(err for _, err in ends)
    return [json.loads(out.splitlines()[-1]) for out, _ in ends]
