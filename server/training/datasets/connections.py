"""Databases that the server may read datasets from, by the names that the operator gave them.

A query runs in one READ ONLY, REPEATABLE READ transaction behind a server-side cursor, so that memory does
not depend on the row count. DSNs are secrets: no message, log or attribute that leaves this module holds one;
nor does any hold a value of the database's, which an error's text may.

Whoever may use a connection reads by its role, past the rights of their own. So the operator says who may
(`roles`), and what a role must not be able to do is looked up before a query runs: neither what the query
looks like nor READ ONLY keeps a superuser from files, programs and other databases. Blocking.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from server.errors import BadOption
from server.setting_files import read_setting
from server.training.datasets.spec import DatasetSpec

__all__ = ["SourceConnections"]

_BATCH_ROWS = 5_000
_CONNECT_S = 10
_READ_TYPES: Mapping[str, pa.DataType] = {
    "int2": pa.int64(),
    "int4": pa.int64(),
    "int8": pa.int64(),
    "float4": pa.float64(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}

# What a column of a type is read as, whatever the database's time zone and DateStyle are: days and
# microseconds since 1970, infinity the first or the last; of numbers of single precision all that they say,
# as functions are given them. The extension, which sends rows itself, does the same.
_DAYS = """CASE WHEN {0} = 'infinity' THEN 2147483647 WHEN {0} = '-infinity' THEN -2147483647
    ELSE {0} - '1970-01-01'::pg_catalog.date END::pg_catalog.int8"""
_MICROSECONDS = """CASE WHEN {0} >= '294247-01-01' THEN 9223372036854775807
    WHEN {0} = '-infinity' THEN -9223372036854775807
    ELSE (extract(epoch from {0}) * 1000000)::pg_catalog.int8 END"""
_READ_AS: Mapping[str, str] = {
    "date": _DAYS,
    "timestamp": _MICROSECONDS,
    "timestamptz": _MICROSECONDS,
    "float4": "{0}::pg_catalog.float8",
}

_HOW = "a line name = 'postgresql://…', or name = {dsn = 'postgresql://…', roles = ['analysts']}"

# What a role that only reads tables cannot do, and its query could, whatever it looks like.
_POWERS = """
    SELECT pg_catalog.concat_ws(', ',
        CASE WHEN r.rolsuper THEN 'is a superuser' END,
        CASE WHEN r.rolbypassrls AND NOT r.rolsuper THEN 'bypasses row security' END,
        CASE WHEN r.rolcreaterole AND NOT r.rolsuper THEN 'may create roles' END,
        CASE WHEN r.rolcreatedb AND NOT r.rolsuper THEN 'may create databases' END,
        CASE WHEN r.rolreplication AND NOT r.rolsuper THEN 'may replicate' END,
        (SELECT 'is a member of ' || pg_catalog.string_agg(g.rolname, ' and ' ORDER BY g.rolname)
         FROM pg_catalog.pg_roles g
         WHERE NOT r.rolsuper AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')
           AND (g.rolsuper OR g.rolname IN (
               'pg_read_server_files', 'pg_write_server_files', 'pg_write_all_data',
               'pg_execute_server_program', 'pg_signal_backend', 'pg_checkpoint', 'pg_maintain'))))
    FROM pg_catalog.pg_roles r WHERE r.rolname = session_user"""

_CAUSES: Mapping[str, str] = {  # what libpq and PostgreSQL say → what may be repeated
    "password authentication failed": "the password is refused",
    "no password supplied": "it has no password, and the database asks for one",
    "pg_hba.conf": "the database lets nobody in from this host as this role",
    "Connection refused": "nothing answers at its address",
    "timeout expired": f"nothing answers at its address within {_CONNECT_S} s",
    "No such file or directory": "nothing answers at its address",
    "resolve": "its host is not known",
    "translate host name": "its host is not known",
    'database "': "there is no such database",
    'role "': "there is no such role, or it may not log in",
    'missing "="': "it is no connection string",
}


@dataclass(frozen=True, slots=True)
class _Source:
    """One connection. roles: of databases, whose sessions may use it; "*" = any."""

    dsn: str = field(repr=False)
    roles: tuple[str, ...] = ()

    def is_for(self, roles: Sequence[str] | None) -> bool:
        """Whether these roles may use it; None = the holder of the token in person, who may."""
        return roles is None or "*" in self.roles or not set(roles).isdisjoint(self.roles)


class SourceConnections:
    """`file`: TOML, a line each as in `_HOW`, read anew each time; None = there are none."""

    def __init__(self, file: Path | None, statement_timeout_s: float) -> None:
        self._file = file
        self._statement_timeout_ms = int(statement_timeout_s * 1000)

    @contextlib.contextmanager
    def batches(
        self,
        spec: DatasetSpec,
        roles: Sequence[str] | None,
        on_open: Callable[[Callable[[], None]], None] = lambda end: None,
        reaches: Callable[[str], bool] = lambda name: True,
    ) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows of a dataset's query in the order of its key. Raises `BadOption` with the cause.

        roles: of a database, in whose name its session asks; None = the holder of the token in person.
        on_open: is given what ends the query under way, in whatever thread it is called. reaches: whether the
        token may use a connection of that name; what it may not is not there.
        """
        source = self._source(spec.source, roles, reaches)
        connection = self._opened(spec.source, source)
        on_open(connection.cancel)
        try:
            powers = _powers(connection)
            if powers:
                raise BadOption(
                    f"the connection {spec.source!r} is not used: its role {powers}; "
                    "ask the operator for one that may SELECT and no more (docs/training.md)"
                )
            connection.read_only = True
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.execute(
                sql.SQL("SET LOCAL statement_timeout = {}").format(sql.Literal(self._statement_timeout_ms))
            )
            described = connection.execute(_described(spec)).description or []
            with connection.cursor("ml_udf_dataset") as cursor:
                cursor.execute(_ordered(spec, described))
                yield _record_batches(cursor, described, spec.key)
        except psycopg.Error as exc:
            raise BadOption(f"dataset {spec.name}: the database refused the query: {_told(exc)}") from None
        finally:
            connection.close()

    def checked(self, reaches: Callable[[str], bool] = lambda name: True) -> list[dict[str, Any]]:
        """Each connection that is reached, who may use it, and what is wrong with it ('' = nothing)."""
        found = []
        for name, source in sorted(self._sources(reaches).items()):
            try:
                with contextlib.closing(self._opened(name, source)) as connection:
                    powers = _powers(connection)
                    problem = f"its role {powers}" if powers else ""
            except BadOption as error:
                problem = error.message
            except psycopg.Error as error:
                problem = _told(error)
            found.append({"name": name, "roles": list(source.roles), "problem": problem})
        return found

    def _sources(self, reaches: Callable[[str], bool]) -> dict[str, _Source]:
        known = {} if self._file is None else _read(self._file)
        return {name: source for name, source in known.items() if reaches(name)}

    def _source(self, name: str, roles: Sequence[str] | None, reaches: Callable[[str], bool]) -> _Source:
        sources = self._sources(reaches)
        mine = sorted(other for other, source in sources.items() if source.is_for(roles))
        if name in mine:
            return sources[name]
        known = ", ".join(mine) or "none; the server's connections_file names them, and for whom"
        reason = f"there is no connection {name!r}"
        if name in sources:
            reason = f"the connection {name!r} is not for {roles[0] if roles else 'nobody'!r}"
        raise BadOption(f"{reason}; there are: {known}. Without a source your own rows are sent")

    def _opened(self, name: str, source: _Source) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(source.dsn, connect_timeout=_CONNECT_S, application_name="ml_udf datasets")
        except psycopg.Error as exc:
            raise BadOption(
                f"the connection {name!r} cannot be opened: {_cause(exc)}; "
                "ask the operator to check it in the server's connections_file"
            ) from None


