"""The results of `benchmarks.gpu`: figures by side and round, and the ratios of what is measured so far."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import machine, ratios
from benchmarks.gpu_plan import AMP, Measurement
from benchmarks.targets import GPU, GPU_MEMORY, GPU_PHOTOS, OnGpu
from mptui.io.files import replace_file


class Results:
    """What has been measured, written to a file after each side.

    Args:
        path: The file.
        head: What the document begins with.
        bounds: Physical bounds of the networks in 16 bits (`benchmarks.peers.floor`).
        mode: Compile mode in which precisions and peers are compared.
    """

    def __init__(
        self,
        path: Path,
        head: Mapping[str, Any],
        bounds: Mapping[str, Mapping[str, float]],
        mode: str,
    ) -> None:
        self._path, self._head, self._bounds, self._mode = path, head, bounds, mode
        self._sides: dict[str, dict[str, dict[str, Any]]] = {}
        self._not_measured: dict[str, str] = {}

    def add(self, side: Measurement, number: int, found: Mapping[str, Any]) -> None:
        """Adds the figures of a side in a round."""
        self._not_measured.pop(f"{side.part}: {side.name}", None)
        rounds = self._sides.setdefault(side.part, {}).setdefault(side.name, {"rounds": {}})["rounds"]
        rounds[number] = {"images_per_second": side.case.batch / float(found["wall_s"]), **found}
        self.write()

    def leave_out(self, side: Measurement, why: str, *, failed: bool = False) -> None:
        """Notes that a side was not measured in a round, and why."""
        known = self._sides.setdefault(side.part, {})
        if failed:
            known.setdefault(side.name, {"rounds": {}})["error"] = why
        if not self.rounds_of(side):
            self._not_measured[f"{side.part}: {side.name}"] = (
                why.strip().splitlines()[-1] if why.strip() else why
            )
        self.write()

    def has_failed(self, side: Measurement) -> bool:
        """Returns whether a side has failed before."""
        return "error" in self._sides.get(side.part, {}).get(side.name, {})

    def rounds_of(self, side: Measurement) -> Mapping[int, Mapping[str, Any]]:
        """Returns the figures of a side by the number of the round."""
        found: Mapping[int, Mapping[str, Any]] = (
            self._sides.get(side.part, {}).get(side.name, {}).get("rounds", {})
        )
        return found

    def document(self) -> dict[str, Any]:
        """Returns all as written."""
        parts = {
            part: photos_of(self._rates(part))
            if part == "photos"
            else {
                **speed_of(self._rates(part), GPU[part], self._mode, self._bounds[part]),
                "memory": memory_of(self._peaks(part)),
            }
            for part in self._sides
        }
        return {
            "machine": machine(),
            **self._head,
            **parts,
            "not_measured": self._not_measured,
            "sides": self._sides,
        }

    def write(self) -> None:
        """Writes the file anew."""
        text = json.dumps(self.document(), indent=2) + "\n"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, text.encode())

    def _rates(self, part: str) -> dict[str, dict[int, float]]:
        return {
            name: {number: found["images_per_second"] for number, found in side["rounds"].items()}
            for name, side in self._sides[part].items()
            if side["rounds"]
        }

    def _peaks(self, part: str) -> dict[str, float]:
        return {
            name.partition(" ")[2]: statistics.median(peaks)
            for name, side in self._sides[part].items()
            if name.startswith("memory ")
            and (
                peaks := [found["peak_bytes"] for found in side["rounds"].values() if found.get("peak_bytes")]
            )
        }


def over(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, float]:
    """Returns median, minimum and maximum of ours/theirs over the rounds of both."""
    both = sorted(ours.keys() & theirs.keys())
    return ratios([ours[number] for number in both], [theirs[number] for number in both])


def speed_of(
    rates: Mapping[str, Mapping[int, float]],
    target: OnGpu,
    mode: str,
    lowest: Mapping[str, float],
) -> dict[str, Any]:
    """Computes the ratios of a network as far as their sides are measured.

    Args:
        rates: Images per second by side and round.
        target: The goals.
        mode: Compile mode in which precisions and peers are compared.
        lowest: The physical bound.
    """

    def best(names: Sequence[str]) -> str | None:
        known = [name for name in names if name in rates]
        return max(known, key=lambda name: statistics.median(rates[name].values()), default=None)

    found: dict[str, Any] = {}
    loops = {name.removeprefix("mptui "): rate for name, rate in rates.items() if name.startswith("mptui ")}
    found["over_bare"] = {
        about: over(rate, rates[f"bare {about}"])
        for about, rate in loops.items()
        if rates.get(f"bare {about}", {}).keys() & rate.keys()
    }
    amp = best([f"mptui {name} {mode}" for name in AMP])
    if amp is None:
        return found
    ours, bound = rates[amp], lowest["images_per_second"]
    found |= {"amp": amp, "floor": dict(lowest)}
    found["floor_share"] = {**over(ours, dict.fromkeys(ours, bound)), "asked": target.floor_share}
    for name, asked in (("tf32", target.over_tf32), ("fp32", target.over_fp32)):
        theirs = rates.get(f"mptui {name} {mode}", {})
        if ours.keys() & theirs.keys():
            found[f"amp_over_{name}"] = {**over(ours, theirs), "asked": asked}
    peers = [name for name in rates if name.split()[0] not in {"mptui", "bare", "memory"}]
    peer = best(peers)
    if peer is not None and ours.keys() & rates[peer].keys():
        found["best_peer"] = peer
        found["over_best_peer"] = {**over(ours, rates[peer]), "asked": target.over_peer}
    return found


def memory_of(peaks: Mapping[str, float]) -> dict[str, Any]:
    """Computes the fractions of FP32's peak memory; there are none on a CPU."""
    shares = {
        name: {"share": peaks[name] / peaks["fp32"], "asked_at_most": most}
        for name, most in GPU_MEMORY.items()
        if name in peaks and "fp32" in peaks
    }
    return {"peak_bytes": dict(peaks), **shares}


def photos_of(rates: Mapping[str, Mapping[int, float]]) -> dict[str, Any]:
    """Compares `mptui run` with everything on to a tutorial's plain FP32 script, from JPEG to weights."""
    if not rates.get("mptui", {}).keys() & rates.get("plain script", {}).keys():
        return {}
    return {"over_plain_script": {**over(rates["mptui"], rates["plain script"]), "asked": GPU_PHOTOS}}
