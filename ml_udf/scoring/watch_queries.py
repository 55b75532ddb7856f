"""The SQL of a watch: its notes, the present state of the rows that they name, what is done about them. Pure.

Parameters are texts, as in `queries`. Keys travel as one text[] for each column of the key.

An answer is stored only beside the input that was asked, as in every run. In a table of their own nothing
holds an answer and its row together. So what was stored there is looked at once more, by a later statement
of the same transaction: a row that changed before that look is noted again; what changes after it has a note
of its own, and whoever answers that waits for the lock on the answer that was stored here.
"""

from __future__ import annotations

from dataclasses import replace

from ml_udf.quoting import literal, quoted
from ml_udf.scoring.pages import Key
from ml_udf.scoring.queries import CAST, Queries

__all__ = ["NoteQueries", "WatchQueries"]


class NoteQueries:
    """The queries of one watch's notes."""

    def __init__(self, watch: int, revision: int, version: str | None) -> None:
        self._watch = watch
        self._as_known = (
            f"id = {watch} AND revision = {revision} AND NOT paused"
            f" AND version IS NOT DISTINCT FROM {'NULL' if version is None else literal(version)}"
        )

    def take(self, keys: int) -> str:
        """The oldest notes that are due and that nobody else has taken: some `keys` keys, if there are."""
        due = f"watch = {self._watch} AND due_at > '-infinity' AND due_at <= now()"
        oldest = f"SELECT due_at, id, size FROM ml_udf._note WHERE {due} ORDER BY due_at, id LIMIT {keys}"
        enough = (
            "SELECT count(*) FROM (SELECT sum(o.size) OVER (ORDER BY o.due_at, o.id) - o.size AS before"
            f" FROM ({oldest}) AS o) AS o WHERE o.before < {keys}"
        )
        run = "SELECT array_agg(i::text ORDER BY i) FROM generate_series(ids[1], ids[2]) AS i"
        keys_of = (
            "CASE WHEN ids IS NULL THEN keys"
            f" WHEN size > cardinality(ids) THEN ({run}) ELSE ids::text[] END AS keys"
        )
        return (
            f"SELECT ctid::text AS place, noted_at::text AS noted_at, attempts, {keys_of} FROM ml_udf._note"
            f" WHERE {due} ORDER BY due_at, id LIMIT ({enough}) FOR UPDATE SKIP LOCKED"
        )

    def forget(self) -> str:
        """Delete the notes at the places $1, which this transaction has taken."""
        return "DELETE FROM ml_udf._note WHERE ctid = ANY ($1::text[]::tid[])"

    def note(self) -> str:
        """Note keys: $1 the keys, $2 how many, $3 when they were noted first, $4 attempts, $5 due in s."""
        return (
            "INSERT INTO ml_udf._note (watch, keys, size, noted_at, attempts, due_at)"
            f" SELECT {self._watch}, $1::text[], $2::text::integer,"
            " $3::text::timestamptz, $4::text::smallint,"
            " clock_timestamp() + $5::text::double precision * interval '1 second'"
        )

    def sweep(self) -> str:
        """`ids`, as one text, of the notes that ask for a look at the whole table; NULL without one."""
        return (
            "SELECT array_agg(id)::text AS ids FROM ml_udf._note"
            f" WHERE watch = {self._watch} AND due_at = '-infinity'"
        )

    def swept(self) -> str:
        """Forget the notes $1 of them; another may have come meanwhile, even with a lower number."""
        return (
            f"DELETE FROM ml_udf._note WHERE watch = {self._watch} AND due_at = '-infinity'"
            " AND id = ANY ($1::text::bigint[])"
        )

    def counted(self) -> str:
        """Keep that a look at the whole table has $1 rows to answer; '': nobody knows."""
        return f"UPDATE ml_udf._watch SET sweep_rows = nullif($1::text, '')::bigint WHERE {self._as_known}"

    def tally(self) -> str:
        """Count $1 answers and $2 errors; a row comes back if the watch still is as this worker knows it.

        $3: how many rows of a look at the whole table these were.
        """
        age = "greatest(extract(epoch FROM clock_timestamp() - rate_at), 0)::double precision"
        stored = "($1::text::bigint + $2::text::bigint)"
        return (
            "UPDATE ml_udf._watch SET answered = answered + $1::text::bigint,"
            " failed = failed + $2::text::bigint,"
            f" rate = rate * exp(-{age} / 60) + {stored} / 60.0, rate_at = clock_timestamp(),"
            " sweep_rows = sweep_rows - least(sweep_rows, $3::text::bigint),"
            " failures = 0, waits = false, seen_at = clock_timestamp()"
            f" WHERE {self._as_known} RETURNING id"
        )

    def wait(self) -> str:
        """Say that a worker is going to sleep until it is notified."""
        return f"UPDATE ml_udf._watch SET waits = true WHERE id = {self._watch} AND NOT waits"

    def fault(self) -> str:
        """Keep the error $1 of a try that failed as a whole."""
        return (
            "UPDATE ml_udf._watch SET failures = failures + 1, error = $1::text,"
            f" error_at = clock_timestamp() WHERE {self._as_known}"
        )


