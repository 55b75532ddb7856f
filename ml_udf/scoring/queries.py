"""The SQL of a run, for a `Layout`: which rows are due, a page of them, storing their answers.

Pure: text out. The dialect is what PostgreSQL and DuckDB share; parameters are $1, $2, … of text or text[],
cast to their columns' types, so that values of every type travel alike.

A row is *due* when it has an input and no answer, or an answer that `rescore` does not let stand. The write
asks this again, and whether the input is still the one that was read: so no row is answered for an input that
it has no more, and none twice, whatever else writes to the table. No lock is held while the server works.
"""

from __future__ import annotations

from collections.abc import Sequence

from ml_udf.quoting import literal, quoted
from ml_udf.scoring.layout import Layout
from ml_udf.scoring.pages import Key

__all__ = ["CAST", "Queries"]

CAST = {"bytes": "", "text": "::text", "number": "::double precision", "vector": "::double precision[]"}


class Queries:
    """The queries of one run. `version` is the function's."""

    def __init__(self, layout: Layout, version: str) -> None:
        self.version = version
        self._layout = layout
        self._version = literal(version)

    def count(self, row_limit: int | None) -> str:
        """`n`, how many rows are due. Inputs that are images are not compared: that would read them all."""
        compares = self._layout.input.kind != "bytes"
        limit = "" if row_limit is None else f" LIMIT {row_limit}"
        return f"SELECT count(*) AS n FROM (SELECT 1 {self._due_rows(None, compares)}{limit}) AS due"

    def page(self, after: Key | None, rows: int, until: Key | None = None) -> str:
        """`k0`, `k1`, …, `h`, `v` of the next due rows, in the order of the key.

        `after` is $1, $2, …, and `until`, the last key that may be among them, what follows.
        """
        layout = self._layout
        value = f"s.{quoted(layout.input.name)}{CAST[layout.input.kind or 'text']} AS v"
        listed = ", ".join([*self._key_texts(), f"{self._hash('s')}::text AS h", value])
        due = self._due_rows(after, True, until)
        return f"SELECT {listed} {due} ORDER BY {', '.join(self._columns('s'))} LIMIT {rows}"

    def end(self, after: Key | None, rows: int) -> str:
        """`k0`, `k1`, … of the last of so many rows, due or not; `after` is $1, $2, …"""
        columns = self._columns("s")
        keys, last = ", ".join(columns), ", ".join(f"{column} DESC" for column in columns)
        where = " AND ".join([*self._with_key(), *self._behind("s", after)]) or "true"
        some = f"SELECT {keys} FROM {self._layout.source} AS s WHERE {where} ORDER BY {keys} LIMIT {rows}"
        return f"SELECT {', '.join(self._key_texts())} FROM ({some}) AS s ORDER BY {last} LIMIT 1"

    def write(self, answers: str | None = None, vector: str | None = None, *, reached: bool = False) -> str:
        """Store answers: $1, … are the key's columns, hashes, values, confidences, errors; all text[].

        answers  a relation that has them instead, as columns k0, k1, …, h, v, c, e
        vector   the SQL of a value by {at} and {parameter}: then values are numbers of vectors, {at}, and one
                 more parameter has those
        reached  whether $1 and $2 are the `reach` of such a relation, of answers beside the rows
        """
        source = self._answers(vector) if answers is None else f"{quoted(answers)} AS a"
        if not self._layout.beside:
            return self._upsert(source)
        ends = [self._compared("t", ">=", 1, width=1), self._compared("t", "<=", 2, width=1)]
        return self._update(source, ends if reached else [])

    def reach(self, answers: str) -> str:
        """The least and the greatest of the key's first column in such a relation, as text.

        Outside it an update need not look: it hashes the inputs of the rows that it compares, and a table's
        order may be another than its key's. Not for a text, whose column may have a collation.
        """
        first = f"k0::{self._layout.key[0].type}"
        return f"SELECT min({first})::text, max({first})::text FROM {quoted(answers)}"

    def create(self) -> str:
        """The table of answers."""
        layout = self._layout
        columns = [f"{quoted(column.name)} {column.type} NOT NULL" for column in layout.key]
        types = {
            "value": layout.value_type,
            "confidence": "double precision",
            "error": "text",
            "model_version": "text",
            "input_hash": "uuid",
            "scored_at": "timestamptz NOT NULL",
        }
        columns += [f"{quoted(name)} {types[role]}" for role, name in layout.places.items()]
        key = ", ".join(quoted(column.name) for column in layout.key)
        return f"CREATE TABLE IF NOT EXISTS {layout.target} ({', '.join(columns)}, PRIMARY KEY ({key}))"

    def _columns(self, table: str, width: int | None = None) -> list[str]:
        return [f"{table}.{quoted(column.name)}" for column in self._layout.key[:width]]

    def _key_texts(self) -> list[str]:
        return [f"{column}::text AS k{at}" for at, column in enumerate(self._columns("s"))]

    def _with_key(self) -> list[str]:
        return [f"s.{quoted(column.name)} IS NOT NULL" for column in self._layout.key if column.nullable]

    def _due_rows(self, after: Key | None, compares: bool, until: Key | None = None) -> str:
        layout = self._layout
        where = [f"s.{quoted(layout.input.name)} IS NOT NULL", *self._with_key()]
        where += self._within("s", after, until)
        condition = f" WHERE ({layout.condition}\n)" if layout.condition else ""
        tables = f"(SELECT * FROM {layout.source}{condition}) AS s"
        if layout.beside:
            where.append(self._due("s", "s", compares))
        else:
            # Bounded by the key as well: a merge join begins where the page does, not at the first row.
            behind = " WHERE ".join(["", *filter(None, [" AND ".join(self._within("b", after, until))])])
            same = " AND ".join(f"r.{quoted(c.name)} = s.{quoted(c.name)}" for c in layout.key)
            tables += f" LEFT JOIN (SELECT * FROM {layout.target} AS b{behind}) AS r ON {same}"
            missing = f"r.{quoted(layout.key[0].name)} IS NULL"
            where.append(f"({missing} OR {self._due('r', 's', compares)})")
        return f"FROM {tables} WHERE {' AND '.join(where)}"

    def _behind(self, table: str, after: Key | None) -> list[str]:
        return [] if after is None else [self._compared(table, ">", 1)]

    def _within(self, table: str, after: Key | None, until: Key | None) -> list[str]:
        where = self._behind(table, after)
        if until is not None:
            first = 1 if after is None else 1 + len(after)
            where.append(self._compared(table, "<=", first))
            if len(until) > 1:  # alone, the first columns tell an engine which parts of a table it may skip
                where += [] if after is None else [self._compared(table, ">=", 1, width=1)]
                where.append(self._compared(table, "<=", first, width=1))
        return where

    def _compared(self, table: str, how: str, first: int, width: int | None = None) -> str:
        """The key's columns, or the first of them, with the parameters from `first` on."""
        columns = self._columns(table, width)
        bounds = [f"${first + at}::text::{self._layout.key[at].type}" for at in range(len(columns))]
        if len(columns) == 1:
            return f"{columns[0]} {how} {bounds[0]}"
        return f"({', '.join(columns)}) {how} ({', '.join(bounds)})"

    def _due(self, answered: str, rows: str, compares: bool) -> str:
        """Whether the answer in table `answered` does not stand, for the row in table `rows`."""
        layout = self._layout
        place = {role: f"{answered}.{quoted(name)}" for role, name in layout.places.items()}
        unanswered = [f"{place['value']} IS NULL"] + (
            [f"{place['error']} IS NULL"] if "error" in place else []
        )
        reasons = ["(" + " AND ".join(unanswered) + ")"] if layout.beside or "error" in place else []
        if "changed" in layout.rescore and compares:
            reasons.append(f"{place['input_hash']} <> {self._hash(rows)}")
        if "version" in layout.rescore:
            reasons.append(f"{place['model_version']} IS DISTINCT FROM {self._version}")
        if "errors" in layout.rescore:
            reasons.append(f"{place['error']} IS NOT NULL")
        return "(" + " OR ".join(reasons or ["false"]) + ")"

    def _hash(self, table: str) -> str:
        return self._hash_of(f"{table}.{quoted(self._layout.input.name)}")

    def _hash_of(self, value: str) -> str:
        return f"md5({value}{'' if self._layout.input.kind == 'bytes' else '::text'})::uuid"

    def _answers(self, vector: str | None) -> str:
        names = [*(f"k{at}" for at in range(len(self._layout.key))), "h", "v", "c", "e"]
        columns = ", ".join(f"unnest(${at + 1}::text[]) AS {name}" for at, name in enumerate(names))
        if vector is None:
            return f"(SELECT {columns}) AS a"
        value = vector.format(at="v::integer", parameter=f"${len(names) + 1}")
        listed = ", ".join(f"{value} AS v" if name == "v" else name for name in names)
        return f"(SELECT {listed} FROM (SELECT {columns}) AS told) AS a"

    def _stored(self) -> dict[str, str]:
        """Column → what is stored in it."""
        found = {
            "value": f"{self._layout.cast.format('a.v')}::{self._layout.value_type}",
            "confidence": "a.c::double precision",
            "error": "a.e",
            "model_version": self._version,
            "input_hash": "a.h::uuid",
            "scored_at": "now()",
        }
        return {name: found[role] for role, name in self._layout.places.items()}

    def _update(self, answers: str, ends: Sequence[str]) -> str:
        layout = self._layout
        sets = ", ".join(f"{quoted(name)} = {what}" for name, what in self._stored().items())
        same = [f"t.{quoted(c.name)} = a.k{at}::{c.type}" for at, c in enumerate(layout.key)]
        where = [*ends, *same, f"{self._hash('t')} = a.h::uuid", self._due("t", "t", True)]
        return f"UPDATE {layout.target} AS t SET {sets} FROM {answers} WHERE {' AND '.join(where)}"

    def _upsert(self, answers: str) -> str:
        layout = self._layout
        stored = self._stored()
        key = [quoted(column.name) for column in layout.key]
        into = ", ".join([*key, *map(quoted, stored)])
        values = ", ".join([*(f"a.k{at}::{c.type}" for at, c in enumerate(layout.key)), *stored.values()])
        return (
            f"INSERT INTO {layout.target} AS t ({into}) SELECT {values} FROM {answers}"
            f" ON CONFLICT ({', '.join(key)}) {self._conflict(list(stored))}"
        )

    def _conflict(self, columns: Sequence[str]) -> str:
        """An answer that is there already is replaced only by one that says something else."""
        place = self._layout.places
        tells = [
            f"t.{quoted(place[r])} IS DISTINCT FROM excluded.{quoted(place[r])}"
            for r in _TELLING
            if r in place
        ]
        if "error" in place:
            tells += [f"t.{quoted(place['error'])} IS NOT NULL", f"t.{quoted(place['value'])} IS NULL"]
        if not tells:
            return "DO NOTHING"
        sets = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in columns)
        return f"DO UPDATE SET {sets} WHERE {' OR '.join(tells)}"


_TELLING = ("input_hash", "model_version")
