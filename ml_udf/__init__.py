"""`ml_udf`: machine learning inside SQL; the part that lives in the database and in the analyst's Python."""
