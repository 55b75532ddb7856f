"""The registry: which model versions there are, which deployments of which functions are served.

Verbs of the domain, each one transaction, rolled back unless it comes to its commit; rows of the ORM never
leave. Blocking: the asyncio side calls it in a thread. Knows tables, not files and not workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Delete, Engine, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.catalog.functions import ModelVersion
from server.catalog.pipeline_spec import stages_named
from server.errors import BadOption, Overloaded, UnknownFunction
from server.store.damaged import DamagedRecord, learned_in, object_in, readable
from server.store.database import reading, utc
from server.store.manifest import model_from_manifest
from server.store.retries import once, retried
from server.store.tables import (
    DeploymentRow,
    FeedbackContextRow,
    FunctionRow,
    ModelVersionRow,
    RetrainingRow,
    ThingRow,
)

__all__ = ["SERVED_DEPLOYMENTS", "Deployment", "Repository"]

log = logging.getLogger("ml_udf.server.registry")

# A statement that began with the deployment before the current one finishes with it.
SERVED_DEPLOYMENTS = 2


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment as it was asked for; `spec` is JSON and names its model versions.

    fit: JSON as well: what was fitted of them; None where nothing was. feedback, refit: JSON: what labelled
    rows have taught it, and what was fitted anew of them; None for nothing.
    """

    function: str
    version: int
    spec: dict[str, Any]
    deployed_at: datetime
    fit: dict[str, Any] | None = None
    feedback: dict[str, Any] | None = None
    refit: dict[str, Any] | None = None


