"""JPEG files decoded on the device: the workers only read them, and views are cut out of what nvJPEG makes.

A batch is decoded by a thread and on a stream of their own, one batch ahead of the training, which waits
for neither. The seeded view of a sample is the same box of the same image as where a worker decodes it; its
pixels are not the same bits, since decoders differ in how they enlarge colours and round.

nvJPEG does not wait, before it writes a picture, for what is still queued on that memory (vision#9606 and
torchcodec#1634: others' tensors are overwritten). The memory that it is given here is that of this stream
alone, and the stream is waited for before each call.

Shapes: B samples, H and W pixels, S the side of a view.
"""

import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F

from mptui.data.loading.device_copy import Transfer, sent
from mptui.data.loading.prefetcher import EncodedRows, HostBatch
from mptui.data.loading.shared_memory import Arena
from mptui.data.loading.worker_pool import FADING
from mptui.data.transforms.undecoded import Cut

_AT_ONCE = 64 << 20
"""Bytes of pixels that are decoded in one call, unless one image has more."""
_TRIED = 64
_MOST_OFF = 4.0
"""Of 255, on average: what decoders may differ by."""
_STEEPEST = 32
"""A smaller image is made in steps of this: a step's weights lie in 48 KiB of a GPU's fast memory."""

warnings.filterwarnings("ignore", "The image decoding and encoding capabilities", DeprecationWarning)


@lru_cache(maxsize=8)
def why_not(device: torch.device) -> str | None:
    """Why JPEG files can't be decoded on a device, in a few words; None: they can.

    They can be on a CPU, in the process that trains: no faster than by workers, and the same code.
    """
    if device.type not in {"cpu", "cuda"}:
        return f"there is no JPEG decoder for {device.type}"
    slope = np.linspace(0, 255, _TRIED, dtype=np.uint8)
    picture_HW3 = np.stack(np.broadcast_arrays(slope, slope[:, None], slope[::-1]), axis=-1)
    contents = [
        simplejpeg.encode_jpeg(picture_HW3, 95, "RGB", "420"),
        simplejpeg.encode_jpeg(np.ascontiguousarray(picture_HW3[:, :, :1]), 95, "GRAY", "Gray"),
    ]
    try:
        found = decoded([torch.from_numpy(np.frombuffer(each, np.uint8).copy()) for each in contents], device)
    except ImportError:
        return "this torchvision has no JPEG decoder"
    for content, image_3HW in zip(contents, found, strict=True):
        if image_3HW is None:
            return "this torchvision has no JPEG decoder for it, or one that does not work here"
        expected_HW3 = simplejpeg.decode_jpeg(content, "RGB").astype(int)
        if np.abs(image_3HW.permute(1, 2, 0).cpu().numpy() - expected_HW3).mean() > _MOST_OFF:
            return "its JPEG decoder makes another picture than the processor's"
    return None


@dataclass(slots=True)
class _Decoded:
    """What became of a batch, on the stream of its thread."""

    pixels_BSS3: torch.Tensor
    targets: torch.Tensor
    failed: list[int]
    """Rows whose files the device could not decode."""


