"""What a pool of rows says is to be done."""

from __future__ import annotations

from server.record import record
from server.scheduling.policy import RowRun
from server.scheduling.terms import Slice

__all__ = ["AnswerRows", "GiveUpRows", "RunOn", "Sleep"]


@record
class RunOn:
    """Run these rows, in this order, on a member, on that worker; report back with `finished`."""

    batch_id: int
    worker: str
    member: int
    slices: tuple[Slice, ...]
    rows: int
    predicted_s: float


@record
class AnswerRows:
    """Answer rows from the members that have answered them: (rows, subset), the subset never empty."""

    parts: tuple[tuple[Slice, int], ...]


@record
class GiveUpRows:
    """Nobody can answer these rows by their goal."""

    runs: tuple[RowRun, ...]


@record
class Sleep:
    """Nothing to do before `until_s`, unless something happens."""

    until_s: float
