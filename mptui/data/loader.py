"""Loads the samples of a `Split` as `Batch`es on the device, in windows of one optimizer step each.

The view of a sample depends only on the seed, the epoch and its index; the order of an epoch on the seed and
the epoch. Therefore any number of workers gives the same bits, and an epoch can be resumed in its middle.
"""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import Batch, Window, to_device
from mptui.data.batch_transforms import transform_draws
from mptui.data.cache_policy import CacheMode, memory_room
from mptui.data.device_cache import Pass, Resident, WholeImages, WholePass, load, load_whole
from mptui.data.noise import Noiser, Noising
from mptui.data.ram_cache import CachedSplit
from mptui.data.reading import BadSamples, HostBatch, Pool, Prefetcher, SampleSource
from mptui.data.sampler import EpochOrder
from mptui.data.to_device import Finish, Transfer, colours, mix
from mptui.data.transforms import Transforms
from mptui.data.types import RGB, PixelFormat, Problem, SampleFormat, Sides, Split
from mptui.errors import cleaned_up_by
from mptui.registry.names import SampleKind
from mptui.registry.own_code import allowed
from mptui.registry.transforms import find_transform


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """How samples are read, cached, and what becomes of bad ones."""

    workers: int = 0
    """Number of worker processes; 0: the calling thread decodes."""
    prefetch: int = 4
    """Batches to read ahead per worker, up to a GiB in total."""
    cache: CacheMode = "off"
    """device: decode the split before the first epoch and store it on the device; ram: cache decoded samples
    in memory shared by all workers; off: decode in each epoch."""
    sizes: Sides | None = None
    """device: the shorter and the longer side of each sample in pixels; None: unknown."""
    cache_room: Callable[[int], int] | None = None
    """ram: returns the bytes still available, given the bytes in use; None: `memory_room()`."""
    on_cache_full: Callable[[int, int], None] = lambda kept, count: None
    """ram: called once, when the cache is full, with the numbers of cached and all samples."""
    bad_budget: float = 0.01
    """Share of samples that may be bad and are replaced by others."""
    on_bad: Callable[[Problem], None] | None = None
    """Called once for each bad sample."""
    on_progress: Callable[[int, int], None] | None = None
    """Called with (done, total) of samples while `Loader.prepare` works."""
    check_stop: Callable[[], None] = lambda: None
    """Called several times per second while waiting for data; may raise."""


_DEFAULTS = LoaderOptions()
_NOISING = Noising()


