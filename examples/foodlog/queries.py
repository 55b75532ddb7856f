"""Reading queries.sql: titled statements, each the text that runs on either engine. Runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["QUERIES_FILE", "Query", "read_queries"]

QUERIES_FILE = Path(__file__).with_name("queries.sql")
_TITLED = re.compile(r"^-- (?P<number>\d+)\. (?P<title>.+)\n(?P<sql>[^;]+);", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Query:
    """One statement; `sql` has no closing semicolon and no comment."""

    number: int
    title: str
    sql: str


def read_queries(path: Path = QUERIES_FILE) -> list[Query]:
    """The statements that stand under a comment `-- N. title`, in order.

    Raises ValueError where the file has a statement without a title: it would be passed over in silence.
    """
    text = path.read_text(encoding="utf-8")
    queries = [Query(int(found["number"]), found["title"], found["sql"]) for found in _TITLED.finditer(text)]
    if text.count(";") != len(queries):
        raise ValueError(f"{path}: {text.count(';')} statements, and {len(queries)} have a title '-- N. …'")
    return queries
