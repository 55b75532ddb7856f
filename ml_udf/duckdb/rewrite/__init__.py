"""The cheap first: queries in which models are asked only for the rows that cheap conditions leave.

Text to text, by sqlglot; the only package that imports it. Knows no connection.
"""

from ml_udf.duckdb.rewrite.known import Known, Relation
from ml_udf.duckdb.rewrite.rewriting import LeftAlone, Rewrite, rewrite

__all__ = ["Known", "LeftAlone", "Relation", "Rewrite", "rewrite"]