class WatchQueries(Queries):
    """The queries of a watch's rows. Keys are $1, …; each is said in the layout's order."""

    def present(self) -> str:
        """What rows are now: `k0`, …, `there`, `answered`, `due`; `h` and `v` where due.

        The last parameter says of each key whether an error that it holds is to be tried again.
        """
        value = f"l.v{CAST[self._layout.input.kind or 'text']}"
        return (
            f"WITH looked AS MATERIALIZED ({self._looked(with_errors=True)}) SELECT {self._listed('l')},"
            f" l.there, l.answered, l.due, CASE WHEN l.due THEN {self._hash_of('l.v')}::text END AS h,"
            f" CASE WHEN l.due THEN {value} END AS v FROM looked AS l"
        )

    def amiss(self) -> str:
        """The keys, `k0`, …, whose answer is not that of the row as it is now."""
        return (
            f"SELECT {self._listed('l')} FROM ({self._looked(with_errors=False)}) AS l"
            " WHERE l.due OR (l.answered AND NOT l.there)"
        )

    def free(self) -> str:
        """Lock the rows that take answers beside them, `k0`, …; those that others hold are left out."""
        tables = f"{self._layout.target} AS t JOIN {self._keys()} ON {self._same('t')}"
        return f"SELECT {self._named('t')} FROM {tables} FOR NO KEY UPDATE OF t SKIP LOCKED"

    def store(self, vector: str | None = None, *, again: bool) -> str:
        """`write` that returns the keys, `k0`, …, of what it stored. again: over an error, too."""
        layout = self._layout
        if again:
            layout = replace(layout, rescore=layout.rescore | {"errors"})
        return f"{Queries(layout, self.version).write(vector=vector)} RETURNING {self._named('t')}"

    def clear(self) -> str:
        """Take away the answers of rows that are gone, or have no input."""
        layout = self._layout
        where = f"WHERE {self._same('t')} AND {self._forsaken('t')}"
        if layout.beside:
            return f"UPDATE {layout.target} AS t SET {self._emptied()} FROM {self._keys()} {where}"
        return f"DELETE FROM {layout.target} AS t USING {self._keys()} {where}"

    def forsaken(self, after: Key | None, rows: int) -> str:
        """The keys, `k0`, …, of answers whose row is gone, or has no input; behind `after`, in order."""
        layout = self._layout
        order = ", ".join(f"t.{quoted(c.name)}" for c in layout.key)
        where = " AND ".join([self._forsaken("t"), *self._behind("t", after)])
        return (
            f"SELECT {self._named('t')} FROM {layout.target} AS t WHERE {where} ORDER BY {order} LIMIT {rows}"
        )

    def reset(self) -> str:
        """Take away all answers: they are another function's, or another column's."""
        layout = self._layout
        if not layout.beside:
            return f"DELETE FROM {layout.target}"
        return f"UPDATE {layout.target} AS t SET {self._emptied()} WHERE {self._answered('t')}"

    def _looked(self, *, with_errors: bool) -> str:
        """`k0`, …, `there`, `answered`, `due`, `v` of the keys that are asked about."""
        layout = self._layout
        value = f"s.{quoted(layout.input.name)}"
        there = f"(s.{quoted(layout.key[0].name)} IS NOT NULL AND {value} IS NOT NULL)"
        holds = f"({layout.condition}\n) IS TRUE" if layout.condition else "true"
        rows = f"(SELECT *, {holds} AS ml_udf_holds FROM {layout.source}) AS s"
        tables = f"{self._keys(with_errors)} LEFT JOIN {rows} ON {self._same('s')}"
        if layout.beside:
            place, answered, missing = "s", self._answered("s"), "false"
        else:
            place, answered = "r", f"r.{quoted(layout.key[0].name)} IS NOT NULL"
            tables += f" LEFT JOIN {layout.target} AS r ON {self._same('r')}"
            missing = f"r.{quoted(layout.key[0].name)} IS NULL"
        reasons = [missing, self._due(place, "s", True)]
        if with_errors:
            reasons.append(f"(a.again AND {place}.{quoted(layout.places['error'])} IS NOT NULL)")
        due = f"coalesce({there} AND s.ml_udf_holds AND ({' OR '.join(reasons)}), false)"
        return (
            f"SELECT {self._listed('a')}, {there} AS there, coalesce({answered}, false) AS answered,"
            f" {due} AS due, {value} AS v FROM {tables}"
        )

    def _forsaken(self, table: str) -> str:
        """Whether a row holds an answer for a row that is gone, or has no input."""
        layout = self._layout
        if layout.beside:
            return f"{table}.{quoted(layout.input.name)} IS NULL AND {self._answered(table)}"
        return (
            f"NOT EXISTS (SELECT FROM {layout.source} AS s WHERE {self._joined('s', table)}"
            f" AND s.{quoted(layout.input.name)} IS NOT NULL)"
        )

    def _emptied(self) -> str:
        return ", ".join(f"{quoted(name)} = NULL" for name in self._layout.places.values())

    def _answered(self, table: str) -> str:
        """Whether a row holds an answer, or an error."""
        places = self._layout.places
        held = [
            f"{table}.{quoted(places[role])} IS NOT NULL" for role in ("value", "error") if role in places
        ]
        return f"({' OR '.join(held)})"

    def _keys(self, with_errors: bool = False) -> str:
        width = len(self._layout.key)
        columns = [f"unnest(${at + 1}::text[]) AS k{at}" for at in range(width)]
        if with_errors:
            columns.append(f"unnest(${width + 1}::text[])::boolean AS again")
        return f"(SELECT {', '.join(columns)}) AS a"

    def _named(self, table: str) -> str:
        """The key's columns, as `k0`, …"""
        key = enumerate(self._layout.key)
        return ", ".join(f"{table}.{quoted(column.name)}::text AS k{at}" for at, column in key)

    def _listed(self, table: str) -> str:
        return ", ".join(f"{table}.k{at}" for at in range(len(self._layout.key)))

    def _same(self, table: str) -> str:
        return " AND ".join(
            f"{table}.{quoted(c.name)} = a.k{at}::{c.type}" for at, c in enumerate(self._layout.key)
        )

    def _joined(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{quoted(c.name)} = {other}.{quoted(c.name)}" for c in self._layout.key)
