"""The registry's tables. Knows columns; what is done with them stands in `repository.py`.

`migrations/` makes them; a test holds that both agree.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    DateTime,
    Double,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = [
    "AuditRow",
    "Base",
    "BulkControlRow",
    "DatasetRow",
    "DeploymentRow",
    "EndedSessionRow",
    "FeedbackAnswersRow",
    "FeedbackContextRow",
    "FeedbackRow",
    "FunctionRow",
    "HistoryRow",
    "JobRow",
    "LeaseRow",
    "LookRow",
    "ModelVariantRow",
    "ModelVersionRow",
    "RetrainingRow",
    "SecretRow",
    "ServerRow",
    "SnapshotRow",
    "ThingRow",
    "TokenRow",
]


class Base(DeclarativeBase):
    """Names every constraint, so that later migrations can name it too."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {dict[str, Any]: JSON, list[str]: JSON, datetime: DateTime(timezone=True)}


class ModelVersionRow(Base):
    """One version of a model: immutable, but for what was measured of it since."""

    __tablename__ = "model_versions"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    task: Mapped[str] = mapped_column(String(100))
    accuracy: Mapped[float] = mapped_column(Float)
    sha256: Mapped[str] = mapped_column(String(64))
    directory: Mapped[str] = mapped_column(Text)
    manifest: Mapped[dict[str, Any]]
    registered_at: Mapped[datetime]
    resident_bytes: Mapped[int | None] = mapped_column(BigInteger)
    load_s: Mapped[float | None] = mapped_column(Float)
    last_used_at: Mapped[datetime | None]
    rows_per_s: Mapped[float | None] = mapped_column(Float)  # of late, at its last use

    __table_args__ = (Index(None, "last_used_at"),)


