"""The registry's part for training: datasets, snapshots, jobs. Each verb is one transaction. Blocking.

Knows tables; knows no study and no files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Engine, func, select
from sqlalchemy.orm import Session

from server.catalog.jobs import ACTIVE, PAUSED, Job, Look, Snapshot, unknown_dataset, unknown_job
from server.errors import UnknownFunction
from server.store.damaged import DamagedRecord, learned_in, object_in, readable
from server.store.database import reading, utc
from server.store.leases import check_fence
from server.store.retries import once, retried
from server.store.tables import DatasetRow, DeploymentRow, FunctionRow, JobRow, LookRow, SnapshotRow

__all__ = ["TrainingRepository"]


_MOST_JOBS = 2**31 - 1


class TrainingRepository:
    """The training tables of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def add_snapshot(self, name: str, spec: Mapping[str, Any], facts: Mapping[str, Any]) -> Snapshot:
        """Make a snapshot the dataset's newest, and the dataset known; the same rows again are no new one."""
        now = datetime.now(UTC)
        with Session(self._engine) as session:
            dataset = session.get(DatasetRow, name, with_for_update=True)
            if dataset is None:
                dataset = DatasetRow(name=name, spec=dict(spec), created_at=now)
                session.add(dataset)
            dataset.spec, dataset.snapshot = dict(spec), str(facts["id"])
            known = session.get(SnapshotRow, (name, dataset.snapshot))
            if known is None:
                known = SnapshotRow(
                    dataset=name, id=dataset.snapshot, spec=dict(spec), facts=dict(facts), taken_at=now
                )
                session.add(known)
            session.commit()
            return _snapshot(known, dataset)

    @retried
    def datasets(self) -> list[Snapshot]:
        """Every dataset with its newest snapshot, by name."""
        with Session(self._reading) as session:
            rows = session.execute(
                select(SnapshotRow, DatasetRow)
                .join(
                    DatasetRow,
                    (DatasetRow.name == SnapshotRow.dataset) & (DatasetRow.snapshot == SnapshotRow.id),
                )
                .order_by(SnapshotRow.dataset)
            )
            return readable(rows, lambda found: _snapshot(*found))

    @retried
    def snapshot(self, dataset: str, snapshot: str | None = None) -> Snapshot:
        """A snapshot, by default the newest. Raises `UnknownFunction`."""
        with Session(self._reading) as session:
            known = session.get(DatasetRow, dataset)
            row = None if known is None else session.get(SnapshotRow, (dataset, snapshot or known.snapshot))
            if row is None:
                which = "" if snapshot is None else f" with a snapshot {snapshot}"
                raise unknown_dataset(dataset, which)
            return _snapshot(row, None if snapshot else known)

    @retried
    def snapshots(self, dataset: str) -> list[Snapshot]:
        """Every snapshot of a dataset, the oldest first."""
        with Session(self._reading) as session:
            rows = session.scalars(
                select(SnapshotRow).where(SnapshotRow.dataset == dataset).order_by(SnapshotRow.taken_at)
            )
            return readable(rows, _snapshot)

    @once
    def add_job(
        self, dataset: str, snapshot: str, spec: Mapping[str, Any], owner: str = "", above: int = 0
    ) -> Job:
        """A new job that runs. above: its number is, whatever the registry knows."""
        with Session(self._engine) as session:
            row = JobRow(
                id=_number_above(session, above),
                dataset=dataset,
                snapshot=snapshot,
                spec=dict(spec),
                state="running",
                reason="",
                created_at=datetime.now(UTC),
                owner=owner,
            )
            session.add(row)
            session.commit()
            return _job(row)

    @retried
    def set_job(
        self,
        job: int,
        state: str,
        reason: str = "",
        spec: Mapping[str, Any] | None = None,
        found: Mapping[str, Any] | None = None,
        fence: int | None = None,
        among: Collection[str] | None = None,
    ) -> Job:
        """Note what became of a job. among: only where its state is one of these; else it is given back as it
        is. Raises `UnknownFunction`; `LeaseLost` where another server has taken the lease of that number.
        """
        with Session(self._engine) as session:
            check_fence(session, fence)
            row = session.get(JobRow, job, with_for_update=True)
            if row is None:
                raise UnknownFunction(f"there is no job {job} here")
            if among is not None and row.state not in among:
                return _job(row)
            row.state, row.reason = state, reason
            row.ended_at = None if state in (*ACTIVE, PAUSED) else datetime.now(UTC)
            if spec is not None:
                row.spec = dict(spec)
            if found is not None:
                row.found = dict(found)
            session.commit()
            return _job(row)

    @retried
    def job(self, job: int) -> Job:
        """A job. Raises `UnknownFunction`."""
        with Session(self._reading) as session:
            row = session.get(JobRow, _numbered(job))
            if row is None:
                raise unknown_job(job)
            return _job(row)

    @retried
    def dataset_of(self, job: int, snapshot: str) -> str | None:
        """The dataset of a job of this registry that was given that snapshot; None where there is none.

        A model may come from another server, whose jobs have the same numbers.
        """
        with Session(self._reading) as session:
            query = select(JobRow.dataset).where(JobRow.id == job, JobRow.snapshot == snapshot)
            return session.scalar(query)

    @retried
    def whose_job(self, job: int) -> tuple[str, str]:
        """A job's dataset and owner. Raises `UnknownFunction`. As quick for one that is there as for none."""
        with Session(self._reading) as session:
            row = session.execute(
                select(JobRow.dataset, JobRow.owner).where(JobRow.id == _numbered(job))
            ).first()
        if row is None:
            raise unknown_job(job)
        return row[0], row[1]

    @retried
    def has_dataset(self, name: str) -> bool:
        """Whether there is a dataset of that name."""
        with Session(self._reading) as session:
            return session.execute(select(DatasetRow.name).where(DatasetRow.name == name)).first() is not None

    @retried
    def jobs(
        self, states: Collection[str] | None = None, after: int = 0, limit: int | None = None
    ) -> list[Job]:
        """Jobs by number: those after `after`, `limit` of them, in one of `states`; None = all."""
        query = select(JobRow).where(JobRow.id > _numbered(after)).order_by(JobRow.id).limit(limit)
        if states is not None:
            query = query.where(JobRow.state.in_(states))
        with Session(self._reading) as session:
            return [_job(row) for row in session.scalars(query)]

    @retried
    def last_jobs(self, limit: int, before: int | None = None) -> list[Job]:
        """The newest jobs first: at most so many, with numbers below `before`."""
        query = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
        if before is not None:
            query = query.where(JobRow.id < _numbered(before))
        with Session(self._reading) as session:
            return [_job(row) for row in session.scalars(query)]

    @retried
    def deployment_before(self, function: str) -> tuple[dict[str, Any], dict[str, Any] | None, int]:
        """The specification and the fit of the deployment before this one, and this one's version.

        Raises `UnknownFunction`.
        """
        with Session(self._reading) as session:
            rows = session.scalars(
                select(DeploymentRow)
                .join(FunctionRow, FunctionRow.name == DeploymentRow.function)
                .where(
                    DeploymentRow.function == function, DeploymentRow.deployed_at >= FunctionRow.created_at
                )
                .order_by(DeploymentRow.version.desc())
                .limit(2)
            ).all()
            if len(rows) < 2:
                raise UnknownFunction(f"the function {function!r} has no earlier deployment to go back to")
            whose = f"version {rows[1].version} of the function {function}"
            spec = object_in(rows[1].spec, f"the specification of {whose}")
            fit = None if rows[1].fit is None else object_in(rows[1].fit, f"what was fitted of {whose}")
            return spec, fit, rows[0].version

    @retried
    def deployed_spec(self, function: str, version: int) -> dict[str, Any]:
        """The specification of a deployment; nothing where there is none."""
        with Session(self._reading) as session:
            row = session.get(DeploymentRow, (function, version))
            whose = f"version {version} of the function {function}"
            return {} if row is None else object_in(row.spec, f"the specification of {whose}")

    @retried
    def test_looks(self, dataset: str, snapshot: str) -> list[Look]:
        """The looks at a snapshot's test rows, whatever its dataset is called, and at those of the dataset's
        other snapshots; the oldest first.
        """
        with Session(self._engine) as session:
            rows = session.scalars(
                select(LookRow).where(_counted_with(dataset, snapshot)).order_by(LookRow.id)
            )
            return [_look(row) for row in rows]

    @once
    def add_test_look(self, look: Look, known: int) -> Look | None:
        """Note a look, before anybody sees the result; None where there were more than `known` of its
        `test_looks` by now, so that its number is another's.
        """
        with Session(self._engine) as session:
            session.get(DatasetRow, look.dataset, with_for_update=True)  # one look at a time
            if (
                session.scalar(select(func.count()).where(_counted_with(look.dataset, look.snapshot))) or 0
            ) > known:
                return None
            row = LookRow(
                dataset=look.dataset,
                snapshot=look.snapshot,
                members=look.members,
                rival=look.rival,
                job=look.job,
                number=look.number,
                rows=look.rows,
                right=look.right,
                best_single=look.best_single,
                metric=look.metric,
                score=look.score,
                looked_at=datetime.now(UTC),
            )
            session.add(row)
            session.commit()
            return _look(row)

    @retried
    def note_deployed(self, look: int, function: str, version: int) -> None:
        """Note which deployment came of a look."""
        with Session(self._engine) as session:
            row = session.get(LookRow, look, with_for_update=True)
            if row is not None:
                row.function, row.version = function, version
                session.commit()


