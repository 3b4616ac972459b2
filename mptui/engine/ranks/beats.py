"""Signs of life of the ranks, by which those are named that others wait for, and the state of their devices.

Each rank writes to the store of the rendezvous, from a thread of its own: a rank that computes, waits or
reads still beats, one that is suspended does not. Another thread listens for silence, since the store is in
the process of rank 0: where that is suspended, an answer of the store never comes.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from mptui.codec import from_record, to_record
from mptui.errors import RankError
from mptui.events import DeviceSample
from mptui.processes.awake_clock import AwakeClock
from mptui.text import clean

BEAT_S = 2.0
"""Seconds between two beats."""

SILENT_S = 20.0
"""Seconds without a beat after which a rank is named."""

LOST_S = 120.0
"""Seconds without a beat after which the others end, so that a launcher starts all again. Some code holds the
interpreter for a minute."""

_GAP_S = 5 * BEAT_S
"""Seconds between two beats of this rank beyond which it was suspended itself."""

_ANSWER = timedelta(seconds=10)


@dataclass(slots=True)
class _Sign:
    """The last beat of a rank: the collectives it has come to, its process and device; when it was heard."""

    beat: bytes
    arrived: int
    process: int
    host: str
    device: DeviceSample | None
    since: float
    lives: bool = False
    """Whether it has beaten since this rank listens: the store keeps the beats of an earlier start."""
    told: bool = False

    def name(self, rank: int) -> str:
        """Name the rank, its process and its host."""
        return f"rank {rank} (process {self.process} on {self.host})"

    def silence(self, rank: int, now: float) -> str:
        """Say for how long there has been no beat."""
        return f"{self.name(rank)} has given no sign of life for {now - self.since:.0f} s"


class Beats:
    """Beats for this rank, and listens to the others: rank 0 to all, all to rank 0.

    Args:
        rank: Number of this rank.
        world_size: Number of ranks.
        arrived: Returns how many collectives this rank has come to.
        environ: Has the address of the store, MASTER_ADDR and MASTER_PORT.

    Attributes:
        on_silent: Called in a thread of this object with a sentence about a rank that is silent.
        device: Returns the state of this rank's device, which the others hear.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        arrived: Callable[[], int],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._rank, self._arrived = rank, arrived
        self.on_silent: Callable[[str], None] = _say
        self.device: Callable[[], DeviceSample | None] = lambda: None
        self._others = [r for r in range(world_size) if r != rank] if rank == 0 else [0]
        self._signs: dict[int, _Sign] = {}
        self._address = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
        # torchrun keeps a store over its restarts
        self._word = f"mptui/word/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._clock = AwakeClock(_GAP_S)
        self._closing = threading.Event()
        works = {"mptui-beats": self._work, "mptui-silence": self._watch}
        self._threads = [threading.Thread(target=w, name=name, daemon=True) for name, w in works.items()]
        for thread in self._threads:
            thread.start()

    def late(self) -> list[str]:
        """Return a sentence for each rank that this one waits for."""
        own, now = self._arrived(), self._clock()
        told = []
        for rank, sign in sorted(self._signs.items()):
            if now - sign.since > SILENT_S:
                told.append(sign.silence(rank, now))
            elif sign.arrived < own:
                told.append(f"{sign.name(rank)} has not arrived")
        return told

    def heard(self) -> dict[int, tuple[str, float, DeviceSample | None]]:
        """Return the host, the seconds since the last beat, and the device of each rank that has beaten."""
        now = self._clock()
        return {rank: (sign.host, now - sign.since, sign.device) for rank, sign in self._signs.copy().items()}

    def leave_word(self, words: str) -> None:
        """Leave words for rank 0 that it reads when it finds that this rank has ended."""
        with suppress(RuntimeError):
            self._store().set(self._word, words)

    def word(self) -> str | None:
        """Return the words that a rank has left in this start of the group."""
        with suppress(RuntimeError):
            store = self._store()
            if store.check([self._word]):
                return store.get(self._word).decode()
        return None

    def close(self) -> None:
        """Stop beating."""
        self._closing.set()
        for thread in self._threads:
            thread.join(BEAT_S)

    def _work(self) -> None:
        with suppress(RuntimeError):  # the store has gone with rank 0, whose silence tells
            store = self._store()
            number = 0
            while not self._closing.is_set():
                number += 1
                store.set(_key(self._rank), self._beat(number))
                self._listen(store)
                self._closing.wait(BEAT_S)

    def _store(self) -> TCPStore:
        return TCPStore(*self._address, is_master=False, timeout=_ANSWER, wait_for_workers=False)

    def _beat(self, number: int) -> str:
        sample = self.device()
        device = None if sample is None else to_record(sample)
        return json.dumps([number, self._arrived(), os.getpid(), socket.gethostname(), device])

    def _listen(self, store: TCPStore) -> None:
        now = self._clock()
        for rank in self._others:
            if not store.check([_key(rank)]):
                continue
            beat, before = store.get(_key(rank)), self._signs.get(rank)
            if before is None or before.beat != beat:
                _, arrived, process, host, device = json.loads(beat)
                sample = None if device is None else from_record(device, DeviceSample)
                lives = before is not None
                self._signs[rank] = _Sign(beat, arrived, process, clean(host), sample, now, lives=lives)

    def _watch(self) -> None:
        while not self._closing.wait(BEAT_S):
            now = self._clock()
            for rank, sign in self._signs.copy().items():
                if sign.lives and now - sign.since > (LOST_S if sign.told else SILENT_S):
                    self.on_silent(sign.silence(rank, now))
                    if sign.told:
                        os._exit(RankError.exit_code)  # the other threads wait for that rank
                    sign.told = True


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)  # noqa: T201 - the log of this rank


def _key(rank: int) -> str:
    return f"mptui/beat/{rank}"
