"""Who owns what, in the registry. Each verb is one transaction. Blocking. Knows rows, not who sees what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Engine, Select, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.store.damaged import DamagedRecord, list_in, tell
from server.store.database import reading
from server.store.retries import once, retried
from server.store.tables import DatasetRow, DeploymentRow, ModelVersionRow, ThingRow

__all__ = ["StoredThing", "ThingRepository"]


class StoredThing(NamedTuple):
    """Something that has an owner, as it is kept. shared_with: names of tokens, in order."""

    kind: str
    name: str
    owner: str
    visibility: str
    shared_with: tuple[str, ...] = ()


class ThingRepository:
    """The things of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reading = reading(engine)

    @retried
    def all(self) -> list[StoredThing]:
        """Every one. Read again and again: columns alone, which are a tenth of the work of objects."""
        columns = (ThingRow.kind, ThingRow.name, ThingRow.owner, ThingRow.visibility, ThingRow.shared_with)
        with Session(self._reading) as session:
            rows = session.execute(select(*columns).order_by(ThingRow.kind, ThingRow.name))
            return [StoredThing(*row[:4], _shared(*row)) for row in rows]

    @once
    def add(self, thing: StoredThing) -> StoredThing:
        """Keep a new one; the one that is kept: another's, where that came first."""
        key = (thing.kind, thing.name)
        with Session(self._engine) as session:
            known = session.get(ThingRow, key)
            if known is None:
                session.add(_row(thing))
                try:
                    session.commit()
                except IntegrityError:  # another server's did meanwhile
                    session.rollback()
                    known = session.get_one(ThingRow, key)
            return thing if known is None else _thing(known)

    @retried
    def put(self, thing: StoredThing) -> None:
        """Keep it as it is now."""
        with Session(self._engine) as session:
            session.merge(_row(thing))
            session.commit()

    @retried
    def release(self, kind: str, name: str) -> bool:
        """Forget whose it was, unless there is such a thing; whether that is so."""
        with Session(self._engine) as session:
            known = session.get(ThingRow, (kind, name), with_for_update=True)
            if known is None or session.execute(_MADE[kind](name)).first() is not None:
                return known is None
            session.delete(known)
            session.commit()
            return True


_MADE: Mapping[str, Callable[[str], Select[Any]]] = {
    "function": lambda name: select(DeploymentRow.function).where(
        DeploymentRow.function == name, DeploymentRow.retired_at.is_(None)
    ),
    "model": lambda name: select(ModelVersionRow.name).where(ModelVersionRow.name == name),
    "dataset": lambda name: select(DatasetRow.name).where(DatasetRow.name == name),
}


def _row(thing: StoredThing) -> ThingRow:
    return ThingRow(
        kind=thing.kind,
        name=thing.name,
        owner=thing.owner,
        visibility=thing.visibility,
        shared_with=list(thing.shared_with),
    )


def _thing(row: ThingRow) -> StoredThing:
    told = (row.kind, row.name, row.owner, row.visibility, row.shared_with)
    return StoredThing(*told[:4], _shared(*told))


def _shared(kind: str, name: str, owner: str, visibility: str, shared_with: object) -> tuple[str, ...]:
    """With nobody, where that is damaged."""
    try:
        return tuple(map(str, list_in(shared_with, f"with whom the {kind} {name} is shared")))
    except DamagedRecord as error:
        tell(error)
        return ()
