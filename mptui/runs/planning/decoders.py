"""What a run's steps take with its JPEG files decoded by the workers, and with them decoded on the device."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from itertools import count, islice

import torch

from mptui.data.core.types import Dataset, InFile
from mptui.data.decode.device_jpeg import why_not
from mptui.data.loading.loader import Loader
from mptui.engine.autotune.select import Selection, Timer
from mptui.engine.compile.policy import Stopwatch
from mptui.hardware.host import usable_cpus
from mptui.runs.planning.plan import Plan

BATCHES = 2
"""That are read in each timing, by workers that run already and have nothing read ahead."""


def cant_decode(dataset: Dataset, device: torch.device, cache: str) -> str | None:
    """Why the files of a run can't be decoded on its device, in a few words; None: they can.

    Args:
        dataset: Of the run.
        device: Of the run.
        cache: `data.cache`, chosen.
    """
    if not isinstance(dataset.train.request(0), InFile):
        return "the set has no files"
    if cache != "off":
        return f"data.cache = {cache} keeps what the workers decode"
    return why_not(device)


def may_decode(plan: Plan, dataset: Dataset) -> bool:
    """Whether who decodes is worth a measurement: on a CUDA device, where files are read in each epoch."""
    data = plan.config.data
    wanted = data.decode == "auto" and data.cache == "off" and plan.device.kind == "cuda"
    return wanted and isinstance(dataset.train.request(0), InFile)


def with_decoder(plan: Plan, choice: Selection) -> Plan:
    """The plan with `data.decode` chosen: kept in run.toml, so that a resumed run has the same pixels."""
    data = plan.config.data.model_copy(update={"decode": choice.name})
    sources = {**plan.resolved.sources, "data.decode": f"chosen: {choice.reason}"}
    config = plan.config.model_copy(update={"data": data})
    return replace(plan, resolved=replace(plan.resolved, config=config, sources=sources))


def facts_of_files(plan: Plan, dataset: Dataset) -> dict[str, object]:
    """What the time of reading depends on: the files, what views are cut out of them, who reads them."""
    return {
        "torchvision": version("torchvision"),
        "workers": plan.workers,
        "cpus": usable_cpus(),
        "augment": plan.config.data.augment,
        "resize": plan.config.data.resize,
        "files": [dataset.name, len(dataset.train), list(dataset.sides or ())],
    }


class Readings:
    """Times the input of a run beside its steps, by who decodes.

    Args:
        make: Makes the loader of the training half; with True, one that decodes on the device.
        step: Makes what takes a training step and returns its seconds.
        device: Where batches go to.
    """

    def __init__(
        self, make: Callable[[bool], Loader], step: Callable[[], Timer], device: torch.device
    ) -> None:
        self._make, self._step, self._device = make, step, device
        self._loaders = contextlib.ExitStack()

    def timer(self, name: str) -> Timer:
        """What returns the seconds that a batch and its step take, by a name of `choices.decoders`.

        Workers decode while the device computes. The time that the device decodes in is taken from its
        computing: how much of it is, nobody tells, so all of it counts.

        Raises:
            RuntimeError: The device can't decode.
        """
        if name == "device" and (reason := why_not(self._device)) is not None:
            raise RuntimeError(reason)
        loader, step = self._loaders.enter_context(self._make(name == "device")), self._step()
        epochs = count()

        def take() -> float:
            read_s, step_s = self._reading(loader, next(epochs)), step()
            beside = name == "cpu" and loader.workers > 0
            return max(read_s, step_s) if beside else read_s + step_s

        return take

    def close(self) -> None:
        """End the workers."""
        self._loaders.close()

    def _reading(self, loader: Loader, epoch: int) -> float:
        watch, windows = Stopwatch(self._device), loader.windows(epoch, 1)
        read = sum(len(list(window)) for window in islice(windows, BATCHES))
        seconds = watch.seconds()
        loader.windows(epoch, 1)  # whatever was read ahead is dropped
        return seconds / read
