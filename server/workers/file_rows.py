"""Rows that name files, for a worker that does not see these: read here, sent as what they hold.

    Infer or Crop of paths → read, up to so many bytes → the same of bytes → … → one reply to all rows

A path is read below the folders that a worker of this machine would read it below, and a row at fault has the
very error that it would have there. Of one batch no more than so many bytes are in memory at a time: of a
Crop, whose pieces all come in one reply, the pictures that are left are put off once there are so many.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from gpu_worker.pipeline.media import MediaRoots, read_rows
from gpu_worker.wire.protocol import (
    Answer,
    BatchPart,
    Crop,
    Cropped,
    Failed,
    Infer,
    MemberAnswer,
    Message,
    RowError,
)
from server.supervision import Tasks
from server.workers.channel import Channel
from server.workers.pool import OnReply

__all__ = ["FileRows", "SentRows"]

log = logging.getLogger("ml_udf.server.workers")

_THREADS = 8  # a drive over a network answers several at a time
_PATIENCE_S = 30.0  # with the files of one part; a drive that hangs keeps nothing else waiting
_PART_BYTES = 64 << 20

_Read = tuple[list[bytes], list[RowError]]


class FileRows:
    """Reads files below `media_roots`, of at most `max_bytes` each, in threads of its own."""

    def __init__(self, media_roots: Sequence[str], max_bytes: int, *, part_bytes: int = _PART_BYTES) -> None:
        self._media = MediaRoots(media_roots)
        self._max_bytes = max_bytes
        self.part_bytes = part_bytes
        self._threads = ThreadPoolExecutor(_THREADS, "file rows")

    async def read(self, message: Infer | Crop, first: int) -> _Read:
        """See `read_rows`. Raises `TimeoutError`."""
        media = self._media.narrowed(message.media_roots, message.narrowed)
        read = functools.partial(
            read_rows,
            media,
            message.rows,
            first,
            max_bytes=self._max_bytes,
            enough_bytes=self.part_bytes,
        )
        async with asyncio.timeout(_PATIENCE_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, read)

    def close(self) -> None:
        """Stop. A thread that hangs is left to itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class SentRows:
    """Batches of paths for one worker, by its channel."""

    def __init__(self, channel: Channel, files: FileRows, tasks: Tasks) -> None:
        self._channel = channel
        self._files = files
        self._tasks = tasks
        self._parts: dict[int, int] = {}  # by a batch's id: that of its part that is on its way, 0 = none is
        self._cancelled: set[int] = set()

    def send(self, message: Infer | Crop, on_reply: OnReply) -> int:
        """See `Worker.send`."""
        message.id = self._channel.next_id()
        self._parts[message.id] = 0
        self._tasks.once("file rows", self._carry(message, message.id, on_reply))
        return message.id

    def cancel(self, message_id: int) -> bool:
        """See `Worker.cancel`; whether it is one of these."""
        if message_id not in self._parts:
            return False
        self._cancelled.add(message_id)
        if self._parts[message_id]:
            self._channel.cancel(self._parts[message_id])
        return True

    async def _carry(self, message: Infer | Crop, message_id: int, on_reply: OnReply) -> None:
        reply: Message = Failed(message_id, "worker_lost", "the server let go of the worker")
        try:
            reply = await self._reply(message, message_id)
        except TimeoutError:
            told = f"the files of {len(message.rows)} rows could not be read within {_PATIENCE_S:g} s"
            reply = Failed(message_id, "internal", told)
        except Exception as exc:
            log.exception("rows of files not sent rows=%d", len(message.rows))
            reply = Failed(message_id, "internal", f"{type(exc).__name__}: {exc}")
        finally:
            self._parts.pop(message_id, None)
            self._cancelled.discard(message_id)
            on_reply(reply)

    async def _reply(self, message: Infer | Crop, message_id: int) -> Message:
        replies: list[tuple[Answer | Cropped, int]] = []
        faults: list[RowError] = []
        first = cut_bytes = 0
        while not replies or first < len(message.rows):
            rows, errors = await self._files.read(message, first)
            if message_id in self._cancelled:
                return Failed(message_id, "cancelled", "the request was cancelled as its files were read")
            reply = await self._part(_part(message, first, rows), message_id)
            if not isinstance(reply, Answer | Cropped):
                reply.id = message_id
                return reply
            replies.append((reply, len(rows)))
            faults += errors
            first += len(rows)
            if isinstance(reply, Cropped):
                cut_bytes += sum(map(len, reply.crops))
                if reply.later or cut_bytes >= self._files.part_bytes:
                    break
        return _joined(replies, faults, message_id, len(message.rows))

    async def _part(self, part: Infer | Crop, message_id: int) -> Message:
        arrived: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Message) -> None:
            if not arrived.done():
                arrived.set_result(reply)

        self._parts[message_id] = self._channel.send(part, on_reply)
        try:
            return await arrived
        finally:
            self._parts[message_id] = 0


