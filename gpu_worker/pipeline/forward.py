"""A decoded piece → each member's columns. Knows arrays, not files or sockets, and no task by name."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpu_worker.errors import RowFault
from gpu_worker.model_cache import Resident
from gpu_worker.networks.backbones import BackboneKey, has_heads
from gpu_worker.networks.network import (
    BelowHeads,
    Explains,
    Floats,
    GivesFeatures,
    Inputs,
    IsCancelled,
    Outputs,
    StandsOnBackbone,
    reading,
    width_of,
)
from gpu_worker.pipeline.asking import ENOUGH, AskPlan, log_floored
from gpu_worker.pipeline.piece import Piece
from gpu_worker.pipeline.recent_rows import Made, RecentRows, RowName, name_of
from gpu_worker.tasks import Collecting, Collector, task_named
from gpu_worker.tasks.boxes import in_picture
from gpu_worker.tasks.task import Reads
from gpu_worker.wire.protocol import BatchPart, MemberAnswer, RowError

__all__ = ["Tally"]


@dataclass(slots=True)
class _Member:
    """One model of a batch: what is asked of it, and where its answers go. number: its part, from 1."""

    number: int
    resident: Resident
    run: Callable[[Inputs, IsCancelled], Outputs]
    collector: Collector
    is_placed: bool  # whether it answers places in the picture, as its input shows it
    pass_s: Callable[[], float | None] | None  # of this thread's last pass, where the device says so itself
    reads: Reads
    rows: range  # of the batch, that it is asked of; the collector has the first of them at 0
    head: StandsOnBackbone | None = None  # where it stands on a backbone
    kin: Sequence[range] = ()  # then: the rows of all members that stand on the same


class _AsBackbone:
    """A network that is asked what it sees, as if it were the backbone of a head that says just that."""

    def __init__(self, network: GivesFeatures, identity: BackboneKey) -> None:
        self.backbone: BelowHeads = self
        self.identity = identity
        self.features_width = network.features_width
        self.features = network.features

    def of_features(self, features: Floats, reads: Reads) -> Floats:
        """They are what is read."""
        return features


class _Seen:
    """What backbones saw in the rows of one piece: each row passes through one of them once, and not again
    where that was a moment ago (`recent`).
    """

    def __init__(self, piece: Piece, recent: RecentRows | None) -> None:
        self._piece = piece
        self._recent = recent
        self._features: dict[Hashable, Floats] = {}
        self._known: dict[Hashable, NDArray[np.bool_]] = {}

    def of(
        self,
        member: _Member,
        head: StandsOnBackbone,
        good: np.ndarray,
        together: np.ndarray,
        stop: IsCancelled,
    ) -> tuple[Floats, int]:
        """The features of the rows `good`, and how many rows had to be passed for it.

        together: the rows that are passed with them: these, and all that others want to know of.
        """
        backbone = head.backbone
        key = backbone.identity
        count = len(self._piece.rows)
        known = self._known.setdefault(key, np.zeros(count, np.bool_))
        new = together[~known[together]]
        recent = None if self._recent is None else _RecentFeatures(self._recent, self._piece, backbone)
        found = {} if recent is None else recent.of(new.tolist(), member)
        left = np.setdiff1d(new, [*found], assume_unique=True) if found else new
        if len(left):
            began_s = time.monotonic()
            passed = backbone.features(_inputs(self._piece, member.resident, left), stop)
            if recent is not None:
                recent.keep(left.tolist(), passed, time.monotonic() - began_s)
            self._put(key, left, passed)
        if found:
            self._put(key, np.array([*found], np.intp), np.stack([*found.values()]))
        return self._features[key][good], len(left)

    def _put(self, key: Hashable, rows: np.ndarray, features: Floats) -> None:
        shape = len(self._piece.rows), features.shape[1]
        self._features.setdefault(key, np.zeros(shape, np.float32))[rows] = features
        self._known[key][rows] = True


class _RecentFeatures:
    """What one backbone saw of late, as far as it is of rows of one piece."""

    def __init__(self, recent: RecentRows, piece: Piece, backbone: BelowHeads) -> None:
        self._recent = recent
        self._piece = piece
        self._kind = recent.number(backbone.identity)
        self._width = backbone.features_width

    def of(self, rows: Sequence[int], member: _Member) -> dict[int, Floats]:
        """The features of those of these rows that it saw; the time of their passes counts for the member."""
        found: dict[int, Floats] = {}
        if not self._recent.is_worth_it(self._kind):
            return found
        took_s = 0.0
        features = np.empty((len(rows), self._width), np.float32)
        for row, into in zip(rows, features, strict=True):
            name = self._name(row)
            if name is not None and (made := self._recent.find(name, self._kind, into)) is not None:
                found[row] = into
                took_s += made.took_s
        if found:
            self._piece.passes_spared([*found], took_s, member.number)
        return found

    def keep(self, rows: Sequence[int], features: Floats, took_s: float) -> None:
        """Offers them to who is asked of the same rows next. took_s: the pass of them all."""
        self._recent.learn(self._kind, took_s / len(rows))
        if not self._recent.is_worth_it(self._kind):
            return
        for row, each in zip(rows, features, strict=True):
            if (name := self._name(row)) is not None and np.isfinite(each).all():
                self._recent.keep(name, self._kind, each, Made(took_s / len(rows)))

    def _name(self, row: int) -> RowName | None:
        """A picture has one where it is known again; what is no picture is its own."""
        piece = self._piece
        if row not in piece.names and not piece.pixels and not piece.tensors:
            piece.names[row] = name_of(bytes(piece.rows[row]))
        return piece.names.get(row)


class Tally:
    """The answers of one batch, filled piece by piece, by several threads at once.

    outputs: the columns that are wanted; none for those that an answer has by default. task: what is asked of
    the models; "" for what each was made for. plan: whom rows are asked of; None: each model answers every
    row, or where there are `parts` its own, by the task and in the columns that these say. Rows at fault, and
    those that a model was not asked of, keep "" or 0.
    """

    def __init__(
        self,
        residents: Sequence[Resident],
        rows: int,
        *,
        outputs: Sequence[str] = (),
        task: str = "",
        plan: AskPlan | None = None,
        parts: Sequence[BatchPart] = (),
        recent: RecentRows | None = None,
    ) -> None:
        self._recent = recent
        if parts:
            ranges = _ranges([part.rows for part in parts])
            self._members = [
                _member(number, resident, own, part.outputs, part.task, in_company=True)
                for number, (resident, own, part) in enumerate(zip(residents, ranges, parts, strict=True), 1)
            ]
        else:
            self._members = [
                _member(number, resident, range(rows), outputs, task)
                for number, resident in enumerate(residents, 1)
            ]
        self._in_parts = bool(parts)
        _share_passes(self._members)
        self._plan = plan
        self._answered = np.zeros(rows if plan else 0, np.intp)
        self.errors: list[RowError] = []
        self.needs_shapes = any(member.is_placed for member in self._members)  # of the pictures as they came
        self.needs_names = any(member.head is not None for member in self._members)  # of rows known again
        self._lock = threading.Lock()
        self.forward_s = 0.0

    def add(self, piece: Piece, is_cancelled: IsCancelled) -> None:
        """Runs the piece's good rows through every model. Raises what networks raise."""
        self.errors.extend(piece.faults)
        good = np.arange(len(piece.rows))
        if piece.faults:
            good = np.delete(good, [fault.index - piece.start for fault in piece.faults])
        if self._plan is not None:
            self._follow(self._plan, piece, good, is_cancelled)
            return
        if not len(good):
            return
        seen = _Seen(piece, self._recent)
        if self._in_parts:
            self._add_parts(piece, good, seen, is_cancelled)
            return
        for member in self._members:
            with piece.timer.part(member.number):
                good, _ = self._add_member(member, piece, good, seen, is_cancelled)

    def _add_parts(self, piece: Piece, good: np.ndarray, seen: _Seen, is_cancelled: IsCancelled) -> None:
        """Runs of the good rows those of each model through it; of one backbone all of them in one pass."""
        for member in self._members:
            mine = _within(good, piece, [member.rows])
            if len(mine):
                together = _within(good, piece, member.kin) if member.head is not None else None
                with piece.timer.part(member.number):
                    self._add_member(member, piece, mine, seen, is_cancelled, together)

    def _follow(self, plan: AskPlan, piece: Piece, good: np.ndarray, is_cancelled: IsCancelled) -> None:
        """Runs the good rows through one model after the other, the fullest pass first."""
        count = len(piece.rows)
        wanted = np.full(count, ENOUGH, np.intp)
        wanted[good] = plan.first
        answered = np.zeros(count, np.intp)
        logs: dict[int, Floats] = {}  # by place: of all rows of the piece
        seen = _Seen(piece, self._recent)
        while len(waiting := wanted[wanted != ENOUGH]):
            place = int(np.bincount(waiting).argmax())
            rows = np.flatnonzero(wanted == place)
            wanted[rows] = ENOUGH
            with piece.timer.part(place + 1):
                rows, found = self._add_member(self._members[place], piece, rows, seen, is_cancelled)
                told = logs.setdefault(place, np.zeros((count, found.shape[1]), np.float32))
                told[rows] = log_floored(found)
                answered[rows] |= 1 << place
                for members in np.unique(answered[rows]).tolist():
                    alike = rows[answered[rows] == members]
                    known = {each: logs[each][alike] for each in logs if members >> each & 1}
                    wanted[alike] = plan.following(members, known)
        self._answered[piece.start : piece.start + count] = answered

    def _add_member(
        self,
        member: _Member,
        piece: Piece,
        good: np.ndarray,
        seen: _Seen,
        is_cancelled: IsCancelled,
        together: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Floats]:
        """Runs the rows `good` of the piece through one model: those that it could answer, and how.

        together: the rows that pass its backbone with them; None for these alone.
        """
        resident = member.resident
        passed = len(good)
        inputs = _inputs(piece, resident, good) if member.head is None else ()
        began_s, began_core_s = time.monotonic(), time.thread_time()
        if member.head is None:
            found = member.run(inputs, is_cancelled)
        else:
            together = good if together is None else together
            features, passed = seen.of(member, member.head, good, together, is_cancelled)
            found = member.head.of_features(features, member.reads)
        core_s = time.thread_time() - began_core_s
        took_s = member.pass_s() if member.pass_s and passed else None
        if took_s is None:
            took_s = time.monotonic() - began_s
        with self._lock:
            self.forward_s += took_s
        is_whole = passed >= len(good)  # else it says little of what its rows take
        if is_whole:
            resident.observe(passed, took_s, core_s)
        if member.pass_s and is_whole:
            resident.overlapped.passed(passed, took_s)
            if piece.decoding.all_s:
                resident.overlapped.decoded(len(piece.rows), piece.decoding.all_s)
        good, usable = self._usable(resident, piece, good, found)
        if member.is_placed and piece.shapes is not None:
            usable = _in_picture(resident, usable, piece.shapes[good])
        member.collector.put(good + piece.start - member.rows.start, usable)
        return good, usable

    def _usable(
        self, resident: Resident, piece: Piece, good: np.ndarray, found: Outputs
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have an answer, and theirs; the others are at fault from here on."""
        if (told := resident.abilities.reports_faults) is not None:
            good, found = self._told(told.take_faults(), piece, good, found)
        if found.dtype == np.object_ or np.isfinite(found).all():
            return good, found
        finite = np.isfinite(found).all(axis=1)
        self._blame(resident, piece, good[~finite])
        return good[finite], found[finite]

    def _told(
        self, faults: Mapping[int, RowFault], piece: Piece, good: np.ndarray, found: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows that have an answer; the others get the faults that the network says they have."""
        if not faults:
            return good, found
        for place, fault in sorted(faults.items()):
            self.errors.append(RowError(piece.start + int(good[place]), fault.code, fault.message))
        return np.delete(good, list(faults)), np.delete(found, list(faults), axis=0)

    def answered(self) -> list[int]:
        """By row, the bit mask of the models that answered it; none where all were asked of every row."""
        found: list[int] = self._answered.tolist()
        return found

    def members(self) -> list[MemberAnswer]:
        """Every model's answers, in the order asked."""
        return [MemberAnswer(member.resident.key, member.collector.columns()) for member in self._members]

    def _blame(self, resident: Resident, piece: Piece, rows: np.ndarray) -> None:
        network = resident.network
        for index in rows.tolist():
            reason = network.fault_of(bytes(piece.rows[index])) if isinstance(network, Explains) else None
            if reason is None:
                what = f"the model {resident.key!r} answers numbers that are not finite"
                error = RowError(piece.start + index, "internal", what)
            else:
                error = RowError(piece.start + index, "input_invalid", reason)
            self.errors.append(error)


def _member(
    number: int,
    resident: Resident,
    rows: range,
    outputs: Sequence[str],
    task: str,
    *,
    in_company: bool = False,
) -> _Member:
    asked = task_named(task or resident.manifest.task)
    network, manifest = resident.network, resident.manifest
    width = width_of(network, asked.reads, len(manifest.classes))
    collecting = Collecting(
        len(rows),
        manifest.classes,
        width,
        outputs or asked.default_outputs,
        manifest.thresholds_of(asked),
        manifest.content,
    )
    is_placed = asked.reads == "boxes" and resident.frame is not None
    timed = resident.abilities.times_passes
    pass_s = None if timed is None else timed.pass_s
    run, collector = reading(network, asked.reads), asked.collector(collecting)
    head = _head_of(resident, asked.reads, in_company=in_company)
    return _Member(number, resident, run, collector, is_placed, pass_s, asked.reads, rows, head)


def _head_of(resident: Resident, reads: Reads, *, in_company: bool) -> StandsOnBackbone | None:
    """What reads a backbone's features that others may want as well; None of what passes its rows itself.

    in_company: whether there are others in its batch.
    """
    able, key = resident.abilities, resident.as_backbone
    if able.stands_on_backbone is not None:
        return able.stands_on_backbone
    # What decodes its pictures itself sees them a little otherwise; whose rows may be at fault says which by
    # their places in its pass.
    is_plain = able.reports_faults is None and not able.takes_encoded
    if reads == "features" and is_plain and key is not None and (in_company or has_heads(key)):
        return _AsBackbone(cast("GivesFeatures", resident.network), key)
    return None


def _share_passes(members: Sequence[_Member]) -> None:
    """Notes of those that stand on a backbone who else stands on that."""
    heads = [(member, member.head.backbone.identity) for member in members if member.head is not None]
    for member, identity in heads:
        member.kin = [other.rows for other, its in heads if its == identity]


def _ranges(sizes: Sequence[int]) -> list[range]:
    """So many rows each, one after the other."""
    ends = list(itertools.accumulate(sizes))
    return [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _within(good: np.ndarray, piece: Piece, ranges: Sequence[range]) -> np.ndarray:
    """Of the rows `good` of a piece, those that lie in one of these ranges of the batch."""
    at = good + piece.start
    wanted = np.zeros(len(good), np.bool_)
    for each in ranges:
        wanted |= (at >= each.start) & (at < each.stop)
    return good[wanted]


def _in_picture(resident: Resident, boxes: Floats, pictures: NDArray[np.int64]) -> Floats:
    """Where what the model found lies in its pictures. pictures: [n, 2], (H, W) of each."""
    assert resident.frame is not None
    back = [resident.frame.back(columns, rows) for rows, columns in pictures.tolist()]
    return in_picture(boxes, np.array(back, np.float32).reshape(-1, 4), pictures)


def _inputs(piece: Piece, resident: Resident, good: np.ndarray) -> Inputs:
    frame = resident.frame
    count = len(piece.rows)
    if frame is None:
        rows = piece.rows if len(good) == count else [piece.rows[index] for index in good]
        return cast("Sequence[bytes]", rows) if resident.abilities.takes_views else list(map(bytes, rows))
    # A lent buffer may be longer than the piece.
    inputs = (piece.tensors if piece.tensors else piece.pixels)[frame][:count]
    return inputs if len(good) == count else inputs[good]
