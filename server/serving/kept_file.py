"""Keeps the file of kept answers: read once when the server starts, written now and then and when it stops.

Read and written in a thread; the event loop only takes and hands over. A file that cannot be read or written
costs answers that are computed once more, and a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain, islice

from server.cache.answer_file import AnswerFile, AnswerFileError, KeptAnswers, KeptSource
from server.cache.contract import Store
from server.cache.counts import CacheCounts
from server.cache.entry import PREFIX_BYTES, PackedAnswers, Source
from server.supervision import Tasks

__all__ = ["KeptFile"]

log = logging.getLogger("ml_udf.server.answer_cache")

_EVERY_S = 300.0
_AT_A_TIME = 2_000  # answers, between which the event loop goes on

CountsOf = Callable[[str], CacheCounts | None]


class KeptFile:
    """counts_of: those of a function, named with its version; None for one that is served no more.

    is_read: whether the file was looked at, and may be written.
    """

    def __init__(
        self,
        store: Store,
        file: AnswerFile,
        counts_of: CountsOf,
        tasks: Tasks | None = None,
        every_s: float = _EVERY_S,
    ) -> None:
        self._store = store
        self._file = file
        self._counts_of = counts_of
        self._tasks = tasks or Tasks()
        self._every_s = every_s
        self.is_read = False
        self._written_changes = 0

    def start(self) -> None:
        """Read the file in the background, and write it from then on."""
        self._tasks.once("answer cache file", self._run())

    async def close(self) -> None:
        """Write the file, unless it was never read: then it may know more."""
        await self._tasks.close()
        await self._write()

    async def _run(self) -> None:
        await self._read()
        self.is_read = True
        while True:
            await asyncio.sleep(self._every_s)
            await self._write()

    async def _read(self) -> None:
        path = self._file.path
        try:
            kept = await asyncio.to_thread(self._file.read)
        except (OSError, AnswerFileError) as error:
            log.warning("kept answers are forgotten file=%s reason=%r", path, str(error))
            return
        if kept is None:
            return
        if kept.keying != self._store.keying:
            log.warning("kept answers are forgotten file=%s reason='keys made in another way'", path)
            return
        sources = {each.prefix: self._source(each) for each in kept.sources}
        restored = 0
        pairs = chain.from_iterable(some.pairs() for some in kept.answers)
        while some := list(islice(pairs, _AT_A_TIME)):
            alike: dict[Source, list[tuple[bytes, bytes]]] = {}
            for key, row in some:
                if (source := sources[row[:PREFIX_BYTES]]) is not None:
                    alike.setdefault(source, []).append((key, source.prefix + row[PREFIX_BYTES:]))
            for source, theirs in alike.items():
                restored += self._store.keep(source, *map(list, zip(*theirs, strict=True)))
            await asyncio.sleep(0)
        told = sum(map(len, kept.answers))
        log.info("kept answers are back file=%s answers=%d of=%d", path, restored, told)

    def _source(self, kept: KeptSource) -> Source | None:
        counts = self._counts_of(kept.function)
        if counts is None:
            return None
        return self._store.sources.of(
            kept.function, kept.kinds, kept.answered_by, counts, has_told=kept.has_told
        )

    async def _write(self) -> None:
        if not self.is_read or self._store.changes == self._written_changes:
            return
        changes = self._store.changes
        answers: list[PackedAnswers] = []
        sources: dict[bytes, Source] = {}
        for some in self._store.packed():
            answers.append(some)
            sources |= {each.prefix: each for each in self._store.sources.kept()}  # all that `some` are of
            await asyncio.sleep(0)
        kept_sources = [
            KeptSource(each.prefix, each.function, each.kinds, each.answered_by, each.has_told)
            for each in sources.values()
        ]
        kept = KeptAnswers(self._store.keying, kept_sources, answers)
        try:
            nbytes = await asyncio.to_thread(self._file.write, kept)
        except OSError as error:
            log.warning("kept answers were not written file=%s reason=%r", self._file.path, str(error))
            return
        self._written_changes = changes
        count = sum(map(len, answers))
        log.info("kept answers written file=%s answers=%d bytes=%d", self._file.path, count, nbytes)
