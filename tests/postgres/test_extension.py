"""The extension as a whole: its script's discipline, dump and restore, updates, removal."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest

from ml_udf.cli.pg_doctor import check_cluster
from ml_udf.cli.pg_extension import default_version, sources
from ml_udf.cli.pg_sandbox import Sandbox
from ml_udf.views import VIEWS
from server.version import VERSION
from tests.postgres.fixtures import Databases, Engine
from tests.postgres.oip_server import OipServer, label_of, oip_server

OURS = "pronamespace = 'ml_udf'::regnamespace"
# What a call by a role with EXECUTE on one made function needs, or a write to a watched table; none of them
# takes or gives anything.
FOR_EVERYBODY = {
    *(f"similarity({kind}[],{kind}[])" for kind in ("real", "double precision", "numeric", "integer")),
    *("_boot()", "_read_mapping()", "_wrappers()", "_note_key(integer,anyelement)"),
    "_note_change(integer,anyelement,anyelement,anycompatible,anycompatible)",
}
# Everything about an extension's objects that a user could notice.
SHAPE = """
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid),
           (SELECT (p.prosrc, p.provolatile, p.proisstrict, p.prosecdef, p.proconfig, p.proparallel,
                    p.procost, p.proacl::text, pg_get_function_arguments(p.oid),
                    obj_description(p.oid, 'pg_proc'))::text
            FROM pg_proc p WHERE p.oid = d.objid AND d.classid = 'pg_proc'::regclass),
           (SELECT (pg_get_viewdef(c.oid), c.relacl::text, obj_description(c.oid, 'pg_class'))::text
            FROM pg_class c WHERE c.oid = d.objid AND d.classid = 'pg_class'::regclass)
    FROM pg_depend d WHERE d.deptype = 'e' AND d.refclassid = 'pg_extension'::regclass
      AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'ml_udf') ORDER BY 1"""


def test_the_views_have_the_columns_that_every_engine_shows(engine: Engine) -> None:
    for view, columns in VIEWS.items():
        rows = engine.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            f"ml_udf.{view}",
        )
        assert [name for (name,) in rows if name in columns] == list(columns)


def test_a_server_that_is_not_ours_tells_its_models(postgres_engine: Callable[..., Engine]) -> None:
    with oip_server(ours=False) as foreign:
        engine = postgres_engine(foreign.url)
        names = [("udf_food_name",), ("food",)]
        assert engine.query("SELECT name FROM ml_udf.models WHERE resident") == names
        assert engine.query("SELECT name FROM ml_udf.functions WHERE version = '1'") == names
        assert engine.query("SELECT * FROM ml_udf.jobs") == []
        assert engine.warnings == []


def test_every_function_pins_its_search_path(engine: Engine) -> None:
    # A procedure that commits cannot: PostgreSQL forbids it to one with a SET clause. The names
    # in an SQL body that was read when the function was made are not looked up again, and C has none.
    loose = f"""SELECT proname FROM pg_proc WHERE {OURS} AND prokind <> 'p' AND prosqlbody IS NULL
                AND prolang NOT IN (SELECT oid FROM pg_language WHERE lanname IN ('c', 'internal'))
                AND proconfig IS DISTINCT FROM ARRAY['search_path=pg_catalog, pg_temp']"""
    assert engine.query(loose) == []


def test_every_object_has_a_comment(engine: Engine) -> None:
    silent = f"""
        SELECT oid::regprocedure::text FROM pg_proc
        WHERE {OURS} AND coalesce(obj_description(oid, 'pg_proc'), '') = ''
        UNION ALL SELECT relname FROM pg_class
        WHERE relnamespace = 'ml_udf'::regnamespace AND relkind = 'v'
          AND coalesce(obj_description(oid, 'pg_class'), '') = ''"""
    assert engine.query(silent) == []


def test_python_bodies_have_at_most_three_lines(engine: Engine) -> None:
    long = f"""SELECT proname FROM pg_proc JOIN pg_language l ON l.oid = prolang
               WHERE {OURS} AND lanname = 'plpython3u'
                 AND cardinality(string_to_array(btrim(prosrc, chr(10)), chr(10))) > 3"""
    assert engine.query(long) == []


def test_nothing_but_the_harmless_is_for_everybody(engine: Engine) -> None:
    public = f"""SELECT substr(oid::regprocedure::text, length('ml_udf.') + 1) FROM pg_proc
                 WHERE {OURS} AND has_function_privilege('public', oid, 'EXECUTE')"""
    assert {name for (name,) in engine.query(public)} == FOR_EVERYBODY


def test_few_functions_run_with_their_owners_rights_and_take_no_argument(engine: Engine) -> None:
    powerful = f"SELECT proname FROM pg_proc WHERE {OURS} AND prosecdef AND pronargs = 0 ORDER BY 1"
    names = ["_after_change", "_after_drop", "_define", "_gather_notes", "_read_mapping"]
    assert [name for (name,) in engine.query(powerful)] == names
    assert engine.query(f"SELECT 1 FROM pg_proc WHERE {OURS} AND prosecdef AND pronargs > 0") == []


def test_every_object_is_marked_public_or_private() -> None:
    created = re.compile(r"^CREATE (FUNCTION|PROCEDURE|VIEW|TYPE|FOREIGN DATA WRAPPER) (\S+)")
    for script in sources().glob("ml_udf--*.sql"):
        mark = ""
        for line in script.read_text().splitlines():
            if found := re.match(r"-- (PUBLIC|PRIVATE)\b", line):
                mark = found[1]
            elif found := created.match(line):
                private = found[2].startswith("ml_udf._")
                assert mark == ("PRIVATE" if private else "PUBLIC"), line
                mark = ""


def releases() -> tuple[set[str], set[tuple[str, str]]]:
    """The versions that can be created, and the (old, new) that an update script leads through."""
    names = [script.stem.split("--")[1:] for script in sources().glob("ml_udf--*.sql")]
    return {name[0] for name in names if len(name) == 1}, {(n[0], n[1]) for n in names if len(n) == 2}


def test_every_release_can_be_updated_to_this_one() -> None:
    created, updates = releases()
    reached = {default_version()}
    assert created
    while more := {old for old, new in updates if new in reached} - reached:
        reached |= more
    assert created - reached == set()


def test_the_package_the_extension_and_the_server_have_one_version() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == default_version()
    assert (
        version("ml_udf") == VERSION
    )  # what is installed; `make` installs again when pyproject.toml changes


def test_a_database_in_another_encoding_than_utf_8_is_refused(cluster: Sandbox) -> None:
    """PL/Python ends the process there, and so everybody's, at an error that names a text not in ASCII."""
    for encoding in ("LATIN1", "SQL_ASCII"):
        name = f"in_{encoding.lower()}"
        cluster.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0")
        engine = Engine(cluster.dsn(name))
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=f"in UTF8, .* in {encoding}") as caught:
            engine.query("CREATE EXTENSION ml_udf CASCADE")
        assert "ENCODING 'UTF8'" in (caught.value.diag.message_hint or "")
        engine.close()
        cluster.sql(f"DROP DATABASE {name}")


