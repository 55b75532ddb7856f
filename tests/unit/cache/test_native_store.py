"""The native store of kept answers: what it is by its source, beside the same in Python."""

from __future__ import annotations

import sys
import threading
from random import Random
from typing import TYPE_CHECKING

import pytest

from gpu_worker.wire.protocol import Column
from server.cache.choice import ChosenStore, StoreMissing, choose_store
from server.cache.counts import CacheCounts
from server.cache.entry import Source, kind_of
from server.cache.keying import BLAKE2, Keying
from server.cache.rules.s3fifo import S3Fifo
from server.cache.store import AnswerStore
from server.cache.stores import new_store

if TYPE_CHECKING:
    from server.cache.native.native_store import NativeStore

pytestmark = pytest.mark.usefixtures("native_store")

LABEL = kind_of(Column("label", "BYTES", (), []))
SECRET = bytes(range(16))


def native(capacity_bytes: int = 1 << 20, secret: bytes = SECRET) -> NativeStore:
    from server.cache.native.native_store import NativeStore

    return NativeStore(capacity_bytes, secret)


def source_of(store: NativeStore | AnswerStore, function: str = "udf/1") -> Source:
    return store.sources.of(function, (LABEL,), "model", CacheCounts(), has_told=False)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────

# Of the authors' reference implementation (vectors.h, SipHash-2-4 of 128 bits): the key is 00 01 … 0f, the
# message 00 01 … of so many bytes.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
}


def siphash(key: bytes, message: bytes) -> bytes:
    """By the paper's words, and those of its extension to 128 bits, word for word."""
    mask = (1 << 64) - 1

    def left(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & mask

    def sip_rounds(v: list[int], rounds: int) -> None:
        for _ in range(rounds):
            v[0] = (v[0] + v[1]) & mask
            v[2] = (v[2] + v[3]) & mask
            v[1] = left(v[1], 13) ^ v[0]
            v[3] = left(v[3], 16) ^ v[2]
            v[0] = left(v[0], 32)
            v[2] = (v[2] + v[1]) & mask
            v[0] = (v[0] + v[3]) & mask
            v[1] = left(v[1], 17) ^ v[2]
            v[3] = left(v[3], 21) ^ v[0]
            v[2] = left(v[2], 32)

    halves = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    begin = b"somepseu", b"dorandom", b"lygenera", b"tedbytes"
    v = [int.from_bytes(word, "big") ^ halves[at % 2] for at, word in enumerate(begin)]
    v[1] ^= 0xEE
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        sip_rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    sip_rounds(v, 4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    sip_rounds(v, 4)
    return low.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


def test_the_python_words_have_the_authors_vectors() -> None:
    assert {size: siphash(SECRET, bytes(range(size))).hex() for size in VECTORS} == VECTORS


def test_keys_are_siphash_of_scope_and_row() -> None:
    from server.cache.native._answers import keys_of

    random = Random(1)
    assert keys_of(SECRET, bytes(range(16)), [b""], False)[0] == bytes.fromhex(VECTORS[16])
    for _ in range(20):
        secret, scope = random.randbytes(16), random.randbytes(16)
        rows = [random.randbytes(size) for size in [*range(40), 255, 256, 2047, 2048, 5000]]
        expected = [siphash(secret, scope + row) for row in rows]
        assert keys_of(secret, scope, rows, False) == expected
        views = [memoryview(row) for row in rows[1:]]
        assert keys_of(secret, scope, [b"", *views], True) == [None, *expected[1:]]  # type: ignore[list-item]


def test_keys_may_be_made_by_any_thread() -> None:
    """The long rows of several threads at once, whose lists are changed meanwhile."""
    store, scope = native(), b"k" * 16
    found: dict[int, bool] = {}

    def make(number: int) -> None:
        rows = [b"%d " % (number * 100 + each) * 4_000 for each in range(30)]
        expected = store.keys_of(scope, list(rows))
        found[number] = all(store.keys_of(scope, rows) == expected for _ in range(20))
        rows.clear()

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), True)