class Decoding(Transfer):
    """Brings batches to `device` as `Transfer` does, and decodes there what is still a file."""

    def __init__(self, device: torch.device, arena: Arena) -> None:
        super().__init__(device, arena)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mptui-decode")
        self._coming: dict[int, Future[_Decoded]] = {}
        self._samples = self._seconds = 0.0

    @property
    def overlaps(self) -> bool:
        """Whether a batch begun early is made ready beside the computing: by a thread, so always."""
        return True

    @property
    def alone(self) -> float | None:
        """Samples a second that the device decodes; None before it has."""
        return self._samples / self._seconds if self._seconds else None

    def start(self, batch: HostBatch) -> None:
        """Begin to decode a complete batch, unless that was begun before."""
        if batch.slot not in self._coming:
            self._coming[batch.slot] = self._thread.submit(self._decode, batch)

    def wait_for(self, batch: HostBatch) -> None:
        """Wait until a batch is decoded. What that meets is told where the batch is taken."""
        self.start(batch)
        wait([self._coming[batch.slot]])

    def finish(self, batch: HostBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The uint8 images_BSS3 and the labels or masks of a batch, for use on the current stream.

        What the device could not decode is read again by the workers: they make the picture, or name what is
        wrong with the file.

        Raises:
            DataError: Too many samples are bad, or workers keep dying.
        """
        self.start(batch)
        done = self._coming.pop(batch.slot).result()
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(self._events[batch.slot])
            done.pixels_BSS3.record_stream(current)
            done.targets.record_stream(current)
        if done.failed:
            _encoded(batch).read_as_pixels(batch, done.failed)
            _put(done.pixels_BSS3, done.failed, self._rows(batch, done.failed))
            done.targets = self._targets(batch)
            if self._stream is not None:
                self._events[batch.slot] = current.record_event()
        return done.pixels_BSS3, done.targets

    def settle(self, slots: Iterable[int] | None = None) -> None:
        """Wait until `slots` (all, if None) are no longer read from, and forget batches that nobody took."""
        slots = list(self._coming.keys() | self._events.keys() if slots is None else slots)
        wait([self._coming.pop(slot) for slot in slots if slot in self._coming])
        super().settle(slots)

    def close(self) -> None:
        """End the thread and let go of the arena."""
        try:
            super().close()
        finally:
            self._thread.shutdown()

    def _decode(self, batch: HostBatch) -> _Decoded:
        started = time.perf_counter()
        with self._on_stream():
            targets = self._targets(batch)
            shape = batch.pixels_BHW3.shape
            pixels_BSS3 = torch.empty(shape, dtype=torch.uint8, device=self._device)
            failed = self._decode_files(batch, pixels_BSS3)
            here = [row for row, cut in enumerate(_encoded(batch).cuts) if not cut.size]
            if here:
                _put(pixels_BSS3, here, self._rows(batch, here))
            if self._stream is not None:
                self._events[batch.slot] = self._stream.record_event()
        self._samples = self._samples * FADING + batch.size
        self._seconds = self._seconds * FADING + time.perf_counter() - started
        return _Decoded(pixels_BSS3, targets, failed)

    def _decode_files(self, batch: HostBatch, pixels_BSS3: torch.Tensor) -> list[int]:
        """Put the views of a batch's files into their rows; returns the rows of those that failed."""
        places_BX, cuts = _encoded(batch).places_BX, _encoded(batch).cuts
        failed = []
        for rows in _portions(cuts):
            files = [torch.from_numpy(places_BX[row, : cuts[row].size]) for row in rows]
            pictures = decoded(files, self._device)
            views: dict[int, list[tuple[int, torch.Tensor]]] = {}
            for row, image in zip(rows, pictures, strict=True):
                cut = cuts[row]
                if image is None or image.shape != (3, cut.height, cut.width):
                    failed.append(row)
                else:
                    views.setdefault(cut.turn, []).append((row, view(image, cut, pixels_BSS3.shape[1])))
            for turn, found in views.items():
                together_BSS3 = turned(torch.cat([each for _, each in found]), turn)
                _put(pixels_BSS3, [row for row, _ in found], together_BSS3)
        return failed

    def _rows(self, batch: HostBatch, rows: list[int]) -> torch.Tensor:
        """Views that the workers have made, on the device."""
        return sent(np.ascontiguousarray(batch.pixels_BHW3[rows]), self._device)

    def _targets(self, batch: HostBatch) -> torch.Tensor:
        return sent(batch.labels if batch.masks_BHW is None else batch.masks_BHW, self._device)

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def decoded(files: list[torch.Tensor], device: torch.device) -> list[torch.Tensor | None]:
    """Decode JPEG files on a device: uint8 3HW, as they are stored; None for what can't be decoded there.

    Args:
        files: Their bytes, on the host.
        device: A CUDA device, or the CPU.
    """
    from torchvision.io import decode_jpeg

    if device.type == "cuda":  # what is still queued may read the memory that is written now
        torch.cuda.current_stream(device).record_event().synchronize()
    try:
        return list(decode_jpeg(files, mode="RGB", device=device))
    except RuntimeError:  # of all of them; which one it is, or that there is no memory for all, is not told
        if len(files) == 1:
            return [None]
        half = len(files) // 2
        return decoded(files[:half], device) + decoded(files[half:], device)


def view(image_3HW: torch.Tensor, cut: Cut, side: int) -> torch.Tensor:
    """Resize a stored image and cut a view, not turned yet, by the filter that Pillow calls bilinear.

    Returns:
        float32 of shape (1, 3, side, side), in 0..255.
    """
    image_13HW = _resized(image_3HW[None].float(), cut.resized_height, cut.resized_width)
    return _resized(image_13HW[:, :, cut.top : cut.bottom, cut.left : cut.right], side, side)


def _resized(image_13HW: torch.Tensor, height: int, width: int) -> torch.Tensor:
    def too_steep(old: int, new: int) -> bool:
        return old > _STEEPEST * new

    wanted = (height, width)
    while any(map(too_steep, image_13HW.shape[2:], wanted)):
        fewer = [
            max(new, old // (_STEEPEST // 2)) for old, new in zip(image_13HW.shape[2:], wanted, strict=True)
        ]
        image_13HW = F.interpolate(image_13HW, fewer, mode="bilinear", antialias=True)
    if image_13HW.shape[2:] == wanted:
        return image_13HW
    return F.interpolate(image_13HW, wanted, mode="bilinear", antialias=True)


def turned(views_B3SS: torch.Tensor, turn: int) -> torch.Tensor:
    """Views turned as `Cut.turn` says, as uint8 BSS3."""
    if turn & 4:
        views_B3SS = views_B3SS.mT
    mirrored = [axis for bit, axis in ((2, 3), (1, 2)) if turn & bit]
    if mirrored:
        views_B3SS = views_B3SS.flip(mirrored)
    return views_B3SS.round().to(torch.uint8).permute(0, 2, 3, 1)


def _put(pixels_BSS3: torch.Tensor, rows: list[int], views: torch.Tensor) -> None:
    pixels_BSS3.index_copy_(0, sent(np.array(rows), pixels_BSS3.device), views)


def _encoded(batch: HostBatch) -> EncodedRows:
    assert batch.encoded is not None, "the batch is of a source that has room for files"
    return batch.encoded


def _portions(cuts: list[Cut]) -> Iterator[list[int]]:
    """The rows that hold files, as many at a time as are decoded in one call."""
    rows: list[int] = []
    size = 0
    for row, cut in enumerate(cuts):
        pixels = 3 * cut.width * cut.height
        if rows and size + pixels > _AT_ONCE:
            yield rows
            rows, size = [], 0
        if cut.size:
            rows.append(row)
            size += pixels
    if rows:
        yield rows