class Repository:
    """The registry on one database. `home` is where the models' relative directories begin."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self._engine = engine
        self._reading = reading(engine)
        self._home = home

    # ── models ────────────────────────────────────────────────────────────────────────────────────

    @retried
    def add_model(self, manifest: Mapping[str, Any], directory: Path) -> ModelVersion:
        """Register the version stored in `directory`; again is fine.

        Raises `BadOption` if it is registered with other weights, or a function has that name.
        """
        model = model_from_manifest(manifest, directory)
        with Session(self._engine) as session:
            known = session.get(ModelVersionRow, (model.name, model.version))
            if known is not None:
                if not isinstance(known.manifest, dict) and known.sha256 == model.sha256:
                    # It is damaged there, and its own files say it still.
                    known.manifest = dict(manifest)
                    session.commit()
                    log.warning("manifest mended from the model's files model=%s", model.key)
                if _checksums(self._model(known)) != _checksums(model):
                    raise BadOption(
                        f"model {model.name} version {model.version} is registered with other weights; "
                        "versions never change: register a new one"
                    )
                return self._model(known)
            if _is_served(session, model.name):
                raise BadOption(
                    f"{model.name!r} is the name of a function; functions and models share their names"
                )
            session.add(
                ModelVersionRow(
                    name=model.name,
                    version=model.version,
                    task=model.task,
                    accuracy=model.accuracy,
                    sha256=model.sha256,
                    directory=self._stored(directory),
                    manifest=dict(manifest),
                    registered_at=datetime.now(UTC),
                )
            )
            session.commit()
        return model

    @retried
    def remove_model(self, model: ModelVersion) -> None:
        """Forget a version. For variants, which can be made again; a model's own versions stay."""
        with Session(self._engine) as session:
            session.execute(
                delete(ModelVersionRow).where(
                    ModelVersionRow.name == model.name, ModelVersionRow.version == model.version
                )
            )
            session.commit()

    @retried
    def state(self) -> tuple[object, ...]:
        """Another one after each model that comes or goes, each deployment and each deletion, by whichever
        server.
        """
        with Session(self._reading) as session:
            models = select(func.count(), func.max(ModelVersionRow.registered_at)).select_from(
                ModelVersionRow
            )
            deployed = select(func.count(), func.count(DeploymentRow.retired_at)).select_from(DeploymentRow)
            return (*session.execute(models).one(), *session.execute(deployed).one())

    @retried
    def models(self) -> list[ModelVersion]:
        """All model versions that this release knows how to serve, by name and version.

        Others, of a newer server of the registry, or damaged, keep none of these from being served.
        """
        found = []
        with Session(self._reading) as session:
            rows = session.scalars(
                select(ModelVersionRow).order_by(ModelVersionRow.name, ModelVersionRow.version)
            )
            for row in rows:
                try:
                    found.append(self._model(row))
                except (BadOption, DamagedRecord) as error:
                    log.error("model not served model=%s/%d reason=%r", row.name, row.version, error.message)
        return found

    @retried
    def next_model_version(self, name: str) -> int:
        """The number after the model's newest version; 1 for a new model."""
        with Session(self._reading) as session:
            newest = select(func.max(ModelVersionRow.version)).where(ModelVersionRow.name == name)
            return (session.scalar(newest) or 0) + 1

    @retried
    def measured(self, model: ModelVersion, resident_bytes: int, load_s: float) -> None:
        """Keep what loading a version showed."""
        with Session(self._engine) as session:
            session.execute(
                update(ModelVersionRow)
                .where(ModelVersionRow.name == model.name, ModelVersionRow.version == model.version)
                .values(resident_bytes=resident_bytes, load_s=load_s)
            )
            session.commit()

    @retried
    def touched(self, last_used: Mapping[tuple[str, int], tuple[float, float]]) -> None:
        """Keep when versions were last used, and how much: (name, version) → Unix time, rows/s of late."""
        with Session(self._engine) as session:
            for (name, version), (at, rows_per_s) in last_used.items():
                session.execute(
                    update(ModelVersionRow)
                    .where(ModelVersionRow.name == name, ModelVersionRow.version == version)
                    .values(last_used_at=datetime.fromtimestamp(at, UTC), rows_per_s=rows_per_s)
                )
            session.commit()

    # ── functions ───────────────────────────────────────────────────────────────────────────────────

    @once
    def deploy(
        self,
        function: str,
        spec: Mapping[str, Any],
        prepare: Callable[[int], None] = lambda version: None,
        fit: Mapping[str, Any] | None = None,
        instead_of: int | None = None,
    ) -> Deployment:
        """Make `spec` the function's newest deployment; the older ones but the last are retired.

        Numbers never come back, not even after a deletion: a client may still hold an old one.
        `prepare(version)` is called before it counts; if it raises, nothing has happened. fit: what was
        fitted of the members. instead_of: the version that answers now, 0 for none; None = whichever does.
        Raises `BadOption` if a model has that name, `Overloaded` if another version answers,
        `UnknownFunction` if a stage of a pipeline has been deleted.
        """
        try:
            return self._deploy(function, spec, prepare, fit, instead_of)
        except IntegrityError:  # another server made the function's row first; now it is there
            return self._deploy(function, spec, prepare, fit, instead_of)

    def _deploy(
        self,
        function: str,
        spec: Mapping[str, Any],
        prepare: Callable[[int], None],
        fit: Mapping[str, Any] | None,
        instead_of: int | None,
    ) -> Deployment:
        with Session(self._engine) as session:
            if _is_model(session, function):
                raise BadOption(
                    f"{function!r} is the name of a model; functions and models share their names"
                )
            row = session.get(FunctionRow, function, with_for_update=True)
            _check_answers(session, function, instead_of)
            _check_stages(session, function, spec)
            now = _now_after(session, function)
            if row is None:
                row = FunctionRow(name=function, next_version=1, created_at=now)
                session.add(row)
            version = row.next_version
            row.next_version = version + 1
            session.flush()
            kept = None if fit is None else dict(fit)
            session.add(
                DeploymentRow(function=function, version=version, spec=dict(spec), fit=kept, deployed_at=now)
            )
            session.flush()
            served = session.scalars(
                select(DeploymentRow)
                .where(DeploymentRow.function == function, DeploymentRow.retired_at.is_(None))
                .order_by(DeploymentRow.version.desc())
            ).all()
            if len(served) == 1:  # there was none: what had its name before is no past of it
                row.created_at = now
            for old in served[SERVED_DEPLOYMENTS:]:
                old.retired_at = now
                session.execute(_contexts_of(function).where(FeedbackContextRow.version == old.version))
            session.flush()
            prepare(version)
            session.commit()
        return Deployment(function, version, dict(spec), now, kept)

    @retried
    def delete_function(self, function: str) -> bool:
        """Retire every deployment of a function, forget whose it was and when it is trained again; whether
        there was one.

        Its labels go some at a time (`FeedbackRepository.forget_old`): there may be millions. Raises
        `BadOption` where it is a stage of a pipeline.
        """
        with Session(self._engine) as session:
            # No deployment comes meanwhile, neither of it nor of a pipeline that asks it.
            session.get(FunctionRow, function, with_for_update=True)
            if users := _pipelines_of(session, function):
                names = ", ".join(users)
                raise BadOption(f"function {function} is a stage of {names}; delete or deploy that first")
            served = session.scalars(
                select(DeploymentRow).where(
                    DeploymentRow.function == function, DeploymentRow.retired_at.is_(None)
                )
            ).all()
            for row in served:
                row.retired_at = datetime.now(UTC)
            session.execute(_contexts_of(function))
            session.execute(delete(ThingRow).where(ThingRow.kind == "function", ThingRow.name == function))
            session.execute(delete(RetrainingRow).where(RetrainingRow.function == function))
            session.commit()
        return bool(served)

    @retried
    def served(self) -> list[Deployment]:
        """The deployments that are served, by function and version."""
        with Session(self._reading) as session:
            rows = session.scalars(
                select(DeploymentRow)
                .where(DeploymentRow.retired_at.is_(None))
                .order_by(DeploymentRow.function, DeploymentRow.version)
            )
            return readable(rows, _deployment)

    @retried
    def deployment(self, function: str, version: int) -> Deployment | None:
        """A deployment of a function, served or not; None where there never was one of that number."""
        with Session(self._reading) as session:
            row = session.get(DeploymentRow, (function, version))
            return None if row is None else _deployment(row)

    @retried
    def deployments(self, function: str, limit: int) -> list[Deployment]:
        """The last deployments of a function, served or not, the newest first."""
        with Session(self._reading) as session:
            rows = session.scalars(
                select(DeploymentRow)
                .join(FunctionRow, FunctionRow.name == DeploymentRow.function)
                .where(
                    DeploymentRow.function == function, DeploymentRow.deployed_at >= FunctionRow.created_at
                )
                .order_by(DeploymentRow.version.desc())
                .limit(limit)
            )
            return readable(rows, _deployment)

    # ── rows to nouns ─────────────────────────────────────────────────────────────────────────────

    def _model(self, row: ModelVersionRow) -> ModelVersion:
        manifest = object_in(row.manifest, f"the manifest of the model {row.name} version {row.version}")
        model = model_from_manifest(manifest, self._home / row.directory)
        last_used = 0.0 if row.last_used_at is None else utc(row.last_used_at).timestamp()
        return replace(
            model,
            resident_bytes=row.resident_bytes or 0,
            last_used_at=last_used,
            rows_per_s=row.rows_per_s or 0.0,
        )

    def _stored(self, directory: Path) -> str:
        # Relative, so that a home folder can be moved or mounted elsewhere.
        return str(directory.relative_to(self._home) if directory.is_relative_to(self._home) else directory)