def _described(spec: DatasetSpec) -> sql.Composed:
    return sql.SQL("SELECT * FROM (\n{}\n) AS dataset LIMIT 0").format(_query(spec))


def _ordered(spec: DatasetSpec, described: Sequence[psycopg.Column]) -> sql.Composed:
    """described: the query's columns, which are told apart by their places: two may have one name."""
    names = [column.name for column in described]
    spec.columns(names)  # key and target are there, once
    places = [f"c{place}" for place in range(len(names))]
    own = [sql.Identifier("dataset", place) for place in places]
    read = [
        sql.SQL(_read_as(column, spec)).format(name) + sql.SQL(" AS {}").format(sql.Identifier(column.name))
        for column, name in zip(described, own, strict=True)
    ]
    # The target too: equal keys must not come in another order the next time.
    return sql.SQL("SELECT {} FROM (\n{}\n) AS dataset ({}) ORDER BY {}, {}").format(
        sql.SQL(", ").join(read),
        _query(spec),
        sql.SQL(", ").join(map(sql.Identifier, places)),
        own[names.index(spec.key)],
        own[names.index(spec.target)],
    )


def _read_as(column: psycopg.Column, spec: DatasetSpec) -> str:
    # Of a key or a target 0.1 stays 0.1.
    kind = _type_name(column)
    is_shortest = kind == "float4" and column.name in (spec.key, spec.target)
    return "{0}" if is_shortest else _READ_AS.get(kind, "{0}")


