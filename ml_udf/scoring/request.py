"""What is to be scored, as the caller says it; checked as far as that goes without a database."""

from __future__ import annotations

from dataclasses import dataclass

from ml_udf.errors import BadOption
from ml_udf.scoring.condition import check_condition

__all__ = ["BATCH_ROWS", "PATIENCE_S", "ScoreRequest", "rescore_of"]

BATCH_ROWS = 1024  # a commit each; some four requests of the default size, all under way at once
PATIENCE_S = 60.0
MAX_BATCH_ROWS = 65_536
_REASONS = ("changed", "version", "errors")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One call of `score_table`. Raises `BadOption` for what can be no call.

    relation      a table or view, as SQL writes it
    function      that answers
    input         column that the function gets to see
    output        column of `relation` that takes the answers; or
    result_table  table that takes them beside the key; created where there is none
    key           columns that tell rows apart; () = the primary key
    condition     SQL over the columns of `relation`; rows for which it does not hold are left alone
    row_limit     most rows of this run; None = all
    batch_rows    rows per commit
    on_error      "error": a faulty row ends the run; "null": its error is stored and the run goes on
    rescore       why rows that have an answer get another: "changed" input, another "version" of the
                  function, "errors"; None = changed, where the place has a column that shows it
    version       of the function; None = the one that is current when the run begins
    patience_s    how long a server that does not answer is waited for before the run ends
    """

    relation: str
    function: str
    input: str
    output: str | None = None
    result_table: str | None = None
    key: tuple[str, ...] = ()
    condition: str | None = None
    row_limit: int | None = None
    batch_rows: int = BATCH_ROWS
    on_error: str = "error"
    rescore: frozenset[str] | None = None
    version: str | None = None
    patience_s: float = PATIENCE_S

    def __post_init__(self) -> None:
        for name in ("relation", "function", "input"):
            if not getattr(self, name):
                raise BadOption(f"{name} is missing", hint=f"{name} => '…'")
        if bool(self.output) == bool(self.result_table):
            raise BadOption(
                "the answers need one place" + (", not two" if self.output else ""),
                hint="give output, a column of the same table, or result_table, a table of their own",
            )
        if self.condition is not None:
            check_condition(self.condition)
        if not 1 <= self.batch_rows <= MAX_BATCH_ROWS:
            raise BadOption(
                f"batch_rows = {self.batch_rows} is out of bounds", hint=f"use 1 to {MAX_BATCH_ROWS}"
            )
        if self.row_limit is not None and self.row_limit < 0:
            raise BadOption(f"row_limit = {self.row_limit} is negative", hint="leave it out for all rows")
        if self.on_error not in ("error", "null"):
            raise BadOption(f"on_error = {self.on_error!r} is not known", hint="use error or null")
        if not self.patience_s >= 0:  # nor is NaN, with which no wait would end
            raise BadOption(
                f"patience_s = {self.patience_s:g} is no time to wait", hint="use 0 not to wait at all"
            )


def rescore_of(text: str | None) -> frozenset[str] | None:
    """`'changed, errors'` as a set; None where nothing is said, the empty set for 'none'.

    Raises `BadOption`.
    """
    if text is None:
        return None
    reasons = {word.strip().lower() for word in text.split(",")} - {"", "none"}
    if unknown := sorted(reasons - set(_REASONS)):
        raise BadOption(
            f"rescore = {text!r}: {unknown[0]!r} is no reason to score a row again",
            hint="use none, or some of " + ", ".join(_REASONS),
        )
    return frozenset(reasons)
