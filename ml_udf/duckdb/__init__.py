"""Functions of an inference server as SQL functions of a DuckDB connection.

    import duckdb, ml_udf.duckdb
    con = duckdb.connect("food.db")
    ml_udf.duckdb.register(con, "http://127.0.0.1:8080")
    con.sql("SELECT udf_food_name(image_path) AS food_name, count(*) FROM foodlog GROUP BY ALL")

The only package that imports duckdb.
"""

from ml_udf.duckdb.cheap_first import rewritten, sql
from ml_udf.duckdb.faults import FaultyRowsWarning
from ml_udf.duckdb.registration import Registration, register
from ml_udf.duckdb.scoring import score_table

__all__ = ["FaultyRowsWarning", "Registration", "register", "rewritten", "score_table", "sql"]
