\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.12.0'" to load this file. \quit

-- What 0.12.0 adds to 0.11.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;

-- ── The database's encoding ────────────────────────────────────────────────────────────────────────
-- PL/Python hands texts of queries over in UTF-8 whatever the encoding is, and where an error's message is not UTF-8, be
-- it for a value of the caller's, it ends the server's process, and with it everybody's.

DO $do$
BEGIN
    IF pg_catalog.getdatabaseencoding() <> 'UTF8' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = pg_catalog.format('ml_udf needs a database in UTF8, and this one is in %s',
                                        pg_catalog.getdatabaseencoding()),
            HINT = 'CREATE DATABASE ... ENCODING ''UTF8'' TEMPLATE template0; pg_dump and restore bring over what is here';
    END IF;
END
$do$;

-- ── Watches ────────────────────────────────────────────────────────────────────────────────────────

-- A watch holds up changes of its tables' columns, and is the only one into its place. So it is of a table that is its
-- maker's, and answers where he may write; no later statement of his makes it another table's.
CREATE POLICY of_own_tables ON ml_udf._watch AS RESTRICTIVE FOR INSERT WITH CHECK (
    EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = relation AND pg_catalog.pg_has_role(c.relowner, 'USAGE'))
    AND (target = relation OR (pg_catalog.has_table_privilege(target, 'INSERT')
                               AND pg_catalog.has_table_privilege(target, 'DELETE'))));
REVOKE UPDATE ON ml_udf._watch FROM ml_udf_reader;
GRANT UPDATE (owner, definition, revision, paused, waits, version, answered, failed, rate, rate_at, failures, error,
              error_at, seen_at, sweep_rows) ON ml_udf._watch TO ml_udf_reader;

-- What is gathered for all is written by the module alone: one note that cannot be read would hold up everybody's.
REVOKE INSERT ON ml_udf._new_note FROM ml_udf_reader;

-- The functions of triggers that were made before looked for an operator along the search_path of whoever writes, and
-- run with the rights of the table's owner.
DO $do$
DECLARE
    made regprocedure;
BEGIN
    FOR made IN
        SELECT p.oid FROM pg_catalog.pg_proc p
        WHERE p.proname ~ '^ml_udf_note_[0-9]+$' AND p.pronargs = 0 AND p.proconfig IS NULL
          AND pg_catalog.starts_with(p.prosrc, E'BEGIN\nCASE tg_op\n')
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp', made);
    END LOOP;
END
$do$;
