"""`mptui run` beside a bare loop and its peers: Lightning, Accelerate, timm, and torchvision's recipe.

    pip install 'mptui[peers]'
    python -m benchmarks.peers                 # ResNet-18 at 64 px, a narrow U-Net at 128, the tiny network
    python -m benchmarks.peers --only tiny
    python -m benchmarks.peers --device cuda --precision bf16 --compile default     # ResNet-50, U-Net at 512

Every side is a process of its own, started anew in each round, and a ratio is taken within its round. On a
CPU the processes of a round all live, and one works at a time, for a second, forwards and backwards
(`benchmarks.relay`): the median of these turns is the figure of the round. Two processes that do the same
differ by some percent, by the pages of memory that each of them got, and the one that is started first is 2 %
slower: so there are many rounds of a few turns, and each starts with another side. A GPU holds one
at a time: there they alternate, each timed from the warm-up to the last step between two waits for the
device. `--clock cpu` takes the processors' time instead of the wall's, which other work on the machine
disturbs less. What the machine reaches on a large product and a large copy is measured in the same run, and
gives the floor that physics sets.
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
"""Of each side in a round, on a CPU."""
BLOCKS = {"resnet18": 10, "unet": 14, TINY: 2_000}
"""Timed steps of a turn: about a second of them."""


def measure(
    case: Case, sides: Sequence[str], *, rounds: int, clock: str, threads: int, reached: Mapping[str, float]
) -> dict[str, Any]:
    """Images a second of `mptui run` and of `sides`, their ratios, and the floor."""
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
    """What physics allows of a step: operations and values moved for an image, and the images a second."""
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
    """Measure, and write results/peers.json; on a GPU results/peers-cuda.json."""
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
