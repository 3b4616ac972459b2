"""Computes the number of samples that an epoch uses. Imports no torch, as screens use it too."""


def samples_used(count: int, batch_size: int, *, train: bool, drop_last: bool) -> int:
    """Return how many of `count` samples are used in batches of `batch_size`.

    Args:
        count: Number of samples left in the epoch.
        batch_size: Samples per batch.
        train: Drop a last batch of one sample, as BatchNorm can't be trained on it.
        drop_last: Drop a short last batch.
    """
    tail = count % batch_size
    too_few = train and tail == 1 and count > 1
    return count - tail if too_few or drop_last else count
