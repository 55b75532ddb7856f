"""What must be there before anything else: the home folder and the registry, opened and up to date.

Blocking, and done before the event loop runs, so that a wrong folder or database is reported in one sentence.
"""

from __future__ import annotations

import grp
import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from alembic.util import CommandError
from sqlalchemy import Engine, inspect
from sqlalchemy.exc import SQLAlchemyError

from server.disk_space import no_space
from server.settings import Settings
from server.store.artifacts import Artifacts
from server.store.database import migrate, open_database
from server.store.readers import Readers
from server.store.repository import Repository
from server.training.checkpoints.archive import Archive, ArchiveUnknown

__all__ = ["StartError", "Storage", "open_storage"]


log = logging.getLogger("ml_udf.server")


class StartError(Exception):
    """The server cannot start; the text says why and what to look at."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The files and the registry of one home folder; the archive of its checkpoints, if there is one."""

    artifacts: Artifacts
    engine: Engine
    repository: Repository
    archive: Archive | None


def open_storage(settings: Settings) -> Storage:
    """Open all; the registry gets its newest schema. Raises `StartError`."""
    try:
        archive = Archive(settings.parameters_url) if settings.parameters_url else None
    except ArchiveUnknown as exc:
        raise StartError(f"--parameters-url: {exc}") from exc
    try:
        readers = Readers(grp.getgrnam(settings.home_group).gr_gid if settings.home_group else None)
    except KeyError as exc:
        raise StartError(f"--home-group: there is no group {settings.home_group!r} on this host") from exc
    try:
        artifacts = Artifacts(settings.home, settings.max_model_bytes, readers)
    except OSError as exc:
        raise StartError(f"the home folder {settings.home} cannot be used: {exc.strerror}") from exc
    try:
        engine = open_database(settings.registry_url())
        is_new = not inspect(engine).get_table_names()
        migrate(engine)
    except (SQLAlchemyError, CommandError, OSError, ImportError) as exc:  # ImportError: of a driver
        # The driver's own words: SQLAlchemy's add the statement, and the URL may hold a password.
        cause = no_space(exc) or getattr(exc, "orig", None) or exc
        where = "--database-url" if settings.database_url else f"{settings.home / 'registry.db'}"
        raise StartError(f"the registry ({where}) cannot be opened: {cause}{_advice(cause)}") from exc
    if is_new and (left := _left_in(settings.home)):
        log.error(
            "the registry is new, and the home holds what another knew: was that lost? Stop this server and "
            "restore it from a copy; what was left stays meanwhile home=%s left=%s",
            settings.home,
            ", ".join(left),
        )
    return Storage(artifacts, engine, Repository(engine, settings.home), archive)


def _advice(cause: object) -> str:
    """What to do about a registry that is there, and is none; "" where the cause says it."""
    if getattr(cause, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ""
    return (
        "; it is damaged: move it away with its -wal and -shm, and put a copy in its place; without one, the "
        "server begins a new registry that knows the models of the home, and nothing else"
    )


def _left_in(home: Path) -> list[str]:
    """What in a home only its registry can make sense of."""
    return [name for name in ("functions", "training/studies") if any((home / name).glob("[!.]*"))]