class Loader:
    """Loads batches of a split, prefetched by worker processes or cached on the device.

    Args:
        split: The samples.
        samples: What they are.
        order: Their order in each epoch, in batches, and the part of each that this process reads.
        transforms: What becomes of a sample.
        device: Device of the batches.
        noising: Of images alone: how noise is added, and the target; None: no noise.
        options: How samples are read.

    Attributes:
        order: The order of the samples.
        workers: Number of worker processes.
        masks: Whether each sample has a mask.
        cached: Whether samples are cached.
        bad_samples: The samples that could not be read.
    """

    _cached_split: CachedSplit | None = None
    _noiser: Noiser | None = None
    _stream: Prefetcher | None = None
    _resident: Resident | WholeImages | None = None

    def __init__(
        self,
        split: Split,
        samples: SampleFormat,
        order: EpochOrder,
        transforms: Transforms,
        *,
        device: torch.device,
        noising: Noising | None = _NOISING,
        options: LoaderOptions = _DEFAULTS,
    ) -> None:
        self._count = len(split)
        self.order = order
        self._geometry = geometry = transforms.geometry
        self._device = device
        self._options = options
        self._usual_rows = order.usual_rows
        self.workers = options.workers
        self.cached = options.cache != "off"
        self._on_device = options.cache == "device"
        self.masks = samples.has_masks
        self._alphas = (transforms.mixup_alpha, transforms.cutmix_alpha) if order.train else (0.0, 0.0)
        self._ahead = options.workers * options.prefetch
        self._lead = order.share.lead(any(self._alphas))
        if options.cache == "ram":
            split = self._cached_split = CachedSplit(
                split,
                geometry,
                masks=self.masks,
                pixels=samples.pixels,
                room=options.cache_room or memory_room(),
                on_full=options.on_cache_full,
            )
        self._pool = self._new_pool(options.workers)
        self.bad_samples = BadSamples(len(split), options.bad_budget, options.on_bad)
        if self._on_device and transforms.of_views:
            raise ValueError("views that change on the host are not cut on the device")
        self._whole = self._on_device and not transforms.has_fixed_pixels
        self._source = SampleSource(
            split,
            self._pool,
            self.bad_samples,
            samples,
            geometry,
            seed=order.seed,
            whole=self._whole,
            transforms=transforms.of_views,
            folder=allowed(),
        )
        has_jitter = "colour" in transforms.names and samples.pixels == RGB
        self._jitter = transforms.normalization if has_jitter else None
        chosen = [(name, find_transform(name)) for name in transforms.names]
        self._transforms = [(name, spec.apply, spec.draws) for name, spec in chosen if spec.apply]
        self._set_finish(transforms, samples.pixels, noising if samples.kind is SampleKind.IMAGE else None)
        self.share_size = order.share.largest(order.batch_size)
        self._transfer = Transfer(device, self._pool.arena)

    def _set_finish(self, transforms: Transforms, pixels: PixelFormat, noising: Noising | None) -> None:
        channels_last = transforms.channels_last
        self._finish = Finish(
            transforms.geometry.side,
            self._device,
            transforms.normalization,
            pixels,
            vae=None if noising is None else noising.vae,
            channels_last=channels_last,
        )
        how = {
            "channels_last": channels_last,
            "train": self.order.train,
            "mirror": "flip" in transforms.names,
        }
        self._noiser = Noiser(self.order.seed, self._device, noising=noising, **how) if noising else None

    def __enter__(self) -> "Loader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bad(self) -> list[Problem]:
        """The samples that could not be used so far."""
        return self.bad_samples.problems

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._pool.pids

    @property
    def reading(self) -> list[str]:
        """Names of the samples that the workers are reading. May be called from any thread."""
        return self._pool.reading

    @property
    def unthrottled_rate(self) -> float | None:
        """Samples per second that can be read if nothing blocks; None if nothing is read."""
        return None if self._resident is not None else self._pool.unthrottled_rate

    @property
    def computing_share(self) -> float | None:
        """As `Pool.computing_share`; None if nothing is read."""
        return None if self._resident is not None else self._pool.computing_share

    @property
    def batches(self) -> int:
        """Number of batches per epoch."""
        return -(-self.order.end(0) // self.order.batch_size)

    @property
    def whole_size(self) -> int:
        """Samples of a batch that is not a short last one; of several processes, of all together."""
        return self.order.whole_size

    def steps(self, accumulate: int) -> int:
        """Return the number of windows per epoch, of `accumulate` batches each; the last may have fewer."""
        return -(-self.batches // accumulate)

    def is_over(self, start_sample: int) -> bool:
        """Whether no window of an epoch is left at position `start_sample` of its order."""
        return self.order.end(start_sample) <= start_sample

    def prepare(self) -> None:
        """Fill the device cache, if there is one; `windows` calls this too.

        Raises:
            DataError: Too many samples are bad.
            ConfigError: Crops on the device can't count ignored pixels, or a VAE can't encode in 16 bits.
        """
        if not self._on_device or self._resident is not None:
            return
        if self._whole:
            self._resident = load_whole(
                self._source, self._device, self._options.sizes, self._options.on_progress
            )
        else:
            on_progress = self._options.on_progress
            fixed = load(self._source, self._device, self._transfer, self._finish, on_progress=on_progress)
            self._resident = fixed.finish(self._finish)
        self._transfer.close()
        self._pool.close()

    def windows(self, epoch: int, accumulate: int, start_sample: int = 0) -> Iterator[Window]:
        """Iterate over an epoch. Ends the pass in progress.

        Args:
            epoch: Epoch, from 0; selects the order, the views and the colors.
            accumulate: Batches per window.
            start_sample: Position in the order of the epoch to start at.

        Raises:
            DataError: Too many samples are bad, or workers keep dying.
        """
        self.prepare()
        self._abandon()
        if self._resident is not None:
            return self._resident_windows(self._resident, epoch, accumulate, start_sample)
        return self._streamed_windows(epoch, accumulate, start_sample)

    @contextlib.contextmanager
    def window_at(self, epoch: int, accumulate: int, start_sample: int) -> Iterator[Window]:
        """Read one window again in the calling thread, without disturbing the pass in progress.

        Raises:
            DataError: Too many samples are bad.
        """
        self.prepare()  # by the workers, once: the device cache is shared
        aside = copy.copy(self)
        aside._pool = Pool(0)
        aside._ahead = 0
        aside._stream = None
        aside._cached_split = None
        aside._source = replace(self._source, pool=aside._pool)
        aside._transfer = Transfer(self._device, aside._pool.arena)
        with cleaned_up_by(aside.close):
            windows = aside.windows(epoch, accumulate, start_sample)  # dropped, it would end its pass
            yield next(windows)

    def read_less(self) -> bool:
        """Halve the number of prefetched batches, in new memory; return False if it can't be halved."""
        if self._ahead < 2:
            return False
        self._abandon()
        self._transfer.close()
        self._pool.close()
        self._ahead //= 2
        self._pool = self._new_pool(self._pool.size)
        self._source = replace(self._source, pool=self._pool)
        self._transfer = Transfer(self._device, self._pool.arena)
        return True

    def names(self, indices: npt.NDArray[np.int64]) -> list[str]:
        """Return the names of samples (their files) for messages."""
        return [self._source.split.request(int(index)).name for index in indices]

    def close(self) -> None:
        """End the workers and free all memory, even if releasing the device fails."""
        self._resident = None
        with contextlib.ExitStack() as last_first:
            if self._cached_split is not None:
                last_first.callback(self._cached_split.close)
            last_first.callback(self._pool.close)
            last_first.callback(self._transfer.close)
            self._abandon()

    def _new_pool(self, workers: int) -> Pool:
        shared = () if self._cached_split is None else (self._cached_split.cache.fd,)
        return Pool(workers, self._options.check_stop, shared)

    def _streamed_windows(self, epoch: int, accumulate: int, start: int) -> Iterator[Window]:
        """Yield windows prefetched by the workers."""
        end = self.order.end(start)
        windows = [(p, self.order.parts(p)) for p in self.order.windows(accumulate, start, end)]
        stream = self._stream = Prefetcher(
            self._source,
            epoch=epoch if self.order.train else 0,
            indices=self.order.of(epoch),
            batches=[self._reads(places, part) for places, parts in windows for part in parts],
            ahead=self._ahead,
            held=max((len(parts) for _, parts in windows), default=1),
        )
        self._transfer.pin()
        with cleaned_up_by(lambda: self._abandon(stream)):
            for places, parts in windows:
                began = time.perf_counter()
                batches = stream.take(len(parts))
                yield self.order.window(
                    accumulate,
                    places,
                    end,
                    batches=len(parts),
                    valid=sum(batch.valid(self._lead) for batch in batches),
                    wait_s=time.perf_counter() - began,
                    load=partial(
                        self._streamed_batch, stream=stream, batches=batches, places=places, epoch=epoch
                    ),
                    targets=partial(self._transfer.targets_of, batches, self._lead),
                )
                self._transfer.wait_for_copies(batch.slot for batch in batches)
                stream.release(batches)

    def _reads(self, places: range, part: range) -> Sequence[int]:
        return [self.order.before(places, part), *part] if self._lead else part

    def _streamed_batch(
        self, number: int, *, stream: Prefetcher, batches: list[HostBatch], places: range, epoch: int
    ) -> Batch:
        if stream is not self._stream:
            raise RuntimeError("this window belongs to a pass that has ended")
        batch = batches[number]
        pixels, targets = self._transfer.finish(batch)
        if self._transfer.overlaps:
            coming = batches[number + 1] if number + 1 < len(batches) else stream.next_ready()
            if coming is not None:
                self._transfer.start(coming)
        if self._jitter is not None:
            colour = to_device(colours(self.order.seed, epoch, batch.indices, self._jitter), self._device)
            images = self._finish.coloured(pixels, colour)
        else:
            images = self._finish.plain(pixels)
        place = epoch, places[number * self.order.batch_size]
        return self._batch(images, targets, batch.indices, batch.valid(self._lead), place=place)

    def _abandon(self, stream: Prefetcher | None = None) -> None:
        """End the pass in progress, if there is one; with `stream`, only that one."""
        if self._stream is not None and stream in {None, self._stream}:
            self._transfer.wait_for_copies()
            self._stream.close()
            self._stream = None

    def _resident_windows(
        self, resident: Resident | WholeImages, epoch: int, accumulate: int, start: int
    ) -> Iterator[Window]:
        """Yield windows of the split on the device."""
        end, order = self.order.end(start), self.order.of(epoch)
        chosen = (
            Pass(resident, order % self._count)
            if isinstance(resident, Resident)
            else WholePass(resident, order, self._geometry, self._jitter, seed=self.order.seed, epoch=epoch)
        )
        for places in self.order.windows(accumulate, start, end):
            parts = self.order.parts(places)
            yield self.order.window(
                accumulate,
                places,
                end,
                batches=len(parts),
                valid=sum(chosen.valid(part.start, part.stop) for part in parts),
                wait_s=0.0,
                load=partial(self._resident_batch, chosen, places, epoch),
                targets=partial(chosen.targets_of, parts),
            )

    def _resident_batch(self, chosen: Pass | WholePass, places: range, epoch: int, number: int) -> Batch:
        part = self.order.parts(places)[number]
        images, targets = chosen.read(part, self._finish)
        indices, valid = chosen.indices[part.start : part.stop], chosen.valid(part.start, part.stop)
        if self._lead:
            before = self.order.before(places, part)
            lead = chosen.read(range(before, before + 1), self._finish)
            images, targets = map(torch.cat, zip(lead, (images, targets), strict=True))
            indices = np.append(chosen.indices[before], indices)
        place = epoch, places[number * self.order.batch_size]
        return self._batch(images, targets, indices, valid, place=place)

    def _batch(
        self,
        images: torch.Tensor,
        targets: torch.Tensor,
        indices: npt.NDArray[np.int64],
        valid: int,
        *,
        place: tuple[int, int],
    ) -> Batch:
        """Transform, mix and add noise; `place`: epoch and position of the whole batch's first sample."""
        for name, apply, count in self._transforms:
            images = apply(images, transform_draws(name, self.order.seed, place[0], indices, count=count))
        samples = indices if self.order.labels_N is None else indices % self._count  # draws repeat samples
        batch = Batch(images, targets.long(), len(indices), valid, samples)
        if any(self._alphas):
            how = dict(zip(("mixup_alpha", "cutmix_alpha"), self._alphas, strict=True))
            batch.images_BCHW, batch.lam = mix(images, position=(self.order.seed, *place), **how)
            batch.mixed_targets = batch.targets.roll(1, 0)
        if self._lead:
            batch = batch.rows(slice(1, None), size=batch.size - 1, valid=valid)
            batch.sample_indices = samples[1:]
        if self._noiser is not None:
            self._noiser.add(batch, indices, place[0])
        batch.is_whole = batch.size == self._usual_rows
        return batch
