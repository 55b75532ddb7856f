"""The last hour and the last day, in rings that the registry keeps: a restart loses nothing.

    each second's readings → 10 s → the ring `hour`, 360 slots → 5 min → the ring `day`, 288 slots

Slots begin at whole multiples of their length, by the wall clock; a slot that is written twice, before and
after a restart, holds both. At most 20 functions are told apart in a slot, so that all of it is bounded:
about 0.5 MB for five functions, 9 MB at the most, for each server. A registry that cannot be written costs a
gap after the next restart, never a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from server.errors import ServiceError
from server.observability.readings import Reading, Stretch, between
from server.store.history import HistoryRepository, StoredSlot
from server.supervision import Tasks

__all__ = ["DAY", "HOUR", "History", "Ring", "RingSize", "Slot", "server_id"]

log = logging.getLogger("ml_udf.server.history")

_GONE_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class RingSize:
    """So many slots of so many seconds."""

    name: str
    slots: int
    slot_s: int

    @property
    def span_s(self) -> int:
        """Seconds in all."""
        return self.slots * self.slot_s


HOUR = RingSize("hour", 360, 10)
DAY = RingSize("day", 288, 300)


@dataclass(frozen=True, slots=True)
class Slot:
    """What happened from `at_s` on, Unix time."""

    at_s: int
    stretch: Stretch


class Ring:
    """The last slots. No I/O."""

    def __init__(self, size: RingSize) -> None:
        self.size = size
        self._slots: dict[int, Slot] = {}

    def begin_of(self, unix_s: float) -> int:
        """When the slot of that moment begins."""
        return int(unix_s // self.size.slot_s) * self.size.slot_s

    def add(self, at_s: int, stretch: Stretch) -> StoredSlot:
        """More of a slot that begins then; as it is to be kept."""
        place = at_s // self.size.slot_s % self.size.slots
        known = self._slots.get(place)
        together = known.stretch + stretch if known is not None and known.at_s == at_s else stretch
        self._slots[place] = Slot(at_s, together)
        return StoredSlot(self.size.name, place, at_s, together.to_json())

    def holds(self, at_s: int) -> bool:
        """Whether the slot that begins then is here."""
        known = self._slots.get(at_s // self.size.slot_s % self.size.slots)
        return known is not None and known.at_s == at_s

    def between(self, from_s: float, to_s: float) -> list[Slot]:
        """The slots that begin then, in their order."""
        found = [each for each in self._slots.values() if from_s <= each.at_s < to_s]
        return sorted(found, key=lambda each: each.at_s)


class History:
    """read: the counters as they are now, on the event loop. clock: Unix seconds."""

    def __init__(
        self,
        repository: HistoryRepository,
        read: Callable[[], Reading],
        tasks: Tasks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._repository = repository
        self._read = read
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._hour, self._day = Ring(HOUR), Ring(DAY)
        self._before = read()
        self._since_s = clock()
        self._unwritten: dict[tuple[str, int], StoredSlot] = {}
        self.changes = 0  # counts the slots that were filled: pages draw anew when it has moved

    async def start(self) -> None:
        """Go on from what is kept, and record from now on."""
        try:
            for each in await asyncio.to_thread(self._repository.all):
                self._restore(each)
            await asyncio.to_thread(self._repository.forget_gone, self._clock() - _GONE_S)
        except (SQLAlchemyError, ServiceError) as error:
            log.error("history not read error=%r", str(error.__cause__ or error))
        self._before, self._since_s = self._read(), self._clock()
        self._fold()
        self._tasks.always("history", self._record)

    async def close(self) -> None:
        """Stop, after a last write."""
        await self._tasks.close()
        self._take()
        await self._write()

    def last(self, size: RingSize) -> Sequence[Slot]:
        """What the ring `HOUR` or `DAY` holds of its time until now, the oldest first."""
        now_s = self._clock()
        if size is HOUR:
            return self._hour.between(now_s - size.span_s, now_s)
        kept = self._day.between(now_s - size.span_s, now_s)
        begun_s = self._day.begin_of(now_s)  # which is not whole yet
        return [*kept, *self._together(begun_s, now_s)] if not self._day.holds(begun_s) else kept

    async def _record(self) -> None:
        while True:
            now_s = self._clock()
            await asyncio.sleep(self._hour.begin_of(now_s) + HOUR.slot_s - now_s + 0.01)
            self._take()
            self._fold()
            await self._write()

    def _take(self) -> None:
        """What happened since the last time belongs to the slot in which that was."""
        reading = self._read()
        stretch = between(self._before, reading)
        if stretch.seconds > 0:
            self._keep(self._hour.add(self._hour.begin_of(self._since_s), stretch))
        self._before, self._since_s = reading, self._clock()
        self.changes += 1

    def _fold(self) -> None:
        """Fill the slots of the day that are over and not there yet from those of the hour."""
        now_s = self._clock()
        begun_s = self._day.begin_of(now_s)
        for at_s in range(self._day.begin_of(now_s - HOUR.span_s) + DAY.slot_s, begun_s, DAY.slot_s):
            if not self._day.holds(at_s):
                for slot in self._together(at_s, at_s + DAY.slot_s):
                    self._keep(self._day.add(slot.at_s, slot.stretch))

    def _together(self, from_s: int, to_s: float) -> list[Slot]:
        """The hour's slots of that time as one; none where there are none."""
        slots = self._hour.between(from_s, to_s)
        return [Slot(from_s, sum((each.stretch for each in slots), Stretch()))] if slots else []

    def _restore(self, kept: StoredSlot) -> None:
        ring = {HOUR.name: self._hour, DAY.name: self._day}.get(kept.ring)
        try:
            stretch = Stretch.from_json(kept.stretch)
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # of another version, which is as good as not there
        if ring is not None:
            ring.add(kept.at_s, stretch)

    def _keep(self, slot: StoredSlot) -> None:
        self._unwritten[slot.ring, slot.slot] = slot

    async def _write(self) -> None:
        waiting, self._unwritten = self._unwritten, {}
        try:
            await asyncio.to_thread(self._repository.write, list(waiting.values()))
        except (SQLAlchemyError, ServiceError) as error:
            self._unwritten = waiting | self._unwritten
            log.error("history not written error=%r", str(error.__cause__ or error))


def server_id(home: Path, port: int) -> str:
    """Names one of the servers that share a registry, the same after a restart."""
    return hashlib.sha256(f"{socket.gethostname()}\0{home}\0{port}".encode()).hexdigest()[:16]