def _check_answers(session: Session, function: str, expected: int | None) -> None:
    """Raises `Overloaded` where another version than `expected` answers."""
    if expected is None:
        return
    served = select(func.max(DeploymentRow.version)).where(
        DeploymentRow.function == function, DeploymentRow.retired_at.is_(None)
    )
    version = session.scalar(served) or 0
    if version != expected:
        found = f"version {version} answers for {function} now" if version else f"{function} was deleted"
        raise Overloaded(
            f"{found}, and did not when this was begun: nothing was changed; look, and ask again"
        )


def _check_stages(session: Session, function: str, spec: Mapping[str, Any]) -> None:
    """Raises `UnknownFunction` where a function that a pipeline asks has been deleted, by another server;
    until the transaction ends none is.
    """
    for stage in sorted(stages_named(spec)):
        row = session.get(FunctionRow, stage, with_for_update={"read": True})
        if row is not None and not _is_served(session, stage) and not _is_model(session, stage):
            raise UnknownFunction(f"function {function}: its stage {stage} has just been deleted")


def _is_served(session: Session, function: str) -> bool:
    served = select(DeploymentRow.version).where(
        DeploymentRow.function == function, DeploymentRow.retired_at.is_(None)
    )
    return session.scalar(served.limit(1)) is not None


def _is_model(session: Session, name: str) -> bool:
    known = select(ModelVersionRow.name).where(ModelVersionRow.name == name)
    return session.scalar(known.limit(1)) is not None


def _pipelines_of(session: Session, function: str) -> list[str]:
    """The pipelines that ask a function, as they are deployed now, by name."""
    served = session.scalars(
        select(DeploymentRow)
        .where(DeploymentRow.retired_at.is_(None))
        .order_by(DeploymentRow.function, DeploymentRow.version)
    )
    newest: dict[str, object] = {each.function: each.spec for each in served}  # one may be damaged
    return [
        name for name, spec in newest.items() if isinstance(spec, dict) and function in stages_named(spec)
    ]


def _now_after(session: Session, function: str) -> datetime:
    """The time, but after the function's deployments so far, whose order it tells: a clock may have been set
    back, and another server's may be ahead.
    """
    now = datetime.now(UTC)
    last = session.scalar(
        select(func.max(DeploymentRow.deployed_at)).where(DeploymentRow.function == function)
    )
    return now if last is None else max(now, utc(last) + timedelta(microseconds=1))


def _contexts_of(function: str) -> Delete:
    return delete(FeedbackContextRow).where(FeedbackContextRow.function == function)


def _deployment(row: DeploymentRow) -> Deployment:
    whose = f"version {row.version} of the function {row.function}"
    return Deployment(
        row.function,
        row.version,
        object_in(row.spec, f"the specification of {whose}"),
        utc(row.deployed_at),
        None if row.fit is None else object_in(row.fit, f"what was fitted of {whose}"),
        learned_in(row.feedback, f"what labels taught {whose}"),
        learned_in(row.refit, f"what was fitted anew of {whose}"),
    )


def _checksums(model: ModelVersion) -> list[str]:
    """Of its weights, and of its other files in order."""
    return [model.sha256, *(file.sha256 for file in model.files[1:])]
