"""A dataset's rows, read by this session: with the caller's rights, row security included.

Owns the query's cursor and the parts in which the rows are sent: JSON, a few megabytes each, so memory
depends neither on how many the rows are nor, much, on how wide. Knows no server.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from ml_udf.errors import BadOption
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.spi import Plpy
from ml_udf.quoting import literal, quoted

__all__ = ["DatasetRows"]

_FIRST_ROWS = 100
_MOST_ROWS = 20_000
_PAGE_ROWS = 4096
_BYTEA = 17  # the type's own oid
_PART_BYTES = 4 << 20

# Infinity is the last day or moment that can be sent, as it is where DuckDB sends its rows. PostgreSQL's own
# last moments are behind that one.
_DAYS = """CASE WHEN {0} = 'infinity' THEN 2147483647 WHEN {0} = '-infinity' THEN -2147483647
    ELSE {0} - '1970-01-01'::pg_catalog.date END::pg_catalog.int8"""
_MICROSECONDS = """CASE WHEN {0} >= '294247-01-01' THEN 9223372036854775807
    WHEN {0} = '-infinity' THEN -9223372036854775807
    ELSE (extract(epoch from {0}) * 1000000)::pg_catalog.int8 END"""

# A column's type → the type that it is sent as, and the SQL that makes it so, whatever DateStyle says.
_SENT: dict[str, tuple[str, str]] = {
    "int2": ("int64", "{}::pg_catalog.int8"),
    "int4": ("int64", "{}::pg_catalog.int8"),
    "int8": ("int64", "{}"),
    "float4": ("float64", "{}::pg_catalog.float8"),  # as functions are given it
    "float8": ("float64", "{}"),
    "numeric": ("float64", "{}::pg_catalog.text"),  # as float8 what is too large would be an error
    "bool": ("bool", "{}"),
    "date": ("date32", _DAYS),
    "timestamp": ("timestamp", _MICROSECONDS),
    "timestamptz": ("timestamptz", _MICROSECONDS),
}
# Of a key or a target 0.1 stays 0.1.
_SHORTEST = ("float64", "{}::pg_catalog.text::pg_catalog.float8")
# A moment that is a class → its text, as a dataset that it was sent to has it.
_CLASSES: dict[str, str] = {
    "timestamp": "pg_catalog.to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')",
    "timestamptz": "pg_catalog.to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US\"Z\"')",
}
_TEXT = ("string", "{}::pg_catalog.text")
_JSON_TEXT = ("string", "pg_catalog.to_jsonb({})::pg_catalog.text")

_TYPES = """
    SELECT t.oid, coalesce(b.typname, t.typname)::pg_catalog.text AS name
    FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype
    WHERE t.oid = ANY ($1)"""


class DatasetRows:
    """Reads the query of a dataset, in the order of its key. Raises `BadOption`, and PostgreSQL's errors."""

    def __init__(self, plpy: Plpy) -> None:
        self._plpy = plpy

    def parts(
        self,
        query: str,
        key: str,
        target: str,
        search_path: str,
        check_interrupts: Callable[[], None] = lambda: None,
    ) -> Generator[bytes, None, None]:
        """The rows as JSON: {"columns": [{"name", "type", "values"}, …]}, one part at least.

        search_path  by which the query finds its names; it is set while this iterates
        """
        with self._path(search_path):
            columns = self._columns(_selected(query, "*"), key, target)
            # Not every type has an order: json has a text that has one.
            order = next(
                sql if sent == "string" else f"dataset.{quoted(target)}"
                for name, sent, sql in columns
                if name == target
            )
            listed = ", ".join(f"{sql} AS {quoted(name)}" for name, _, sql in columns)
            cursor = self._plpy.cursor(
                _selected(query, listed)
                # The target too: equal keys must not come in another order the next time.
                + f" ORDER BY dataset.{quoted(key)}, {order}"
            )
            try:
                yield from self._read(cursor, columns, check_interrupts)
            finally:
                cursor.close()

    def pages(
        self,
        query: str,
        search_path: str,
        check_interrupts: Callable[[], None] = lambda: None,
        target: str | None = None,
    ) -> Generator[list[dict[str, Any]], None, None]:
        """The rows by the names of their columns, some thousand at a time; values as JSON has them, or bytes.

        search_path  as in `parts` · target  the column whose moments are the classes of `parts`
        """
        with self._path(search_path):
            selected = _selected(query, "*")
            self._check(selected)
            described = self._plpy.execute(f"{selected} LIMIT 0")
            names, oids = list(described.colnames()), list(described.coltypes())
            is_bytes = [name for name, oid in zip(names, oids, strict=True) if oid == _BYTEA]
            kinds = self._kinds(oids)
            # Of bytes, the text that to_jsonb makes is what bytea_output says.
            instead = {name: f"pg_catalog.encode(dataset.{quoted(name)}, 'hex')" for name in is_bytes}
            for name, oid in zip(names, oids, strict=True):
                column = f"dataset.{quoted(name)}"
                if name != target and kinds.get(oid) == "float4":
                    instead[name] = f"{column}::pg_catalog.float8"  # as functions are given it
                if name == target and kinds.get(oid) in _CLASSES:
                    text = _CLASSES[kinds[oid]].format(column)
                    # Of infinity to_char makes NULL.
                    instead[name] = f"coalesce({text}, {column}::pg_catalog.text)"
            whole = "pg_catalog.to_jsonb(dataset)"
            if instead:
                listed = ", ".join(f"{literal(name)}, {sql}" for name, sql in instead.items())
                whole += f" OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object({listed})"
            cursor = self._plpy.cursor(_selected(query, f"({whole})::pg_catalog.text AS row"))
            try:
                while found := list(cursor.fetch(_PAGE_ROWS)):
                    rows = [json.loads(each["row"]) for each in found]
                    for row in rows:
                        for name in is_bytes:
                            row[name] = None if row[name] is None else bytes.fromhex(row[name])
                    yield rows
                    check_interrupts()
            finally:
                cursor.close()

    @contextlib.contextmanager
    def _path(self, search_path: str) -> Iterator[None]:
        """For as long as this lasts, names are found by that search path."""
        own = self._one("SELECT pg_catalog.current_setting('search_path') AS found")
        self._set_path(search_path)
        try:
            yield
        finally:
            self._set_path(own)

    def _check(self, selected: str) -> None:
        # As a cursor it has to be one statement that returns rows; nothing of it runs yet.
        try:
            self._plpy.cursor(selected).close()
        except self._plpy.SPIError as error:
            raise _refused(error) from None

    def _read(
        self,
        cursor: Any,  # noqa: ANN401  # plpy's
        columns: Sequence[tuple[str, str, str]],
        check_interrupts: Callable[[], None],
    ) -> Iterator[bytes]:
        rows, is_first = _FIRST_ROWS, True
        while found := list(cursor.fetch(rows)):
            part = _encoded(columns, found)
            yield part
            check_interrupts()
            rows = max(1, min(_MOST_ROWS, rows * _PART_BYTES // len(part)))
            is_first = False
        if is_first:
            yield _encoded(columns, [])

    def _columns(self, selected: str, key: str, target: str) -> list[tuple[str, str, str]]:
        """(name, type that is sent, SQL that makes it) of each column of the query."""
        self._check(selected)
        described = self._plpy.execute(f"{selected} LIMIT 0")
        names, oids = list(described.colnames()), list(described.coltypes())
        for what, name in (("key", key), ("target", target)):
            if name not in names:
                raise BadOption(
                    f"the query has no column {name!r}, which {what!r} names; it has {', '.join(names)}"
                )
        kinds = self._kinds(oids)
        columns = []
        for name, oid in zip(names, oids, strict=True):
            kind = kinds.get(oid, "")
            # As a key it keeps its precision; models see such numbers, and learn them, as floats.
            is_exact = kind == "numeric" and name == key
            sent, sql = _TEXT if is_exact else _SENT.get(kind, _TEXT)
            if kind == "float4" and name in (key, target):
                sent, sql = _SHORTEST
            if name == target and kind.startswith("_"):  # an array: labels of a row
                sent, sql = _JSON_TEXT
            columns.append((name, sent, sql.format(f"dataset.{quoted(name)}")))
        return columns

    def _kinds(self, oids: Sequence[int]) -> dict[int, str]:
        """The names of types; of a domain, that of the type beneath it."""
        plan = self._plpy.prepare(_TYPES, ["oid[]"])
        return {row["oid"]: row["name"] for row in self._plpy.execute(plan, [list(oids)])}

    def _set_path(self, path: str) -> None:
        plan = self._plpy.prepare("SELECT pg_catalog.set_config('search_path', $1, true)", ["text"])
        self._plpy.execute(plan, [path])

    def _one(self, query: str) -> Any:  # noqa: ANN401  # the query's type
        return self._plpy.execute(query)[0]["found"]


def _selected(query: str, columns: str) -> str:
    return f"SELECT {columns} FROM (\n{query.strip().rstrip(';')}\n) AS dataset"


def _refused(error: Any) -> PostgresError:  # noqa: ANN401  # a plpy.SPIError
    _, detail, hint, *_ = error.spidata or (None, None, None)
    is_wrong_text = error.sqlstate == "42601"  # PostgreSQL's hint would be about what stands around the query
    return PostgresError(
        error.sqlstate or "XX000",
        f"PostgreSQL refused the query: {error}",
        detail=detail or "",
        hint="give one SELECT" if is_wrong_text else hint or "",
    )


def _encoded(columns: Sequence[tuple[str, str, str]], rows: Sequence[dict[str, Any]]) -> bytes:
    sent = [
        {"name": name, "type": kind, "values": _values(kind, [row[name] for row in rows])}
        for name, kind, _ in columns
    ]
    return json.dumps({"columns": sent}, ensure_ascii=False, separators=(",", ":")).encode()


def _values(kind: str, values: list[Any]) -> list[Any]:
    """As JSON has them. What no float64 holds is infinite; NaN and infinity are themselves."""
    if kind != "float64":
        return values
    return [None if value is None else float(value) for value in values]
