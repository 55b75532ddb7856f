"""Partitions, inheritance, foreign tables, row security, parallel plans."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

SCAN = ("Seq Scan",)
NO_INDEX = ("SET LOCAL enable_indexscan = off", "SET LOCAL enable_bitmapscan = off")
PARALLEL = (
    "SET LOCAL parallel_setup_cost = 0",
    "SET LOCAL parallel_tuple_cost = 0",
    "SET LOCAL min_parallel_table_scan_size = 0",
    "SET LOCAL max_parallel_workers_per_gather = 2",
)
FOREIGN = (
    "CREATE EXTENSION IF NOT EXISTS file_fdw",
    "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
    "CREATE FOREIGN TABLE lines (line text) SERVER files OPTIONS (program 'seq 1 30')",
)
SECURED = (
    "ALTER TABLE items ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY own ON items USING (grp < 2)",
    "CREATE ROLE reader",
    "GRANT SELECT ON items, big, users TO reader",
)
# What a nosy function is shown; it must never see a row that row security hides.
NOSY = (
    "CREATE FUNCTION pg_temp.nosy(text) RETURNS boolean LANGUAGE plpgsql STABLE COST 0.0001 AS"
    " $$BEGIN RAISE NOTICE 'seen %', $1; RETURN true; END$$",
)

CASES = [
    Case("partitions share a layer", "SELECT id, label(path) FROM parted", 7, ("Append",)),
    Case("a filter over partitions", "SELECT id FROM parted WHERE is_food(path)", 7, ("Append",)),
    Case(
        "a filter and a call over partitions",
        "SELECT label(path) FROM parted WHERE is_food(path) AND day > 3",
        None,
        ("Custom Scan", "Append"),
    ),
    Case("LIMIT over partitions", "SELECT score(id) FROM parted LIMIT 40", 40, ("Append",)),
    Case("grouped over partitions", "SELECT label(path), count(*) FROM parted GROUP BY 1", 7, ("Append",)),
    Case("one partition", "SELECT label(path) FROM parted WHERE day BETWEEN 12 AND 14", 7, SCAN),
    Case(
        "partitions in order",
        "SELECT id, label(path) FROM parted ORDER BY day, id LIMIT 20",
        None,
        ("Result",),
        before=("SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
        ordered=True,
    ),
    Case(
        "partitions joined one by one",
        "SELECT a.id, label(a.path || b.path) FROM parted AS a JOIN parted AS b USING (day) WHERE"
        " a.id < b.id",
        None,
        ("Append",),
        before=("SET LOCAL enable_partitionwise_join = on",),
    ),
    Case(
        "partitions pruned at run time",
        "SELECT label(path) FROM parted WHERE day = (SELECT 12)",
        None,
        ("Append",),
    ),
    Case(
        "an UPDATE over partitions",
        "UPDATE parted SET path = label(path)",
        7,
        ("Append",),
        after=("TABLE parted",),
    ),
    Case(
        "an UPDATE that moves rows between partitions",
        "UPDATE parted SET day = length(label(path)) + 20 WHERE day < 5",
        None,
        SCAN,
        after=("SELECT tableoid::regclass, * FROM parted",),
    ),
    Case("inheritance", "SELECT tableoid::regclass, id, label(path) FROM parent", 7, ("Result",)),
    Case("a call over a parent only", "SELECT id, label(path) FROM ONLY parent", 7, SCAN),
    Case("whole rows of an inheritance tree", "SELECT parent, label(path) FROM parent", 7, ("Result",)),
    Case(
        "different branches keep their own layers",
        "SELECT label(path) FROM items UNION ALL SELECT 'x' || label(name) FROM users",
        14,
        ("Seq Scan", "Seq Scan"),
    ),
    Case("a foreign table", "SELECT line, label(line) FROM lines", 30, ("Foreign Scan",), before=FOREIGN),
    Case(
        "a filter over a foreign table",
        "SELECT line FROM lines WHERE length(line) = 1 AND is_food(line)",
        9,
        ("Foreign Scan",),
        before=FOREIGN,
    ),
    Case(
        "a join with a foreign table",
        "SELECT id FROM lines JOIN items ON id = line::int WHERE label(path) = 'PA6'",
        7,
        ("Seq Scan",),
        before=FOREIGN,
    ),
    Case(
        "row security comes first",
        "SELECT id, label(path) FROM items",
        7,
        SCAN,
        before=(*SECURED, *NO_INDEX, "SET LOCAL ROLE reader"),
    ),
    Case(
        "row security by a call",
        "SELECT id FROM items WHERE pg_temp.nosy(path)",
        7,
        SCAN,
        before=(
            *SECURED,
            *NOSY,
            "DROP POLICY own ON items",
            "CREATE POLICY food ON items USING (is_food(path))",
            "SET LOCAL ROLE reader",
        ),
    ),
    Case(
        "row security by a call, below a parameterized loop",
        "SELECT big.id FROM users JOIN big ON big.id = users.grp + 10 WHERE pg_temp.nosy(big.path || name)",
        None,
        ("Index Scan",),
        before=(
            *SECURED,
            *NOSY,
            "ALTER TABLE big ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY food ON big USING (is_food(path))",
            "SET LOCAL enable_seqscan = off",
            "SET LOCAL enable_bitmapscan = off",
            "SET LOCAL enable_hashjoin = off",
            "SET LOCAL enable_mergejoin = off",
            "SET LOCAL ROLE reader",
        ),
    ),
    Case(
        "a security barrier",
        "SELECT id FROM fenced WHERE label(path) = 'PA6' AND pg_temp.nosy(path)",
        7,
        ("Subquery Scan",),
        before=NOSY,
    ),
    Case("parallel scans", "SELECT id, label(path) FROM big", None, SCAN, before=PARALLEL),
    Case(
        "parallel filters",
        "SELECT id FROM big WHERE is_food(path) AND grp < 5",
        None,
        SCAN,
        before=PARALLEL,
    ),
    Case(
        "a parallel aggregate",
        "SELECT grp, count(*), min(label(path)) FROM big GROUP BY grp",
        None,
        ("Sort",),
        before=PARALLEL,
    ),
    Case(
        "a parallel hash join by a call",
        "SELECT count(*) FROM big JOIN labels ON label(path) = labels.name",
        None,
        SCAN,
        before=(*PARALLEL, "SET LOCAL enable_nestloop = off", "SET LOCAL enable_mergejoin = off"),
    ),
    Case(
        "a parallel hash on the call's side",
        "SELECT count(*) FROM big AS a RIGHT JOIN big AS b ON label(a.path) = b.path",
        None,
        SCAN,
        before=(*PARALLEL, "SET LOCAL enable_nestloop = off", "SET LOCAL enable_mergejoin = off"),
    ),
    Case(
        "a parallel append",
        "SELECT label(path) FROM parted UNION ALL SELECT label(path) FROM big",
        None,
        ("Append",),
        before=PARALLEL,
    ),
    Case(
        "a parallel scan in order",
        "SELECT id, label(path) FROM big ORDER BY label(path), id LIMIT 10",
        None,
        SCAN,
        before=PARALLEL,
        ordered=True,
    ),
    Case(
        "a restricted call stays in the leader",
        "SELECT tags(path) FROM big WHERE grp = 3",
        None,
        ("Gather",),
        before=PARALLEL,
    ),
    Case(
        "a parallel scan of a limit",
        "SELECT count(n) FROM (SELECT label(path) AS n FROM big LIMIT 7) AS s",
        None,
        SCAN,
        before=PARALLEL,
        after=("SELECT 1",),
    ),
]
