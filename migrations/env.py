"""Alembic's entry: run the migrations on the connection that the server hands over.

By hand, to write a new migration: `alembic -c migrations/alembic.ini revision --autogenerate -m "…"`.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine

from server.store.tables import Base


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


_given = context.config.attributes.get("connection")
if _given is not None:
    _run(_given)
else:
    with create_engine(context.config.get_main_option("sqlalchemy.url", "")).begin() as _own:
        _run(_own)