def test_a_store_takes_the_secret_of_a_file_that_it_can_use() -> None:
    mine = Keying("siphash-2-4-128", SECRET)
    assert new_store("native", 1 << 20, mine).keying == mine
    for other in (None, BLAKE2, Keying("siphash-2-4-128", b"short"), Keying("another", SECRET)):
        made = new_store("native", 1 << 20, other).keying
        assert (made.name, len(made.secret)) == ("siphash-2-4-128", 16)
        assert made.secret != SECRET
    assert new_store("python", 1 << 20, mine).keying == BLAKE2


# ── who leaves ───────────────────────────────────────────────────────────────────────────────────────


class Key(bytes):
    """A key whose hash is what the native store goes by: its first eight bytes."""

    def __hash__(self) -> int:
        return int.from_bytes(self[:8], "little")


class BesideS3Fifo:
    """The native store, and S3Fifo with what it should keep: after each step the same is there."""

    def __init__(self, seed: int, capacity_bytes: int, numbers: int) -> None:
        from server.cache.native._answers import ENTRY_BYTES

        self.random = Random(seed)
        self.entry_bytes = ENTRY_BYTES
        self.capacity_bytes = capacity_bytes
        self.store = native(capacity_bytes)
        self.source = source_of(self.store)
        self.rows: dict[bytes, bytes] = {}
        self.rule = S3Fifo(capacity_bytes, self.size_of)
        noise = [self.random.getrandbits(63) << 64 | self.random.getrandbits(63) for _ in range(numbers)]
        self.keys = [Key(each.to_bytes(16, "big")[::-1]) for each in noise]

    def size_of(self, key: bytes) -> int:
        return self.entry_bytes + len(self.rows[key])

    @property
    def nbytes(self) -> int:
        return sum(map(self.size_of, self.rows))

    def ask(self) -> None:
        """Some that are hot, some that are not, none twice."""
        many = self.random.randrange(1, 40)
        keys = list(
            {self.random.choice(self.keys[: self.random.choice([20, len(self.keys)])]) for _ in range(many)}
        )
        expected = [self.rows.get(key) for key in keys]
        assert self.store.find([*keys, None]) == [*expected, None]
        self.rule.hit([key for key in keys if key in self.rows])
        new = [key for key in keys if key not in self.rows]
        rows = self.source.pack([["x" * self.random.choice([0, 1, 30, 900]) for _ in new]])
        kept = self.store.keep(self.source, new, rows)
        self.rule.add([], 0)  # what comes in one call has so many rounds together
        rounds = self.rule._rounds
        for key, row in zip(new, rows, strict=True):
            if self.entry_bytes + len(row) > self.capacity_bytes // 8:
                kept += 1
                continue
            self.rows[key] = row
            self.rule.add([key], self.size_of(key))
            self.rule._rounds = rounds
            while self.nbytes > self.capacity_bytes:
                del self.rows[self.rule.evict()]
            rounds = self.rule._rounds
        assert kept == len(new)

    def same(self) -> None:
        there = {Key(key): row for some in self.store.packed() for key, row in some.pairs()}
        assert there == self.rows
        assert len(self.store) == len(self.rows) == self.source.entries == self.source.counts.entries
        assert self.store.nbytes == self.nbytes == self.source.counts.nbytes


@pytest.mark.parametrize("seed", range(6))
def test_the_same_leave_as_by_s3fifo_in_python_step_by_step(seed: int) -> None:
    beside = BesideS3Fifo(seed, capacity_bytes=Random(seed).choice([900, 5_000, 20_000, 60_000]), numbers=400)
    for _ in range(250):
        beside.ask()
        beside.same()
    assert beside.source.counts.evictions > 200 or beside.capacity_bytes < 1_000


def test_a_main_queue_all_of_which_was_asked_again_is_not_walked_to_its_end() -> None:
    from server.cache.native._answers import ENTRY_BYTES, MOST_ROUNDS

    count = 3 * MOST_ROUNDS
    capacity = count * (ENTRY_BYTES + 4)
    rows: dict[bytes, bytes] = {}
    rule = S3Fifo(capacity, lambda key: ENTRY_BYTES + 4)
    store = native(capacity)
    source = source_of(store)
    keys = [Key(Random(number).getrandbits(63).to_bytes(16, "little")) for number in range(2 * count)]
    held, new = keys[:count], keys[count:]
    # All of the first are hot, and in the main queue but for a tenth; then more come.
    for key in held:
        store.keep(source, [key], source.pack([[""]]))
        rule.add([key], ENTRY_BYTES + 4)
        rows[key] = b""
    for _ in range(4):
        store.find(held)
        rule.hit(held)
    looked, most = Looked(rule), 0
    for key in new[:8]:
        store.keep(source, [key], source.pack([[""]]))
        rule.add([key], ENTRY_BYTES + 4)
        rows[key] = b""
        looked.steps = 0
        while len(rows) > count:
            del rows[rule.evict()]
        most = max(most, looked.steps)
        assert {Key(key) for some in store.packed() for key, _ in some.pairs()} == set(rows)
    assert most == MOST_ROUNDS + 1


