"""The registry's part for feedback: the last label of each input, and what a deployment has learned of them.

A row and what it teaches are one transaction, so that whoever asks again after a crash counts each input
once. What grows is bounded: labels, and what members answered to them, are forgotten by age, some at a time.
Blocking. Knows tables; knows no members and no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, TypeVar

from sqlalchemy import Engine, Row, delete, func, insert, select, update
from sqlalchemy.orm import Session

from server.errors import VersionGone
from server.store.damaged import learned_in, object_in, readable
from server.store.database import reading
from server.store.retries import retried
from server.store.tables import (
    Base,
    DeploymentRow,
    FeedbackAnswersRow,
    FeedbackContextRow,
    FeedbackRow,
    FunctionRow,
    SecretRow,
)

__all__ = [
    "DeploymentState",
    "FeedbackBounds",
    "FeedbackRepository",
    "Labelled",
    "LabelledRow",
    "Learn",
    "Learned",
    "Outcome",
    "Revise",
]

Outcome = Literal["counted", "changed", "repeated"]
# What it has learned so far → that, and the fit made anew, as they are to be; None to leave both alone.
Revise = Callable[[dict[str, Any] | None], tuple[dict[str, Any], dict[str, Any] | None] | None]

T = TypeVar("T")

_AT_A_TIME = 500  # digests of one statement
_FORGOTTEN = 5000  # rows of one transaction


@dataclass(frozen=True, slots=True)
class FeedbackBounds:
    """Of each function. answers: labelled rows whose members' answers are kept · labels: that are known.

    contexts: of each deployment, those that were taught last.
    """

    answers: int = 100_000
    labels: int = 2_000_000
    contexts: int = 10_000


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
    """An input by its digest, its label, and what the members answered to it, where that is kept."""

    digest: str
    label: str
    probabilities: bytes = b""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A label, and what the members answered to its input."""

    label: str
    probabilities: bytes


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """What a deployment has learned, and the fit made anew of it, None where the one deployed answers."""

    feedback: dict[str, Any] | None
    refit: dict[str, Any] | None


