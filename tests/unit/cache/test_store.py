"""The answer cache's store: a bound that holds, the right ones leave, and rows come back as they were."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.cache.counts import CacheCounts
from server.cache.entry import ColumnKind, Source, cells_of, column_of, kind_of
from server.cache.rules.s3fifo import S3Fifo
from server.cache.rules.sieve import Sieve
from server.cache.store import ENTRY_BYTES, AnswerStore

LABEL = kind_of(Column("label", "BYTES", (), []))
CONFIDENCE = kind_of(Column("confidence", "FP32", (), b""))
TEXT = kind_of(Column("why", "BYTES", (), []))
SCORES = ColumnKind("scores", "FP32", (2,))
ONE = ENTRY_BYTES + 16 + 4 + len("ramen") + 4  # what one answer takes


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Kept:
    """A store, and a function of whose answers it keeps some."""

    def __init__(self, capacity_bytes: int) -> None:
        self.store = AnswerStore(capacity_bytes, Sieve)
        self.counts = CacheCounts()
        self.source = self.store.sources.of(
            "udf/1", (LABEL, CONFIDENCE), "model", self.counts, has_told=False
        )

    def keep(self, numbers: Sequence[int], label: str = "ramen") -> int:
        cells = [label] * len(numbers), [bytes(4)] * len(numbers)
        return self.store.keep(self.source, [key_of(each) for each in numbers], self.source.pack(cells))

    def label(self, number: int) -> str | None:
        (row,) = self.store.find([key_of(number)])
        return None if row is None else str(self.source.unpack([row]).columns[0][0])

    def has(self, number: int) -> bool:
        return key_of(number) in self.store


def test_what_was_asked_again_outlives_what_was_not() -> None:
    kept = Kept(8 * ONE + 8 * ONE)
    kept.keep(range(16))
    kept.store.find([key_of(0), key_of(1), None])
    for number in range(16, 30):
        kept.keep([number])
    assert [number for number in range(16) if kept.has(number)] == [0, 1]


def test_a_scan_of_what_is_asked_once_leaves_what_is_asked_often() -> None:
    kept = Kept(32 * ONE)
    kept.keep(range(16))
    often = [key_of(number) for number in range(16)]
    for number in range(1_000, 3_000):
        kept.keep([number])
        if number % 8 == 0:
            assert all(kept.store.find(often))


def test_the_first_of_two_answers_for_one_key_stays() -> None:
    kept = Kept(32 * ONE)
    assert kept.keep([1], "first") == 1
    assert kept.keep([1, 2], "later") == 1
    assert [kept.label(1), kept.label(2), kept.label(3)] == ["first", "later", None]


def test_an_answer_that_would_fill_the_cache_alone_is_not_kept() -> None:
    kept = Kept(8_000)
    assert kept.keep([1], "x" * 1_000) == 0
    assert len(kept.store) == 0


def test_the_bound_holds_and_counts_say_what_is_kept() -> None:
    random, kept = Random(1), Kept(50_000)
    store, counts = kept.store, kept.counts
    for _ in range(600):
        numbers = [number for number in random.sample(range(500), 4) if not kept.has(number)]
        kept.keep(numbers, "x" * random.randrange(200))
        assert store.nbytes <= 50_000
        assert store.nbytes == sum(ENTRY_BYTES + len(key) + len(row) for key, row in store) == counts.nbytes
        assert len(store) == counts.entries == kept.source.entries
    assert counts.evictions > 0


def test_a_source_of_which_nothing_is_kept_is_forgotten() -> None:
    kept = Kept(16 * ONE)
    kept.keep(range(10))
    other = kept.store.sources.of("udf/2", (LABEL, CONFIDENCE), "model", CacheCounts(), has_told=False)
    for number in range(100, 130):
        kept.store.keep(other, [key_of(number)], other.pack([["ramen"], [bytes(4)]]))
    assert kept.source.entries == 0
    (row,) = kept.store.find([key_of(129)])
    assert row is not None
    assert kept.store.sources.of_row(row) is other
    kept.keep([1])
    assert kept.label(1) == "ramen"


@pytest.mark.parametrize("rule", [Sieve, S3Fifo])
def test_what_a_function_answered_that_is_gone_leaves_and_the_rest_stays(rule: type[Sieve | S3Fifo]) -> None:
    store = AnswerStore(1 << 20, rule)
    counts = [CacheCounts(), CacheCounts()]
    old, new = (
        store.sources.of(f"udf/{version}", (LABEL, CONFIDENCE), "model", counts[version], has_told=False)
        for version in (0, 1)
    )
    for first in range(0, 1_500, 50):
        source = (old, new)[first // 50 % 2]
        keys = [key_of(number) for number in range(first, first + 50)]
        store.keep(source, keys, source.pack([["ramen"] * 50, [bytes(4)] * 50]))
        store.find(keys[:20])
    assert counts[0].entries == 750
    dropped = 0
    for step, some in enumerate(store.drop(lambda source: source.function == "udf/0")):
        dropped += some
        key = key_of(10_000 + step)  # others come meanwhile
        store.keep(new, [key], new.pack([["pho"], [bytes(4)]]))
    assert (dropped, counts[0].entries, counts[0].nbytes, counts[0].evictions) == (750, 0, 0, 0)
    assert [source.function for source in store.sources.kept()] == ["udf/1"]
    assert counts[1].entries == len(store) == 750 + step + 1
    assert store.nbytes == sum(ENTRY_BYTES + len(key) + len(row) for key, row in store) == counts[1].nbytes
    assert list(store.drop(lambda source: source.function == "udf/0")) == []
    for first in range(20_000, 30_000, 100):  # until every place has been taken again
        keys = [key_of(number) for number in range(first, first + 100)]
        store.keep(new, keys, new.pack([["ramen"] * 100, [bytes(4)] * 100]))
    assert store.nbytes <= 1 << 20
    assert len(store) > 2_500


@pytest.mark.parametrize("rule", [Sieve, S3Fifo])
def test_answers_take_no_more_memory_than_they_are_counted_for(rule: type[Sieve | S3Fifo]) -> None:
    """Just after the dictionaries have grown, too, and with every answer asked again."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = AnswerStore(1 << 26, rule)
        empty, _ = tracemalloc.get_traced_memory()
        source = store.sources.of("udf/1", (LABEL, CONFIDENCE), "model", CacheCounts(), has_told=False)
        for first in range(0, 22_000, 100):
            numbers = range(first, first + 100)
            cells = [f"label {number}" for number in numbers], [bytes(range(4)) for _ in numbers]
            keys = [key_of(number) for number in numbers]
            store.keep(source, keys, source.pack(cells))
            store.find(keys)
            gc.collect(0)
            after, _ = tracemalloc.get_traced_memory()
            assert after - empty <= store.nbytes + 16_384
    finally:
        tracemalloc.stop()
    assert 0.5 * store.nbytes < after - empty
    assert empty - before < 1 << 22, "a sixteenth of the bound, for what has left"


