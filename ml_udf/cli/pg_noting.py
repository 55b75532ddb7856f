"""Which tables' triggers call the batching module: writes to them fail where its file is gone.

Reads each database of a running cluster; changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ml_udf.cli.pg_module import MODULE
from ml_udf.cli.pg_preload import Unasked

__all__ = ["Noting", "noting"]

_CONNECT_S = 5
_DATABASES = "SELECT datname FROM pg_catalog.pg_database WHERE datallowconn ORDER BY datname"
_TABLES = """
    SELECT DISTINCT t.tgrelid::pg_catalog.regclass::text
    FROM pg_catalog.pg_trigger t
    JOIN pg_catalog.pg_depend d ON d.objid = t.oid
    JOIN pg_catalog.pg_proc p ON p.oid = d.refobjid
    WHERE d.classid = 'pg_catalog.pg_trigger'::pg_catalog.regclass
      AND d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.probin ~ %(module)s
    ORDER BY 1"""


@dataclass(frozen=True, slots=True)
class Noting:
    """The tables of one database, as its search_path names them."""

    database: str
    tables: tuple[str, ...]

    @property
    def mend(self) -> str:
        """The statement that takes their watches away; the answers stay."""
        return "DROP EXTENSION ml_udf CASCADE, or SELECT ml_udf.drop_watch(id) FROM ml_udf.watches"


def noting(dsn: str) -> list[Noting]:
    """The databases of a cluster in which there are such tables. Raises `Unasked`."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise Unasked("psycopg is missing") from None
    found: list[Noting] = []
    database = None
    try:
        with psycopg.connect(dsn, connect_timeout=_CONNECT_S) as connection:
            databases = [name for (name,) in connection.execute(_DATABASES).fetchall()]
        for database in databases:
            with psycopg.connect(dsn, dbname=database, connect_timeout=_CONNECT_S) as connection:
                rows = connection.execute(_TABLES, {"module": MODULE}).fetchall()
            if rows:
                found.append(Noting(database, tuple(table for (table,) in rows)))
    except psycopg.Error as exc:
        where = f"database {database}: " if database is not None else ""
        raise Unasked(where + str(exc).strip().splitlines()[0]) from None
    return found
