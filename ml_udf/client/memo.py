"""What a statement has been answered so far: answers by input, in a bounded share of memory.

Owns the bound and what is forgotten first. Knows neither servers nor engines, and takes no lock: who shares
a memo between threads guards it.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_udf.client.column import Value
from ml_udf.client.exchange import AnswerDetail
from ml_udf.errors import MlUdfError

__all__ = ["MEMO_BYTES", "Memo", "Outcome", "memo_key"]

MEMO_BYTES = 32 << 20
_ENTRY_BYTES = 200  # of a dictionary's slot, an answer and its confidence
_NUMBER_BYTES = 24
_DETAIL_NUMBERS = 10  # that take about as much as a detail
_ERROR_BYTES = 320  # without its message
_HASHED_ABOVE_BYTES = 256
_HASHED_ABOVE_NUMBERS = 32


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one value got: a value with a confidence, or an error; neither for NULL."""

    value: Any = None
    confidence: float | None = None
    error: MlUdfError | None = None
    detail: AnswerDetail | None = None  # how it was answered, where that was asked for


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
            self._young_bytes += _entry_bytes(key, answer)
        return answer

    def learn(self, fresh: Mapping[Hashable, Outcome]) -> None:
        """Remember the answers of a call. Their errors lose their tracebacks."""
        may_forget = True  # once in a call: twice would forget its own answers
        for key, answer in fresh.items():
            if self._young_bytes >= self._limit_bytes // 2 and may_forget:
                self._old, self._young, self._young_bytes = self._young, {}, 0
                may_forget = False
            if answer.error is not None:
                _forget_frames(answer.error)
            self._young[key] = answer
            self._young_bytes += _entry_bytes(key, answer)


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
    return tuple(value)


def _hashed(raw: bytes) -> tuple[int, bytes]:
    return len(raw), hashlib.blake2b(raw, digest_size=16).digest()


def _entry_bytes(key: Hashable, answer: Outcome) -> int:
    """About what an entry takes. An error that several share counts for each: then less is remembered."""
    numbers = len(answer.value) if isinstance(answer.value, list) else 0  # an array holds its own
    if isinstance(key, tuple):
        numbers += len(key)
    numbers += 0 if answer.detail is None else _DETAIL_NUMBERS
    fault = 0 if answer.error is None else _ERROR_BYTES + sys.getsizeof(answer.error.message)
    return _ENTRY_BYTES + sys.getsizeof(key) + sys.getsizeof(answer.value) + _NUMBER_BYTES * numbers + fault


def _forget_frames(error: BaseException) -> None:
    """A traceback holds the frames it went through, and those the rows of the call and its request."""
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
