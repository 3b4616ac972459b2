"""`mptui run` against a bare loop and its peers: Lightning, Accelerate, timm, and torchvision's recipe.

    pip install 'mptui[peers]'
    python -m benchmarks.peers                 # ResNet-18 at 64 px, a narrow U-Net at 128, the tiny network
    python -m benchmarks.peers --only tiny
    python -m benchmarks.peers --device cuda --precision bf16 --compile default     # ResNet-50, U-Net at 512

Every side is a separate process, started anew in each round; ratios are taken within a round. On a CPU all
processes of a round are alive, and one runs at a time, for a second, in forward and backward order
(`benchmarks.relay`): the median of these turns is the round's figure. Two processes with the same code differ
by some percent, depending on their memory pages, and the one started first is 2 % slower: so there are many
rounds of a few turns, each starting with another side. A GPU holds one process at a time: there they
alternate, each timed from warm-up to the last step between two synchronizations. `--clock cpu` measures CPU
time instead of wall time, which other work on the machine disturbs less. The machine's ceilings for a large
product and a large copy are measured in the same run and give the physical bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from benchmarks.common import alternate, parser_of, ratios, rotate, save
from benchmarks.floors import ceilings, work_of
from benchmarks.relay import relay
from benchmarks.sides import DTYPES, SIDES, figures, missing
from benchmarks.subjects import CASES, ON_GPU, TINY, Case
from benchmarks.targets import PEERS

TURNS = 4
"""Turns of each side in a round, on a CPU."""
BLOCKS = {"resnet18": 10, "unet": 14, TINY: 2_000}
"""Timed steps per turn: about a second."""


def measure(
    case: Case, sides: Sequence[str], *, rounds: int, clock: str, threads: int, reached: Mapping[str, float]
) -> dict[str, Any]:
    """Measures throughput of `mptui run` and `sides`, their ratios, and the physical bound."""
    named = ("mptui", *sides)
    if case.device == "cpu":
        take_turns = partial(relay, turns=TURNS, block=BLOCKS[case.model], threads=threads, clock=clock)
        found = [take_turns(case, rotate(named, number)) for number in range(rounds)]
        rates = {side: [each[side] for each in found] for side in named}
    else:

        def rate(side: str) -> float:
            return case.batch / float(figures(side, case, threads)[f"{clock}_s"])

        rates = alternate({side: lambda side=side: rate(side) for side in named}, rounds)  # type: ignore[misc]
    targets = PEERS[TINY if case.model == TINY else case.device]
    compared = {
        side: {**ratios(rates["mptui"], rates[side]), **({"asked": targets[side]} if side in targets else {})}
        for side in sides
    }
    for side, ratio in compared.items():
        spread = f"({ratio['min']:.3f} to {ratio['max']:.3f})"
        wanted = f", asked {ratio['asked']}" if "asked" in ratio else ""
        print(f"  mptui over {side:<18} {ratio['median']:.3f} {spread}{wanted}")
    return {
        "case": asdict(case),
        "images_per_second": rates,
        "ratios": compared,
        "floor": floor(case, reached),
    }


def floor(case: Case, reached: Mapping[str, float]) -> dict[str, float]:
    """Computes the bound of a step: operations and values moved per image, and throughput."""
    with torch.device("meta"):
        network = case.network()
    work = work_of(network, case.side, case.batch)
    value_bytes = 4 if case.precision == "fp32" else 2
    rate = work.images_per_second(reached["operations_s"], reached["bytes_s"], value_bytes)
    return {
        "operations": work.operations,
        "bytes": work.values * value_bytes,
        "images_per_second": rate,
    }


def main() -> None:
    """Measures and writes results/peers.json; on a GPU results/peers-cuda.json."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--only", choices=sorted({*CASES, *ON_GPU}))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", *DTYPES], default="fp32")
    parser.add_argument("--compile", default="off")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if absent := missing(arguments.sides):
        parser.error(absent)
    torch.set_num_threads(arguments.threads)
    reached = ceilings(torch.device(arguments.device), DTYPES.get(arguments.precision, torch.float32))
    cases = CASES if arguments.device == "cpu" else ON_GPU
    document: dict[str, Any] = {
        "rounds": arguments.rounds,
        "clock": arguments.clock,
        "ceilings": reached,
        "cases": {},
    }
    for name in [arguments.only] if arguments.only else cases:
        print(name)
        document["cases"][name] = measure(
            replace(
                cases[name],
                device=arguments.device,
                precision=arguments.precision,
                compile=arguments.compile,
            ),
            arguments.sides,
            rounds=arguments.rounds,
            clock=arguments.clock,
            threads=arguments.threads,
            reached=reached,
        )
    named = ["peers", *(["cuda"] if arguments.device == "cuda" else []), *filter(None, [arguments.only])]
    save("-".join(named), document)


if __name__ == "__main__":
    main()