def test_kept_answers_are_nothing_that_the_collector_looks_at() -> None:
    kept = Kept(1 << 26)
    gc.collect()
    before = len(gc.get_objects())
    for first in range(0, 50_000, 500):
        kept.keep(range(first, first + 500))
    gc.collect()
    assert len(gc.get_objects()) - before < 500
    parts = kept.store._kept.parts
    assert not any(map(gc.is_tracked, parts)), "nor are they looked at through the dictionaries"
    assert max(map(len, parts)) < 2 * len(kept.store) / len(parts), "each of which grows by itself"


@pytest.mark.parametrize("has_told", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [(LABEL, CONFIDENCE), (CONFIDENCE, LABEL, SCORES, TEXT), (SCORES,), (LABEL,), (TEXT, LABEL)],
    ids=lambda kinds: "-".join(kind.name for kind in kinds),
)
def test_rows_come_back_as_they_were(kinds: tuple[ColumnKind, ...], *, has_told: bool) -> None:
    random = Random(3)
    texts = ["", "ramen", "ä", "\ud800 alone", "\x00", "long " * 100]
    source = Source(b"abcd", "udf/1", kinds, "model", CacheCounts(), has_told)
    columns = [
        [random.choice(texts) if not kind.row_bytes else random.randbytes(kind.row_bytes) for _ in range(7)]
        for kind in kinds
    ]
    said = Column("label", "BYTES", (), ["pho"])
    told = [Answer(0, [MemberAnswer(f"net {row}", [said])], []) for row in range(7)] if has_told else []
    rows = source.pack(columns, told)
    assert all(row.startswith(b"abcd") for row in rows)
    found = source.unpack(rows)
    assert found.columns == columns
    assert found.told == told


@pytest.mark.parametrize(
    "column",
    [
        Column("label", "BYTES", (), ["a", "", "ä"]),
        Column("scores", "FP32", (2,), bytes(range(24))),
        Column("value", "FP64", (), bytes(range(24))),
        Column("boxes", "BYTES", (), ["[]", "[]", "[1]"], "boxes"),
    ],
    ids=lambda column: column.name,
)
def test_a_column_comes_back_from_its_cells(column: Column) -> None:
    cells = cells_of(column)
    assert len(cells) == 3
    assert column_of(kind_of(column), cells) == column
