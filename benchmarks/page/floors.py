"""The section of the floors that physics sets, by the networks alone."""

from benchmarks.page.results import Section
from benchmarks.page.words import figure, network, table

ON_GPU = {"operations_s": 790e12, "bytes_s": 4.3e12}
"""What an H200 reaches in bf16 on a large product and a large copy."""


def floors() -> Section:
    """The floor of a step of the networks that are measured."""
    import torch

    from benchmarks.floors import work_of
    from benchmarks.subjects import CASES, TINY
    from benchmarks.subjects import ON_GPU as CASES_ON_GPU

    rows = []
    for case in [*CASES_ON_GPU.values(), *CASES.values()]:
        if case.model == TINY:
            continue
        with torch.device("meta"):
            built = case.network()
        work = work_of(built, case.side, case.batch)
        width = f", {case.width} wide" if case.model == "unet" else ""
        rate = work.images_per_second(**ON_GPU, value_bytes=2)
        figures = (work.operations / 1e9, 2 * work.values / 1e6, rate)
        rows.append([f"{network(case.model)} at {case.side} px{width}", *map(figure, figures)])
    section = Section("Floors")
    section.add(
        "No training step is faster than its layers, one after the other, can be computed and their "
        "values moved (`benchmarks/floors.py` counts both, forward and backward). In bf16, at the "
        f"{ON_GPU['operations_s'] / 1e12:g} TFLOP/s and {ON_GPU['bytes_s'] / 1e12:g} TB/s that an H200 "
        "reaches on a large product and a large copy:",
        table(["", "GFLOP an image", "MB an image", "images a second"], rows),
    )
    return section
