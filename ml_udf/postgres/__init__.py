"""Functions of an inference server as functions of PostgreSQL: what the extension's PL/Python bodies call.

    SELECT ml_udf._boot()  →  GD["ml_udf"] = Session(plpy, …)      once per connection
    a function's body      →  GD["ml_udf"].scalar({…}, input)      at every call

The only package that knows plpy. It runs inside the server's process: standard library only, one thread of
Python that PostgreSQL knows, signals to that thread alone.
"""

from ml_udf.postgres.session import Session

__all__ = ["Session"]
