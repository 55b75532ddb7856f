"""The registry's part for feedback: the last label of each input, and what a deployment has learned of them.

A row and what it teaches are one transaction, so that whoever asks again after a crash counts each input
once. Blocking. Knows tables; knows no members and no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

from sqlalchemy import Engine, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.errors import VersionGone
from server.store.database import reading
from server.store.retries import retried
from server.store.tables import DeploymentRow, FeedbackRow

__all__ = ["FeedbackRepository", "LabelledRow", "Learn", "Outcome"]

Outcome = Literal["counted", "changed", "repeated"]
# What a deployment has learned so far (None: nothing), which of the rows are to teach it, and how many of
# these inputs had no label yet → what it has learned then.
Learn = Callable[[dict[str, Any] | None, Sequence[int], int], dict[str, Any]]

_AT_A_TIME = 500  # digests of one statement


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """An input by its digest, its label, and what the members answered to it."""

    digest: str
    label: str
    probabilities: bytes


class FeedbackRepository:
    """The feedback of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def labels(self, function: str, version: int, digests: Collection[str]) -> dict[str, str]:
        """digest → label, of the inputs that have taught this deployment already."""
        found: dict[str, str] = {}
        with Session(self._reading) as session:
            for some in _parts(digests):
                rows = session.execute(
                    select(FeedbackRow.digest, FeedbackRow.label).where(
                        FeedbackRow.function == function,
                        FeedbackRow.version == version,
                        FeedbackRow.digest.in_(some),
                    )
                )
                found.update((digest, label) for digest, label in rows)
        return found

    @retried
    def keep(
        self, function: str, version: int, rows: Sequence[LabelledRow], learn: Learn
    ) -> tuple[list[Outcome], dict[str, Any] | None]:
        """Keep labels of inputs, each input once among `rows`, and what they teach; all or nothing.

        What became of each, and what the deployment has learned. An input counts once, by its last label: one
        with the label that it has teaches nothing. Raises `VersionGone` where the deployment is no longer
        served.
        """
        try:
            return self._keep(function, version, rows, learn)
        except IntegrityError:  # another deployment has kept one of these inputs; now it is there
            return self._keep(function, version, rows, learn)

    def _keep(
        self, function: str, version: int, rows: Sequence[LabelledRow], learn: Learn
    ) -> tuple[list[Outcome], dict[str, Any] | None]:
        now = datetime.now(UTC)
        with Session(self._engine) as session:
            deployment = session.get(DeploymentRow, (function, version), with_for_update=True)
            if deployment is None or deployment.retired_at is not None:
                raise VersionGone(f"version {version} of {function} is no longer served")
            known: dict[str, FeedbackRow] = {}
            for some in _parts([row.digest for row in rows]):
                found = session.scalars(
                    select(FeedbackRow).where(FeedbackRow.function == function, FeedbackRow.digest.in_(some))
                )
                known.update((row.digest, row) for row in found)
            outcomes = [_outcome(known.get(row.digest), row, version) for row in rows]
            teaching = [place for place, outcome in enumerate(outcomes) if outcome != "repeated"]
            for place in teaching:
                row = rows[place]
                kept = known.get(row.digest)
                if kept is None:
                    kept = FeedbackRow(function=function, digest=row.digest)
                    session.add(kept)
                kept.version, kept.label, kept.labelled_at = version, row.label, now
                kept.probabilities = row.probabilities
            if teaching:
                deployment.feedback = learn(deployment.feedback, teaching, outcomes.count("counted"))
            session.commit()
            return outcomes, deployment.feedback


def _outcome(known: FeedbackRow | None, row: LabelledRow, version: int) -> Outcome:
    if known is None or known.version != version:  # another deployment's feedback taught this one nothing
        return "counted"
    return "repeated" if known.label == row.label else "changed"


def _parts(digests: Collection[str]) -> Iterator[list[str]]:
    left = iter(digests)
    while some := list(islice(left, _AT_A_TIME)):
        yield some
