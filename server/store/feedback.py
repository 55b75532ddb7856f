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

from sqlalchemy import Engine, delete, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.errors import VersionGone
from server.store.database import reading
from server.store.retries import retried
from server.store.tables import DeploymentRow, FeedbackContextRow, FeedbackRow, SecretRow

__all__ = ["FeedbackRepository", "LabelledRow", "Learn", "Learned", "Outcome"]

Outcome = Literal["counted", "changed", "repeated"]

_AT_A_TIME = 500  # digests of one statement


@dataclass(frozen=True, slots=True)
class Learned:
    """What a deployment has learned, and a context of it; None for nothing, or for no context."""

    deployment: dict[str, Any] | None
    context: dict[str, Any] | None = None


# What has been learned so far, which of the rows are to teach it, and how many of these inputs had no label
# yet → what has been learned then.
Learn = Callable[[Learned, Sequence[int], int], Learned]


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """An input by its digest, its label, and what the members answered to it."""

    digest: str
    label: str
    probabilities: bytes


class FeedbackRepository:
    """The feedback of one database. most_contexts: of a deployment; the last taught are kept."""

    def __init__(self, engine: Engine, most_contexts: int = 10_000) -> None:
        self._engine = engine
        self._most_contexts = most_contexts
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
        self, function: str, version: int, rows: Sequence[LabelledRow], learn: Learn, context: str = ""
    ) -> tuple[list[Outcome], Learned]:
        """Keep labels of inputs, each input once among `rows`, and what they teach; all or nothing.

        context: the digest of the one in which all were given; "" for none. What became of each, and what
        the deployment, and the context, have learned. An input counts once, by its last label: one
        with the label that it has teaches nothing. Raises `VersionGone` where the deployment is no longer
        served.
        """
        try:
            return self._keep(function, version, rows, learn, context)
        except IntegrityError:  # another deployment has kept one of these inputs; now it is there
            return self._keep(function, version, rows, learn, context)

    def _keep(
        self, function: str, version: int, rows: Sequence[LabelledRow], learn: Learn, context: str
    ) -> tuple[list[Outcome], Learned]:
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
            own = session.get(FeedbackContextRow, (function, version, context)) if context else None
            learned = Learned(deployment.feedback, None if own is None else own.state)
            if teaching:
                learned = learn(learned, teaching, outcomes.count("counted"))
                deployment.feedback = learned.deployment
                if context and learned.context is not None:
                    self._keep_context(session, own, (function, version, context), learned.context)
            session.commit()
            return outcomes, learned

    def _keep_context(
        self,
        session: Session,
        own: FeedbackContextRow | None,
        key: tuple[str, int, str],
        state: dict[str, Any],
    ) -> None:
        """The deployment is locked: nobody else gives this turn."""
        function, version, digest = key
        row = FeedbackContextRow
        of_deployment = (row.function == function, row.version == version)
        turn = 1 + (session.scalar(select(func.max(row.turn)).where(*of_deployment)) or 0)
        if own is not None:
            own.state, own.turn = state, turn
            return
        session.add(row(function=function, version=version, digest=digest, state=state, turn=turn))
        session.flush()
        oldest = (
            select(row.turn)
            .where(*of_deployment)
            .order_by(row.turn.desc())
            .offset(self._most_contexts)
            .limit(1)
        )
        if (forgotten := session.scalar(oldest)) is not None:
            session.execute(delete(row).where(*of_deployment, row.turn <= forgotten))

    @retried
    def key(self) -> bytes:
        """By which contexts are written: of this registry alone."""
        with Session(self._reading) as session:
            return session.get_one(SecretRow, "feedback").value

    @retried
    def contexts(self, function: str, version: int, after: int = 0) -> list[tuple[str, dict[str, Any], int]]:
        """(digest, what it has learned, turn) of the contexts that were taught after a turn, in order."""
        row = FeedbackContextRow
        with Session(self._reading) as session:
            found = session.execute(
                select(row.digest, row.state, row.turn)
                .where(row.function == function, row.version == version, row.turn > after)
                .order_by(row.turn)
            )
            return [(digest, state, turn) for digest, state, turn in found]

    @retried
    def learned(self) -> dict[tuple[str, int], dict[str, Any] | None]:
        """(function, version) → what each deployment that is served has learned of everybody's labels."""
        with Session(self._reading) as session:
            found = session.execute(
                select(DeploymentRow.function, DeploymentRow.version, DeploymentRow.feedback).where(
                    DeploymentRow.retired_at.is_(None)
                )
            )
            return {(function, version): feedback for function, version, feedback in found}


def _outcome(known: FeedbackRow | None, row: LabelledRow, version: int) -> Outcome:
    if known is None or known.version != version:  # another deployment's feedback taught this one nothing
        return "counted"
    return "repeated" if known.label == row.label else "changed"


def _parts(digests: Collection[str]) -> Iterator[list[str]]:
    left = iter(digests)
    while some := list(islice(left, _AT_A_TIME)):
        yield some
