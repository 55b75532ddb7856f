"""The native store of kept answers at random: what is found is what was kept, also where memory runs out.

A part of it in every test run; `make fuzz-answers` for longer, its memory watched and made to run out.
"""

from __future__ import annotations

from random import Random

import pytest

from gpu_worker.wire.protocol import Column
from server.cache.counts import CacheCounts
from server.cache.entry import Source, kind_of
from tests.fuzz.budget import rounds
from tests.fuzz.sanitized import SANITIZED_ANSWERS
from tests.unit.cache.test_native_store import BesideS3Fifo, native

LABEL = kind_of(Column("label", "BYTES", (), []))
SCORES = kind_of(Column("scores", "FP32", (2,), b""))
KINDS = [(LABEL,), (SCORES, LABEL), (LABEL, SCORES, LABEL)]


@pytest.fixture(autouse=True, scope="module")
def store_is_built(request: pytest.FixtureRequest) -> None:
    """With `make fuzz-answers` the one that watches its memory."""
    if not SANITIZED_ANSWERS.use():
        request.getfixturevalue("native_store")


def test_the_same_leave_as_by_s3fifo_in_python() -> None:
    for seed in rounds(1):
        beside = BesideS3Fifo(seed + 100, Random(seed).choice([900, 5_000, 20_000]), numbers=300)
        for _ in range(60):
            beside.ask()
            beside.same()


class Anything:
    """Whatever may be asked of a store, in whatever order. A label says whose it is."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = native(self.random.choice([0, 500, 5_000, 300_000]), self.random.randbytes(16))
        self.counts = [CacheCounts() for _ in KINDS]
        self.keys = [self.random.randbytes(16) for _ in range(300)]

    def source(self, of: int) -> Source:
        return self.store.sources.of(f"udf/{of}", KINDS[of], "model", self.counts[of], has_told=False)

    def some(self) -> list[int]:
        return self.random.sample(range(len(self.keys)), self.random.choice([0, 1, 5, 40, 300]))

    def label(self, number: int, of: int) -> str:
        return f"{number} of {of} " + "ä" * (number % 50)

    def keep(self) -> None:
        of, numbers = self.random.randrange(len(KINDS)), self.some()
        source, keys = self.source(of), [self.keys[number] for number in numbers]
        columns = [
            Column("label", "BYTES", (), [self.label(number, of) for number in numbers])
            if kind is LABEL
            else Column("scores", "FP32", (2,), b"".join(b"%08d" % number for number in numbers))
            for kind in KINDS[of]
        ]
        if self.random.random() < 0.5:
            self.store.keep_columns(source, keys, columns)
        else:
            cells = [
                column.data if kind is LABEL else [b"%08d" % number for number in numbers]
                for kind, column in zip(KINDS[of], columns, strict=True)
            ]
            self.store.keep(source, keys, source.pack(cells))  # type: ignore[arg-type]

    def find(self) -> None:
        numbers = self.some()
        for number, row in zip(
            numbers, self.store.find([self.keys[number] for number in numbers]), strict=True
        ):
            if row is not None:
                source = self.store.sources.of_row(row)
                of = int(source.function.removeprefix("udf/"))
                expected = [
                    self.label(number, of) if kind is LABEL else b"%08d" % number for kind in KINDS[of]
                ]
                assert [column[0] for column in source.unpack([row]).columns] == expected

    def drop(self) -> None:
        gone = f"udf/{self.random.randrange(len(KINDS))}"
        for _ in self.store.drop(lambda source: source.function == gone):
            if self.random.random() < 0.1:
                self.find()

    def step(self) -> None:
        self.random.choices([self.keep, self.find, self.drop], [5, 5, 1])[0]()

    def check(self) -> None:
        store = self.store
        packed = [pair for some in store.packed() for pair in some.pairs()]
        assert len(packed) == len(store) == sum(each.entries for each in self.counts)
        assert (
            store.nbytes
            == sum(112 + len(row) for _, row in packed)
            == sum(each.nbytes for each in self.counts)
        )
        assert store.nbytes <= store.capacity_bytes
        assert {row[:4] for _, row in packed} == {source.prefix for source in store.sources.kept()}
        assert all(key in store for key, _ in packed)


def test_whatever_is_asked_no_answer_is_another_s() -> None:
    for seed in rounds(4):
        anything = Anything(seed)
        for _ in range(60):
            anything.step()
            anything.check()


def test_memory_that_runs_out_costs_what_is_kept_and_nothing_else() -> None:
    for seed in rounds(4):
        anything = Anything(seed)
        for _ in range(60):
            SANITIZED_ANSWERS.fail_after(anything.random.choice([-1, 0, 1, 2, 3, 10, 100]))
            try:
                anything.step()
            finally:
                SANITIZED_ANSWERS.fail_after(-1)
            anything.check()
    if SANITIZED_ANSWERS.has_faults():
        for allowed in range(3):
            SANITIZED_ANSWERS.fail_after(allowed)
            with pytest.raises(MemoryError):
                native(1 << 20)
        SANITIZED_ANSWERS.fail_after(-1)
