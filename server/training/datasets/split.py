"""Which rows train, validate and test: the same for the same rows, whatever their order.

Rows that share an entity, or the same input, form one component, which is never on two sides.

by hash  a component's place is a hash of its own name. Within a class components are ordered by it and cut
         by their number: so every class is on every side in proportion, and how often an input occurs says
         nothing about its side. (Cut by rows, large components would reach over the cuts, and test more.)
by time  one cut for all classes before the rows that validate, one before those that test, by rows. A
         component that reaches over a cut keeps its rows on one side, which its hash names, each with the
         chance of its share of the rows; its others are left out.

The few numbers that this takes of a row are kept in a DuckDB file, which sorts and joins what does not fit
into a fixed share of memory. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from server.errors import BadOption

__all__ = ["BY_HASH", "BY_SMALLEST_ROW", "BY_TIME", "LEFT_OUT", "SPLITS", "RowNumbers", "SplitRatios"]

SPLITS = ("train", "validation", "test")
LEFT_OUT = -1  # on no side

# The rules by which snapshots were split; each snapshot says which.
BY_HASH = "hash of component"
BY_TIME = "one cut in time"
BY_SMALLEST_ROW = "smallest row of component"  # of snapshots that say nothing: frequent inputs trained

_LEAST_COMPONENTS = 3
_LEAST_TIMES = 3
_MEMORY = "384MB"
_READ_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class SplitRatios:
    """The shares of the rows that validate and test; the rest trains."""

    validation: float = 0.15
    test: float = 0.15

    def __post_init__(self) -> None:
        if not (0 < self.validation < 1 and 0 < self.test < 1 and self.validation + self.test < 0.9):
            raise BadOption(
                "'validation' and 'test' are shares of the rows, above 0 and together below 0.9, "
                f"such as 0.15; not {self.validation!s:.40} and {self.test!s:.40}"
            )


class RowNumbers:
    """What the split depends on, row by row: `add` all of them, then `split`.

    folder: must be empty. by_entity: whether a component is named by its entities, or by its inputs (where
    each row is an entity of its own). by_time: whether rows have a time.
    """

    def __init__(self, folder: Path, *, by_entity: bool = False, by_time: bool = False) -> None:
        self._name = "entity" if by_entity else "input"
        self._by_time = by_time
        self._db = duckdb.connect(
            str(folder / "rows.duckdb"),
            config={"memory_limit": _MEMORY, "threads": "1", "temp_directory": str(folder / "spilled")},
        )
        self._db.execute("SET enable_progress_bar = false")
        self._db.execute(
            "CREATE TABLE numbers (n BIGINT, entity UBIGINT, input UBIGINT, time BIGINT, target INTEGER)"
        )
        self.count = 0

    @property
    def rule(self) -> str:
        """The name of the rule."""
        return BY_TIME if self._by_time else BY_HASH

    def add(
        self,
        entity: Sequence[int],
        inputs: Sequence[int],
        targets: Sequence[int],
        times: Sequence[int] | None = None,
    ) -> None:
        """Rows that follow those before. entity, inputs: 64-bit hashes; times: where rows have a time."""
        columns = {
            "n": pa.array(range(self.count, self.count + len(entity)), pa.int64()),
            "entity": pa.array(entity, pa.uint64()),
            "input": pa.array(inputs, pa.uint64()),
            "time": pa.nulls(len(entity), pa.int64()) if times is None else pa.array(times, pa.int64()),
            "target": pa.array(targets, pa.int32()),
        }
        self._db.register("coming", pa.table(columns))
        self._db.execute("INSERT INTO numbers SELECT * FROM coming")
        self._db.unregister("coming")
        self.count += len(entity)

    def split(
        self, classes: Sequence[str], ratios: SplitRatios
    ) -> Iterator[tuple[NDArray[np.int8], NDArray[np.int64]]]:
        """The split and the component of every row, in parts, in the order of `add`.

        A split is an index into `SPLITS`, or `LEFT_OUT`; a component the number of its first row. classes:
        their names, by the targets' numbers. By hash a component that holds several targets counts as one of
        the rarest of them. Raises `BadOption` before the first part: by hash for a class that would miss in a
        split, by time for a split without rows.
        """
        self._find_components()
        if self._by_time:
            self._deal_by_time(ratios)
            self._check_sides()
        else:
            self._deal_by_hash(self._rarity(classes), ratios)
            self._check_classes(classes)
        return self._dealt()

    def sides(self) -> dict[int, tuple[str, ...]]:
        """After `split`: for each target, by its number, the splits that hold rows of it."""
        found = self._db.execute(
            "SELECT target, list_sort(list(DISTINCT split)) FROM dealt WHERE split >= 0 GROUP BY target"
        ).fetchall()
        return {target: tuple(SPLITS[side] for side in sides) for target, sides in found}

    def close(self) -> None:
        """Let go of the files."""
        self._db.close()

    def _dealt(self) -> Iterator[tuple[NDArray[np.int8], NDArray[np.int64]]]:
        # The query begins with the first part: until then the connection answers others.
        for part in self._db.sql("SELECT split, c FROM dealt ORDER BY n").to_arrow_reader(_READ_ROWS):
            split, component = (column.to_numpy(zero_copy_only=False) for column in part.columns)
            yield split, component

    def _find_components(self) -> None:
        """component(n, c). Only rows that share something with another take part in the search."""
        run = self._db.execute
        for key in ("entity", "input"):
            several = f"SELECT {key} FROM numbers GROUP BY {key} HAVING count(*) > 1"
            run(f"CREATE TEMP TABLE shared_{key} AS {several}")
        run(
            "CREATE TEMP TABLE linked AS SELECT n, entity, input, n AS c FROM numbers"
            " WHERE entity IN (FROM shared_entity) OR input IN (FROM shared_input)"
        )
        changed = bool(_number(run("SELECT count(*) FROM linked")))
        while changed:
            run(_least_of("entity", "linked", "by_entity"))
            run(_least_of("input", "by_entity", "by_input"))
            # A row takes the name of the row that it is named after: long chains fold in a few rounds.
            run(
                "CREATE OR REPLACE TEMP TABLE folded AS SELECT one.n, one.entity, one.input, first.c"
                " FROM by_input AS one JOIN by_input AS first ON first.n = one.c"
            )
            changed = bool(
                _number(run("SELECT count(*) FROM linked JOIN folded USING (n) WHERE linked.c <> folded.c"))
            )
            run("CREATE OR REPLACE TEMP TABLE linked AS FROM folded")
        run(
            "CREATE OR REPLACE TEMP TABLE component AS"
            " SELECT n, coalesce(linked.c, n) AS c FROM numbers LEFT JOIN linked USING (n)"
        )

    def _rarity(self, classes: Sequence[str]) -> list[int]:
        """The rank of each class, the rarest first: so a component's rarest is its smallest."""
        rows = dict(self._db.execute("SELECT target, count(*) FROM numbers GROUP BY target").fetchall())
        ordered = sorted(range(len(classes)), key=lambda target: (rows.get(target, 0), classes[target]))
        rank = {target: place for place, target in enumerate(ordered)}
        return [rank[target] for target in range(len(classes))]

    def _deal_by_hash(self, rarity: Sequence[int], ratios: SplitRatios) -> None:
        """dealt(n, c, target, split)."""
        run = self._db.execute
        self._db.register(
            "coming", pa.table({"target": range(len(rarity)), "rank": pa.array(rarity, pa.int32())})
        )
        run("CREATE TEMP TABLE rarity AS FROM coming")
        self._db.unregister("coming")
        run(
            "CREATE TEMP TABLE unit AS SELECT min(rank) AS stratum, c AS unit, 1 AS weight,"
            f" {_hash_of(self._name)} AS place"
            " FROM numbers JOIN component USING (n) JOIN rarity USING (target) GROUP BY c"
        )
        self._cut_units(ratios)
        run(
            "CREATE TEMP TABLE dealt AS SELECT n, c, target, split"
            " FROM numbers JOIN component USING (n) JOIN placed ON unit = c"
        )

    def _deal_by_time(self, ratios: SplitRatios) -> None:
        """dealt(n, c, target, split)."""
        run = self._db.execute
        times = _number(run("SELECT count(DISTINCT time) FROM numbers"))
        if times < _LEAST_TIMES:
            raise BadOption(
                f"the rows have {times} different times; at least {_LEAST_TIMES} are needed, to train, to "
                "validate and to test"
            )
        run(
            "CREATE TEMP TABLE unit AS SELECT 0 AS stratum, time AS unit, count(*) AS weight, time AS place"
            " FROM numbers GROUP BY time"
        )
        self._cut_units(ratios)
        run(
            "CREATE TEMP TABLE timed AS SELECT n, c, target, entity, input, split"
            " FROM numbers JOIN component USING (n) JOIN placed ON unit = time"
        )
        # A row of the component, by its hash, says where it stays.
        run(
            "CREATE TEMP TABLE staying AS SELECT c, CASE WHEN named < trained THEN 0"
            " WHEN named < trained + validated THEN 1 ELSE 2 END AS side FROM ("
            f" SELECT c, {_hash_of(self._name)} / 18446744073709551616.0 * count(*) AS named,"
            " count(*) FILTER (split = 0) AS trained, count(*) FILTER (split = 1) AS validated"
            " FROM timed GROUP BY c)"
        )
        run(
            f"CREATE TEMP TABLE dealt AS SELECT n, c, target,"
            f" CASE WHEN split = side THEN split ELSE {LEFT_OUT} END::TINYINT AS split"
            " FROM timed JOIN staying USING (c)"
        )

    def _cut_units(self, ratios: SplitRatios) -> None:
        """unit(stratum, unit, weight, place) → placed(unit, split): in each stratum the first train."""
        run = self._db.execute
        run(
            "CREATE TEMP TABLE ranked AS SELECT stratum, unit, row_number() OVER w AS number,"
            " sum(weight) OVER w / sum(weight) OVER (PARTITION BY stratum) AS reached FROM unit"
            " WINDOW w AS (PARTITION BY stratum ORDER BY place ROWS UNBOUNDED PRECEDING)"
        )
        run(
            # Each split gets at least one.
            "CREATE TEMP TABLE cut AS SELECT stratum, count(*) AS units,"
            " least(greatest(count(*) FILTER (reached <= ?), 1), count(*) - 2) AS trained,"
            " least(greatest(count(*) FILTER (reached <= ?), trained + 1), count(*) - 1) AS validated"
            " FROM ranked GROUP BY stratum",
            [1 - ratios.test - ratios.validation, 1 - ratios.test],
        )
        run(
            "CREATE TEMP TABLE placed AS SELECT unit, CASE WHEN units < ? OR number <= trained THEN 0"
            " WHEN number <= validated THEN 1 ELSE 2 END::TINYINT AS split"
            " FROM ranked JOIN cut USING (stratum)",
            [_LEAST_COMPONENTS],
        )

    def _check_classes(self, classes: Sequence[str]) -> None:
        found = self.sides()
        for name, target in sorted((name, target) for target, name in enumerate(classes)):
            if len(found.get(target, ())) == len(SPLITS):
                continue
            different = _number(
                self._db.execute("SELECT count(DISTINCT c) FROM dealt WHERE target = ?", [target])
            )
            whose = f"the class {name!r} has" if len(classes) > 1 else "the rows have"
            raise BadOption(
                f"{whose} {different} different examples; at least {_LEAST_COMPONENTS} are "
                "needed, to train, to validate and to test; more where rows must stay together"
            )

    def _check_sides(self) -> None:
        for side, name in enumerate(SPLITS):
            if not _number(self._db.execute("SELECT count(*) FROM dealt WHERE split = ?", [side])):
                raise BadOption(
                    f"no row is left for the split {name!r}: entities or equal inputs reach over the cuts in "
                    "time, and are kept on one side of them; give more rows, or leave 'time' or 'entity' out"
                )


def _hash_of(name: str) -> str:
    """A component's place: 64 bits that its least name gives, whatever its size (RFC 1321, upper half)."""
    return f"md5_number_upper(min({name})::VARCHAR)"


def _least_of(key: str, source: str, result: str) -> str:
    return (
        f"CREATE OR REPLACE TEMP TABLE {result} AS SELECT n, entity, input, least.c FROM {source}"
        f" JOIN (SELECT {key}, min(c) AS c FROM {source} GROUP BY {key}) AS least USING ({key})"
    )


def _number(answer: Any) -> int:  # noqa: ANN401  # DuckDB's result has no type of its own
    ((number,),) = answer.fetchall()
    return int(number)
