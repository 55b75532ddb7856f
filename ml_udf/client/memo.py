"""What a statement has been answered so far: answers by input, in a bounded share of memory.

Owns the bound and what is forgotten first. Knows neither servers nor engines, and takes no lock: who shares
a memo between threads guards it.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from ml_udf.client.column import Value
from ml_udf.client.exchange import AnswerDetail
from ml_udf.errors import MlUdfError

__all__ = ["MEMO_BYTES", "Memo", "Outcome", "memo_key", "memo_keys", "outcomes_of"]

MEMO_BYTES = 32 << 20
_ENTRY_BYTES = 200  # of a dictionary's slot, an answer and its confidence
_NUMBER_BYTES = 24
_DETAIL_NUMBERS = 10  # that take about as much as a detail
_ERROR_BYTES = 320  # without its message
_HASHED_ABOVE_BYTES = 256
_HASHED_ABOVE_NUMBERS = 32
_AT_A_TIME = 32  # answers between two looks at the bound
_TEXTS = {str, type(None)}


class Outcome(NamedTuple):
    """What one value got: a value with a confidence, or an error; neither for NULL.

    A tuple: a million of them are made at a third of what a frozen dataclass takes.
    """

    value: Any = None
    confidence: float | None = None
    error: MlUdfError | None = None
    detail: AnswerDetail | None = None  # how it was answered, where that was asked for


def outcomes_of(*columns: Sequence[Any]) -> Iterator[Outcome]:
    """An outcome a row, of columns in the order of its fields; without the frame that a call of it takes."""
    return map(partial(tuple.__new__, Outcome), zip(*columns, strict=True))


class Memo:
    """Answers by `memo_key`, up to about `limit_bytes`; those of the last call at least, whatever their size.

    Two generations, each of half the bound: new answers fill the young one; when it is full, the old one is
    forgotten as a whole and the young one takes its place. An old answer that is asked for becomes young. So
    what is asked for stays, no order is kept at every look, and memory is freed in large pieces: entries
    that leave one by one between those that stay would not give it back.
    """

    def __init__(self, limit_bytes: int = MEMO_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._young: dict[Hashable, Outcome] = {}
        self._old: dict[Hashable, Outcome] = {}
        self._young_bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._young or key in self._old

    def get(self, key: Hashable) -> Outcome | None:
        """The answer to an input; None where it was never there, or is forgotten."""
        answer = self._young.get(key)
        if answer is None and (answer := self._old.pop(key, None)) is not None:
            self._young[key] = answer
            self._young_bytes += _Told({key: answer}).nbytes
        return answer

    def learn(self, fresh: Mapping[Hashable, Outcome]) -> None:
        """Remember the answers of a call. Their errors lose their tracebacks."""
        if not fresh:
            return
        told = _Told(fresh)
        for error in told.faults:
            _forget_frames(error)
        if self._young_bytes + told.nbytes < self._limit_bytes // 2:
            self._young.update(fresh)
            self._young_bytes += told.nbytes
            return
        may_forget = True  # once in a call: twice would forget its own answers
        rest = iter(fresh.items())
        while some := dict(islice(rest, _AT_A_TIME)):
            if self._young_bytes >= self._limit_bytes // 2 and may_forget:
                self._old, self._young, self._young_bytes = self._young, {}, 0
                may_forget = False
            self._young.update(some)
            self._young_bytes += _Told(some).nbytes

    def has_any(self, keys: Iterable[Hashable]) -> bool:
        """Whether any of these inputs was answered, and is not forgotten."""
        return not (self._young.keys().isdisjoint(keys) and self._old.keys().isdisjoint(keys))


def memo_keys(values: Sequence[Value]) -> Sequence[Hashable]:
    """`memo_key` of each."""
    if set(map(type, values)) <= _TEXTS:
        texts: Sequence[str | None] = values  # type: ignore[assignment]  # by their types
        if max(map(len, filter(None, texts)), default=0) <= _HASHED_ABOVE_BYTES:
            return texts
    return [memo_key(value) for value in values]


def memo_key(value: Value) -> Hashable:
    """An input as a memo keeps it; long ones as a 128-bit hash, so that images do not fill it."""
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return raw if len(raw) <= _HASHED_ABOVE_BYTES else _hashed(raw)
    if isinstance(value, str):
        if len(value) <= _HASHED_ABOVE_BYTES:
            return value
        return _hashed(value.encode("utf-8", "surrogatepass"))
    if value is None or isinstance(value, int | float):
        return value
    if len(value) > _HASHED_ABOVE_NUMBERS and set(map(type, value)) == {float}:
        return ("float", *_hashed(array("d", value).tobytes()))
    if value and isinstance(value[0], list):  # PostgreSQL's arrays of two dimensions: no function takes them
        return tuple(map(memo_key, value))
    return tuple(value)


def _hashed(raw: bytes) -> tuple[int, bytes]:
    return len(raw), hashlib.blake2b(raw, digest_size=16).digest()


class _Told:
    """Answers of which there is one at least, looked at together. faults: their errors.

    nbytes: about what they take. An error that several share counts for each: then less is remembered.
    """

    __slots__ = ("faults", "nbytes")

    def __init__(self, answers: Mapping[Hashable, Outcome]) -> None:
        values = [answer[0] for answer in answers.values()]
        errors = [answer[2] for answer in answers.values()]
        rows = len(answers)
        numbers = _DETAIL_NUMBERS * (rows - [answer[3] for answer in answers.values()].count(None))
        if tuple in set(map(type, answers)):
            numbers += sum(len(key) for key in answers if isinstance(key, tuple))
        if list in set(map(type, values)):  # an array holds its own
            numbers += sum(len(value) for value in values if isinstance(value, list))
        self.faults: list[MlUdfError] = []
        if errors.count(None) < rows:
            self.faults = [error for error in errors if error is not None]
        self.nbytes = (
            _ENTRY_BYTES * rows
            + _sizes(answers)
            + _sizes(values)
            + _NUMBER_BYTES * numbers
            + sum(_ERROR_BYTES + sys.getsizeof(error.message) for error in self.faults)
        )


def _sizes(values: Collection[Any]) -> int:
    """Of all together, in bytes; of texts at half the time."""
    if set(map(type, values)) == {str}:
        return sum(map(str.__sizeof__, values))
    return sum(map(sys.getsizeof, values))


def _forget_frames(error: BaseException) -> None:
    """A traceback holds the frames it went through, and those the rows of the call and its request."""
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
