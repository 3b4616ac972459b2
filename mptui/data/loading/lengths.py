"""Computes the numbers of samples of an epoch and of its passes. Imports no torch, as screens use it too."""


def samples_used(count: int, batch_size: int, *, train: bool) -> int:
    """Return how many of `count` samples are used in batches of `batch_size`.

    Args:
        count: Number of samples left in the epoch.
        batch_size: Samples per batch.
        train: Drop a last batch of one sample, as BatchNorm can't be trained on it.
    """
    tail = count % batch_size
    too_few = train and tail == 1 and count > 1
    return count - tail if too_few else count


def readers_of(size: int, processes: int, *, short: bool) -> int:
    """Return how many of the processes read a part of a batch of `size` samples; the first ones do.

    Of a `short` training batch none reads a single sample, unless there is only one: BatchNorm can't be
    trained on it. In whole batches all take part, also with a sample each.
    """
    return min(processes, max(1, size // 2)) if short else processes


def fewest_at_once(count: int, batch_size: int, processes: int, micro_batch: int | None) -> int:
    """Return the fewest samples that a process trains on in one pass.

    Args:
        count: Samples of an epoch.
        batch_size: Samples of a batch of all processes.
        processes: Number of processes.
        micro_batch: The most samples of a pass, in which a part is split evenly; None: any number. With two
            or more, a single sample of a split part is computed beside another one.
    """
    used = samples_used(count, batch_size, train=True)
    batches = [(min(used, batch_size), used < batch_size)]
    if tail := used % batch_size:
        batches.append((tail, True))
    passes = []
    for size, short in batches:
        readers = readers_of(size, processes, short=short)
        for part in {size // readers, -(-size // readers)} - {0}:
            most = micro_batch or part
            passes.append(max(part // -(-part // most), min(part, most, 2)))
    return min(passes)
