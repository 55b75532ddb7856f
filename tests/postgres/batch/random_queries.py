"""Random SQL over random_schema.sql: a seed gives a query.

Queries have one answer whatever the plan: a LIMIT stands over a sort by all columns, aggregates do not depend
on the order of rows, sums are of integers. They may well raise errors.
"""

from __future__ import annotations

from random import Random

__all__ = ["random_query", "random_settings", "random_write"]

TABLES = ("a", "b", "c", "v")
COLUMNS = {"i": "int", "t": "text", "n": "int", "b": "bool"}
PLANNER = (
    "hashjoin",
    "mergejoin",
    "nestloop",
    "hashagg",
    "sort",
    "indexscan",
    "bitmapscan",
    "seqscan",
    "material",
    "memoize",
    "partitionwise_join",
    "partitionwise_aggregate",
    "indexonlyscan",
)

Scope = dict[str, str]  # expression → its type
Depth = int  # of nesting that is left; the generator has methods named after SQL's own types


def random_settings(random: Random) -> list[str]:
    """SET LOCAL statements: a planner in some mood, batches of some size."""
    settings = [f"SET LOCAL enable_{name} = {random.random() < 0.7}" for name in random.sample(PLANNER, 4)]
    settings.append(f"SET LOCAL ml_udf.gather_rows = {random.choice((1, 2, 7, 64, 4096))}")
    settings.append(f"SET LOCAL jit = {random.random() < 0.03}")  # slow, at these costs
    if random.random() < 0.2:
        settings.append("SET LOCAL work_mem = '64kB'")
    if random.random() < 0.3:
        settings += [
            "SET LOCAL parallel_setup_cost = 0",
            "SET LOCAL parallel_tuple_cost = 0",
            "SET LOCAL min_parallel_table_scan_size = 0",
            "SET LOCAL min_parallel_index_scan_size = 0",
        ]
    return settings


def random_query(random: Random) -> str:
    return _Generator(random).query(depth=2)


def random_write(random: Random) -> str:
    """INSERT, UPDATE or DELETE of table a or b."""
    return _Generator(random).write()


