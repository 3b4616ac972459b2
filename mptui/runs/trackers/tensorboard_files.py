"""Event files for TensorBoard, in the run's `tensorboard` folder."""

from pathlib import Path


class TensorBoard:
    """Writes event files for TensorBoard."""

    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, scalars: dict[str, float], step: int) -> None:
        """Log the scalars of one step."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
