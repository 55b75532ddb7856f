"""How keys are made of a scope (key.py) and rows. Pure.

Python's store    scope + the row where it is short, else BLAKE2b-128(scope + the row)
the native one    SipHash-2-4-128 of scope + row, by a secret (native/README.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from hashlib import blake2b

from server.record import record

__all__ = ["BLAKE2", "KEY_BYTES", "Key", "Keying", "keys_of", "keys_of_files"]

KEY_BYTES = 16  # of a hash; of a scope too
Key = bytes
# Bytes of a row that is its own key: no hash is as quick as that. Longer than a stamp, and never taken for a
# hash, which is as long as the scope alone.
_SHORT = 64


@record
class Keying:
    """How a store makes keys of rows. secret: by which it hashes them; b"" where it has none. Never told."""

    name: str
    secret: bytes = field(default=b"", repr=False)


BLAKE2 = Keying("row or blake2b-128")


def keys_of(scope: bytes, rows: Sequence[bytes]) -> list[Key]:
    """The key of each row: of its bytes, or of the stamp of its file. scope: its digest."""
    if max(map(len, rows), default=0) <= _SHORT:
        return [scope + row for row in rows]
    # The scope goes before the row: as safe as BLAKE2b's own key, and a block less to hash.
    begun = blake2b(scope, digest_size=KEY_BYTES).copy  # at four fifths of what a new one takes
    keys = []
    for row in rows:
        if len(row) <= _SHORT:
            keys.append(scope + row)
        else:
            hashed = begun()
            hashed.update(row)
            keys.append(hashed.digest())
    return keys


def keys_of_files(scope: bytes, stamps: Iterable[bytes]) -> list[Key | None]:
    """The key of each row by its file's stamp; None for one that has none (b""). scope: its digest."""
    return [scope + stamp if stamp else None for stamp in stamps]