def _number_above(session: Session, above: int) -> int | None:
    """A job's number, None where the next one is; two transactions at once get two."""
    known = session.scalar(select(func.max(JobRow.id))) or 0
    if known >= above:
        return None
    if session.get_bind().dialect.name == "postgresql":  # whose sequence is to go on from there, too
        drawn = func.nextval(func.pg_get_serial_sequence(JobRow.__tablename__, "id")).label("number")
        numbers = select(drawn).select_from(func.generate_series(known, above)).subquery()
        return int(session.scalars(select(func.max(numbers.c.number))).one())
    return above + 1


def _numbered(job: int) -> int:
    """A number that the registry can compare with those of jobs, whatever a caller has named."""
    return min(max(job, 0), _MOST_JOBS)


def _counted_with(dataset: str, snapshot: str) -> ColumnElement[bool]:
    return (LookRow.snapshot == snapshot) | (LookRow.dataset == dataset)


def _snapshot(row: SnapshotRow, dataset: DatasetRow | None = None) -> Snapshot:
    """As it was taken; with a `dataset`, whose newest it is, as that is registered now (of equal rows)."""
    whose = f"of the dataset {row.dataset}"
    spec = object_in(row.spec if dataset is None else dataset.spec, f"the specification {whose}")
    facts = object_in(row.facts, f"what is known of the snapshot {row.id} {whose}")
    return Snapshot(row.dataset, row.id, spec, facts, utc(row.taken_at))


def _look(row: LookRow) -> Look:
    return Look(
        row.dataset,
        row.snapshot,
        row.members,
        row.rival,
        row.job,
        row.rows,
        row.right,
        row.best_single,
        row.number,
        row.id,
        row.function,
        row.version,
        utc(row.looked_at),
        row.metric,
        row.score,
    )


def _job(row: JobRow) -> Job:
    ended = None if row.ended_at is None else utc(row.ended_at)
    spec, damage = dict[str, Any](), ""
    try:
        spec = object_in(row.spec, f"the specification of job {row.id}")
    except DamagedRecord as error:
        damage = error.message
    return Job(
        row.id,
        row.dataset,
        row.snapshot,
        spec,
        row.state,
        row.reason,
        utc(row.created_at),
        ended,
        learned_in(row.found, f"what job {row.id} has found"),
        row.owner,
        damage,
    )
