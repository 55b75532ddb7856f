\echo Use "ALTER EXTENSION ml_udf UPDATE TO '0.6.0'" to load this file. \quit

-- What 0.6.0 adds to 0.5.0. Each part stands under a heading of its own.

-- PRIVATE. Where this version's Python is.
CREATE OR REPLACE FUNCTION ml_udf._boot() RETURNS void
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE
    SET search_path = pg_catalog, pg_temp
AS $python$
import sys; sys.path[:0] = [path for path in [@PYTHON_PATH@] if path not in sys.path]
from ml_udf.postgres import Session
GD["ml_udf"] = (GD.get("ml_udf") or Session(plpy, local_path=@LOCAL_PATH@)).begun()
$python$;


-- ── Tokens and the audit trail ─────────────────────────────────────────────────────────────────────

-- PRIVATE
CREATE FUNCTION ml_udf._tokens(
    OUT server text, OUT name text, OUT state text, OUT scopes text[], OUT functions text[], OUT models text[],
    OUT datasets text[], OUT sources text[], OUT media_roots text[], OUT shares jsonb, OUT users text[],
    OUT created_by text, OUT created_at timestamptz, OUT expires_at timestamptz, OUT revoked_at timestamptz,
    OUT last_used_at timestamptz
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 20
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].server_view("tokens")
$python$;
COMMENT ON FUNCTION ml_udf._tokens() IS 'the tokens of every server whose mapping has an admin''s';

-- PRIVATE
CREATE FUNCTION ml_udf._audit(
    OUT server text, OUT id bigint, OUT happened_at timestamptz, OUT token text, OUT address text, OUT claimed_user text,
    OUT claimed_database text, OUT action text, OUT what text, OUT outcome text, OUT status bigint,
    OUT count bigint
) RETURNS SETOF record
    LANGUAGE plpython3u VOLATILE PARALLEL UNSAFE ROWS 1000
    SET search_path = pg_catalog, pg_temp
AS $python$
if "ml_udf" not in GD: plpy.execute("SELECT ml_udf._boot()")
return GD["ml_udf"].server_view("audit")
$python$;
COMMENT ON FUNCTION ml_udf._audit() IS 'the audit trail of every server whose mapping has an admin''s token';

-- PUBLIC, and the mapping's token decides too: a server shows both to its admins alone.
CREATE VIEW ml_udf.tokens AS
    SELECT server, name, state, scopes, functions, models, datasets, sources, media_roots, shares, users,
           created_by, created_at, expires_at, revoked_at, last_used_at
    FROM ml_udf._tokens();

-- PUBLIC
CREATE VIEW ml_udf.audit AS
    SELECT server, id, happened_at, token, address, claimed_user, claimed_database, action, what, outcome, status, count
    FROM ml_udf._audit();
COMMENT ON VIEW ml_udf.tokens IS 'who may ask the servers, and what; no secrets';
COMMENT ON VIEW ml_udf.audit IS 'the newest of who changed what on the servers, and who was refused';

REVOKE ALL ON FUNCTION ml_udf._tokens(), ml_udf._audit() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ml_udf._tokens(), ml_udf._audit() TO ml_udf_admin;
GRANT SELECT ON ml_udf.tokens, ml_udf.audit TO ml_udf_admin;
