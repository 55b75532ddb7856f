"""Random queries over a function, and random tables for it whose faulty rows come last. Pure; seeded.

`{f}` stands for the function, so that the same text asks a look-up instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ml_udf.errors import InputError, error_classes

__all__ = ["FAULTS", "Query", "Table", "random_query", "random_table"]

FAULTS = [
    error.code for error in error_classes() if issubclass(error, InputError) and error is not InputError
]


FAULT = "fault:"  # then the code


@dataclass(frozen=True)
class Table:
    """Rows of (id, p): inputs with duplicates and NULLs; those at fault behind all others."""

    name: str
    rows: list[tuple[int, str | None]]

    @property
    def create(self) -> str:
        """The statement that makes it."""
        values = ", ".join(f"({id_}, {'NULL' if p is None else repr(p)})" for id_, p in self.rows)
        return f"CREATE TEMPORARY TABLE {self.name} AS SELECT * FROM (VALUES {values}) AS v(id, p)"

    @property
    def inputs(self) -> set[str]:
        """Its distinct inputs."""
        return {p for _, p in self.rows if p is not None}

    @property
    def faults(self) -> set[str]:
        """The codes of its faulty rows."""
        return {p.removeprefix(FAULT) for p in self.inputs if p.startswith(FAULT)}


@dataclass(frozen=True)
class Query:
    """kind   how it is run: as a `query`, as a `cursor` that is left early, as a `loop` that is left early
    rows   how many rows the last two read
    """

    kind: str
    text: str
    rows: int = 0


def random_table(random: Random, name: str) -> Table:
    """Up to 90 rows, the last few of them at fault, or none."""
    size = random.choice((1, 5, 17, 30, 90))
    inputs = [f"/{random.randrange(max(2, size // 2))}" for _ in range(size)]
    whole: list[str | None] = [None if random.random() < 0.1 else p for p in inputs]
    bad = [f"{FAULT}{random.choice(FAULTS)}" for _ in range(random.choice((0, 1, 1, 3)))]
    return Table(name, list(enumerate([*whole, "/end", *bad], start=1)))


def random_query(random: Random, *, ordered: bool) -> Query:
    """A query over the tables t and u. ordered: whether a LIMIT needs an order to mean something."""
    kind = "query" if ordered else random.choice(("query", "query", "cursor", "loop"))
    text = random.choice(_SHAPES)(random)
    few = random.choice((1, 2, 7, 16, 20, 40))
    if kind == "query" and random.random() < 0.6:
        order = " ORDER BY 1, 2" if ordered or random.random() < 0.2 else ""
        offset = f" OFFSET {random.randrange(5)}" if random.random() < 0.3 else ""
        text = f"SELECT * FROM ({text}) AS q(a, b){order} LIMIT {few}{offset}"
    return Query(kind, text, few)


def _condition(random: Random, table: str) -> str:
    return random.choice(
        (
            "true",
            f"{table}.id % {random.randint(2, 4)} = {random.randrange(2)}",
            f"{{f}}({table}.p) <> 'c{random.randrange(7)}'",
            f"{{f}}({table}.p) IS NOT NULL",
            f"{table}.id < {random.randrange(40)} AND {{f}}({table}.p) IN ('c1', 'c2', 'c3', 'c4')",
        )
    )


def _call(random: Random, table: str) -> str:
    call = f"{{f}}({table}.p)"
    return random.choice(
        (
            call,
            call,
            f"{{f}}({{f}}({table}.p))",
            f"coalesce({call}, 'none')",
            f"CASE WHEN {table}.id < {random.randrange(60)} THEN {call} ELSE 'not asked' END",
        )
    )


def _scan(random: Random) -> str:
    return f"SELECT t.id, {_call(random, 't')} FROM t WHERE {_condition(random, 't')}"


def _union(random: Random) -> str:
    return f"{_scan(random)} UNION ALL SELECT u.id, {_call(random, 'u')} FROM u"


def _filtered_union(random: Random) -> str:
    inner = f"SELECT id, {{f}}(p) AS p FROM t UNION ALL SELECT id, {random.choice(('p', '{f}(p)'))} FROM u"
    return (
        f"SELECT v.id, {_call(random, 'v')} FROM ({inner}) AS v WHERE v.p <> 'c1' AND v.p NOT LIKE 'fault%'"
    )


def _join(random: Random) -> str:
    kind = random.choice(("JOIN", "LEFT JOIN"))
    second = random.choice(("u.p", "{f}(u.p)"))
    where = _condition(random, "t")
    both = f"{_call(random, 't')} || coalesce({second}, '')"
    return f"SELECT t.id, {both} FROM t {kind} u ON u.id = t.id WHERE {where}"


def _key_join(random: Random) -> str:
    where = f"t.id < 30 AND u.id < {random.randrange(30)}"
    return f"SELECT t.id, u.p FROM t JOIN u ON {{f}}(t.p) = {{f}}(u.p) WHERE {where}"


def _exists(random: Random) -> str:
    offset = random.randrange(20)
    found = f"EXISTS (SELECT 1 FROM u WHERE {_condition(random, 'u')} OFFSET {offset})"
    return f"SELECT t.id, CASE WHEN {found} THEN 'some' ELSE 'none' END FROM t"


def _subquery(random: Random) -> str:
    found = f"(SELECT {_call(random, 'u')} FROM u WHERE u.id = t.id)"
    return f"SELECT t.id, {found} FROM t WHERE {_condition(random, 't')}"


def _grouped(random: Random) -> str:
    return f"SELECT count(*), {{f}}(t.p) AS g FROM t WHERE {_condition(random, 't')} GROUP BY g"


def _aggregate(random: Random) -> str:
    return f"SELECT count({{f}}(t.p)), max({_call(random, 't')}) FROM t WHERE {_condition(random, 't')}"


def _set(random: Random) -> str:
    verb = random.choice(("INTERSECT ALL", "EXCEPT ALL", "UNION", "INTERSECT"))
    return f"SELECT 1, {{f}}(p) FROM t {verb} SELECT 1, {{f}}(p) FROM u"


def _cte(random: Random) -> str:
    return (
        f"SELECT * FROM (WITH w AS MATERIALIZED (SELECT t.id, {_call(random, 't')} AS a FROM t) "
        f"SELECT id, a FROM w WHERE id < {random.randrange(60)}) AS w"
    )


_SHAPES = (
    _scan,
    _scan,
    _union,
    _filtered_union,
    _join,
    _key_join,
    _exists,
    _subquery,
    _grouped,
    _aggregate,
    _set,
    _cte,
)
