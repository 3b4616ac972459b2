"""Splits made of others: two in one, and one with its classes renumbered. Workers import this: no torch."""

from dataclasses import dataclass, replace

import numpy as np

from mptui.data.core.types import IGNORE, Decoded, SampleRequest, Split, check_class


@dataclass(frozen=True, slots=True)
class JoinedSplit:
    """The samples of one split, then those of another."""

    first: Split
    second: Split

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def request(self, index: int) -> SampleRequest:
        """Return the request for sample `index`."""
        count = len(self.first)
        return self.first.request(index) if index < count else self.second.request(index - count)


@dataclass(frozen=True, slots=True)
class RenumberedSplit:
    """A split whose class i is class `numbers[i]`."""

    split: Split
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.split)

    def request(self, index: int) -> "RenumberedRequest":
        """Return the request for sample `index`."""
        return RenumberedRequest(self.split.request(index), self.numbers)


@dataclass(frozen=True, slots=True)
class RenumberedRequest:
    """A request whose label or mask is renumbered."""

    request: SampleRequest
    numbers: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the sample."""
        return self.request.name

    def read(self, side_hint: int | None = None) -> Decoded:
        """Read the sample; see `SampleRequest.read`."""
        sample, count = self.request.read(side_hint), len(self.numbers)
        if sample.mask_HW is None:
            check_class(self.name, sample.label, "label", count)
            return replace(sample, label=self.numbers[sample.label])
        check_class(self.name, int(sample.mask_HW.max()), "mask value", count)
        table = np.array([*self.numbers, IGNORE], np.int16)  # IGNORE, -1, is the last place
        return replace(sample, mask_HW=table[sample.mask_HW])
