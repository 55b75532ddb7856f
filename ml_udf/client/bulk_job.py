"""What a statement, a table that is scored, or a watch asks for, as the one job that the server lists.

Said in a header with each request, so that servers of others, and older ones, take no notice.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

__all__ = ["BulkJob"]

_LONGEST = 200  # characters of `what`


@dataclass(slots=True)
class BulkJob:
    """What is said of it; who asks changes the counts as rows are stored.

    id: up to 64 letters, digits, `-` and `_` · what: the table and column, or where a statement runs
    rows: of the table that are to be scored, and `done` of them are stored · lag_rows: of a watch, rows noted
    and not answered yet; None for what is not known
    """

    id: str
    kind: Literal["statement", "table", "watch"]
    what: str = ""
    rows: int | None = None
    done: int | None = None
    lag_rows: int | None = None

    @classmethod
    def begun(cls, kind: Literal["statement", "table", "watch"], what: str = "") -> BulkJob:
        """A job that begins now, with an id of its own."""
        return cls(uuid.uuid4().hex[:12], kind, what)

    @property
    def waits(self) -> bool:
        """Whether its rows wait for as long as the server holds it back. A watch holds notes meanwhile, in a
        transaction: it comes back later instead.
        """
        return self.kind != "watch"

    def headers(self) -> dict[str, str]:
        """As the server reads them; texts percent-encoded."""
        fields = [f"id={self.id}", f"kind={self.kind}"]
        if self.what:
            shown = "".join(letter if letter.isprintable() else " " for letter in self.what[:_LONGEST])
            fields.append(f"what={quote(shown, safe='', errors='replace')}")
        counts = (("rows", self.rows), ("done", self.done), ("lag", self.lag_rows))
        fields += [f"{name}={count}" for name, count in counts if count is not None]
        return {"ML-UDF-Job": "; ".join(fields)}
