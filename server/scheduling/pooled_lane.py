"""A lane whose interactive rows wait in a pool: each for the members that a plan asks next, and not for all.

A request's rows are told apart here, and put together again in what is said of them. Rows of the bulk class,
those for which the members are named, and those that come before there is a plan wait as in any lane and go
to all members. Knows nothing of other lanes, nor of how plans are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from server.ensemble.evidence import members_of
from server.ensemble.selection import Ensemble, RowEvidence, SelectionPolicy
from server.scheduling.lanes import Lane, LaneKey
from server.scheduling.policies.guarded import GuardedPolicy
from server.scheduling.policy import RowRun
from server.scheduling.pool import AnswerRows, MemberPool, Offer, RunOn
from server.scheduling.terms import FunctionSpec, Slice, Submission
from server.scheduling.worker_state import WorkerState

__all__ = ["PooledLane", "slices_of"]

_GOLDEN = 0.6180339887498949  # its multiples spread evenly over [0, 1)


class PooledLane(Lane):
    """Of all members of a function. It is an ordinary lane until it is told what to `follow`."""

    def __init__(self, now_s: float, key: LaneKey, spec: FunctionSpec, policy: GuardedPolicy) -> None:
        super().__init__(now_s, key, spec, policy)
        self.pool: MemberPool | None = None
        self._device = ""  # the kind by whose l̂ batches are cut
        self._runs: dict[int, RowRun] = {}  # rows of the pool by their numbers
        self._numbers: dict[int, dict[int, None]] = {}  # the same, by request
        self._pool_bytes = 0.0
        self._next_number = 0

    @property
    def rows(self) -> int:
        """Rows waiting; those of the pool until they are answered."""
        return super().rows + len(self._runs)

    @property
    def nbytes(self) -> float:
        """Bytes waiting."""
        return super().nbytes + self._pool_bytes

    def is_silent(self, now_s: float) -> bool:
        """Always, as far as it has a pool: that refuses by itself what no member can answer in time."""
        return self.pool is not None or super().is_silent(now_s)

    def holds(self, request_id: int) -> bool:
        """Whether rows of the request wait here."""
        return request_id in self._numbers or super().holds(request_id)

    def add(self, now_s: float, submission: Submission) -> None:
        """Queue a submission."""
        if self.pool is None or submission.row_class == "bulk" or submission.members is not None:
            super().add(now_s, submission)
            return
        due_s = self.goal_s(now_s, submission)
        numbers = self._numbers.setdefault(submission.request_id, {})
        for row in range(submission.rows):
            number = self._next_number
            self._next_number += 1
            run = self._runs[number] = RowRun(
                request_id=submission.request_id,
                rows=1,
                arrived_s=now_s,
                deadline_s=submission.deadline_s,
                priority=submission.priority,
                due_s=due_s,
                offset=submission.offset + row,
                row_bytes=submission.nbytes / submission.rows,
            )
            numbers[number] = None
            self.pool.submit(now_s, number, due_s, number * _GOLDEN % 1, run)
        self._pool_bytes += submission.nbytes

    def remove(self, request_id: int) -> list[RowRun]:
        """Take out a request's rows; also those under way, of which nobody will be told."""
        return [*super().remove(request_id), *self._forget(tuple(self._numbers.get(request_id, ())))]

    def clear(self) -> list[RowRun]:
        """Take out everything."""
        return [*super().clear(), *self._forget(tuple(self._runs))]

    def follow(
        self, now_s: float, ensemble: Ensemble, policy: SelectionPolicy, workers: Iterable[WorkerState]
    ) -> None:
        """Have rows asked of the members that the policy says. Raises ValueError for other members."""
        if [member.name for member in ensemble.members] != list(self.names):
            raise ValueError(f"a plan for {self.key[0]} is of other members")
        if self.pool is not None and self.pool.evidence is ensemble.evidence:
            self.pool.follow(ensemble, policy)
            return
        if self._runs:
            raise ValueError(f"rows of {self.key[0]} wait by other evidence")
        spec = self.spec
        self.pool = MemberPool(
            ensemble,
            policy,
            [self._latency_of(number) for number in range(len(self.names))],
            slo_s=spec.slo_s,
            max_batch=spec.max_batch,
            batch_sizes=spec.batch_sizes,
        )
        for worker in workers:
            self.set_worker(now_s, worker)

    def set_worker(self, now_s: float, worker: WorkerState) -> None:
        """Tell the pool what the worker holds. Of one that is gone the batches are to be dropped before."""
        if self.pool is None:
            return
        held = worker.view.resident if worker.view.alive else frozenset()
        members = [number for number, name in enumerate(self.names) if name in held]
        if members:
            self._device = worker.view.device
        self.pool.set_worker(now_s, worker.name, members, worker.starts_at_s)

    def first_member(self) -> str:
        """Who would answer a row that came now, or would be asked first."""
        assert self.pool is not None
        ask = self.pool.asked_of(RowEvidence())
        return self.names[ask[0] if ask else 0]

    def tell(self, now_s: float) -> tuple[list[tuple[RowRun, tuple[str, ...]]], list[RowRun]]:
        """The rows to be answered now, with the members that have answered each; and those that are lost.

        They have left the pool. Lost: nobody answers them by their goal.
        """
        answered: list[tuple[RowRun, tuple[str, ...]]] = []
        lost: list[RowRun] = []
        assert self.pool is not None
        while (told := self.pool.tell(now_s)) is not None:
            if isinstance(told, AnswerRows):
                for number, subset in told.rows:
                    names = tuple(self.names[member] for member in members_of(subset))
                    answered += ((run, names) for run in self._left([number]))
            else:
                lost += self._left([told.row])
        return answered, lost

    def send(self, now_s: float, worker: str, offer: Offer, batch_id: int) -> tuple[RunOn, list[RowRun]]:
        """The worker runs what was offered to it: the batch, and its rows."""
        assert self.pool is not None
        sent = self.pool.send(now_s, worker, offer, batch_id)
        return sent, [row.run for row in offer.rows]

    def finished(
        self, now_s: float, batch_id: int, numbers: Sequence[int], sure: Sequence[float], took_s: float
    ) -> None:
        """A batch is back. sure: of each of its rows, how probable its answer is by all that is known."""
        if self.pool is None:
            return
        by_number = dict(zip(numbers, sure, strict=True)) if sure else {}

        def confidence(number: int, subset: int) -> float:
            return by_number.get(number, math.nan)

        self.pool.finished(now_s, batch_id, confidence, took_s)

    def drop(self, now_s: float, batch_id: int) -> list[RowRun]:
        """A batch has failed: its rows have left, as far as they were here still."""
        return [] if self.pool is None else self._left(self.pool.drop(now_s, batch_id))

    def _latency_of(self, number: int) -> Callable[[int], float]:
        return lambda rows: self.latencies(self._device)[number](rows)

    def _forget(self, numbers: Iterable[int]) -> list[RowRun]:
        gone = tuple(numbers)
        if self.pool is not None:
            self.pool.cancel(*gone)
        return self._left(gone)

    def _left(self, numbers: Iterable[int]) -> list[RowRun]:
        """They are in the pool no longer."""
        left: list[RowRun] = []
        for number in numbers:
            run = self._runs.pop(number, None)
            if run is None:
                continue
            left.append(run)
            self._pool_bytes -= run.row_bytes
            of_request = self._numbers[run.request_id]
            del of_request[number]
            if not of_request:
                del self._numbers[run.request_id]
        return left


def slices_of(runs: Sequence[RowRun]) -> tuple[Slice, ...]:
    """The rows as slices; those that follow one another in a request are one."""
    slices: list[Slice] = []
    for run in runs:
        last = slices[-1] if slices else None
        if last is not None and last.request_id == run.request_id and last.offset + last.rows == run.offset:
            slices[-1] = Slice(last.request_id, last.offset, last.rows + run.rows)
        else:
            slices.append(Slice(run.request_id, run.offset, run.rows))
    return tuple(slices)
