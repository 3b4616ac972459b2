"""The base of metrics of images that follow from two sums over all batches."""

import torch


class SumMetrics:
    """Two sums on the device, of samples without classes.

    Args:
        device: Device of the sums.
        finite_only: Leave out batches whose sums are not finite.
    """

    def __init__(self, device: torch.device, *, finite_only: bool = False) -> None:
        self._sums = torch.zeros(2, device=device)
        self._finite_only = finite_only

    def add(self, first: torch.Tensor, second: torch.Tensor) -> None:
        """Add the sums of a batch. Never syncs."""
        sums = torch.stack([first, second])
        if self._finite_only:
            sums = torch.where(torch.isfinite(sums).all(), sums, 0.0)
        self._sums += sums

    def totals(self) -> tuple[float, float]:
        """Return both sums over all batches. Syncs."""
        first, second = self._sums.tolist()
        return first, second

    def per_class(self) -> dict[str, dict[str, float | None]]:
        """Empty: images have no classes here."""
        return {}

    def confusion(self) -> torch.Tensor | None:
        """None: images have no classes here."""
        return None

    def reset(self) -> None:
        """See `Metrics.reset`."""
        self._sums.zero_()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """See `Metrics.state_dict`."""
        return {"sums": self._sums.clone()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """See `Metrics.load_state_dict`."""
        self._sums.copy_(state["sums"])
