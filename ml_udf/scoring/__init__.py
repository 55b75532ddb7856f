"""Scoring a table: every row that has no answer yet gets one, stored, in batches that commit.

    ScoreRequest   what to score, with which function, into which place
    Layout         the tables and columns that this means, once the database has been asked
    Queries        the SQL over them: which rows are due, a page of them, storing their answers
    Asking         a page's answers, through restarts of the server and past rows that kill its worker
    score          pages in flight, answers stored as they come

The state of a run is the data itself: a row is due or it is not, and its answer is stored in one transaction
together with what makes it not due. So there is nothing to resume from but the same call again. Knows no
engine: a `Store` reads and writes (`ml_udf.scoring.postgres_store`, `ml_udf.duckdb.scoring`).
"""

from ml_udf.scoring.asking import Asking
from ml_udf.scoring.layout import ColumnDef, Layout
from ml_udf.scoring.pages import Page, Store
from ml_udf.scoring.request import ScoreRequest
from ml_udf.scoring.run import ScoreProgress, score

__all__ = ["Asking", "ColumnDef", "Layout", "Page", "ScoreProgress", "ScoreRequest", "Store", "score"]
