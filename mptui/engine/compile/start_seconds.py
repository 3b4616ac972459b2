"""Estimated time of the first step that compiles a network, for as long as none was measured."""

_ON_A_GPU = {"default": 60.0, "reduce-overhead": 60.0, "max-autotune": 300.0}
_ON_A_CPU = 110.0


def estimated_start_s(kind: str, mode: str) -> float:
    """Estimate the seconds of a first step without cached code; 0 for the mode off.

    Those of a ResNet-50, on two CPU cores or beside a GPU. At 224 px in bf16 one was still being autotuned
    after 165 s on an H200 with 16 CPU cores (torch 2.11). Only the order of magnitude matters.

    Args:
        kind: Kind of device: "cpu" or a GPU's.
        mode: Mode of torch.compile.
    """
    if mode == "off":
        return 0.0
    return _ON_A_CPU if kind == "cpu" else _ON_A_GPU[mode]
