"""A new store of kept answers, by its name."""

from __future__ import annotations

from server.cache.contract import Store
from server.cache.keying import KEY_BYTES, Keying
from server.cache.rules.s3fifo import S3Fifo
from server.cache.store import AnswerStore

__all__ = ["new_store"]


def new_store(name: str, capacity_bytes: int, keying: Keying | None = None) -> Store:
    """A store of that name (choice.py) and so many bytes.

    keying: of answers that it is to find again, where it can make such keys; else it has its own.
    """
    if name == "python":
        return AnswerStore(capacity_bytes, S3Fifo)
    from server.cache.native.native_store import KEYING, NativeStore

    is_known = keying is not None and keying.name == KEYING and len(keying.secret) == KEY_BYTES
    return NativeStore(capacity_bytes, keying.secret if keying is not None and is_known else None)