class Looked:
    """How many of a rule's are looked at."""

    def __init__(self, rule: S3Fifo) -> None:
        self.steps = 0
        for name in ("_of_small", "_of_main"):
            setattr(rule, name, self._counted(getattr(rule, name)))

    def _counted(self, step: object) -> object:
        def counted() -> bytes | None:
            self.steps += 1
            return step()  # type: ignore[operator,no-any-return]

        return counted


# ── what it refuses ──────────────────────────────────────────────────────────────────────────────────


def test_what_is_no_key_or_no_row_is_refused_and_nothing_is_done() -> None:
    from server.cache.native._answers import Answers, keys_of

    answers, key = Answers(1 << 20), bytes(16)
    for wrong in (b"", bytes(15), bytes(17), "x" * 16, 5):
        with pytest.raises(ValueError, match="a key has 16 bytes"):
            answers.find([wrong])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="a key has 16 bytes"):
            answers.keep([wrong], [bytes(4)])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="a key has 16 bytes"):
            answers.has(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a key has"):
        answers.keep([None], [bytes(4)])  # type: ignore[list-item]
    for row in (b"abc", "text"):
        with pytest.raises(ValueError, match="begins with its source's number"):
            answers.keep([key], [row])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="as many rows as keys"):
        answers.keep([key], [])
    with pytest.raises(ValueError, match="as many widths as columns"):
        answers.keep_columns([key], 1, (0,), ())
    with pytest.raises(ValueError, match="with one for each key"):
        answers.keep_columns([key], 1, (0,), ([],))
    with pytest.raises(ValueError, match="a row for each key"):
        answers.keep_columns([key], 1, (4,), (bytes(3),))
    with pytest.raises(TypeError):
        answers.keep_columns([key], 1, (0,), ([5],))  # type: ignore[list-item]
    with pytest.raises(UnicodeEncodeError):
        answers.keep_columns([key, bytes([1]) * 16], 1, (0,), (["whole", "\ud800"],))
    with pytest.raises(IndexError, match="no such part"):
        answers.packed(answers.parts)
    with pytest.raises(ValueError, match="have 16 bytes each"):
        keys_of(bytes(15), bytes(16), [], False)
    with pytest.raises(TypeError):
        keys_of(bytes(16), bytes(16), [5], False)  # type: ignore[list-item]
    assert len(answers) == answers.nbytes == 0


def test_references_are_given_back() -> None:
    store = native(50_000)
    source = source_of(store)
    keys = [bytes([number]) * 16 for number in range(200)]
    texts = [f"text {number}" * 9 for number in range(200)]
    column = Column("label", "BYTES", (), texts)
    before = [sys.getrefcount(each) for each in (keys, keys[0], texts, texts[0], column.data)]
    for _ in range(20):
        store.keep_columns(source, keys, [column])
        store.keep(source, keys, source.pack([texts]))
        store.find([*keys, None])
    assert [sys.getrefcount(each) for each in (keys, keys[0], texts, texts[0], column.data)] == before


# ── which store serves ───────────────────────────────────────────────────────────────────────────────


def test_auto_is_native_where_it_is_built_and_says_why_not_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_store("auto") == ChosenStore("native", "it is built here")
    assert choose_store("native") == ChosenStore("native", "--answer-store native asks for it")
    assert choose_store("python") == ChosenStore("python", "--answer-store python asks for it")
    monkeypatch.setitem(sys.modules, "server.cache.native.native_store", None)
    chosen = choose_store("auto")
    assert chosen.name == "python"
    assert "not built here" in chosen.why
    assert "python -m server.extensions" in chosen.why
    with pytest.raises(StoreMissing, match=r"python -m server\.extensions"):
        choose_store("native")
