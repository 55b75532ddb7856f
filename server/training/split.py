"""Which rows train, validate and test: the same for the same rows, whatever their order.

Rows that share an entity, or the same input, stay together: they form one component, and components are
dealt out, never rows. Within a class components are ordered by a hash, or by time, and cut by rows: so every
class is in every split in proportion.

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

__all__ = ["SPLITS", "RowNumbers", "Shares"]

SPLITS = ("train", "validation", "test")

_LEAST_COMPONENTS = 3
_MEMORY = "384MB"
_READ_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of the rows that validate and test; the rest trains."""

    validation: float = 0.15
    test: float = 0.15

    def __post_init__(self) -> None:
        if not (0 < self.validation < 1 and 0 < self.test < 1 and self.validation + self.test < 0.9):
            raise BadOption("'validation' and 'test' are shares of the rows, above 0 and together below 0.9")


class RowNumbers:
    """What the split depends on, row by row: `add` all of them, then `split`. `folder` must be empty."""

    def __init__(self, folder: Path) -> None:
        self._db = duckdb.connect(
            str(folder / "rows.duckdb"),
            config={"memory_limit": _MEMORY, "threads": "1", "temp_directory": str(folder / "spilled")},
        )
        self._db.execute("SET enable_progress_bar = false")
        self._db.execute(
            "CREATE TABLE numbers (n BIGINT, entity UBIGINT, input UBIGINT, place HUGEINT, target INTEGER)"
        )
        self.count = 0

    def add(
        self,
        entity: Sequence[int],
        inputs: Sequence[int],
        targets: Sequence[int],
        times: Sequence[int] | None = None,
    ) -> None:
        """Rows that follow those before. entity, inputs: 64-bit hashes; times: None = the entity's hash."""
        columns = {
            "n": pa.array(range(self.count, self.count + len(entity)), pa.int64()),
            "entity": pa.array(entity, pa.uint64()),
            "input": pa.array(inputs, pa.uint64()),
            "place": pa.array(entity, pa.uint64()) if times is None else pa.array(times, pa.int64()),
            "target": pa.array(targets, pa.int32()),
        }
        self._db.register("coming", pa.table(columns))
        self._db.execute("INSERT INTO numbers SELECT * FROM coming")
        self._db.unregister("coming")
        self.count += len(entity)

    def split(self, classes: Sequence[str], shares: Shares) -> Iterator[NDArray[np.int8]]:
        """The split of every row, an index into `SPLITS`, in parts, in the order of `add`.

        classes: their names, by the targets' numbers. A component's smallest place counts: the largest test,
        those before them validate, the rest train. A component that holds several targets counts as one of
        the rarest of them. Raises `BadOption` for a class that would miss in a split, before the first part.
        """
        self._find_components()
        self._deal(self._rarity(classes), shares)
        self._check(classes)
        parts = self._db.sql("SELECT split FROM dealt ORDER BY n").to_arrow_reader(_READ_ROWS)
        return (part.column(0).to_numpy(zero_copy_only=False) for part in parts)

    def components(self) -> list[int]:
        """The component of every row: the number of the first row in it."""
        self._find_components()
        return [c for (c,) in self._db.execute("SELECT c FROM component ORDER BY n").fetchall()]

    def close(self) -> None:
        """Let go of the files."""
        self._db.close()

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

    def _deal(self, rarity: Sequence[int], shares: Shares) -> None:
        """dealt(n, c, target, split)."""
        run = self._db.execute
        self._db.register(
            "coming", pa.table({"target": range(len(rarity)), "rank": pa.array(rarity, pa.int32())})
        )
        run("CREATE TEMP TABLE rarity AS FROM coming")
        self._db.unregister("coming")
        run(
            "CREATE TEMP TABLE sized AS SELECT c, count(*) AS size, min(place) AS place, min(rank) AS rank"
            " FROM numbers JOIN component USING (n) JOIN rarity USING (target) GROUP BY c"
        )
        run(
            "CREATE TEMP TABLE ranked AS SELECT c, rank, row_number() OVER w AS number,"
            " sum(size) OVER w / sum(size) OVER (PARTITION BY rank) AS reached FROM sized"
            " WINDOW w AS (PARTITION BY rank ORDER BY place, c ROWS UNBOUNDED PRECEDING)"
        )
        run(
            # Each split gets at least one.
            "CREATE TEMP TABLE cut AS SELECT rank, count(*) AS components,"
            " least(greatest(count(*) FILTER (reached <= ?), 1), count(*) - 2) AS trained,"
            " least(greatest(count(*) FILTER (reached <= ?), trained + 1), count(*) - 1) AS validated"
            " FROM ranked GROUP BY rank",
            [1 - shares.test - shares.validation, 1 - shares.test],
        )
        run(
            "CREATE TEMP TABLE placed AS SELECT c, CASE WHEN components < ? OR number <= trained THEN 0"
            " WHEN number <= validated THEN 1 ELSE 2 END::TINYINT AS split FROM ranked JOIN cut USING (rank)",
            [_LEAST_COMPONENTS],
        )
        run("CREATE TEMP TABLE sided AS SELECT n, c, split FROM component JOIN placed USING (c)")
        run("CREATE TEMP TABLE dealt AS SELECT n, c, target, split FROM sided JOIN numbers USING (n)")

    def _check(self, classes: Sequence[str]) -> None:
        found = dict(
            self._db.execute("SELECT target, count(DISTINCT split) FROM dealt GROUP BY target").fetchall()
        )
        for name, target in sorted((name, target) for target, name in enumerate(classes)):
            if found.get(target, 0) == len(SPLITS):
                continue
            different = _number(
                self._db.execute("SELECT count(DISTINCT c) FROM dealt WHERE target = ?", [target])
            )
            raise BadOption(
                f"the class {name!r} has {different} different examples; at least {_LEAST_COMPONENTS} are "
                "needed, to train, to validate and to test; more where rows must stay together"
            )


def _least_of(key: str, source: str, result: str) -> str:
    return (
        f"CREATE OR REPLACE TEMP TABLE {result} AS SELECT n, entity, input, least.c FROM {source}"
        f" JOIN (SELECT {key}, min(c) AS c FROM {source} GROUP BY {key}) AS least USING ({key})"
    )


def _number(answer: Any) -> int:  # noqa: ANN401  # DuckDB's result has no type of its own
    ((number,),) = answer.fetchall()
    return int(number)
