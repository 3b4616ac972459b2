"""Loads the samples of a `Split` as `Batch`es on the device, in windows of one optimizer step each.

The view of a sample depends only on the seed, the epoch and its index; the order of an epoch on the seed and
the epoch. Therefore any number of workers gives the same bits, and an epoch can be resumed in its middle.
"""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType

import numpy as np
import numpy.typing as npt
import torch

from mptui.data.batch import Batch, Window, to_device
from mptui.data.cache_policy import CacheMode, memory_room
from mptui.data.device_cache import Pass, Resident, WholeImages, WholePass, load, load_whole
from mptui.data.noise import Noiser, Noising
from mptui.data.ram_cache import CachedSplit
from mptui.data.reading import BadSamples, HostBatch, Pool, Prefetcher, SampleSource
from mptui.data.sampler import WHOLE, EpochOrder, Labels, Share
from mptui.data.to_device import Finish, Transfer, colours, mix
from mptui.data.transforms import CROP_RATIO, Geometry, Normalization, default_normalization
from mptui.data.types import RGB, PixelFormat, Problem, Sides, Split
from mptui.errors import cleaned_up_by
from mptui.registry.names import Interpolation, SampleKind


class Loader:
    """Loads batches of a split, prefetched by worker processes or cached on the device.

    Args:
        split: The samples.
        kind: Kind of the samples; noise is added to images alone.
        labelled: Whether the samples have targets; otherwise those of the batches are all 0.
        pixels: Format of the images; the colours of RGB alone are jittered.
        batch_size: Samples per batch.
        side: Side of the network's input in pixels.
        resize: The shorter side in pixels that images are resized to before views are cut; None:
            `default_resize`.
        crop_scale: The range of a random crop's share of the area; None: `default_crop_scale`.
        crop_ratio: The range of a random crop's width over its height.
        crop_pct: As of `Geometry.for_validation`.
        interpolation: How images are resampled; None: bilinear.
        normalization: Mean and standard deviation of each channel; None: `default_normalization`.
        num_classes: Number of classes; samples with a larger label or mask value are bad.
        device: Device of the batches.
        train: Shuffle by seed and epoch; otherwise keep the order of the split. A last training batch of one
            sample is dropped, as BatchNorm can't be trained on it.
        augment: Random views and colours in training; for diffusion only random mirroring.
        seed: Seed of the order, the views and the colors.
        noising: Of images alone: how noise is added, and the target; None: no noise.
        labels_N: The class of each sample, to draw all classes equally often; None: each sample once.
        share: The part of each batch that this process reads.
        channels_last: Images are NHWC in memory.
        workers: Number of worker processes; 0: the calling thread decodes.
        prefetch: Batches to read ahead per worker, up to a GiB in total.
        cache: device: decode the split before the first epoch and store it on the device; ram: cache decoded
            samples in memory shared by all workers; off: decode in each epoch.
        sizes: device: the shorter and the longer side of each sample in pixels; None: unknown.
        cache_room: ram: returns the bytes still available, given the bytes in use; None: `memory_room()`.
        on_cache_full: ram: called once, when the cache is full, with the numbers of cached and all samples.
        mixup_alpha: Beta(alpha, alpha) of mixup in training, except for diffusion; 0: off.
        cutmix_alpha: The same for cutmix.
        bad_budget: Share of samples that may be bad and are replaced by others.
        on_bad: Called once for each bad sample.
        on_progress: Called with (done, total) of samples while `prepare` works.
        check_stop: Called several times per second while waiting for data; may raise.

    Attributes:
        bad_samples: The samples that could not be read.
    """

    _cached_split: CachedSplit | None = None
    _stream: Prefetcher | None = None
    _resident: Resident | WholeImages | None = None

    def __init__(
        self,
        split: Split,
        *,
        kind: SampleKind,
        labelled: bool = True,
        pixels: PixelFormat = RGB,
        batch_size: int,
        side: int,
        resize: int | None = None,
        crop_scale: tuple[float, float] | None = None,
        crop_ratio: tuple[float, float] = CROP_RATIO,
        crop_pct: float | None = None,
        interpolation: Interpolation | None = None,
        normalization: Normalization | None = None,
        num_classes: int,
        device: torch.device,
        train: bool,
        augment: bool,
        seed: int,
        noising: Noising | None = Noising(),  # noqa: B008 - it is immutable
        labels_N: Labels | None = None,
        share: Share = WHOLE,
        channels_last: bool = True,
        workers: int = 0,
        prefetch: int = 4,
        cache: CacheMode = "off",
        sizes: Sides | None = None,
        cache_room: Callable[[int], int] | None = None,
        on_cache_full: Callable[[int, int], None] = lambda kept, count: None,
        mixup_alpha: float = 0.0,
        cutmix_alpha: float = 0.0,
        bad_budget: float = 0.01,
        on_bad: Callable[[Problem], None] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._count = len(split)
        self._batch_size = batch_size
        self._side = side
        self._device = device
        self._seed = seed
        self._train = train
        self.workers = workers
        self._order = EpochOrder(len(split), batch_size, train, seed, labels_N, share)
        self._usual_rows = self._order.usual_rows
        noisy, self.masks = kind is SampleKind.IMAGE, kind is SampleKind.MASK and labelled
        self._augment, self._mirror = (train and augment and of_kind for of_kind in (not noisy, noisy))
        self.cached = cache != "off"
        self._on_device = cache == "device"
        self._on_progress = on_progress
        self._alphas = (mixup_alpha, cutmix_alpha) if train and not noisy else (0.0, 0.0)
        self._ahead = workers * prefetch
        self._lead = share.lead(any(self._alphas))
        if self._augment:
            self._geometry = Geometry.for_training(
                kind, side, resize, crop_scale=crop_scale, crop_ratio=crop_ratio, interpolation=interpolation
            )
        else:
            self._geometry = Geometry.for_validation(
                kind, side, resize, crop_pct=crop_pct, interpolation=interpolation
            )
        self._sizes = sizes
        self._check_stop = check_stop
        self._channels_last = channels_last
        if cache == "ram":
            kept = partial(CachedSplit, masks=self.masks, pixels=pixels, on_full=on_cache_full)
            split = self._cached_split = kept(split, self._geometry, room=cache_room or memory_room())
        self._pool = self._new_pool(workers)
        self.bad_samples = BadSamples(len(split), bad_budget, on_bad)
        views = (self._geometry, self.masks, num_classes, seed, self._on_device and self._augment, pixels)
        self._source = SampleSource(split, self._pool, self.bad_samples, *views)
        self._set_finish(normalization or default_normalization(kind), pixels, noising if noisy else None)
        self.share_size = share.largest(batch_size)
        self._transfer = Transfer(device, self._pool.arena)

    def _set_finish(self, normalization: Normalization, pixels: PixelFormat, noising: Noising | None) -> None:
        vae = None if noising is None else noising.vae
        how = {"channels_last": self._channels_last, "train": self._train, "mirror": self._mirror}
        self._noiser = Noiser(self._seed, self._device, noising=noising, **how) if noising else None
        self._jitter = normalization if self._augment and pixels == RGB else None
        self._finish = Finish(
            self._side, self._device, normalization, pixels, vae=vae, channels_last=self._channels_last
        )

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
        return -(-self._order.end(0) // self._batch_size)

    @property
    def whole_size(self) -> int:
        """Samples of a batch that is not a short last one; of several processes, of all together."""
        return self._order.whole_size

    def steps(self, accumulate: int) -> int:
        """Return the number of windows per epoch, of `accumulate` batches each; the last may have fewer."""
        return -(-self.batches // accumulate)

    def is_over(self, start_sample: int) -> bool:
        """Whether no window of an epoch is left at position `start_sample` of its order."""
        return self._order.end(start_sample) <= start_sample

    def prepare(self) -> None:
        """Fill the device cache, if there is one; `windows` calls this too.

        Raises:
            DataError: Too many samples are bad.
            ConfigError: Crops on the device can't count ignored pixels, or a VAE can't encode in 16 bits.
        """
        if not self._on_device or self._resident is not None:
            return
        if self._augment:
            self._resident = load_whole(self._source, self._device, self._sizes, self._on_progress)
        else:
            fixed = load(
                self._source, self._device, self._transfer, self._finish, on_progress=self._on_progress
            )
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
        return Pool(workers, self._check_stop, shared)

    def _streamed_windows(self, epoch: int, accumulate: int, start: int) -> Iterator[Window]:
        """Yield windows prefetched by the workers."""
        end = self._order.end(start)
        windows = [(p, self._order.parts(p)) for p in self._order.windows(accumulate, start, end)]
        stream = self._stream = Prefetcher(
            self._source,
            epoch=epoch if self._train else 0,
            indices=self._order.of(epoch),
            batches=[self._reads(places, part) for places, parts in windows for part in parts],
            ahead=self._ahead,
            held=max((len(parts) for _, parts in windows), default=1),
        )
        self._transfer.pin()
        with cleaned_up_by(lambda: self._abandon(stream)):
            for places, parts in windows:
                began = time.perf_counter()
                batches = stream.take(len(parts))
                yield self._order.window(
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
        return [self._order.before(places, part), *part] if self._lead else part

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
            colour = to_device(colours(self._seed, epoch, batch.indices, self._jitter), self._device)
            images = self._finish.coloured(pixels, colour)
        else:
            images = self._finish.plain(pixels)
        place = epoch, places[number * self._batch_size]
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
        end, order = self._order.end(start), self._order.of(epoch)
        chosen = (
            Pass(resident, order % self._count)
            if isinstance(resident, Resident)
            else WholePass(resident, order, self._geometry, self._jitter, seed=self._seed, epoch=epoch)
        )
        for places in self._order.windows(accumulate, start, end):
            parts = self._order.parts(places)
            yield self._order.window(
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
        part = self._order.parts(places)[number]
        images, targets = chosen.read(part, self._finish)
        indices, valid = chosen.indices[part.start : part.stop], chosen.valid(part.start, part.stop)
        if self._lead:
            before = self._order.before(places, part)
            lead = chosen.read(range(before, before + 1), self._finish)
            images, targets = map(torch.cat, zip(lead, (images, targets), strict=True))
            indices = np.append(chosen.indices[before], indices)
        place = epoch, places[number * self._batch_size]
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
        """Mix and add noise; `place` is the epoch and the position of the whole batch's first sample."""
        samples = indices if self._order.labels_N is None else indices % self._count  # draws repeat samples
        batch = Batch(images, targets.long(), len(indices), valid, samples)
        if any(self._alphas):
            how = dict(zip(("mixup_alpha", "cutmix_alpha"), self._alphas, strict=True))
            batch.images_BCHW, batch.lam = mix(images, position=(self._seed, *place), **how)
            batch.mixed_targets = batch.targets.roll(1, 0)
        if self._lead:
            batch = batch.rows(slice(1, None), size=batch.size - 1, valid=valid)
            batch.sample_indices = samples[1:]
        if self._noiser is not None:
            self._noiser.add(batch, indices, place[0])
        batch.is_whole = batch.size == self._usual_rows
        return batch
