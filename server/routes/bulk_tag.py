"""The header `ML-UDF-Job`: which bulk job a request is a part of, as its client says.

    ML-UDF-Job: id=5f2c…; kind=table; what=foodlog.food_name; rows=20000; done=4096; lag=0

Texts are percent-encoded UTF-8. Rows of the bulk class that come without it are one job by caller and
function.
"""

from __future__ import annotations

import hashlib
import re
from typing import cast
from urllib.parse import unquote_to_bytes

from server.access.caller import Caller
from server.errors import BadOption
from server.scheduling.bulk_jobs import BulkKind, BulkTag, BulkWhose
from server.serving.calls import BulkRequest

__all__ = ["bulk_request"]

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_COUNT = re.compile(r"[0-9]{1,15}")
_SAID = ("statement", "table", "watch")
_MOST_BYTES = 1000
_FIELDS = frozenset(("id", "kind", "what", "rows", "done", "lag"))


def bulk_request(said: bytes | None, function: str, caller: Caller) -> BulkRequest:
    """The job of a request with that header; None for without. Raises `BadOption`."""
    whose = BulkWhose(caller.token, caller.in_name_of)
    if said is None:
        digest = hashlib.sha256(f"{caller.key}\0{function}".encode()).hexdigest()[:12]
        return BulkRequest(BulkTag(digest, "requests"), whose)
    return BulkRequest(_tag_of(said), whose)


def _tag_of(said: bytes) -> BulkTag:
    fields: dict[str, str] = {}
    try:
        if len(said) > _MOST_BYTES:
            raise ValueError
        for part in said.split(b";"):
            name, _, value = part.strip().partition(b"=")
            fields[name.decode("ascii")] = unquote_to_bytes(value).decode()
        if not fields.keys() <= _FIELDS or not _ID.fullmatch(fields.get("id", "")):
            raise ValueError
        kind, what = fields.get("kind", "statement"), fields.get("what", "")
        if kind not in _SAID or not (what.isprintable() or not what):
            raise ValueError
        return BulkTag(
            fields["id"],
            cast(BulkKind, kind),
            what,
            _count(fields.get("rows")),
            _count(fields.get("done")),
            _count(fields.get("lag")),
        )
    except ValueError:
        raise BadOption(
            "the header ML-UDF-Job is none: it says 'id=…; kind=statement|table|watch; what=…; rows=…; "
            "done=…; lag=…', the id of up to 64 letters, digits, - and _, texts percent-encoded"
        ) from None


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not _COUNT.fullmatch(text):
        raise ValueError(text)
    return int(text)