def _query(spec: DatasetSpec) -> sql.SQL:
    return sql.SQL(spec.query.strip().rstrip(";"))  # parsed, and run read-only


def _record_batches(
    cursor: psycopg.ServerCursor[Any], described: Sequence[psycopg.Column], key: str
) -> Iterator[pa.RecordBatch]:
    """key: the column whose `numeric` stays a text, to lose no digit; a model sees such numbers as floats."""
    names = [column.name for column in described]
    kinds = [_kind(column, key) for column in described]
    while True:
        rows = cursor.fetchmany(_BATCH_ROWS)
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) if rows else [()] * len(names)
        yield pa.record_batch(
            [_column(values, kind) for values, kind in zip(columns, kinds, strict=True)], names=names
        )
        if len(rows) < _BATCH_ROWS:
            return


def _kind(column: psycopg.Column, key: str) -> pa.DataType:
    kind = _type_name(column)
    if kind == "numeric" and column.name != key:
        return pa.float64()
    return _READ_TYPES.get(kind, pa.string())


def _type_name(column: psycopg.Column) -> str:
    """Of timestamp(0) too it is timestamp; "" of types of somebody's own, and of arrays."""
    known = psycopg.adapters.types.get(column.type_code)
    return known.name if known is not None and known.oid == column.type_code else ""


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.float64():
        values = [None if value is None else float(value) for value in values]
    if kind == pa.string():
        values = [value if value is None or isinstance(value, str) else str(value) for value in values]
    return pa.array(values, kind)


def _cause(exc: psycopg.Error) -> str:
    """Why a connection failed, in our words.

    The driver's text repeats host and user, and may repeat the password that it could not parse.
    """
    told = str(exc)
    return next((cause for sign, cause in _CAUSES.items() if sign in told), type(exc).__name__)


def _powers(connection: psycopg.Connection[Any]) -> str:
    """What the connection's role may that a reader may not; '' = nothing."""
    row = connection.execute(_POWERS).fetchone()
    connection.rollback()
    return str(row[0]) if row else "is not known"


def _told(exc: psycopg.Error) -> str:
    """Why a query failed. Of what goes wrong with rows the kind alone: the text may hold their values."""
    state = exc.sqlstate or ""
    if state.startswith("42") or state in ("57014", "25006", ""):  # names and rights; too slow; READ ONLY
        return exc.diag.message_primary or type(exc).__name__
    return f"{type(exc).__name__} ({state})"


def _read(file: Path) -> dict[str, _Source]:
    try:
        text = read_setting(file)
        parsed = tomllib.loads(text)
    except OSError as exc:
        raise BadOption(f"the connections file {file} cannot be read: {exc.strerror}") from None
    except (ValueError, tomllib.TOMLDecodeError):
        raise BadOption(f"the connections file {file} is not TOML of lines such as {_HOW}") from None
    return {name: _parsed(file, name, value) for name, value in parsed.items()}


def _parsed(file: Path, name: str, value: object) -> _Source:
    match value:
        case str():
            return _Source(value)
        case {"dsn": str(dsn), **rest} if not rest.keys() - {"roles"}:
            roles = rest.get("roles", [])
            if isinstance(roles, list) and all(isinstance(role, str) for role in roles):
                return _Source(dsn, tuple(roles))
    raise BadOption(f"the connections file {file}: {name!r} must be {_HOW}")
