"""The audit trail is kept: in files at once, in the registry soon after. On the event loop; threads write.

Rows are answered whether or not the trail can be written. What changes something is refused while an entry
waits that could not be written (a full disk): so at most the changes that were under way are told late.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from server.access.audit_entry import AuditEntry, Folded
from server.administration.audit_file import AuditFile
from server.errors import NoSpace, ServiceError
from server.store.audit import AuditRepository, StoredAudit
from server.supervision import Tasks

__all__ = ["AuditLog"]

log = logging.getLogger("ml_udf.server.audit")

_EVERY_S = 1.0
_MOST_WAITING = 10_000


class AuditLog:
    """See `server.access.audit_entry.Auditing`."""

    def __init__(
        self,
        file: AuditFile,
        repository: AuditRepository,
        tasks: Tasks | None = None,
        *,
        clock: Callable[[], float] = time.time,
        every_s: float = _EVERY_S,
    ) -> None:
        self._file = file
        self._repository = repository
        self._tasks = tasks or Tasks()
        self._clock = clock
        self._every_s = every_s
        self._folded = Folded()
        self._for_file: deque[AuditEntry] = deque(maxlen=_MOST_WAITING)
        self._for_table: deque[AuditEntry] = deque(maxlen=_MOST_WAITING)
        self._writing = asyncio.Lock()
        self._storing = asyncio.Lock()

    def start(self) -> None:
        """Begin."""
        self._tasks.always("keep the audit trail", self._keep)

    async def close(self) -> None:
        """Stop, after a last write."""
        await self._tasks.close()
        await asyncio.wait({self._tasks.once("keep the audit trail", self._flush(all_of_them=True))})

    async def ready(self) -> None:
        """Raises `NoSpace` while entries wait that cannot be written."""
        if self._for_file and not await self._write():
            raise NoSpace(
                "the audit log cannot be written, and what it cannot tell is not done; nothing was changed: "
                "look at the folder audit in the server's home (rows are answered as ever)"
            )

    async def keep(self, entry: AuditEntry) -> bool:
        """Keep what was changed; False where it waits, as it could not be written."""
        self._for_file.append(entry)
        return await self._write()

    def fold(self, entry: AuditEntry) -> None:
        """Keep what may come often."""
        told = self._folded.add(entry)
        if told is not None:
            self._for_file.append(told)

    async def page(
        self, before: int | None, limit: int, token: str = "", action: str = "", outcome: str = ""
    ) -> list[dict[str, Any]]:
        """Entries of every server of the registry, the newest first."""
        await self._flush()
        found = await asyncio.to_thread(
            self._repository.page, before=before, limit=limit, token=token, action=action, outcome=outcome
        )
        return [_told(each) for each in found]

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._flush()

    async def _flush(self, *, all_of_them: bool = False) -> None:
        self._for_file.extend(self._folded.due(self._clock(), all_of_them=all_of_them))
        await self._write()
        await self._store()

    async def _write(self) -> bool:
        async with self._writing:
            batch = list(self._for_file)
            if not batch:
                return True
            try:
                await asyncio.to_thread(self._file.append, batch)
            except OSError as error:
                log.error("audit log not written, changes are refused entries=%d error=%s", len(batch), error)
                return False
            # What came meanwhile stands behind these.
            for _ in batch:
                self._for_table.append(self._for_file.popleft())
            return True

    async def _store(self) -> None:
        async with self._storing:
            batch = list(self._for_table)
            if not batch:
                return
            try:
                await asyncio.to_thread(self._repository.add, [_columns(entry) for entry in batch])
            except (SQLAlchemyError, ServiceError, OSError) as error:  # they stay, for the next time
                log.error("audit entries not stored entries=%d error=%r", len(batch), str(error))
                return
            for _ in batch:
                self._for_table.popleft()


def _told(stored: StoredAudit) -> dict[str, Any]:
    """As the files have it. SQL has other meanings for the words `user` and `at`."""
    told = asdict(stored)
    at = told.pop("at").isoformat(timespec="milliseconds")
    names = {"claimed_user": told.pop("user"), "claimed_database": told.pop("database")}
    return {**told, **names, "happened_at": at}


def _columns(entry: AuditEntry) -> dict[str, Any]:
    columns = asdict(entry)
    return {**columns, "at": datetime.fromtimestamp(columns.pop("at_s"), UTC), "outcome": entry.outcome}