@pytest.mark.security
def test_an_update_fixes_the_search_path_of_triggers_that_were_made_before(
    cluster: Sandbox, databases: Databases
) -> None:
    engine = Engine(cluster.dsn(databases.borrow()))
    engine.query("DROP EXTENSION ml_udf CASCADE; CREATE EXTENSION ml_udf VERSION '0.11.0'")
    made = "CREATE FUNCTION ml_udf_note_{}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $${}$$"
    engine.query("SET check_function_bodies = off")
    engine.query(made.format(7, "BEGIN\nCASE tg_op\nWHEN 'INSERT' THEN"))
    engine.query(made.format(8, "BEGIN\nIF tg_op OPERATOR(pg_catalog.=) 'INSERT' THEN"))
    engine.query("ALTER EXTENSION ml_udf UPDATE")
    set_now = "SELECT proname, proconfig FROM pg_proc WHERE proname LIKE 'ml_udf_note%' ORDER BY 1"
    assert engine.query(set_now) == [
        ("ml_udf_note_7", ["search_path=pg_catalog, pg_temp"]),
        ("ml_udf_note_8", None),
    ]
    engine.close()


def test_an_update_equals_a_fresh_installation(cluster: Sandbox, databases: Databases) -> None:
    fresh = Engine(cluster.dsn(databases.borrow()))
    wanted = fresh.query(SHAPE)
    assert len(wanted) > 20
    for release in sorted(releases()[0]):
        fresh.query("DROP EXTENSION ml_udf CASCADE")
        fresh.query(f"CREATE EXTENSION ml_udf VERSION '{release}'")
        if release != default_version():
            fresh.query("ALTER EXTENSION ml_udf UPDATE")
        assert fresh.query(SHAPE) == wanted
    fresh.close()