class _Generator:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.names = 0

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def name(self) -> str:
        self.names += 1
        return f"x{self.names}"

    # Statements

    def query(self, depth: Depth) -> str:
        if depth > 0 and self.chance(0.12):
            types = self.types()
            operator = self.random.choice(("UNION ALL", "UNION", "INTERSECT", "EXCEPT"))
            left, right = self.select(depth - 1, types), self.select(depth - 1, types)
            body = f"({left}) {operator} ({right})"
        elif depth > 0 and self.chance(0.15):
            name, materialized = self.name(), self.random.choice(("", "MATERIALIZED ", "NOT MATERIALIZED "))
            types = self.types()
            columns = ", ".join(f"k{i}" for i in range(len(types)))
            scope = {f"{name}.k{i}": kind for i, kind in enumerate(types)}
            inner = self.select(depth - 1, types)
            outer = self.select(depth - 1, self.types(), extra=(name, scope))
            return f"WITH {name} ({columns}) AS {materialized}({inner}) {outer}"
        else:
            types = self.types()
            body = self.select(depth, types)
        if self.chance(0.25):
            order = ", ".join(str(i + 1) for i in range(len(types)))
            offset = f" OFFSET {self.random.randrange(4)}" if self.chance(0.4) else ""
            return f"SELECT * FROM ({body}) AS q ORDER BY {order} LIMIT {self.random.randrange(12)}{offset}"
        return body

    def write(self) -> str:
        table = self.random.choice("ab")
        scope = {f"{table}.{column}": kind for column, kind in COLUMNS.items()}
        where = f" WHERE {self.bool_of(scope, 2)}" if self.chance(0.8) else ""
        match self.random.randrange(3):
            case 0:
                return f"INSERT INTO a {self.select(1, list(COLUMNS.values()))}"
            case 1:
                return f"UPDATE {table} SET t = {self.text_of(scope, 2)}, n = {self.int_of(scope, 2)}{where}"
            case _:
                return f"DELETE FROM {table}{where}"

    def types(self) -> list[str]:
        return [self.random.choice(("text", "int", "bool")) for _ in range(self.random.randint(1, 4))]

    def select(self, depth: Depth, types: list[str], extra: tuple[str, Scope] | None = None) -> str:
        source, scope = self.source(depth, extra)
        where = f" WHERE {self.bool_of(scope, depth + 1)}" if self.chance(0.6) else ""
        if self.chance(0.3):
            return self.grouped(source, scope, where, types)
        if self.chance(0.12):
            return self.windowed(source, scope, where, types)
        distinct = "DISTINCT " if self.chance(0.1) else ""
        targets = ", ".join(self.expression(kind, scope, 3) for kind in types)
        return f"SELECT {distinct}{targets} FROM {source}{where}"

    def grouped(self, source: str, scope: Scope, where: str, types: list[str]) -> str:
        keys = [self.expression(kind, scope, 2) for kind in types[:2]]
        targets = keys + [self.aggregate(kind, scope) for kind in types[2:]]
        keys = [str(i + 1) for i in range(len(keys))]
        how = self.random.choice(("{}", "{}", "ROLLUP ({})", "CUBE ({})", "GROUPING SETS (({}), ())"))
        if how != "{}":  # only plain GROUP BY takes positions of any expression
            keys = targets[: len(keys)]
        having = f" HAVING {self.aggregate('bool', scope)}" if self.chance(0.3) else ""
        return (
            f"SELECT {', '.join(targets)} FROM {source}{where} GROUP BY {how.format(', '.join(keys))}{having}"
        )

    def windowed(self, source: str, scope: Scope, where: str, types: list[str]) -> str:
        partition = self.expression(self.random.choice(("int", "bool", "text")), scope, 2)
        targets = [self.aggregate(kind, scope) + f" OVER (PARTITION BY {partition})" for kind in types]
        return f"SELECT {', '.join(targets)} FROM {source}{where}"

    # Sources

    def source(self, depth: Depth, extra: tuple[str, Scope] | None = None) -> tuple[str, Scope]:
        text, scope = extra if extra is not None else self.table(depth, {})
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            right, more = self.table(depth, scope)
            kind = self.random.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
            if right.startswith("LATERAL"):
                kind = self.random.choice(("JOIN", "LEFT JOIN"))
            condition = self.join_condition(kind, scope, more)
            text, scope = f"{text} {kind} {right} ON {condition}", scope | more
        return text, scope

    def table(self, depth: Depth, outer: Scope) -> tuple[str, Scope]:
        alias = self.name()
        if depth > 0 and self.chance(0.3):
            types = self.types()
            lateral = "LATERAL " if outer and self.chance(0.3) else ""
            body = self.select(depth - 1, types)
            if lateral:
                body = f"SELECT * FROM ({body}) AS l WHERE {self.bool_of(outer, 1)}"
            fence = " OFFSET 0" if self.chance(0.4) else ""
            columns = ", ".join(f"k{i}" for i in range(len(types)))
            scope = {f"{alias}.k{i}": kind for i, kind in enumerate(types)}
            return f"{lateral}({body}{fence}) AS {alias} ({columns})", scope
        table = self.random.choice(TABLES)
        return f"{table} AS {alias}", {f"{alias}.{column}": kind for column, kind in COLUMNS.items()}

    def join_condition(self, kind: str, left: Scope, right: Scope) -> str:
        type_ = self.random.choice(("int", "text"))
        key = f"{self.expression(type_, left, 2)} = {self.expression(type_, right, 2)}"
        if kind == "FULL JOIN" or self.chance(0.5):  # a full join needs one it can hash or merge by
            return key
        more = self.bool_of(left | right, 1)
        return f"{key} AND {more}" if self.chance(0.7) else more

    # Expressions

    def expression(self, kind: str, scope: Scope, depth: Depth) -> str:
        return {"text": self.text_of, "int": self.int_of, "bool": self.bool_of}[kind](scope, depth)

    def column(self, kind: str, scope: Scope) -> str | None:
        columns = [column for column, type_ in scope.items() if type_ == kind]
        return self.random.choice(columns) if columns else None

    def text_of(self, scope: Scope, depth: Depth) -> str:
        if depth <= 0 or self.chance(0.3):
            return self.column("text", scope) or self.random.choice(("'fig'", "'apple'", "'none'"))
        inner = self.text_of(scope, depth - 1)
        match self.random.randrange(6):
            case 0 | 1:
                return f"ft({inner})"
            case 2:
                return f"({inner} || 'x')"
            case 3:
                return f"coalesce({inner}, {self.text_of(scope, depth - 1)})"
            case 4:
                return self.case("text", scope, depth)
            case _:
                return f"nullif({inner}, {self.text_of(scope, depth - 1)})"

    def int_of(self, scope: Scope, depth: Depth) -> str:
        if depth <= 0 or self.chance(0.3):
            return self.column("int", scope) or str(self.random.randrange(5))
        inner = self.int_of(scope, depth - 1)
        match self.random.randrange(8):
            case 0 | 1:
                return f"fi({inner})"
            case 2:
                return f"fti({self.text_of(scope, depth - 1)}, {inner})"
            case 3:
                return f"({inner} + {self.int_of(scope, depth - 1)})"
            case 4:
                return f"({inner} / {self.int_of(scope, depth - 1)})" if self.chance(0.3) else f"abs({inner})"
            case 5:
                return self.case("int", scope, depth)
            case 6 if depth > 1:
                return self.scalar_subquery(scope)
            case _:
                return f"coalesce({inner}, {self.int_of(scope, depth - 1)})"

    def bool_of(self, scope: Scope, depth: Depth) -> str:
        if depth <= 0 or self.chance(0.15):
            return self.column("bool", scope) or "true"
        match self.random.randrange(9):
            case 0:
                return f"fb({self.text_of(scope, depth - 1)})"
            case 1:
                return f"({self.bool_of(scope, depth - 1)} AND {self.bool_of(scope, depth - 1)})"
            case 2:
                return f"({self.bool_of(scope, depth - 1)} OR {self.bool_of(scope, depth - 1)})"
            case 3:
                return f"(NOT {self.bool_of(scope, depth - 1)})"
            case 4:
                operator = self.random.choice(("=", "<", ">=", "<>", "IS DISTINCT FROM"))
                return f"({self.int_of(scope, depth - 1)} {operator} {self.int_of(scope, depth - 1)})"
            case 5:
                operator = self.random.choice(("=", "<", ">=", "<>"))
                return f"({self.text_of(scope, depth - 1)} {operator} {self.text_of(scope, depth - 1)})"
            case 6:
                return f"({self.expression(self.random.choice(('text', 'int')), scope, depth - 1)} IS NULL)"
            case 7 if depth > 1:
                return self.predicate_subquery(scope)
            case _:
                return self.case("bool", scope, depth)

    def case(self, kind: str, scope: Scope, depth: Depth) -> str:
        branches = " ".join(
            f"WHEN {self.bool_of(scope, depth - 1)} THEN {self.expression(kind, scope, depth - 1)}"
            for _ in range(self.random.randint(1, 2))
        )
        if self.chance(0.3):
            operand = self.int_of(scope, depth - 1)
            value = self.expression(kind, scope, depth - 1)
            branches = f"{operand} WHEN {self.int_of(scope, depth - 1)} THEN {value}"
        default = f" ELSE {self.expression(kind, scope, depth - 1)}" if self.chance(0.7) else ""
        return f"CASE {branches}{default} END"

    def subquery_source(self, scope: Scope) -> tuple[str, Scope, str]:
        alias = self.name()
        inner = {f"{alias}.{column}": kind for column, kind in COLUMNS.items()}
        where = self.bool_of(inner | scope if self.chance(0.6) else inner, 1)
        return f"{self.random.choice(TABLES)} AS {alias}", inner, where

    def scalar_subquery(self, scope: Scope) -> str:
        source, inner, where = self.subquery_source(scope)
        return f"(SELECT max({self.int_of(inner, 1)}) FROM {source} WHERE {where})"

    def predicate_subquery(self, scope: Scope) -> str:
        source, inner, where = self.subquery_source(scope)
        if self.chance(0.5):
            return f"{self.random.choice(('EXISTS', 'NOT EXISTS'))} (SELECT 1 FROM {source} WHERE {where})"
        kind = self.random.choice(("int", "text"))
        operator = self.random.choice(("IN", "NOT IN"))
        column = self.expression(kind, inner, 1)
        return f"({self.expression(kind, scope, 1)} {operator} (SELECT {column} FROM {source} WHERE {where}))"

    def aggregate(self, kind: str, scope: Scope) -> str:
        match kind:
            case "text":
                body = f"{self.random.choice(('min', 'max'))}({self.text_of(scope, 2)})"
            case "int":
                function = self.random.choice(("max", "sum", "count", "count(DISTINCT"))
                close = ")" if function.endswith("T") else ""
                opened = function if close else f"{function}("
                body = f"{opened}{' ' if close else ''}{self.int_of(scope, 2)})"
            case _:
                body = f"{self.random.choice(('bool_and', 'bool_or'))}({self.bool_of(scope, 2)})"
        filtered = f" FILTER (WHERE {self.bool_of(scope, 1)})" if self.chance(0.25) else ""
        return f"{body}{filtered}" if kind != "int" else f"({body}{filtered})::int"