def _part(message: Infer | Crop, first: int, rows: list[bytes]) -> Infer | Crop:
    part = replace(message, rows=rows, form="image", media_roots=None, narrowed=[])
    if isinstance(part, Crop):
        part.boxes = part.boxes[first : first + len(rows)]
    else:
        part.parts = _parts_within(part.parts, first, len(rows))
    return part


def _parts_within(parts: Sequence[BatchPart], first: int, rows: int) -> list[BatchPart]:
    """Of each part the rows that are among [first, first + rows) of the batch; of some none."""
    found, at = [], 0
    for part in parts:
        left = max(0, min(at + part.rows, first + rows) - max(at, first))
        found.append(replace(part, rows=left))
        at += part.rows
    return found


def _joined(
    replies: Sequence[tuple[Answer | Cropped, int]],
    faults: Sequence[RowError],
    message_id: int,
    rows: int,
) -> Message:
    """One reply of those to parts of so many rows each, of `rows` in all; those of a Crop that were not sent
    are for later. faults: of rows that could not be read.
    """
    first = replies[0][0]
    if isinstance(first, Cropped):
        return _crops_joined(
            [(reply, size) for reply, size in replies if isinstance(reply, Cropped)], faults, message_id, rows
        )
    answers = [(reply, size) for reply, size in replies if isinstance(reply, Answer)]
    sizes = [size for _, size in answers]
    first.errors = _errors([reply.errors for reply, _ in answers], sizes, faults)
    first.id = message_id
    if len(answers) == 1:
        return first
    first.members = [
        _member([reply.members[place] for reply, _ in answers]) for place in range(len(first.members))
    ]
    first.answered = [mask for reply, _ in answers for mask in reply.answered]
    for name in ("decode_s", "forward_s", "work_s", "stay_s", "spared_rows"):
        setattr(first, name, sum(getattr(reply, name) for reply, _ in answers))
    first.members_s = [
        [sum(numbers) for numbers in zip(*each, strict=True)]
        for each in zip(*(reply.members_s for reply, _ in answers), strict=True)
    ]
    return first


def _crops_joined(
    replies: Sequence[tuple[Cropped, int]], faults: Sequence[RowError], message_id: int, rows: int
) -> Cropped:
    told = [[RowError(**error) for error in reply.errors] for reply, _ in replies]
    sizes = [size for _, size in replies]
    unread = {fault.index for fault in faults}
    later, sent = [], 0
    for reply, size in replies:
        later += [sent + row for row in reply.later if sent + row not in unread]
        sent += size
    return Cropped(
        message_id,
        [crop for reply, _ in replies for crop in reply.crops],
        [count for reply, _ in replies for count in reply.counts] + [0] * (rows - sent),
        [asdict(error) for error in _errors(told, sizes, faults)],
        sum(reply.work_s for reply, _ in replies),
        [*later, *range(sent, rows)],
    )


def _member(parts: Sequence[MemberAnswer]) -> MemberAnswer:
    columns = []
    for same in zip(*(part.columns for part in parts), strict=True):
        whole, at = same[0].empty(sum(column.rows for column in same)), 0
        for column in same:
            whole.put(at, column, 0, column.rows)
            at += column.rows
        columns.append(whole)
    return MemberAnswer(parts[0].model, columns)


def _errors(
    by_part: Iterable[Sequence[RowError]], sizes: Sequence[int], faults: Sequence[RowError]
) -> list[RowError]:
    """By row. A row that could not be read came to the worker as no bytes: its own fault stands."""
    found: dict[int, RowError] = {}
    first = 0
    for errors, rows in zip(by_part, sizes, strict=True):
        found |= {first + error.index: replace(error, index=first + error.index) for error in errors}
        first += rows
    found |= {fault.index: fault for fault in faults}
    return [found[row] for row in sorted(found)]
