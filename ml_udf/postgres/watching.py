"""Watches from inside: made and edited by `score_table(…, watch => true)`, paused, resumed, dropped.

Everything is done by the caller's own statements: the triggers' function is his, as the table is, and row
security shows him his own watches alone. What keeps answers fresh is `ml-udf score --watch`, outside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from ml_udf.errors import BadOption, NoKey
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.statements import Target
from ml_udf.quoting import qualified, quoted
from ml_udf.scoring import Layout, ScoreRequest
from ml_udf.scoring.postgres_catalog import Sql
from ml_udf.scoring.watch import CHANNEL, LOOK, Definition
from ml_udf.scoring.watch_queries import WatchQueries
from ml_udf.scoring.watch_triggers import Triggers, function_name

__all__ = ["Watching"]

_NEEDED = {"error": "text", "input_hash": "uuid", "model_version": "text"}

_TABLE = """
    SELECT c.oid::text AS oid, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           c.relpersistence = 't' AS is_temporary, c.relispartition AS is_partition,
           pg_catalog.pg_has_role(c.relowner, 'USAGE') AS owned,
           c.relkind = 'r' AND NOT c.relispartition AND EXISTS (
               SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhparent, i.inhrelid)) AS inherits,
           EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attname = $2::text
                   AND a.attgenerated = 'v') AS is_virtual
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = pg_catalog.to_regclass($1::text)"""

# The table, and its partitions.
_MEMBERS = """
    SELECT n.nspname::text AS schema, c.relname::text AS name
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND (c.oid = $1::text::pg_catalog.oid OR c.oid IN (
        SELECT t.relid FROM pg_catalog.pg_partition_tree($1::text::pg_catalog.oid::pg_catalog.regclass) t))"""

# As set, and as it is for the one who asks: no schema of somebody else's comes into it later.
_PATH = """
    SELECT pg_catalog.current_setting('search_path') AS path,
           pg_catalog.concat_ws(', ', 'pg_catalog', (
               SELECT pg_catalog.string_agg(pg_catalog.quote_ident(s), ', ')
               FROM pg_catalog.unnest(pg_catalog.current_schemas(false)) AS s WHERE s <> 'pg_catalog'
           ), 'pg_temp') AS pinned"""

_FOUND = """
    SELECT id::text AS id, definition::text AS definition FROM ml_udf._watch
    WHERE target = $1::text::regclass AND place = $2::text"""

_INSERT = """
    INSERT INTO ml_udf._watch (owner, relation, target, place, definition)
    VALUES (pg_catalog.quote_ident(current_user)::regrole, $1::text::regclass, $2::text::regclass, $3::text,
            $4::text::jsonb)
    RETURNING id::text AS id"""

_UPDATE = """
    UPDATE ml_udf._watch SET definition = $2::text::jsonb, revision = revision + 1, paused = false,
           version = NULL, failures = 0, owner = pg_catalog.quote_ident(current_user)::regrole
    WHERE id = $1::text::integer"""

# A crash takes the mark away: then the whole table is looked at.
_MARK = "INSERT INTO ml_udf._marked VALUES ($1::text::integer) ON CONFLICT DO NOTHING"

# In which commits note keys; the worker makes them too, where they are lost.
_RINGS = "SELECT ml_udf._make_rings() AS made"

_IN_ONE_PLACE = "23505"  # unique_violation

_IN_MODULE = """
    SELECT EXISTS (
        SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
        WHERE p.oid = pg_catalog.to_regprocedure('ml_udf._note_key(integer, anyelement)') AND l.lanname = 'c'
    ) AS noting"""

_NOTIFY = f"SELECT pg_catalog.pg_notify('{CHANNEL}', 'changed')"

_OWN = "SELECT w.id, w.paused FROM ml_udf._watch w WHERE w.id = $1::text::integer"

_FUNCTIONS = """
    SELECT p.oid::text AS oid, n.nspname::text AS schema, p.proname::text AS name
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE p.proname = $1::text AND p.pronargs = 0 AND p.prorettype = 'pg_catalog.trigger'::pg_catalog.regtype
      AND pg_catalog.pg_has_role(p.proowner, 'USAGE')"""

_TRIGGERS = """
    SELECT t.tgname::text AS trigger, n.nspname::text AS schema, c.relname::text AS name
    FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_class c ON c.oid = t.tgrelid
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE t.tgfoid = $1::text::pg_catalog.oid AND NOT t.tgisinternal"""


@dataclass(frozen=True, slots=True)
class _Table:
    """The table that is watched, as the catalog knows it."""

    oid: str
    schema: str
    name: str
    members: Sequence[str]
    is_partitioned: bool


class Watching:
    """The watches that the caller may see, over one connection."""

    def __init__(self, sql: Sql) -> None:
        self._sql = sql

    def keep(self, request: ScoreRequest, target: Target, signature: str | None, layout: Layout) -> int:
        """Make the watch that a request asks for, or change the one into the same place; its id.

        Leaves the transaction open. Raises `BadOption`, `NoKey`, `PostgresError`.
        """
        table = self._table(layout)
        self._check(request, layout)
        (path,) = self._sql.rows(_PATH)
        definition = self._definition(request, target, signature, layout, path["path"])
        told = json.dumps(definition.as_json(), ensure_ascii=False)
        place = layout.places["value"]
        found = next(iter(self._sql.rows(_FOUND, layout.target, place)), None)
        if found is None:
            watch = self._insert(layout, told)
        else:
            watch = int(found["id"])
            self._drop_triggers(watch)
            self._sql.change(_UPDATE, str(watch), told)
            if not definition.answers_as(Definition.of_json(json.loads(found["definition"]))):
                self._sql.change(WatchQueries(layout, "").reset())
        (module,) = self._sql.rows(_IN_MODULE)
        noting = bool(module["noting"]) and not table.is_partitioned
        triggers = Triggers(watch, table.schema, table.name, table.members, layout, path["pinned"], noting)
        for statement in triggers.make():
            self._sql.change(statement)
        if triggers.in_module:
            self._sql.rows(_RINGS)
        self._sql.change(_MARK, str(watch))
        self._sql.change(LOOK, str(watch))
        self._sql.rows(_NOTIFY)
        return watch

    def _insert(self, layout: Layout, told: str) -> int:
        """A new watch; its id. One into the same place that the caller cannot see is somebody else's."""
        try:
            (made,) = self._sql.rows(_INSERT, layout.source, layout.target, layout.places["value"], told)
        except self._sql.Error as error:
            if getattr(error, "sqlstate", None) != _IN_ONE_PLACE:
                raise
            raise PostgresError(
                "42710",
                f"a watch of another role answers into {layout.title} already",
                hint="that role, or a superuser, finds it in the view ml_udf.watches and drops it:"
                " SELECT ml_udf.drop_watch(id)",
            ) from None
        return int(made["id"])

    def pause(self, watch: int) -> None:
        """Leave its notes until `resume`."""
        self._set_paused(watch, "true")

    def resume(self, watch: int) -> None:
        """Go on with it."""
        self._set_paused(watch, "false")
        self._sql.rows(_NOTIFY)

    def drop(self, watch: int) -> None:
        """Remove it, its triggers and its notes; the answers stay."""
        self._own(watch)
        self._drop_triggers(watch)
        for table in ("_new_note", "_note", "_marked"):
            self._sql.change(f"DELETE FROM ml_udf.{table} WHERE watch = $1::text::integer", str(watch))
        self._sql.change("DELETE FROM ml_udf._watch WHERE id = $1::text::integer", str(watch))

    def _set_paused(self, watch: int, paused: str) -> None:
        self._own(watch)
        self._sql.change(
            "UPDATE ml_udf._watch SET paused = $2::text::boolean, failures = 0 WHERE id = $1::text::integer",
            str(watch),
            paused,
        )

    def _own(self, watch: int) -> None:
        if not self._sql.rows(_OWN, str(watch)):
            raise PostgresError(
                "42704",
                f"you have no watch {watch}",
                hint="SELECT id, answers FROM ml_udf.watches lists yours",
            )

    def _check(self, request: ScoreRequest, layout: Layout) -> None:
        prefix = f"{layout.places['value']}_" if layout.beside else ""
        missing = [
            f"ADD COLUMN {quoted(prefix + role)} {kind}"
            for role, kind in _NEEDED.items()
            if role not in layout.places
        ]
        if missing:
            raise BadOption(
                f"a watch stores more than the answers in {layout.title}: which input was answered, by which"
                " version, and errors",
                hint=f"ALTER TABLE {layout.target} {', '.join(missing)}",
            )
        if request.row_limit is not None:
            raise BadOption(
                "a watch answers all rows: row_limit has no meaning for it",
                hint="leave it out, or give condition",
            )
        if nullable := [column.name for column in layout.key if column.nullable]:
            raise NoKey(
                f"the key of {layout.source} may be NULL ({', '.join(nullable)}): rows cannot be watched",
                hint=f"ALTER TABLE {layout.source} ALTER COLUMN {quoted(nullable[0])} SET NOT NULL",
            )

    def _table(self, layout: Layout) -> _Table:
        """The watched table. Raises `BadOption`, `PostgresError` for what cannot be watched."""
        (found,) = self._sql.rows(_TABLE, layout.source, layout.input.name)
        title = layout.source
        if found["kind"] not in ("r", "p") or found["is_temporary"]:
            raise BadOption(
                f"{title} cannot be watched: it is "
                + ("a temporary table" if found["is_temporary"] else "no table of this database"),
                hint="watch the tables that it is made of",
            )
        if found["is_partition"] or found["inherits"]:
            raise BadOption(
                f"{title} cannot be watched: its rows are another table's too",
                hint="watch the partitioned table"
                if found["is_partition"]
                else "inheritance is not followed",
            )
        if found["is_virtual"]:
            raise BadOption(
                f"column {layout.input.name} of {title} is computed when read: nothing shows its change",
                hint="make it GENERATED ALWAYS AS (…) STORED",
            )
        if not found["owned"]:
            raise PostgresError("42501", f"must be owner of table {found['name']} to watch it")
        members = [qualified(row["schema"], row["name"]) for row in self._sql.rows(_MEMBERS, found["oid"])]
        return _Table(found["oid"], found["schema"], found["name"], members, found["kind"] == "p")

    def _definition(
        self, request: ScoreRequest, target: Target, signature: str | None, layout: Layout, path: str
    ) -> Definition:
        return Definition(
            function=request.function,
            signature=signature,
            server=target.server,
            binding=target.binding,
            input=layout.input.name,
            key=tuple(column.name for column in layout.key),
            condition=request.condition,
            batch_rows=request.batch_rows,
            rescore=frozenset({"changed", "version"}) if request.rescore is None else request.rescore,
            version=request.version,
            options=dict(target.options),
            path=path,
        )

    def _drop_triggers(self, watch: int) -> None:
        for function in self._sql.rows(_FUNCTIONS, function_name(watch)):
            for row in self._sql.rows(_TRIGGERS, function["oid"]):
                self._sql.change(
                    f"DROP TRIGGER {quoted(row['trigger'])} ON {qualified(row['schema'], row['name'])}"
                )
            self._sql.change(f"DROP FUNCTION {qualified(function['schema'], function['name'])}()")
