"""How many samples of a split an epoch uses. Imports no torch: screens use it too."""


def samples_used(count: int, batch_size: int, *, train: bool, drop_last: bool) -> int:
    """The samples of `count` that batches of `batch_size` use.

    Args:
        count: Samples that are left in the epoch.
        batch_size: Samples a batch.
        train: A last batch of one sample is left out, since BatchNorm can't be trained on it.
        drop_last: A short last batch is left out.
    """
    tail = count % batch_size
    too_few = train and tail == 1 and count > 1
    return count - tail if too_few or drop_last else count
