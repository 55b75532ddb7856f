"""Joins of every kind and method, semijoins, antijoins, LATERAL."""

from __future__ import annotations

from tests.postgres.batch.cases import Case

__all__ = ["CASES"]

SCAN = ("Seq Scan",)


def only(method: str) -> tuple[str, ...]:
    """Leave the planner one join method."""
    methods = {"nestloop", "hashjoin", "mergejoin"} - {method}
    others = (f"SET LOCAL enable_{name} = off" for name in sorted(methods))
    return (*others, "SET LOCAL enable_memoize = off")


HASH, MERGE, LOOP = only("hashjoin"), only("mergejoin"), only("nestloop")

CASES = [
    Case(
        "a call over a hash join",
        "SELECT name, label(path) FROM items JOIN users USING (grp)",
        7,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a call over a merge join",
        "SELECT name, label(path) FROM items JOIN users USING (grp)",
        7,
        ("Merge Join",),
        before=MERGE,
    ),
    Case(
        "a call over a nested loop",
        "SELECT name, label(path) FROM items JOIN users USING (grp)",
        7,
        ("Nested Loop",),
        before=LOOP,
    ),
    Case(
        "a call of both sides' columns",
        "SELECT label(path || name) FROM items JOIN users USING (grp) WHERE id < 30",
        None,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a call as the outer hash key",
        "SELECT id, cuisine FROM items JOIN labels ON label(path) = labels.name",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "a call as the inner hash key",
        "SELECT i.id, b.id FROM (SELECT * FROM items LIMIT 20) AS i"
        " RIGHT JOIN big AS b ON label(i.path) = label(b.path) AND b.id < 40",
        None,
        ("Seq Scan", "Subquery Scan"),
        before=HASH,
    ),
    Case(
        "calls as both hash keys",
        "SELECT a.id, b.id FROM items AS a JOIN items AS b ON label(a.path) = label(b.path) WHERE"
        " a.id < 9 AND b.id < 9",
        14,
        ("Seq Scan", "Seq Scan"),
        before=(*HASH, "SET LOCAL enable_bitmapscan = off", "SET LOCAL enable_indexscan = off"),
    ),
    Case(
        "a hash key's call in the select list, too",
        "SELECT label(path), cuisine FROM items JOIN labels ON label(path) = labels.name",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "two hash keys, one a call",
        "SELECT a.id FROM items AS a JOIN users AS u ON a.grp = u.grp AND label(a.path) = u.favourite",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "a hash key of a call of a call",
        "SELECT id FROM items JOIN users ON score(match(path, 1)) = users.grp + 13",
        7 + 7,
        ("Custom Scan", *SCAN),
        before=HASH,
    ),
    Case(
        "a merge key that is a call",
        "SELECT id, cuisine FROM items JOIN labels ON label(path) = labels.name",
        7,
        SCAN,
        before=MERGE,
    ),
    Case(
        "merge keys that are calls on both sides",
        "SELECT a.id, b.id FROM items AS a JOIN items AS b ON label(a.path) = label(b.path) WHERE a.id < 9",
        14,
        ("Seq Scan", "Seq Scan"),
        before=(*MERGE, "SET LOCAL enable_bitmapscan = off", "SET LOCAL enable_indexscan = off"),
    ),
    Case(
        "the inner side of a merge join, which goes back",
        "SELECT a.id FROM big AS a JOIN big AS b ON a.id / 2 = b.id AND a.id < 40 WHERE is_food(b.path)",
        None,
        ("Index Scan",),
        before=(
            *MERGE,
            "SET LOCAL enable_seqscan = off",
            "SET LOCAL enable_bitmapscan = off",
            "SET LOCAL enable_material = off",
        ),
    ),
    Case(
        "a condition over both sides of a nested loop",
        "SELECT id, name FROM items JOIN users ON label(path) <> favourite WHERE id < 20",
        7,
        ("Nested Loop",),
        before=LOOP,
    ),
    Case(
        "a condition beside a hash key",
        "SELECT id FROM items JOIN users ON items.grp = users.grp AND label(path || name) > 'PA9'",
        None,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a filter over an inner join",
        "SELECT id FROM items JOIN users USING (grp) WHERE match(path, length(name)) > 8",
        None,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a filter below a parameterized nested loop",
        "SELECT b.id FROM users JOIN big AS b ON b.id = users.grp + 10 WHERE is_food(b.path)",
        7,
        ("Nested Loop",),
        before=(*LOOP, "SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
    ),
    Case(
        "a filter below a memoized nested loop",
        "SELECT i.id, b.id FROM items AS i JOIN big AS b ON b.id = i.grp + 10 WHERE is_food(b.path)",
        None,
        ("Nested Loop",),
        before=(
            "SET LOCAL enable_hashjoin = off",
            "SET LOCAL enable_mergejoin = off",
            "SET LOCAL enable_bitmapscan = off",
        ),
    ),
    Case(
        "a filter with a parameter below a nested loop",
        "SELECT b.id FROM users JOIN big AS b ON b.id = users.grp + 10 WHERE label(b.path || name) > 'P'",
        None,
        ("Nested Loop",),
        before=(*LOOP, "SET LOCAL enable_seqscan = off", "SET LOCAL enable_bitmapscan = off"),
    ),
    Case(
        "a left join",
        "SELECT u.name, label(i.path) FROM users AS u LEFT JOIN items AS i ON i.grp = u.grp AND i.id < 30",
        7,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a non-strict call over a left join's missing side",
        "SELECT u.name, score(i.id) FROM users AS u LEFT JOIN items AS i ON i.grp = u.grp AND i.id < 8",
        None,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a left join to computed labels",
        "SELECT u.name, s.n FROM users AS u LEFT JOIN (SELECT grp, label(path) AS n FROM items WHERE"
        " id < 30) AS s"
        " USING (grp)",
        7,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a left join's outer key",
        "SELECT id, cuisine FROM items LEFT JOIN labels ON label(path) = labels.name",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "a left join's key and its call in the select list",
        "SELECT label(path), cuisine FROM items LEFT JOIN labels ON label(path) = labels.name",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "a filter over a left join",
        "SELECT id FROM items LEFT JOIN labels ON labels.name = 'PA' || grp WHERE coalesce(cuisine,"
        " label(path)) > 'P'",
        7,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a full join",
        "SELECT id, labels.name FROM items FULL JOIN labels ON label(path) = labels.name",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "a full join's missing side in the select list",
        "SELECT score(id), labels.name FROM items FULL JOIN labels ON label(path) = labels.name"
        " WHERE id < 9 OR id IS NULL",
        None,
        ("Hash Join", "Seq Scan"),
        before=HASH,
    ),
    Case(
        "a right join",
        "SELECT label(i.path), u.name FROM items AS i RIGHT JOIN users AS u USING (grp)",
        7,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a cross join",
        "SELECT label(path), name FROM items CROSS JOIN users",
        None,
        ("Nested Loop",),
    ),
    Case(
        "a self join",
        "SELECT label(a.path), label(b.path) FROM items AS a JOIN items AS b ON a.id = b.id + 1",
        14,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "three tables",
        "SELECT cuisine, users.name FROM items JOIN users USING (grp) JOIN labels ON labels.name ="
        " label(path)",
        7,
        ("Hash Join",),
        before=(*HASH, "SET LOCAL join_collapse_limit = 1"),
    ),
    Case(
        "a semijoin with a call as its key",
        "SELECT cuisine FROM labels WHERE name IN (SELECT label(path) FROM items)",
        7 + 7,
        ("Aggregate", *SCAN),
        before=HASH,
    ),
    Case(
        "a semijoin whose inner side is filtered",
        "SELECT name FROM users WHERE grp IN (SELECT grp FROM items WHERE is_food(path))",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "a semijoin's call in the select list",
        "SELECT label(path) FROM items WHERE grp IN (SELECT grp FROM users WHERE grp < 3)",
        7,
        ("Hash Join",),
        before=HASH,
    ),
    Case(
        "a semijoin in a nested loop",
        "SELECT name FROM users WHERE EXISTS (SELECT 1 FROM items WHERE items.grp = users.grp AND"
        " is_food(path))",
        None,
        SCAN,
        before=(*LOOP, "SET LOCAL enable_indexscan = off", "SET LOCAL enable_bitmapscan = off"),
    ),
    Case(
        "an antijoin with a call as its key",
        "SELECT cuisine FROM labels WHERE NOT EXISTS (SELECT 1 FROM items WHERE label(path) = labels.name)",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "an antijoin whose inner side is filtered",
        "SELECT name FROM users WHERE NOT EXISTS (SELECT 1 FROM items WHERE items.grp = users.grp"
        " AND is_food(path))",
        7,
        SCAN,
        before=HASH,
    ),
    Case(
        "LATERAL with a call",
        "SELECT name, s.n FROM users, LATERAL (SELECT label(path) AS n FROM items WHERE items.grp = users.grp"
        " ORDER BY price, id LIMIT 2) AS s",
        10,
        ("Result",),
    ),
    Case(
        "LATERAL over a composite call",
        "SELECT id, j.value, j.confidence FROM items, LATERAL judge(path) AS j WHERE id < 20",
        None,
        (),
        singles=19,
        before=LOOP,
    ),
    Case(
        "LATERAL once for all columns",
        "SELECT id, (j).value, (j).confidence FROM items, LATERAL (SELECT judge(path) AS j) AS s"
        " WHERE id < 20",
        7,
        SCAN,
    ),
    Case(
        "a join of a CTE's calls",
        "WITH l AS MATERIALIZED (SELECT id, label(path) AS n FROM items)"
        " SELECT l.id, cuisine FROM l JOIN labels ON l.n = labels.name",
        7,
        SCAN,
    ),
]