class FeedbackRepository:
    """The feedback of one database."""

    def __init__(self, engine: Engine, bounds: FeedbackBounds | None = None) -> None:
        self._engine = engine
        self._reading = reading(engine)
        self._bounds = bounds or FeedbackBounds()

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
        with the label that it has teaches nothing. What has taught a newer deployment stays, whatever comes
        for an older one that is served yet. Raises `VersionGone` where the deployment is no longer served.
        """
        with Session(self._engine) as session:
            deployment = _locked(session, function, version)
            known: dict[str, tuple[int, str, int]] = {}
            for some in _parts([row.digest for row in rows]):
                found = session.execute(
                    select(
                        FeedbackRow.digest, FeedbackRow.version, FeedbackRow.label, FeedbackRow.number
                    ).where(FeedbackRow.function == function, FeedbackRow.digest.in_(some))
                )
                known.update((digest, (of, label, number)) for digest, of, label, number in found)
            outcomes = [_outcome(known.get(row.digest), row, version) for row in rows]
            teaching = [place for place, outcome in enumerate(outcomes) if outcome != "repeated"]
            own = session.get(FeedbackContextRow, (function, version, context)) if context else None
            learned = Learned(deployment.feedback, None if own is None else own.state)
            if teaching:
                newest = _numbered(session, function, len(teaching))
                told = [rows[place] for place in teaching]
                told = [row for row in told if row.digest not in known or known[row.digest][0] <= version]
                self._write(session, function, version, told, known, newest)
                learned = learn(learned, teaching, outcomes.count("counted"))
                deployment.feedback = learned.deployment
                if context and learned.context is not None:
                    self._keep_context(session, own, (function, version, context), learned.context)
                deployment.revision += 1
                self._forget(session, function, newest - self._bounds.labels, newest - self._bounds.answers)
            session.commit()
            return outcomes, learned

    def _write(
        self,
        session: Session,
        function: str,
        version: int,
        rows: Sequence[LabelledRow],
        known: dict[str, tuple[int, str, int]],
        newest: int,
    ) -> None:
        """These labels, the last of which is number `newest`, in place of those that are known."""
        now = datetime.now(UTC)
        first = newest - len(rows) + 1
        told = [
            {
                "function": function,
                "digest": row.digest,
                "version": version,
                "label": row.label,
                "number": number,
                "labelled_at": now,
            }
            for number, row in enumerate(rows, first)
        ]
        added = [each for each in told if each["digest"] not in known]
        changed = [each for each in told if each["digest"] in known]
        _add(session, FeedbackRow, added)
        if changed:
            session.execute(update(FeedbackRow), changed)
            for some in _parts([known[str(each["digest"])][2] for each in changed]):
                session.execute(
                    delete(FeedbackAnswersRow).where(
                        FeedbackAnswersRow.function == function, FeedbackAnswersRow.number.in_(some)
                    )
                )
        answers = [
            {"function": function, "number": number, "probabilities": row.probabilities}
            for number, row in enumerate(rows, first)
            if row.probabilities
        ]
        _add(session, FeedbackAnswersRow, answers)

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
            .offset(self._bounds.contexts)
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
            what = f"what labels given in a context taught version {version} of the function {function}"

            def known(each: Row[tuple[str, dict[str, Any], int]]) -> tuple[str, dict[str, Any], int]:
                return each.digest, object_in(each.state, what), each.turn

            return readable(found, known)

    @retried
    def newest(self, function: str, version: int, most: int) -> list[Labelled]:
        """The newest labels that have taught this deployment, at most so many, the newest last.

        Those whose members' answers are kept.
        """
        with Session(self._reading) as session:
            rows = session.execute(
                select(FeedbackRow.label, FeedbackAnswersRow.probabilities)
                .join(
                    FeedbackAnswersRow,
                    (FeedbackAnswersRow.function == FeedbackRow.function)
                    & (FeedbackAnswersRow.number == FeedbackRow.number),
                )
                .where(FeedbackRow.function == function, FeedbackRow.version == version)
                .order_by(FeedbackRow.number.desc())
                .limit(most)
            )
            return [Labelled(label, probabilities) for label, probabilities in rows][::-1]

    @retried
    def revise(self, function: str, version: int, revise: Revise) -> bool:
        """Change what a deployment has learned, by what it has learned until now; whether it was changed.

        Raises `VersionGone` where the deployment is no longer served.
        """
        with Session(self._engine) as session:
            deployment = _locked(session, function, version)
            what = f"what labels taught version {version} of the function {function}"
            revised = revise(learned_in(deployment.feedback, what))
            if revised is None:
                return False
            deployment.feedback, deployment.refit = revised
            deployment.revision += 1
            session.commit()
            return True

    @retried
    def revisions(self) -> dict[tuple[str, int], int]:
        """(function, version) → how often what it has learned was changed; of those that are served."""
        with Session(self._reading) as session:
            rows = session.execute(
                select(DeploymentRow.function, DeploymentRow.version, DeploymentRow.revision).where(
                    DeploymentRow.retired_at.is_(None)
                )
            )
            return {(function, version): revision for function, version, revision in rows}

    @retried
    def state(self, function: str, version: int) -> DeploymentState | None:
        """What a deployment has learned; None where there is none."""
        with Session(self._reading) as session:
            found = session.execute(
                select(DeploymentRow.feedback, DeploymentRow.refit).where(
                    DeploymentRow.function == function, DeploymentRow.version == version
                )
            ).one_or_none()
            if found is None:
                return None
            whose = f"version {version} of the function {function}"
            return DeploymentState(
                learned_in(found.feedback, f"what labels taught {whose}"),
                learned_in(found.refit, f"what was fitted anew of {whose}"),
            )

    @retried
    def forget_old(self) -> int:
        """Forget some of what is beyond the bounds, or of functions that are gone; how many rows that were.

        0 once nothing is left to forget.
        """
        with Session(self._reading) as session:
            served = set(
                session.scalars(select(DeploymentRow.function).where(DeploymentRow.retired_at.is_(None)))
            )
            functions = [
                (name, labels)
                for name, labels in session.execute(select(FunctionRow.name, FunctionRow.labels))
                if labels
            ]
        gone = 0
        for name, labels in functions:
            below = labels - self._bounds.labels if name in served else labels
            answered_below = labels - self._bounds.answers if name in served else labels
            with Session(self._reading) as session:  # most often there is nothing, and nobody is kept waiting
                if not any(_oldest(session, row, name, at) for row, at in _bounded(below, answered_below)):
                    continue
            with Session(self._engine) as session:
                gone += self._forget(session, name, below, answered_below)
                session.commit()
        return gone

    def _forget(self, session: Session, function: str, below: int, answered_below: int) -> int:
        """Forget some labels up to number `below`, and answers up to `answered_below`; how many."""
        gone = 0
        for row, at in _bounded(below, answered_below):
            numbers = _oldest(session, row, function, at)
            if numbers:
                session.execute(delete(row).where(row.function == function, row.number <= numbers[-1]))
            gone += len(numbers)
        return gone


def _bounded(
    below: int, answered_below: int
) -> list[tuple[type[FeedbackRow] | type[FeedbackAnswersRow], int]]:
    return [(FeedbackRow, below), (FeedbackAnswersRow, max(below, answered_below))]


def _oldest(
    session: Session, row: type[FeedbackRow] | type[FeedbackAnswersRow], function: str, below: int
) -> Sequence[int]:
    """The numbers of the oldest rows up to number `below`, ascending, as many as are forgotten at a time."""
    if below <= 0:
        return ()
    return session.scalars(
        select(row.number)
        .where(row.function == function, row.number <= below)
        .order_by(row.number)
        .limit(_FORGOTTEN)
    ).all()


def _locked(session: Session, function: str, version: int) -> DeploymentRow:
    """The deployment, which nobody else changes until the transaction ends. Raises `VersionGone`."""
    # The function first, as who deploys it does: neither waits for the other.
    session.execute(select(FunctionRow.name).where(FunctionRow.name == function).with_for_update())
    deployment = session.get(DeploymentRow, (function, version), with_for_update=True)
    if deployment is None or deployment.retired_at is not None:
        raise VersionGone(f"version {version} of {function} is no longer served")
    return deployment


def _add(session: Session, kind: type[Base], rows: Sequence[Mapping[str, object]]) -> None:
    """Past the mapper, which is told of each row by itself: these are many, and nobody reads them here."""
    if rows:
        session.connection().execute(insert(kind.__table__), rows)  # type: ignore[arg-type]  # it is a table


def _numbered(session: Session, function: str, labels: int) -> int:
    """The number of the last of so many labels more."""
    return session.execute(
        update(FunctionRow)
        .where(FunctionRow.name == function)
        .values(labels=FunctionRow.labels + labels)
        .returning(FunctionRow.labels)
    ).scalar_one()


def _outcome(known: tuple[int, str, int] | None, row: LabelledRow, version: int) -> Outcome:
    if known is None or known[0] != version:  # another deployment's feedback taught this one nothing
        return "counted"
    return "repeated" if known[1] == row.label else "changed"


def _parts(values: Collection[T]) -> Iterator[list[T]]:
    left = iter(values)
    while some := list(islice(left, _AT_A_TIME)):
        yield some