class ModelVariantRow(Base):
    """What was measured of one way to run a model version, as `server.catalog.variants` says it.

    A variant is a model version of its own, unless it was refused, or is the model as it was registered.
    """

    __tablename__ = "model_variants"

    model: Mapped[str] = mapped_column(String(100), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    runtime: Mapped[str] = mapped_column(String(40))
    precision: Mapped[str] = mapped_column(String(40))
    threads: Mapped[int] = mapped_column(Integer)
    files: Mapped[dict[str, Any]]
    nbytes: Mapped[int] = mapped_column(BigInteger)
    resident_bytes: Mapped[int] = mapped_column(BigInteger)
    load_s: Mapped[float] = mapped_column(Float)
    profile: Mapped[dict[str, Any]]
    held_out: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    refused: Mapped[str] = mapped_column(Text)
    measured_at: Mapped[datetime]


class VariantOrderRow(Base):
    """A variant that somebody ordered of a server, and that is not made yet."""

    __tablename__ = "variant_orders"

    server: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(100), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    variant: Mapped[str] = mapped_column(String(40), primary_key=True)
    wishes: Mapped[dict[str, Any]]
    ordered_at: Mapped[datetime]


class FunctionRow(Base):
    """A function's name, and the number that its next deployment gets, kept even when it is deleted.

    labels: how many its inputs have been given, which numbers them
    """

    __tablename__ = "functions"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    next_version: Mapped[int] = mapped_column(Integer)
    labels: Mapped[int] = mapped_column(BigInteger, server_default="0")
    created_at: Mapped[datetime]


class DeploymentRow(Base):
    """One deployment of a function; without `retired_at` it is served.

    fit: what was fitted of its members on held-out rows, as `server.ensemble.fit` writes it; NULL for none.
    feedback: what labelled rows have taught since, as `server.ensemble.feedback` writes it; NULL for nothing.
    refit: the fit that was made anew of them, where one was and it answers. revision: counts the changes of
    these two, so that servers which share the registry see them.
    """

    __tablename__ = "deployments"

    function: Mapped[str] = mapped_column(ForeignKey("functions.name"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    spec: Mapped[dict[str, Any]]
    fit: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    feedback: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    refit: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    revision: Mapped[int] = mapped_column(Integer, server_default="0")
    deployed_at: Mapped[datetime]
    retired_at: Mapped[datetime | None]


class FeedbackRow(Base):
    """The last label that an input of a function was given. Not the input, and not who gave it.

    digest: of the input, and of the context where it was given in one, SHA-256 in hex · version: the
    deployment that has learned from it · number: counts the labels of a function, so that the oldest can be
    forgotten
    """

    __tablename__ = "feedback"
    __table_args__ = (Index("ix_feedback_function_number", "function", "number"),)

    function: Mapped[str] = mapped_column(ForeignKey("functions.name"), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    version: Mapped[int] = mapped_column(Integer)
    label: Mapped[str] = mapped_column(Text)
    number: Mapped[int] = mapped_column(BigInteger, server_default="0")
    labelled_at: Mapped[datetime]


class FeedbackAnswersRow(Base):
    """What each member answered to a labelled input; of the newest labels, for these are refitted on.

    number: of the label · probabilities: float32 [members, classes], uncalibrated
    """

    __tablename__ = "feedback_answers"

    function: Mapped[str] = mapped_column(ForeignKey("functions.name"), primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    probabilities: Mapped[bytes] = mapped_column(LargeBinary)


class FeedbackContextRow(Base):
    """What labels given in a context have taught a deployment. Not the context itself.

    digest: of the context, by the secret "feedback" · state: as `server.ensemble.contexts` writes it · turn:
    of the deployment's contexts the one that was taught last has the highest
    """

    __tablename__ = "feedback_contexts"

    function: Mapped[str] = mapped_column(String(100), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    digest: Mapped[str] = mapped_column(String(32), primary_key=True)
    state: Mapped[dict[str, Any]]
    turn: Mapped[int] = mapped_column(BigInteger)

    __table_args__ = (
        ForeignKeyConstraint(["function", "version"], ["deployments.function", "deployments.version"]),
        Index(None, "function", "version", "turn"),
    )


class SecretRow(Base):
    """A key of this registry, made with it: what servers that share it must agree on."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)


class TokenRow(Base):
    """A token by its hash; who holds its secret may do what the other columns say. Kept when it is revoked.

    scopes: a list · grants, shares: as `server.access.caller` writes them · users: patterns, a list
    """

    __tablename__ = "tokens"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    scopes: Mapped[list[str]]
    grants: Mapped[dict[str, Any]]
    shares: Mapped[dict[str, Any]]
    users: Mapped[list[str]]
    created_by: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]

    __table_args__ = (Index(None, "name"),)


class BulkControlRow(Base):
    """A bulk job that was paused, capped or cancelled, with what a list shows of it.

    caller, id: whose it is, and as its client calls it · token, claimed_user: as shown
    """

    __tablename__ = "bulk_controls"

    caller: Mapped[str] = mapped_column(String(400), primary_key=True)
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    what: Mapped[str] = mapped_column(Text)
    token: Mapped[str] = mapped_column(Text)
    claimed_user: Mapped[str] = mapped_column(Text)
    function: Mapped[str] = mapped_column(Text)
    paused: Mapped[bool] = mapped_column(Boolean)
    max_rows_per_s: Mapped[float] = mapped_column(Float)
    cancelled: Mapped[bool] = mapped_column(Boolean)
    set_at: Mapped[datetime]


class EndedSessionRow(Base):
    """A session of a browser that was logged out before its time. Its cookie's owner has no other trace here.

    number: never given twice, so that servers see that there is a new one · id: those of later sessions are
    greater · and_earlier: all of this token's that began before it are over too
    """

    __tablename__ = "ended_sessions"
    __table_args__ = ({"sqlite_autoincrement": True},)

    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    id: Mapped[str] = mapped_column(String(64))
    expires_at: Mapped[datetime]
    and_earlier: Mapped[bool] = mapped_column(Boolean)


class ThingRow(Base):
    """Whose a function, a model or a dataset is, and who sees it; what has none was made before owners were.

    owner: a token's name, "" = nobody's · visibility: private, shared, public · shared_with: tokens' names
    """

    __tablename__ = "things"

    kind: Mapped[str] = mapped_column(String(20), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    owner: Mapped[str] = mapped_column(String(100))
    visibility: Mapped[str] = mapped_column(String(20))
    shared_with: Mapped[list[str]]


class AuditRow(Base):
    """An act of somebody's, as `server.access.audit_entry` has it. The oldest go."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[datetime]
    token: Mapped[str] = mapped_column(String(200))
    address: Mapped[str] = mapped_column(String(200))
    user: Mapped[str] = mapped_column(String(200))
    database: Mapped[str] = mapped_column(String(200))
    action: Mapped[str] = mapped_column(String(200))
    what: Mapped[str] = mapped_column(String(200))
    outcome: Mapped[str] = mapped_column(String(10))
    status: Mapped[int] = mapped_column(Integer)
    count: Mapped[int] = mapped_column(BigInteger)


class DatasetRow(Base):
    """A registered query; `snapshot` is its newest."""

    __tablename__ = "datasets"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    spec: Mapped[dict[str, Any]]
    snapshot: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime]


class SnapshotRow(Base):
    """Frozen rows of a dataset, and the spec that they were taken by. Never changed."""

    __tablename__ = "snapshots"

    dataset: Mapped[str] = mapped_column(String(100), primary_key=True)
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    spec: Mapped[dict[str, Any]]
    facts: Mapped[dict[str, Any]]
    taken_at: Mapped[datetime]


class JobRow(Base):
    """One training job; its studies' state lies in their own storage. owner: the token that began it."""

    __tablename__ = "jobs"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    dataset: Mapped[str] = mapped_column(String(100))
    snapshot: Mapped[str] = mapped_column(String(64))
    spec: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    found: Mapped[dict[str, Any] | None]
    owner: Mapped[str] = mapped_column(String(100), server_default="")

    __table_args__ = (Index(None, "state"),)


class LeaseRow(Base):
    """Who does what only one server of the registry may do, until when. There is one row, "background".

    holder: a server's id; NULL = nobody · fence: grows with each holder · until_s: Unix time, by the
    database's clock
    """

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    holder: Mapped[str | None] = mapped_column(String(64))
    fence: Mapped[int] = mapped_column(BigInteger)
    until_s: Mapped[float] = mapped_column(Double)


class ServerRow(Base):
    """A process that serves by this registry. seen_s, started_s: Unix time, by the database's clock

    process: how others on its machine know whether it has ended
    """

    __tablename__ = "servers"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(300))
    version: Mapped[str] = mapped_column(String(40))
    process: Mapped[str] = mapped_column(String(200))
    started_s: Mapped[float] = mapped_column(Double)
    seen_s: Mapped[float] = mapped_column(Double)


class RetrainingRow(Base):
    """A function that is trained again, and what came of it the last time."""

    __tablename__ = "retrainings"

    function: Mapped[str] = mapped_column(String(100), primary_key=True)
    every_s: Mapped[float | None] = mapped_column(Float)
    budget: Mapped[str] = mapped_column(String(40))
    roles: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    next_at: Mapped[datetime | None]
    job: Mapped[int | None] = mapped_column(Integer)
    outcome: Mapped[str] = mapped_column(Text)
    ended_at: Mapped[datetime | None]
    owner: Mapped[str | None] = mapped_column(String(100))
    leased_until: Mapped[datetime | None]


class LookRow(Base):
    """What some models answered to a snapshot's test rows, alone or against a rival. Never changed, but for
    the deployment that came of it.
    """

    __tablename__ = "test_looks"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    dataset: Mapped[str] = mapped_column(String(100))
    snapshot: Mapped[str] = mapped_column(String(64))
    members: Mapped[str] = mapped_column(String(64))
    rival: Mapped[str] = mapped_column(String(64))
    job: Mapped[int] = mapped_column(Integer)
    number: Mapped[int] = mapped_column(Integer)
    rows: Mapped[int] = mapped_column(Integer)
    right: Mapped[bytes] = mapped_column(LargeBinary)
    best_single: Mapped[float] = mapped_column(Float)
    metric: Mapped[str] = mapped_column(String(40), server_default="accuracy")
    score: Mapped[float | None] = mapped_column(Float)
    function: Mapped[str | None] = mapped_column(String(100))
    version: Mapped[int | None] = mapped_column(Integer)
    looked_at: Mapped[datetime]

    __table_args__ = (Index(None, "snapshot", "members"), Index(None, "dataset"))


class HistoryRow(Base):
    """What one server did in one stretch of time. A ring has so many slots, which are written over.

    server: names one of those that share the registry · at_s: when the stretch began, Unix time · stretch: as
    `server.observability.readings` writes it
    """

    __tablename__ = "history"

    server: Mapped[str] = mapped_column(String(32), primary_key=True)
    ring: Mapped[str] = mapped_column(String(10), primary_key=True)
    slot: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    at_s: Mapped[int] = mapped_column(BigInteger)
    stretch: Mapped[dict[str, Any]]
