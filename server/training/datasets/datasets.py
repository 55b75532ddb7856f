"""Datasets: registered, snapshotted, refreshed. The shell around `snapshot`: threads, uploads, workers.

from a connection   the server reads the query's rows itself
pushed              a client runs the query and sends Arrow, in numbered parts that may be sent again

Both have threads of their own: however slow a database is, the rest of the server has its threads. A caller
has a share of the queries under way; a query ends when nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpu_worker.wire.protocol import Inspect, Inspected
from server.access.ownership import Ownership
from server.access.view import WHOLE, View
from server.catalog.jobs import Look, Snapshot, unknown_dataset
from server.errors import BadOption, Overloaded, QuotaExceeded, UnknownFunction
from server.serving.fair_share import may_take
from server.serving.proxies import RowsFor
from server.store.training import TrainingRepository
from server.training.datasets.connections import SourceConnections
from server.training.datasets.rows_json import record_batch
from server.training.datasets.snapshot import Draft, Facts, Looked, SnapshotLimits, Unreadable
from server.training.datasets.spec import PUSHED, DatasetSpec
from server.training.datasets.unlabelled import rows_that_taught_none
from server.training.recipes import recipe_for
from server.training.trainers import Trainers, expect

__all__ = ["Cancellation", "Datasets", "QueryCancelled"]

_Result = TypeVar("_Result")

_MOST_UPLOADS = 16
_MOST_QUERIES = 8
_UPLOAD_THREADS = 4
_UPLOAD_IDLE_S = 600.0


@dataclass(slots=True)
class _Upload:
    draft: Draft
    spec: DatasetSpec
    view: View
    caller: str = ""
    parts: int = 0
    touched_s: float = field(default_factory=time.monotonic)
    adding: asyncio.Lock = field(default_factory=asyncio.Lock)


class QueryCancelled(Exception):
    """Nobody waits for a query's rows any more."""