def test_an_update_keeps_functions_and_rights_and_finds_its_python(
    cluster: Sandbox, databases: Databases, fake_server: OipServer
) -> None:
    """From each release with a Python that is gone, as when its directory was removed after the update."""
    for release in sorted(releases()[0] - {default_version()}):
        name = databases.borrow()
        old = Engine(cluster.dsn(name))
        old.query("DROP EXTENSION ml_udf CASCADE")
        old.query(f"CREATE EXTENSION ml_udf VERSION '{release}'")
        old.query(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{fake_server.url}')")
        old.query("SELECT ml_udf.create_function('udf_food_name')")
        old.query("CREATE TABLE log AS SELECT n AS id, '/' || n AS path FROM generate_series(1, 9) AS n")
        old.query("ALTER TABLE log ADD PRIMARY KEY (id), ADD food text")
        old.query("GRANT EXECUTE ON FUNCTION ml_udf.predict(text, text, text) TO PUBLIC")
        old.query("GRANT EXECUTE ON FUNCTION ml_udf.create_function TO ml_udf_trainer WITH GRANT OPTION")
        old.query("CREATE ROLE teacher; GRANT EXECUTE ON FUNCTION ml_udf.create_function TO teacher")
        old.query(
            r"UPDATE pg_proc SET prosrc = regexp_replace(prosrc, '\"server_o\w+\": \"[^\"]*\", ', '', 'g')"
            " WHERE oid IN (SELECT oid FROM ml_udf._wrappers())"
        )
        old.query(
            r"UPDATE pg_proc SET prosrc = regexp_replace(prosrc, 'in \[.*\] if', 'in [''/gone''] if')"
            r" WHERE oid = 'ml_udf._boot()'::regprocedure"
        )
        old.close()

        assert "ALTER EXTENSION ml_udf UPDATE" in {link.mend for link in check_cluster(cluster.dsn(name))}
        engine = Engine(cluster.dsn(name))
        with pytest.raises(psycopg.Error, match="ml_udf"):
            engine.query("SELECT udf_food_name('/a')")
        engine.query("ALTER EXTENSION ml_udf UPDATE")
        engine.close()

        updated = Engine(cluster.dsn(name))
        assert (
            updated.value("SELECT extversion FROM pg_extension WHERE extname = 'ml_udf'") == default_version()
        )
        assert updated.value("SELECT udf_food_name('/a')") == label_of("/a")
        updated.query("CALL ml_udf.score_table('log', 'udf_food_name', 'path', output => 'food')")
        assert updated.query("SELECT food FROM log ORDER BY id") == [
            (label_of(f"/{n}"),) for n in range(1, 10)
        ]
        held = updated.query(
            "SELECT DISTINCT record ->> 'server_owner', (record ->> 'server_oid')::oid = s.oid"
            " FROM ml_udf._wrappers(), pg_foreign_server s"
        )
        assert held == [("postgres", True)]
        made = "(SELECT oid FROM pg_proc WHERE oid::regproc::text = 'ml_udf.create_function')"
        grantable = f"{made}, 'EXECUTE WITH GRANT OPTION'"
        assert updated.value(f"SELECT has_function_privilege('ml_udf_trainer', {grantable})")
        dumped = subprocess.run(
            cluster.program("pg_dump", "-s", "-d", updated.dsn),
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        assert re.search(r"GRANT ALL ON FUNCTION ml_udf\.create_function\(.* TO teacher;", dumped)
        predict = "'ml_udf.predict(text, text, text)', 'EXECUTE'"
        assert updated.value(f"SELECT has_function_privilege('public', {predict})")
        updated.query(
            "DROP TABLE log; DROP SERVER ml_udf CASCADE; DROP EXTENSION ml_udf; CREATE EXTENSION ml_udf;"
            "DROP ROLE teacher"
        )
        updated.close()


def test_dump_and_restore_bring_everything_back(
    cluster: Sandbox, postgres_engine: Callable[..., Engine], fake_server: OipServer
) -> None:
    engine = postgres_engine(fake_server.url, token="t0ken", functions=["udf_food_name"])
    engine.query("CREATE SCHEMA shop; CREATE ROLE dumped LOGIN")
    engine.query(
        """SELECT ml_udf.create_function('shop."Dish"', function => 'food', options => '{"slo_ms": 70}')"""
    )
    engine.query(
        'GRANT EXECUTE ON FUNCTION shop."Dish"(text) TO dumped; GRANT USAGE ON SCHEMA shop TO dumped'
    )
    engine.query("CREATE VIEW shop.menu AS SELECT udf_food_name('/a') AS food")
    listed = "SELECT sql_function::text, options::text, version FROM ml_udf.functions ORDER BY 1"
    wanted = engine.query(listed)
    assert len(wanted) == 2

    dump = cluster.program("pg_dump", "-d", engine.dsn)
    script = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    cluster.sql("CREATE DATABASE restored")
    restore = cluster.program("psql", "-Xq", "-v", "ON_ERROR_STOP=1", "-d", cluster.dsn("restored"))
    subprocess.run(restore, input=script, check=True, text=True, stdout=subprocess.DEVNULL)

    restored = Engine(cluster.dsn("restored"))
    assert restored.query(listed) == wanted
    assert restored.value("SELECT food FROM shop.menu") == label_of("/a")
    assert fake_server.tokens[-1] == "t0ken"
    restored.query("SET ROLE dumped")
    assert restored.value("""SELECT shop."Dish"('/a')""") == label_of("/a")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        restored.query("SELECT udf_food_name('/a')")
    restored.query("RESET ROLE; SELECT ml_udf.drop_function('shop.\"Dish\"')")
    restored.close()
    cluster.sql("DROP DATABASE restored")
    engine.query("DROP OWNED BY dumped; DROP ROLE dumped")


def test_dropping_the_extension_takes_its_functions_along(
    cluster: Sandbox, databases: Databases, fake_server: OipServer
) -> None:
    engine = Engine(cluster.dsn(databases.borrow()))
    engine.query(f"CREATE SERVER ml_udf FOREIGN DATA WRAPPER ml_udf OPTIONS (url '{fake_server.url}')")
    engine.query("SELECT ml_udf.create_function('udf_food_name')")
    engine.query("SELECT ml_udf.create_function('udf_food_name')")  # as each deployment does
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        engine.query("DROP EXTENSION ml_udf")
    engine.query("DROP SERVER ml_udf CASCADE; DROP EXTENSION ml_udf")
    assert engine.value("SELECT count(*) FROM pg_proc WHERE proname ~ 'food_name'") == 0
    assert engine.value(f"SELECT count(*) FROM pg_proc WHERE {OURS}") == 0
    engine.query("CREATE EXTENSION ml_udf")  # and it can come back
    engine.close()


def test_the_extension_is_for_superusers_to_create(cluster: Sandbox) -> None:
    cluster.sql("CREATE DATABASE plain; CREATE ROLE anybody LOGIN; GRANT CREATE ON DATABASE plain TO anybody")
    engine = Engine(cluster.dsn("plain", user="anybody"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        engine.query("CREATE EXTENSION ml_udf CASCADE")
    engine.close()
    cluster.sql("DROP DATABASE plain; DROP ROLE anybody")
