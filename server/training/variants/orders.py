"""Variants that are asked for, or tried unasked, made one after the other.

    a worker's training process: made, judged on held-out rows ─→ refused, or registered ─→ loaded, measured
    beside the original on the workers that serve ─→ offered

The training process stands aside while batches are answered. What nobody asked for is begun only while no
row waits, is given up as soon as one does, takes no other model's room, and is begun again later, by this
server's next life too: what is missing is found out from the registry. What somebody ordered is kept there
until it is made, or cannot be.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_worker.wire.protocol import MakeVariant, VariantMade
from server.access.view import WHOLE, View
from server.catalog.catalog import Catalog, Models
from server.catalog.functions import ModelVersion
from server.catalog.jobs import Snapshot, unknown_dataset
from server.catalog.variants import ORIGINAL, HeldOutAccuracy, Variant, Variants, is_variant, variant_model
from server.errors import BadOption, Overloaded, ServiceError, UnknownFunction
from server.lease import ALONE, Leading
from server.placement.residency import Residency
from server.publisher import Publisher
from server.store.manifest import check_model_name
from server.store.variant_orders import KeptOrder, VariantOrderRepository
from server.store.variants import VariantRepository
from server.supervision import Tasks
from server.training.datasets.datasets import Datasets
from server.training.datasets.leakage import clusters_of
from server.training.trainers import Ask, Trainers, expect
from server.training.variants.candidates import Candidate, VariantWishes, candidates_of, why_none
from server.training.variants.measuring import Measured, Measuring
from server.training.variants.verdict import accuracy_of, refusal

__all__ = ["Order", "VariantOrders"]

log = logging.getLogger("ml_udf.server.variants")

_LOOK_S = 1.0
_REST_S = 5.0  # without a row, before something is tried unasked
_TRY_AGAIN_S = 600.0  # what failed unasked
_CALIBRATION_ROWS = 256
_HELD_OUT_ROWS = 10_000
_MOST_WAITING = 64


@dataclass(slots=True)
class Order:
    """One variant of one model version.

    by_itself: nobody asked for it · state: waits, made, loaded, measured · failed: why, once it has
    """

    model: ModelVersion
    candidate: Candidate
    wishes: VariantWishes
    by_itself: bool = False
    state: str = "waits"
    since: float = field(default_factory=time.time)
    failed: str = ""


class _Interrupted(Exception):
    """Rows came while something was tried unasked."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The snapshot by which a model's variants are made and judged."""

    snapshot: Snapshot
    file: Path
    split: str