class Cancellation:
    """Ends a query from another thread than its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._end: Callable[[], object] = lambda: None

    def cancel(self) -> None:
        """End the query. Blocking: a database is asked to."""
        with self._lock:
            self._is_cancelled = True
            end = self._end
        end()

    def on_cancel(self, end: Callable[[], object]) -> None:
        """Have `cancel` call `end`; at once if it was called before."""
        with self._lock:
            self._end = end
            is_cancelled = self._is_cancelled
        if is_cancelled:
            end()

    def check(self) -> None:
        """Raises `QueryCancelled` after `cancel`."""
        with self._lock:
            if self._is_cancelled:
                raise QueryCancelled


class Datasets:
    """`folder` receives the snapshots; workers look at what is in them."""

    def __init__(
        self,
        folder: Path,
        repository: TrainingRepository,
        connections: SourceConnections,
        trainers: Trainers,
        limits: SnapshotLimits,
        ownership: Ownership | None = None,
    ) -> None:
        self._folder = folder
        self._repository = repository
        self._connections = connections
        self._trainers = trainers
        self._limits = limits
        self._ownership = ownership or Ownership()
        self._uploads: dict[str, _Upload] = {}
        self._beginning: list[str] = []  # the callers of uploads that are not there yet
        self._queries = ThreadPoolExecutor(_MOST_QUERIES, "dataset query")
        self._adding = ThreadPoolExecutor(_UPLOAD_THREADS, "dataset upload")
        self._under_way: Counter[str] = Counter()  # queries, by caller
        self._cancellations: set[Cancellation] = set()
        self._loop = asyncio.get_running_loop()

    async def all(self, view: View = WHOLE) -> list[Snapshot]:
        """Every dataset that a caller sees, with its newest snapshot."""
        found = await asyncio.to_thread(self._repository.datasets)
        return [snapshot for snapshot in found if view.sees("dataset", snapshot.dataset)]

    async def newest(self, name: str, view: View = WHOLE) -> Snapshot:
        """A dataset that a caller sees, with its newest snapshot. Raises `UnknownFunction`."""
        if not view.sees("dataset", name):
            # It takes as long as to look for one that is not there.
            await asyncio.to_thread(self._repository.has_dataset, "")
            raise unknown_dataset(name)
        return await asyncio.to_thread(self._repository.snapshot, name)

    async def snapshots(self, name: str) -> list[Snapshot]:
        """Every snapshot of a dataset, the oldest first; none where there is no dataset."""
        return await asyncio.to_thread(self._repository.snapshots, name)

    async def snapshot(self, name: str, snapshot: str) -> Snapshot:
        """One snapshot of a dataset. Raises `UnknownFunction`."""
        return await asyncio.to_thread(self._repository.snapshot, name, snapshot)

    async def of_job(self, job: int, snapshot: str) -> Snapshot:
        """The snapshot that a job was trained on. Raises `UnknownFunction`."""

        def read() -> Snapshot:
            return self._repository.snapshot(self._repository.job(job).dataset, snapshot)

        return await asyncio.to_thread(read)

    def file_of(self, snapshot: Snapshot) -> Path:
        """Where its rows lie."""
        return self._folder / str(snapshot.facts["file"])

    async def held_out(self, snapshot: Snapshot) -> list[tuple[str, str]]:
        """(input, target) of a snapshot's test rows, in its order."""

        def read() -> list[tuple[str, str]]:
            table = pq.read_table(
                self._folder / snapshot.facts["file"],
                columns=["input", "target"],
                filters=[("split", "=", "test")],
            )
            return list(zip(table["input"].to_pylist(), table["target"].to_pylist(), strict=True))

        return await asyncio.to_thread(read)

    def rows_that_taught_none(self, snapshot: Snapshot) -> RowsFor:
        """The rows of a snapshot by which models can be compared that learned from it, or from others."""
        form = recipe_for(snapshot.spec["task"]).form
        return functools.partial(rows_that_taught_none, self._folder / snapshot.facts["file"], form, snapshot)

    async def test_row(self, snapshot: Snapshot, place: int) -> tuple[int, str, str] | None:
        """(number in the snapshot, input, target) of a test row, counted from 0; None beyond the last."""

        def read() -> tuple[int, str, str] | None:
            first, left = 0, place
            with pq.ParquetFile(self._folder / snapshot.facts["file"]) as parquet:
                for batch in parquet.iter_batches(columns=["input", "target", "split"]):
                    at = pc.indices_nonzero(pc.equal(batch["split"], "test"))
                    if left < len(at):
                        here = at[left].as_py()
                        return first + here, batch["input"][here].as_py(), batch["target"][here].as_py()
                    first, left = first + batch.num_rows, left - len(at)
            return None

        return await asyncio.to_thread(read)

    async def looks(self, name: str) -> list[Look]:
        """Every look at the test rows of a dataset's snapshots, the oldest first."""
        return await asyncio.to_thread(self._repository.test_looks, name, "")

    async def sources(self, view: View = WHOLE) -> list[dict[str, Any]]:
        """The connections that a caller reaches, for whom they are, and what is wrong with them."""
        return await asyncio.to_thread(self._connections.checked, _sources_of(view))

    async def pull(
        self,
        form: Mapping[str, Any],
        roles: Sequence[str] | None,
        caller: str = "",
        view: View = WHOLE,
    ) -> Snapshot:
        """Register a dataset over a connection. Raises `BadOption`, `BadInput`, `Overloaded`, `Forbidden`.

        roles: of a database, in whose name its session asks; None = the holder of the token in person.
        caller: whose share of the queries this takes. Cancelled, it ends the query. view: of whoever asks,
        and owns the dataset from then on if it is new.
        """
        spec = DatasetSpec.from_json(form)
        if spec.source == PUSHED:
            raise BadOption("'source' must name a connection of the server, or rows must be sent")
        await self._check_may_make(spec, view)
        return await self._keep(spec, await self._query(spec, roles, caller, view), view)

    async def refresh(
        self, name: str, roles: Sequence[str] | None, caller: str = "", view: View = WHOLE
    ) -> Snapshot:
        """Take a new snapshot by the query that is registered. Raises as `pull`."""
        known = await self.newest(name, view)
        view.check_changes("dataset", name)
        spec = DatasetSpec.from_json(known.spec)
        if spec.source == PUSHED:
            raise BadOption(f"the rows of dataset {name} come from a client; register it there again")
        return await self._keep(spec, await self._query(spec, roles, caller, view), view)

    async def begin(self, form: Mapping[str, Any], caller: str = "", view: View = WHOLE) -> str:
        """The name of a new upload of a dataset's rows. Raises `BadOption`, `Overloaded`, `QuotaExceeded`,
        `Forbidden`.

        caller: whoever begins it has a share of the uploads, and finds room beside others. view: as `pull`.
        """
        spec = replace(DatasetSpec.from_json(form), source=PUSHED)
        await self._check_may_make(spec, view)
        self._drop_idle()
        senders = [*self._beginning, *(under_way.caller for under_way in self._uploads.values())]
        if len(senders) >= _MOST_UPLOADS:
            raise Overloaded(f"{_MOST_UPLOADS} datasets are being sent already", 30.0)
        held, cap = senders.count(caller), view.caller.shares.uploads
        if cap and held >= cap:
            raise QuotaExceeded(
                f"this token sends {held} datasets already, and may send {cap} at a time", 30.0
            )
        if not may_take(held, len(senders), _MOST_UPLOADS):
            raise Overloaded(f"this caller sends {held} datasets already, its share of {_MOST_UPLOADS}", 30.0)
        upload = secrets.token_hex(8)
        self._beginning.append(caller)
        try:
            inspect = functools.partial(self._inspect, roots=view.media_roots)
            draft = await self._in_thread(Draft, spec, self._folder, self._limits, inspect)
        finally:
            self._beginning.remove(caller)
        self._uploads[upload] = _Upload(draft, spec, view, caller)
        return upload

    async def add(
        self, upload: str, part: int, body: bytes, *, is_json: bool = False, view: View = WHOLE
    ) -> int:
        """Rows of an upload: an Arrow IPC stream or JSON, part 0, 1, …; the number of the next part.

        A part that came before is not taken twice. Raises `UnknownFunction`, `BadOption`, `BadInput`.
        view: of whoever sends them, who has begun the upload.
        """
        under_way = self._upload(upload, view)
        async with under_way.adding:
            if part > under_way.parts:
                raise BadOption(f"part {part} came before part {under_way.parts}")
            if part == under_way.parts:
                try:
                    await self._in_thread(_add_json if is_json else _add, under_way.draft, body)
                except BaseException:
                    await self.drop(upload)
                    raise
                under_way.parts += 1
            return under_way.parts

    async def finish(self, upload: str, view: View = WHOLE) -> Snapshot:
        """Freeze what was sent. Raises `UnknownFunction`, `BadOption`, `Forbidden`. view: as `add`."""
        under_way = self._upload(upload, view)
        async with under_way.adding:
            try:
                facts = await self._in_thread(under_way.draft.freeze)
            finally:
                await self.drop(upload)
        return await self._keep(under_way.spec, facts, under_way.view)

    async def drop(self, upload: str, view: View = WHOLE) -> None:
        """Forget an upload; none is fine. view: as `add`."""
        under_way = self._uploads.get(upload)
        if under_way is not None and _may_send(view, under_way):
            del self._uploads[upload]
            await self._in_thread(under_way.draft.close)

    async def close(self) -> None:
        """End the queries, forget all uploads."""
        for cancellation in list(self._cancellations):
            await asyncio.to_thread(cancellation.cancel)
        for upload in list(self._uploads):
            await self.drop(upload)
        self._queries.shutdown(wait=False, cancel_futures=True)
        self._adding.shutdown(wait=False, cancel_futures=True)

    def _upload(self, upload: str, view: View) -> _Upload:
        under_way = self._uploads.get(upload)
        if under_way is None or not _may_send(view, under_way):
            raise UnknownFunction(f"there is no upload {upload[:40]!r}, or it came to its end; begin again")
        under_way.touched_s = time.monotonic()
        return under_way

    def _drop_idle(self) -> None:
        before_s = time.monotonic() - _UPLOAD_IDLE_S
        for upload, under_way in list(self._uploads.items()):
            if under_way.touched_s < before_s:
                self._uploads.pop(upload).draft.close()

    async def _query(self, spec: DatasetSpec, roles: Sequence[str] | None, caller: str, view: View) -> Facts:
        """The rows of a connection, frozen. Raises as `pull`."""
        held, taken = self._under_way[caller], self._under_way.total()
        if taken >= _MOST_QUERIES:
            raise Overloaded(f"{_MOST_QUERIES} queries for datasets are under way already", 10.0)
        if not may_take(held, taken, _MOST_QUERIES):
            raise Overloaded(
                f"this caller has {held} queries for datasets under way, its share of {_MOST_QUERIES}", 10.0
            )
        cancellation = Cancellation()
        self._under_way[caller] += 1
        self._cancellations.add(cancellation)
        work = self._loop.run_in_executor(self._queries, self._pulled, spec, roles, cancellation, view)

        def over(work: asyncio.Future[Facts]) -> None:
            # Its thread has ended, which may be later than its caller.
            self._under_way -= Counter([caller])
            self._cancellations.discard(cancellation)
            if not work.cancelled():
                work.exception()  # whoever waited has got it

        work.add_done_callback(over)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._loop.run_in_executor(None, cancellation.cancel)
            raise

    def _pulled(
        self,
        spec: DatasetSpec,
        roles: Sequence[str] | None,
        cancellation: Cancellation,
        view: View,
    ) -> Facts:
        """Blocking: in a thread. Raises `QueryCancelled`, and as `pull`."""

        def inspect(inputs: Sequence[str]) -> list[Looked | Unreadable]:
            cancellation.check()
            return self._inspect(inputs, view.media_roots)

        draft = Draft(spec, self._folder, self._limits, inspect)
        try:
            with self._connections.batches(spec, roles, cancellation.on_cancel, _sources_of(view)) as batches:
                for batch in batches:
                    cancellation.check()
                    draft.add(batch)
            cancellation.check()
            return draft.freeze()
        finally:
            draft.close()

    async def _in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:  # noqa: ANN401  # passed on
        return await self._loop.run_in_executor(self._adding, functools.partial(work, *arguments))

    async def _check_may_make(self, spec: DatasetSpec, view: View) -> None:
        """Raises `Forbidden`, before any row is read."""
        exists = await asyncio.to_thread(self._repository.has_dataset, spec.name)
        self._ownership.check(view, "dataset", spec.name, exists=exists)

    async def _keep(self, spec: DatasetSpec, facts: Facts, view: View) -> Snapshot:
        exists = await asyncio.to_thread(self._repository.has_dataset, spec.name)
        async with self._ownership.making(view, "dataset", spec.name, exists=exists):
            return await asyncio.to_thread(
                self._repository.add_snapshot, spec.name, spec.as_json(), facts.as_json()
            )

    def _inspect(self, inputs: Sequence[str], roots: Sequence[str] | None) -> list[Looked | Unreadable]:
        """Blocking: called by drafts, in their threads. roots: below which paths are read."""
        return asyncio.run_coroutine_threadsafe(self._inspected(inputs, roots), self._loop).result()

    async def _inspected(
        self, inputs: Sequence[str], roots: Sequence[str] | None
    ) -> list[Looked | Unreadable]:
        message = Inspect(0, [text.encode() for text in inputs], None if roots is None else list(roots))
        reply = expect(await self._trainers.ask(message, pictures=True), Inspected)
        found: list[Looked | Unreadable] = [
            Looked(digest, *size) for digest, size in zip(reply.digests, reply.sizes, strict=True)
        ]
        for error in reply.errors:
            found[error["index"]] = Unreadable(inputs[error["index"]], error["code"], error["message"])
        return found


def _may_send(view: View, upload: _Upload) -> bool:
    """Whether a caller is the one that has begun an upload."""
    return view.is_admin or view.caller.token == upload.view.caller.token


def _sources_of(view: View) -> Callable[[str], bool]:
    return functools.partial(view.reaches, "source")


def _add_json(draft: Draft, body: bytes) -> None:
    draft.add(record_batch(body))


def _add(draft: Draft, body: bytes) -> None:
    try:
        with pa.ipc.open_stream(body) as stream:
            for batch in stream:
                draft.add(batch)
    except pa.ArrowInvalid as exc:
        raise BadOption(f"the rows are not an Arrow IPC stream: {exc}") from exc
