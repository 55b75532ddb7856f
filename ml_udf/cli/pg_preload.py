"""Who loads the batching module when a session begins: a module that is gone then keeps everybody out.

Reads a running cluster's settings; changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ml_udf.cli.pg_module import MODULE
from ml_udf.quoting import quoted

__all__ = ["RESCUE", "Preload", "Unasked", "preloads"]

RESCUE = "PGOPTIONS='-c session_preload_libraries=' psql -U postgres"  # a superuser's way in all the same
_CONNECT_S = 5

_SETTINGS = """
    SELECT d.datname, r.rolname, pg_catalog.split_part(c.text, '=', 1)
    FROM pg_catalog.pg_db_role_setting s CROSS JOIN pg_catalog.unnest(s.setconfig) AS c(text)
    LEFT JOIN pg_catalog.pg_database d ON d.oid = s.setdatabase
    LEFT JOIN pg_catalog.pg_roles r ON r.oid = s.setrole
    WHERE c.text ~ ('^(session|local)_preload_libraries=.*' || %(module)s)
    UNION ALL
    SELECT NULL, NULL, name FROM pg_catalog.pg_settings
    WHERE name IN ('session_preload_libraries', 'local_preload_libraries', 'shared_preload_libraries')
      AND source IN ('configuration file', 'command line') AND setting ~ %(module)s
    ORDER BY 1, 2, 3"""


class Unasked(Exception):
    """The cluster cannot be asked; the text says why."""


@dataclass(frozen=True, slots=True)
class Preload:
    """A setting that names the module; database and role are None where it is for all."""

    database: str | None
    role: str | None
    setting: str

    @property
    def where(self) -> str:
        """`database food`, `role ann in database food`, `the whole cluster`."""
        role = f"role {self.role}" if self.role else ""
        database = f"database {self.database}" if self.database else ""
        return " in ".join(filter(None, (role, database))) or "the whole cluster"

    @property
    def mend(self) -> str:
        """The statement that takes it back."""
        if self.role:
            within = f" IN DATABASE {quoted(self.database)}" if self.database else ""
            return f"ALTER ROLE {quoted(self.role)}{within} RESET {self.setting}"
        if self.database:
            return f"ALTER DATABASE {quoted(self.database)} RESET {self.setting}"
        return f"take {MODULE} out of {self.setting} in postgresql.conf, or ALTER SYSTEM RESET {self.setting}"


def preloads(dsn: str) -> list[Preload]:
    """The settings of a cluster that load the module. Raises `Unasked`."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise Unasked("psycopg is missing") from None
    try:
        with psycopg.connect(dsn, connect_timeout=_CONNECT_S) as connection:
            found = connection.execute(_SETTINGS, {"module": MODULE}).fetchall()
    except psycopg.Error as exc:
        raise Unasked(str(exc).strip().splitlines()[0]) from None
    return [Preload(*row) for row in found]
