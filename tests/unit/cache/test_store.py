"""What either store of kept answers promises: a bound that holds, the right ones leave, rows come back."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from random import Random

import pytest

from gpu_worker.wire.protocol import Answer, Column, MemberAnswer
from server.cache.counts import CacheCounts
from server.cache.entry import ColumnKind, Source, cells_of, column_of, kind_of
from server.cache.keying import KEY_BYTES
from server.cache.store import AnswerStore
from tests.unit.cache.stores import every_store, new_store, one_bytes

LABEL = kind_of(Column("label", "BYTES", (), []))
CONFIDENCE = kind_of(Column("confidence", "FP32", (), b""))
TEXT = kind_of(Column("why", "BYTES", (), []))
SCORES = ColumnKind("scores", "FP32", (2,))
SCOPE = b"k" * 16

pytestmark = pytest.mark.usefixtures("native_store")


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Kept:
    """A store, and a function of whose answers it keeps some."""

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self.name = name
        self.store = new_store(name, capacity_bytes)
        self.counts = CacheCounts()
        self.source = self.store.sources.of(
            "udf/1", (LABEL, CONFIDENCE), "model", self.counts, has_told=False
        )

    def keep(self, numbers: Sequence[int], label: str = "ramen") -> int:
        cells = [label] * len(numbers), [bytes(4)] * len(numbers)
        return self.store.keep(self.source, [key_of(each) for each in numbers], self.source.pack(cells))

    def counted(self) -> int:
        """What all that is kept should take of the bound."""
        return sum(
            one_bytes(self.name, key, row) for some in self.store.packed() for key, row in some.pairs()
        )

    def label(self, number: int) -> str | None:
        (row,) = self.store.find([key_of(number)])
        return None if row is None else str(self.source.unpack([row]).columns[0][0])

    def has(self, number: int) -> bool:
        return key_of(number) in self.store


def one(name: str) -> int:
    """What an answer of `Kept` takes."""
    return one_bytes(name, key_of(0), bytes(4 + len("ramen") + 4))


@every_store
def test_what_was_asked_again_outlives_what_was_not(name: str) -> None:
    kept = Kept(name, 16 * one(name))
    kept.keep(range(16))
    for _ in range(2):
        kept.store.find([key_of(0), key_of(1), None])
    for number in range(16, 30):
        kept.keep([number])
    assert [number for number in range(16) if kept.has(number)] == [0, 1]


@every_store
def test_a_scan_of_what_is_asked_once_leaves_what_is_asked_often(name: str) -> None:
    kept = Kept(name, 32 * one(name))
    kept.keep(range(16))
    often = [key_of(number) for number in range(16)]
    for _ in range(2):
        assert all(kept.store.find(often))
    for number in range(1_000, 3_000):
        kept.keep([number])
        if number % 8 == 0:
            assert all(kept.store.find(often))


@every_store
def test_the_first_of_two_answers_for_one_key_stays(name: str) -> None:
    kept = Kept(name, 32 * one(name))
    assert kept.keep([1], "first") == 1
    assert kept.keep([1, 2], "later") == 1
    assert [kept.label(1), kept.label(2), kept.label(3)] == ["first", "later", None]


@every_store
def test_an_answer_that_would_fill_the_cache_alone_is_not_kept(name: str) -> None:
    kept = Kept(name, 8_000)
    assert kept.keep([1], "x" * 1_000) == 0
    assert len(kept.store) == 0


@every_store
def test_the_bound_holds_and_counts_say_what_is_kept(name: str) -> None:
    random, kept = Random(1), Kept(name, 50_000)
    store, counts = kept.store, kept.counts
    for _ in range(600):
        numbers = [number for number in random.sample(range(900), 4) if not kept.has(number)]
        kept.keep(numbers, "x" * random.randrange(200))
        assert store.nbytes <= 50_000
        assert store.nbytes == kept.counted() == counts.nbytes
        assert len(store) == counts.entries == kept.source.entries
    assert counts.evictions > 0


@every_store
def test_a_source_of_which_nothing_is_kept_is_forgotten(name: str) -> None:
    kept = Kept(name, 16 * one(name))
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


@every_store
def test_what_a_function_answered_that_is_gone_leaves_and_the_rest_stays(name: str) -> None:
    kept = Kept(name, 1 << 20)
    store = kept.store
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
    assert store.nbytes == kept.counted() == counts[1].nbytes
    assert list(store.drop(lambda source: source.function == "udf/0")) == []
    for first in range(20_000, 30_000, 100):  # until every place has been taken again
        keys = [key_of(number) for number in range(first, first + 100)]
        store.keep(new, keys, new.pack([["ramen"] * 100, [bytes(4)] * 100]))
    assert store.nbytes <= 1 << 20
    assert len(store) > 2_500


@every_store
def test_answers_take_no_more_memory_than_they_are_counted_for(name: str) -> None:
    """Just after the tables have grown, too, and with every answer asked again."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        store = new_store(name, 1 << 26)
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
            assert after - empty <= store.nbytes + 32_768, "some places in each part, and what a call takes"
    finally:
        tracemalloc.stop()
    assert 0.5 * store.nbytes < after - empty
    assert empty - before < 1 << 22, "a sixteenth of the bound, for what has left"


