"""The triggers of a watch: they note the keys of rows that came, changed or went, and do nothing else. Pure.

One function and one trigger for each kind of statement, all of the table's owner. The function runs with his
rights, whoever writes, and every name in it is written in full: so a writer needs no right on ml_udf's
tables, and what he may set changes nothing. It notes what the watch can see in `ml_udf._watch`: where the
watch is gone, say after a restore of the schema alone, it notes nothing, and the write goes on.

In the module   for each row, by the WHEN of a trigger that is never fired: a function in C notes the key, and
                stores what the transaction has noted when it commits (sql/postgres/batch/note/)
In PL/pgSQL     for each statement, with transition tables: one note for what it did, or one for each 1,000
                keys. Where the module is not installed, or knows too little: a condition, partitions, keys of
                several columns or of another type. A row inserted by itself costs one short statement more.

The WHEN of the former fires where the module is not, say after a restore elsewhere: then each row is noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml_udf.quoting import literal, qualified, quoted
from ml_udf.scoring.layout import ColumnDef, Layout
from ml_udf.scoring.postgres_catalog import TEXT_SETTINGS
from ml_udf.scoring.watch import CHANNEL, NOTE_KEYS

__all__ = ["Triggers", "function_name"]

_NUMBERS = {"smallint", "integer", "bigint", "real", "double precision", "numeric"}
_ONE_TEXT = {"smallint", "integer", "bigint", "numeric", "uuid", "text", "character varying", "boolean"}
# Keys that the module notes.
_IN_MODULE = {"smallint", "integer", "bigint", "uuid", "text", "character varying"}
_DIRECT = _NUMBERS | {"uuid", "date", "timestamp without time zone", "timestamp with time zone", "bytea"}


@dataclass(frozen=True, slots=True)
class Triggers:
    """The statements that make them. `schema` and `table` are names, `members` quoted ones.

    members  the table, and its partitions, each of which may be written by its own name
    path     the search_path of the condition's author, all of it fixed
    module   whether the module is there to note keys, and the table has no partitions
    """

    watch: int
    schema: str
    table: str
    members: Sequence[str]
    layout: Layout
    path: str
    module: bool = False

    def make(self) -> list[str]:
        """The function, and its triggers; for the table's owner."""
        made = [
            f"CREATE FUNCTION {self._function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
            f"{self._fixed_settings()} AS {literal(self._body())}",
            f"REVOKE ALL ON FUNCTION {self._function}() FROM PUBLIC",
            f"COMMENT ON FUNCTION {self._function}() IS 'notes what watch {self.watch} has to answer'",
            f"ALTER FUNCTION {self._function}() DEPENDS ON EXTENSION ml_udf",
        ]
        return made + [statement for member in self.members for statement in self.make_on(member)]

    def make_on(self, member: str) -> list[str]:
        """The triggers of one of `members`."""
        made = []
        for event, how in self._row_events() if self.in_module else self._events():
            name = quoted(f"{function_name(self.watch)}_{event.lower()}")
            made += [
                f"CREATE TRIGGER {name} AFTER {event} ON {member}{how} EXECUTE FUNCTION {self._function}()",
                f"ALTER TRIGGER {name} ON {member} DEPENDS ON EXTENSION ml_udf",
            ]
        return made

    @property
    def in_module(self) -> bool:
        """Whether keys are noted by the module."""
        layout = self.layout
        return (
            self.module
            and layout.condition is None
            and [column.type.partition("(")[0] in _IN_MODULE for column in layout.key] == [True]
        )

    @property
    def _function(self) -> str:
        return qualified(self.schema, function_name(self.watch))

    def _fixed_settings(self) -> str:
        """For the names in a condition, and for keys whose text depends on who writes.

        They cost a third of a short call, and no other name or key needs them.
        """
        fixed = "" if self.layout.condition is None else f" SET search_path = {self.path}"
        if any(column.type.partition("(")[0] not in _ONE_TEXT for column in self.layout.key):
            fixed += "".join(f" SET {name} = {literal(value)}" for name, value in TEXT_SETTINGS.items())
        return fixed

    def _events(self) -> list[tuple[str, str]]:
        """What is looked at. Answers beside a row go with it."""
        new, old, each = " NEW TABLE AS ml_udf_new", " OLD TABLE AS ml_udf_old", " FOR EACH STATEMENT"
        events = [("INSERT", f" REFERENCING{new}{each}"), ("UPDATE", f" REFERENCING{old}{new}{each}")]
        if not self.layout.beside:
            events += [("DELETE", f" REFERENCING{old}{each}"), ("TRUNCATE", each)]
        return events

    def _row_events(self) -> list[tuple[str, str]]:
        """The same in the module."""
        key, value = quoted(self.layout.key[0].name), quoted(self.layout.input.name)

        def noted(row: str) -> str:
            return f" FOR EACH ROW WHEN (ml_udf._note_key({self.watch}, {row}.{key}))"

        changed = f"{self.watch}, old.{key}, new.{key}, old.{value}, new.{value}"
        events = [
            ("INSERT", noted("new")),
            ("UPDATE", f" FOR EACH ROW WHEN (ml_udf._note_change({changed}))"),
        ]
        if not self.layout.beside:
            events += [("DELETE", noted("old")), ("TRUNCATE", " FOR EACH STATEMENT")]
        return events

    def _body(self) -> str:
        """#variable_conflict: a column may have the name of a variable."""
        if self.in_module:
            return self._row_body()
        came, changed = self._rows("ml_udf_new", asks=True), self._changed()
        branches = [
            f"IF tg_op OPERATOR(pg_catalog.=) 'INSERT' THEN\n{self._noted(came, NOTE_KEYS)}",
            f"ELSIF tg_op OPERATOR(pg_catalog.=) 'UPDATE' THEN\n{self._noted(changed, 0)}",
        ]
        if not self.layout.beside:
            gone = self._rows("ml_udf_old", asks=False)
            branches += [
                f"ELSIF tg_op OPERATOR(pg_catalog.=) 'DELETE' THEN\n{self._noted(gone, NOTE_KEYS)}",
                "ELSE\nINSERT INTO ml_udf._note (watch, due_at, size, keys)"
                f" SELECT w.id, '-infinity', 0, '{{}}' FROM ml_udf._watch AS w WHERE {self._watched()};",
            ]
        lines = ["#variable_conflict use_column", "DECLARE ml_udf_noted integer;", "BEGIN", *branches]
        return "\n".join([*lines, "END IF;", "RETURN NULL;", "END"])

    def _row_body(self) -> str:
        """What the module leaves to do: all, where it is not there."""
        key = quoted(self.layout.key[0].name)
        into = (
            "INSERT INTO ml_udf._note (watch, due_at, size, keys) SELECT w.id, {}"
            f" FROM ml_udf._watch AS w WHERE {self._watched()};"
        )
        row = "pg_catalog.clock_timestamp(), {}, ARRAY[{}]"
        now, before = f"new.{key}::pg_catalog.text", f"old.{key}::pg_catalog.text"
        noted = {
            "INSERT": row.format(1, now),
            "UPDATE": row.format(2, f"{before}, {now}"),
            "DELETE": row.format(1, before),
            "TRUNCATE": "'-infinity', 0, '{}'",
        }
        # Not CASE, which looks for its operator along the search_path of whoever writes.
        branches = [
            f"IF tg_op OPERATOR(pg_catalog.=) '{event}' THEN\n{into.format(values)}\nEND IF;"
            for event, values in noted.items()
        ]
        return "\n".join(["BEGIN", *branches, "RETURN NULL;", "END"])

    def _watched(self) -> str:
        """That the watch is there; a worker that sleeps is woken."""
        return (
            f"w.id OPERATOR(pg_catalog.=) {self.watch}"
            f" AND (NOT w.waits OR pg_catalog.pg_notify('{CHANNEL}', '') IS NOT NULL)"
        )

    def _noted(self, rows: str, skipped: int) -> str:
        """Store the keys of `rows`, a query of `k0`, …: the first as one note, others as many.

        skipped: how many rows are not noted a second time; 0 where their order may be another one then
        """
        names = self._key_names()
        key = f"n.{names[0]}" if len(names) == 1 else f"ARRAY[{', '.join(f'n.{name}' for name in names)}]"
        noted = f"SELECT pg_catalog.count(*) AS size, pg_catalog.array_agg({key}) AS keys FROM "
        into = "INSERT INTO ml_udf._note (watch, size, keys) SELECT w.id, n.size, n.keys FROM"
        part = (
            f"(pg_catalog.row_number() OVER () OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog./) {NOTE_KEYS}"
        )
        return (
            f"{into} ml_udf._watch AS w, ({noted} ({rows} LIMIT {NOTE_KEYS}) AS n) AS n"
            f" WHERE n.keys IS NOT NULL AND {self._watched()} RETURNING size INTO ml_udf_noted;\n"
            f"IF ml_udf_noted OPERATOR(pg_catalog.=) {NOTE_KEYS} THEN\n"
            f"{into} ml_udf._watch AS w, ({noted}"
            f" (SELECT r.*, {part} AS part FROM ({rows} OFFSET {skipped}) AS r) AS n GROUP BY n.part) AS n"
            f" WHERE {self._watched()};\nEND IF;"
        )

    def _key_names(self) -> list[str]:
        return [f"k{at}" for at in range(len(self.layout.key))]

    def _rows(self, table: str, *, asks: bool) -> str:
        """The keys in a transition table; `asks`: of rows that the function is asked about."""
        layout = self.layout
        keys = ", ".join(
            f"t.{quoted(column.name)}::pg_catalog.text AS {name}"
            for column, name in zip(layout.key, self._key_names(), strict=True)
        )
        if not asks:
            return f"SELECT {keys} FROM {table} AS t"
        rows = f"{table} AS t"
        if layout.condition is not None:
            rows = f"(SELECT * FROM {table} AS {quoted(self.table)} WHERE ({layout.condition}\n)) AS t"
        return f"SELECT {keys} FROM {rows} WHERE t.{quoted(layout.input.name)} IS NOT NULL"

    def _changed(self) -> str:
        """The keys whose input, or whether it is asked about, is another one than before."""
        names = self._key_names()
        key = [_compared(column) for column in self.layout.key]
        same = " AND ".join(f"n.{name} OPERATOR(pg_catalog.=) o.{name}" for name in names)
        keys = ", ".join(f"coalesce(n.{name}, o.{name})::pg_catalog.text AS {name}" for name in names)
        changed = _differs("v")
        if self.layout.condition is not None:
            changed = f"({changed} OR {_differs('c')})"
        old, new = self._values("ml_udf_old", key), self._values("ml_udf_new", key)
        return f"SELECT {keys} FROM ({new}) AS n FULL JOIN ({old}) AS o ON {same} WHERE {changed}"

    def _values(self, table: str, key: Sequence[str]) -> str:
        layout = self.layout
        listed = [f"{value} AS {name}" for value, name in zip(key, self._key_names(), strict=True)]
        listed.append(f"{_compared(layout.input)} AS v")
        rows = f"{table} AS t"
        if layout.condition is not None:
            listed.append("t.ml_udf_holds AS c")
            rows = (
                f"(SELECT *, ({layout.condition}\n) IS TRUE AS ml_udf_holds"
                f" FROM {table} AS {quoted(self.table)}) AS t"
            )
        return f"SELECT {', '.join(listed)} FROM {rows}"


def function_name(watch: int) -> str:
    """Of a watch's function; its triggers' names begin with it."""
    return f"ml_udf_note_{watch}"


def _compared(column: ColumnDef) -> str:
    """A column as PostgreSQL's own types compare it. A collation may take different texts for equal."""
    value = f"t.{quoted(column.name)}"
    kind = column.type.partition("(")[0]
    if kind in _DIRECT or (kind.endswith("[]") and kind[:-2] in _NUMBERS):
        return value
    return f'{value}::pg_catalog.text COLLATE pg_catalog."C"'


def _differs(name: str) -> str:
    """`IS DISTINCT FROM`, which would look for its operator along the search_path."""
    return (
        f"CASE WHEN n.{name} IS NULL THEN o.{name} IS NOT NULL WHEN o.{name} IS NULL THEN true"
        f" ELSE n.{name} OPERATOR(pg_catalog.<>) o.{name} END"
    )
