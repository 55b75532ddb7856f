"""How good a function is, on labelled rows: its metrics, what it confuses, which columns it needs.

    Source       labelled rows and a function: those of a query, or of a dataset's held-out split
    Answered     what the function answered to them
    metrics      what that is worth, and what the best constant answer would be
    result_rows  the rows of an SQL function over all this

Standard library only: inside a database there is nothing else. Knows no engine: who calls reads rows and
asks.
"""

from ml_udf.evaluation.calls import COLUMNS, names_dataset, result_rows
from ml_udf.evaluation.sources import Asker, LabelledRow

__all__ = ["COLUMNS", "Asker", "LabelledRow", "names_dataset", "result_rows"]