class VariantOrders:
    """`at_rest()`: whether nobody waits for rows. by_itself: whether what is missing is made unasked, where
    this server has the `lease`. folder: this server's own.
    """

    def __init__(
        self,
        folder: Path,
        variants: Variants,
        repository: VariantRepository,
        kept: VariantOrderRepository,
        catalog: Catalog,
        publisher: Publisher,
        residency: Residency,
        trainers: Trainers,
        measuring: Measuring,
        datasets: Datasets,
        tasks: Tasks,
        *,
        at_rest: Callable[[], bool],
        by_itself: bool = False,
        lease: Leading = ALONE,
        load_patience_s: float = 120.0,
        rest_s: float = _REST_S,
        look_s: float = _LOOK_S,
    ) -> None:
        self._folder = folder
        self._variants = variants
        self._repository = repository
        self._kept = kept
        self._writing = asyncio.Lock()  # an order is over no sooner than it is written
        self._has_taken_up = False
        self._catalog = catalog
        self._publisher = publisher
        self._residency = residency
        self._trainers = trainers
        self._measuring = measuring
        self._datasets = datasets
        self._tasks = tasks
        self._at_rest = at_rest
        self._by_itself = by_itself
        self._lease = lease
        self._load_patience_s = load_patience_s
        self._rest_s = rest_s
        self._look_s = look_s
        self._waiting: deque[Order] = deque()
        self._came = asyncio.Event()
        self._busy_at_s = time.monotonic()
        self._not_before_s: dict[tuple[str, str], float] = {}  # what failed unasked, by key and variant
        self.under_way: Order | None = None
        self.ended: deque[Order] = deque(maxlen=_MOST_WAITING)  # that failed, the newest last

    def start(self) -> None:
        """Begin. What a life before left half made is removed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._tasks.always("variants", self._work)

    async def close(self) -> None:
        """Stop; what is under way is given up."""
        await self._tasks.close()

    def orders(self) -> list[Order]:
        """What waits and what is under way, the next first."""
        return [*([self.under_way] if self.under_way else []), *self._waiting]

    async def order(
        self, name: str, wishes: VariantWishes, models: Models, view: View = WHOLE
    ) -> list[Order]:
        """Have variants of a model made; this server's next life goes on with what is not made yet.

        Raises `BadOption`, `UnknownFunction`, `Overloaded`, `Forbidden`.

        models: those that whoever asks sees.
        """
        model = models.model(name, wishes.version)
        view.check_changes("model", model.name)
        wanted = candidates_of(model, wishes)
        if wishes.dataset and not view.sees("dataset", wishes.dataset):
            raise unknown_dataset(wishes.dataset)
        for candidate in wanted:
            self._check_free(model, candidate)
        there = {(order.model.key, order.candidate.name) for order in self._waiting if not order.by_itself}
        fresh = [
            Order(model, candidate, wishes)
            for candidate in wanted
            if (model.key, candidate.name) not in there
        ]
        if len(self._waiting) + len(fresh) > _MOST_WAITING:
            raise Overloaded(f"{len(self._waiting)} variants wait to be made already", 60.0)
        self._waiting.extend(fresh)
        async with self._writing:
            try:
                await asyncio.to_thread(self._kept.put, [_to_keep(order) for order in fresh])
            except BaseException:
                self._waiting = deque(order for order in self._waiting if order not in fresh)
                raise
        self._came.set()
        return fresh

    def _check_free(self, model: ModelVersion, candidate: Candidate) -> None:
        """Raises `BadOption` for a variant that a function runs now: it must not change under it."""
        name = variant_model(model.name, candidate.name)
        check_model_name(name, "the variant's name")
        there = self._registered(model, candidate)
        if there is None or not _is_whole(there):
            return
        if users := self._publisher.users_of(there):
            raise BadOption(
                f"{there.key} is a member of the function {users[0]}; deploy that without it to make it anew"
            )

    def _registered(self, model: ModelVersion, candidate: Candidate) -> ModelVersion | None:
        try:
            return self._catalog.model(variant_model(model.name, candidate.name), model.version)
        except UnknownFunction:
            return None

    # ── one after the other ───────────────────────────────────────────────────────────────────────────

    async def _take_up(self) -> None:
        """What a life before was ordered and has not made; without what there is no more."""
        if self._has_taken_up:
            return
        before = await asyncio.to_thread(self._kept.all)
        fresh = {(order.model.name, order.model.version, order.candidate.name) for order in self._waiting}
        for kept in before:
            if (kept.model, kept.version, kept.variant) in fresh:
                continue
            try:
                model = self._catalog.model(kept.model, kept.version)
                wishes = VariantWishes(
                    **{**kept.wishes, "only": (kept.variant,), "threads": tuple(kept.wishes["threads"])}
                )
                (candidate,) = candidates_of(model, wishes)
            except (UnknownFunction, BadOption) as gone:
                log.warning(
                    "variant not made model=%s/%d variant=%s reason=%r",
                    kept.model,
                    kept.version,
                    kept.variant,
                    str(gone),
                )
                await asyncio.to_thread(self._kept.remove, kept.model, kept.version, kept.variant)
            else:
                self._waiting.append(Order(model, candidate, wishes, since=kept.ordered_at))
        self._has_taken_up = True

    async def _over(self, order: Order) -> None:
        if not order.by_itself:
            async with self._writing:
                model = order.model
                await asyncio.to_thread(self._kept.remove, model.name, model.version, order.candidate.name)

    async def _work(self) -> None:
        await self._take_up()
        while True:
            order = self._next()
            if order is None:
                self._came.clear()
                try:
                    async with asyncio.timeout(self._look_s):
                        await self._came.wait()
                except TimeoutError:
                    pass
                continue
            self.under_way = order
            try:
                await self._carry_out(order)
            except _Interrupted:
                log.info("variant put off %s", _named(order))
            except (ServiceError, OSError) as error:
                order.failed = str(error)
                self.ended.append(order)
                self._not_before_s[order.model.key, order.candidate.name] = time.monotonic() + _TRY_AGAIN_S
                log.warning("variant not made %s reason=%r", _named(order), str(error))
                await self._over(order)
            else:
                await self._over(order)
            finally:
                self.under_way = None

    def _next(self) -> Order | None:
        if self._waiting:
            return self._waiting.popleft()
        now_s = time.monotonic()
        if not self._at_rest():
            self._busy_at_s = now_s
            return None
        if not (self._by_itself and self._lease.is_held and self._trainers.alive()):
            return None
        if now_s - self._busy_at_s < self._rest_s:
            return None
        return next(self._missing(now_s), None)

    def _missing(self, now_s: float) -> Any:  # noqa: ANN401  # an iterator of orders
        newest = {model.name: model for model in self._catalog.models() if not is_variant(model.name)}
        for model in newest.values():
            if why_none(model):
                continue
            known = {variant.name for variant in self._variants.of(model.name, model.version)}
            for candidate in candidates_of(model, VariantWishes()):
                waits_until_s = self._not_before_s.get((model.key, candidate.name), 0.0)
                if candidate.name not in known and waits_until_s <= now_s:
                    yield Order(model, candidate, VariantWishes(), by_itself=True)

    async def _carry_out(self, order: Order) -> None:
        model, candidate = order.model, order.candidate
        there = self._registered(model, candidate)
        if there is not None and not self._publisher.users_of(there):
            await self._publisher.remove_variant(there)
        rows = await self._rows(order)
        order.state = "made"
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._folder))
        try:
            made = await self._made(order, rows, folder)
            groups = None
            if rows is not None:
                groups = await asyncio.to_thread(_groups, rows, len(made.right))
            of_rows = {} if rows is None else _told(rows)
            found = accuracy_of(made.right, made.agreed, groups, **of_rows)
            read = sum(each >= 0 for each in made.original_right)
            original = accuracy_of(made.original_right, read, groups, **of_rows)
            variant = Variant(
                model.name,
                model.version,
                candidate.name,
                made.runtime,
                made.precision,
                candidate.threads,
                nbytes=made.nbytes,
                held_out=found,
                refused=refusal(candidate, found, original, order.wishes.max_accuracy_loss),
                measured_at=time.time(),
            )
            if variant.refused:
                await self._keep(variant)
            else:
                registered = await self._publisher.register_variant(folder)
                variant = replace(variant, files=registered.files)
                await self._measure(order, registered, variant, original)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _made(self, order: Order, rows: _Rows | None, folder: Path) -> VariantMade:
        message = MakeVariant(
            0,
            str(order.model.directory),
            str(folder),
            variant_model(order.model.name, order.candidate.name),
            order.candidate.recipe,
            order.candidate.threads,
            *(() if rows is None else (str(rows.file), rows.split, _CALIBRATION_ROWS, _HELD_OUT_ROWS)),
        )
        # By whose snapshot it is judged: pictures are read where they lie.
        worker = await self._trainers.anyone(pictures=rows is not None and order.model.input.form == "path")
        with self._trainers.busy(worker):
            ask = Ask(worker, message)
            try:
                return expect(await self._unless_rows_come(order, ask), VariantMade)
            except BaseException:
                ask.cancel()
                raise

    async def _unless_rows_come(self, order: Order, ask: Ask) -> Any:  # noqa: ANN401  # a message
        reply = asyncio.ensure_future(ask.reply())
        try:
            while not reply.done():
                await asyncio.wait({reply}, timeout=self._look_s)
                if order.by_itself and not reply.done() and not self._at_rest():
                    self._busy_at_s = time.monotonic()
                    raise _Interrupted
            return reply.result()
        finally:
            reply.cancel()

    async def _measure(
        self, order: Order, registered: ModelVersion, variant: Variant, held_out: HeldOutAccuracy | None
    ) -> None:
        order.state = "loaded"
        was_resident = self._residency.is_resident((registered,))
        original = order.model
        await self._load(order, (registered,))
        if not order.by_itself and not self._residency.is_resident((original, registered)):
            await self._load(order, (original, registered))
        order.state = "measured"
        if order.by_itself and not self._at_rest():
            raise _Interrupted
        measured = await self._measuring.of(original, registered)
        if order.by_itself and not self._at_rest():
            raise _Interrupted
        await self._keep(_with(variant, measured[registered.key]))
        await self._keep_original(original, held_out, measured[original.key])
        if not was_resident and not self._publisher.users_of(registered):
            await self._residency.unload({registered.key})

    async def _load(self, order: Order, group: tuple[ModelVersion, ...]) -> None:
        try:
            async with asyncio.timeout(self._load_patience_s):
                if order.by_itself:
                    await self._residency.spread(group)
                else:
                    await self._residency.load(group)
        except TimeoutError:
            keys = ", ".join(model.key for model in group)
            raise Overloaded(f"no worker loaded {keys} within {self._load_patience_s:g} s", 10.0) from None
        if not self._residency.is_resident(group):
            keys = ", ".join(model.key for model in group)
            raise Overloaded(f"no worker has room for {keys} beside what it holds", 60.0)

    async def _keep(self, variant: Variant) -> None:
        await asyncio.to_thread(self._repository.put, variant)
        self._variants.keep(variant)
        log.info(
            "variant %s model=%s/%d variant=%s%s",
            "refused" if variant.refused else "offered",
            variant.model,
            variant.version,
            variant.name,
            f" reason={variant.refused!r}" if variant.refused else "",
        )

    async def _keep_original(
        self, model: ModelVersion, held_out: HeldOutAccuracy | None, measured: Measured
    ) -> None:
        """What it is to be compared with; what is not known now stays as it was."""
        before = self._variants.named(model.key)
        known = before or Variant(model.name, model.version, ORIGINAL, model.runtime)
        nbytes = await asyncio.to_thread(_files_bytes, model)
        found = replace(
            known,
            files=model.files,
            nbytes=nbytes,
            held_out=held_out or known.held_out,
            measured_at=time.time(),
        )
        await self._keep(_with(found, measured))

    async def _rows(self, order: Order) -> _Rows | None:
        """Those of the dataset that is named, else of the snapshot that taught the model, if any."""
        model, asked = order.model, order.wishes.dataset
        trained = (await asyncio.to_thread(_manifest, model)).get("trained") or {}
        split = "test" if trained.get("refit_of") else "validation"
        snapshot = None
        if trained.get("snapshot"):
            try:
                snapshot = await self._datasets.of_job(int(trained["job"]), str(trained["snapshot"]))
            except (UnknownFunction, KeyError, TypeError, ValueError):
                snapshot = None
        if asked and (snapshot is None or snapshot.dataset != asked):
            snapshot, split = await self._datasets.newest(asked), "validation"
        if snapshot is None:
            return None
        if sorted(snapshot.facts.get("classes", ())) != sorted(model.classes) and not (
            set(snapshot.facts.get("classes", ())) & set(model.classes)
        ):
            raise BadOption(f"dataset {snapshot.dataset} names none of the classes of {model.key}")
        return _Rows(snapshot, self._datasets.file_of(snapshot), split)


def _to_keep(order: Order) -> KeptOrder:
    return KeptOrder(
        order.model.name, order.model.version, order.candidate.name, asdict(order.wishes), order.since
    )


def _named(order: Order) -> str:
    return f"model={order.model.key} variant={order.candidate.name}"


def _with(variant: Variant, measured: Measured) -> Variant:
    return replace(
        variant,
        resident_bytes=measured.resident_bytes or variant.resident_bytes,
        load_s=measured.load_s or variant.load_s,
        profile_s={**variant.profile_s, **measured.profile_s},
    )


def _told(rows: _Rows) -> dict[str, str]:
    return {"dataset": rows.snapshot.dataset, "snapshot": rows.snapshot.id, "split": rows.split}


def _groups(rows: _Rows, count: int) -> Any:  # noqa: ANN401  # an array, or None
    """Which held-out rows are one observation. Blocking."""
    groups = clusters_of(rows.file, rows.split)
    return groups if len(groups) == count else None


def _manifest(model: ModelVersion) -> dict[str, Any]:
    """Blocking. Raises `BadOption` where it cannot be read."""
    try:
        manifest: dict[str, Any] = json.loads((model.directory / "model.json").read_bytes())
    except (OSError, ValueError) as exc:
        raise BadOption(f"model.json of {model.key} cannot be read: {exc}") from exc
    return manifest


def _is_whole(model: ModelVersion) -> bool:
    return all((model.directory / file.name).is_file() for file in model.files)


def _files_bytes(model: ModelVersion) -> int:
    """Blocking."""
    paths = [model.directory / file.name for file in model.files]
    return sum(path.stat().st_size for path in paths if path.is_file())
