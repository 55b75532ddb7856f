"""Both stores of kept answers, for what is promised of either."""

from __future__ import annotations

import pytest

from server.cache.contract import Store
from server.cache.rule import MakeRule
from server.cache.rules.s3fifo import S3Fifo
from server.cache.rules.sieve import Sieve
from server.cache.store import ENTRY_BYTES, AnswerStore

__all__ = ["every_store", "new_store", "one_bytes"]

every_store = pytest.mark.parametrize("name", ["native", "s3-fifo", "sieve"])


def new_store(name: str, capacity_bytes: int) -> Store:
    """name: of a rule, or native, which asks for the fixture `native_store`."""
    if name == "native":
        from server.cache.native.native_store import NativeStore

        return NativeStore(capacity_bytes)
    rules: dict[str, MakeRule] = {"s3-fifo": S3Fifo, "sieve": Sieve}
    return AnswerStore(capacity_bytes, rules[name])


def one_bytes(name: str, key: bytes, row: bytes) -> int:
    """What an answer takes of the bound."""
    if name == "native":
        from server.cache.native._answers import ENTRY_BYTES as NATIVE_ENTRY_BYTES

        return NATIVE_ENTRY_BYTES + len(row)
    return ENTRY_BYTES + len(key) + len(row)