@every_store
def test_kept_answers_are_nothing_that_the_collector_looks_at(name: str) -> None:
    kept = Kept(name, 1 << 26)
    gc.collect()
    before = len(gc.get_objects())
    for first in range(0, 50_000, 500):
        kept.keep(range(first, first + 500))
    gc.collect()
    assert len(gc.get_objects()) - before < 500
    if isinstance(kept.store, AnswerStore):
        parts = kept.store._kept.parts
        assert not any(map(gc.is_tracked, parts)), "nor are they looked at through the dictionaries"
    sizes = list(map(len, kept.store.packed()))
    assert max(sizes) < 2 * len(kept.store) / len(sizes), "each of which grows by itself"


@every_store
def test_a_reply_is_kept_as_its_rows_are_packed(name: str) -> None:
    random, kept = Random(2), Kept(name, 1 << 26)
    texts = ["", "ramen", "ä", "\x00", "long " * 100, "\U0001f35c"]
    store, numbers = kept.store, iter(range(1_000_000))
    for columns_of in range(1, 90, 11):
        for texts_of_it in (texts, [*texts, "\ud800 alone"]):
            for rows in (0, 1, 31, 300):
                kinds = [random.choice([LABEL, TEXT, CONFIDENCE, SCORES]) for _ in range(columns_of)]
                columns = [
                    Column(
                        kind.name,
                        kind.datatype,
                        kind.shape,
                        [random.choice(texts_of_it) for _ in range(rows)],
                    )
                    if not kind.row_bytes
                    else Column(kind.name, kind.datatype, kind.shape, random.randbytes(rows * kind.row_bytes))
                    for kind in kinds
                ]
                source = store.sources.of("udf/1", tuple(kinds), "model", kept.counts, has_told=False)
                keys = [key_of(next(numbers)) for _ in range(rows)]
                assert store.keep_columns(source, keys, columns) == rows
                assert store.find(keys) == source.pack([cells_of(column) for column in columns])
    assert store.nbytes == kept.counted() == kept.counts.nbytes


@every_store
def test_keys_are_of_the_scope_and_the_row_and_of_nothing_else(name: str) -> None:
    store = new_store(name, 1 << 20)
    other = b"l" * 16
    rows = [b"", b"\0", b"\0\0", *[b"x" * size for size in (1, 7, 8, 9, 63, 64, 65, 5_000)]]
    keys = store.keys_of(SCOPE, rows)
    assert keys == store.keys_of(SCOPE, [bytes(bytearray(row)) for row in rows])
    assert len({*keys, *store.keys_of(other, rows)}) == 2 * len(rows)
    assert store.keys_of_files(SCOPE, [b"stamp", b"", b"stamp"])[:2] == [
        store.keys_of_files(SCOPE, iter([b"stamp"]))[0],
        None,
    ]
    if name == "native":
        assert {*map(len, keys)} == {KEY_BYTES}
        assert not {*keys} & {*new_store(name, 1 << 20).keys_of(SCOPE, rows)}, "each has a secret of its own"


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
