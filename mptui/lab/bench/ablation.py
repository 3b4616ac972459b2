"""Settings that can make training faster or smaller, each as a switch that is off or on."""

from collections.abc import Mapping
from dataclasses import dataclass

from mptui.config.schema import RunConfig
from mptui.hardware.devices import Device
from mptui.registry.precisions import SIXTEEN_BIT

Settings = Mapping[str, object]

BASELINE, EVERYTHING = "baseline", "everything"


@dataclass(frozen=True, slots=True)
class Switch:
    """One setting: `table.key` -> value, off and on.

    `together`: whether `everything` includes it; of several alternatives, one is included.
    """

    name: str
    title: str
    off: Settings
    on: Settings
    together: bool = True


@dataclass(frozen=True, slots=True)
class Variant:
    """A measured combination: some switches on, all others off."""

    name: str
    title: str
    settings: Settings
    against: str | None
    """The variant to compare with; None for the baseline."""


def switches(config: RunConfig, device: Device, cpus: int, precision: str) -> list[Switch]:
    """Return the switches available for a device and a configuration.

    Args:
        config: The configuration.
        device: The device.
        cpus: CPUs that this process may use.
        precision: The 16-bit format that suits the device, which `everything` includes.
    """
    cuda = device.torch_name.startswith("cuda")
    found = []
    if device.native.get("tf32") == "native":
        off, on = {"precision.matmul": "highest"}, {"precision.matmul": "high"}
        found.append(Switch("tf32", "TF32", off, on))
    found += [
        Switch(mode, mode, {"precision.mode": "fp32"}, {"precision.mode": mode}, together=mode == precision)
        for mode in SIXTEEN_BIT
        if device.native.get(mode) != "no"
    ]
    found += [
        Switch(
            "channels_last",
            "channels last",
            {"speed.channels_last": False},
            {"speed.channels_last": True},
        ),
        Switch("fused", "fused optimizer", {"speed.fused": False}, {"speed.fused": True}),
    ]
    modes = ("default", "reduce-overhead", "max-autotune") if cuda else ("default",)
    found += [
        Switch(
            f"compile-{mode}" if cuda else "compile",
            f"compile ({mode})" if cuda else "compile",
            {"speed.compile": "off"},
            {"speed.compile": mode},
            together=mode == modes[-1],
        )
        for mode in modes
    ]
    batch = config.training.batch_size
    found.append(
        Switch(
            "batch", f"batch {2 * batch}", {"training.batch_size": batch}, {"training.batch_size": 2 * batch}
        )
    )
    found += _of_the_data(config, cpus, cuda=cuda)
    return found


def _of_the_data(config: RunConfig, cpus: int, *, cuda: bool) -> list[Switch]:
    found = []
    if cpus > 1:
        found.append(Switch("workers", f"{cpus} workers", {"data.workers": 1}, {"data.workers": cpus}))
    found += [
        Switch(
            name,
            f"cache ({where})",
            {"data.cache": "off"},
            {"data.cache": where},
            together=where == "device",
        )
        for name, where in (("cache-ram", "ram"), ("cache", "device"))
    ]
    mixing: dict[str, object] = {}
    if config.data.mixup_alpha:
        mixing["data.mixup_alpha"] = config.data.mixup_alpha
    if config.data.cutmix_alpha:
        mixing["data.cutmix_alpha"] = config.data.cutmix_alpha
    if mixing:
        found.append(Switch("no-mixup", "no mixup", mixing, dict.fromkeys(mixing, 0.0)))
    return found


def variants(found: list[Switch], plain: list[Switch] | None = None) -> list[Variant]:
    """Return the baseline, the baseline with each switch, everything, and everything without each switch.

    Args:
        found: The switches to measure.
        plain: All switches that are off in the baseline, if these are more.
    """
    off: dict[str, object] = {}
    for switch in plain or found:
        off |= switch.off
    everything = dict(off)
    for switch in found:
        if switch.together:
            everything |= switch.on
    return [
        Variant(BASELINE, "baseline, all off", off, None),
        *(Variant(f"+{s.name}", f"+ {s.title}", {**off, **s.on}, BASELINE) for s in found),
        Variant(EVERYTHING, "everything", everything, BASELINE),
        *(
            Variant(f"-{s.name}", f"everything - {s.title}", {**everything, **s.off}, EVERYTHING)
            for s in found
            if s.together
        ),
    ]
