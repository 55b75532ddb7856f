"""SQL functions that take a table's columns as arguments: `udf_churn(age, plan)`.

Each stands on a function of one text, the row as JSON (`udf_churn_row`), which is a server's function like
any other, twin and all. PostgreSQL replaces the call by what stands behind it while it plans, so that
batching sees the one-argument call alone. A NULL argument is a missing value, not a NULL answer.
Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.wrapper import COST, granted
from ml_udf.quoting import literal, quoted

__all__ = ["DEPENDENTS", "ROW", "ColumnFunction"]

ROW = "_row"
_TYPES = {
    "number": "double precision",
    "text": "text",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
}

_MOST_ARGUMENTS = 100
_NAME_BYTES = 63  # of a name PostgreSQL cuts off what is beyond

# The functions of a name that stand on a row function, given as its signature.
DEPENDENTS = """
    SELECT p.oid::pg_catalog.regprocedure::text AS signature, p.proargnames AS names,
           pg_catalog.oidvectortypes(p.proargtypes) AS types
    FROM pg_catalog.pg_depend d
    JOIN pg_catalog.pg_proc p ON d.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND p.oid = d.objid
    JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
    WHERE d.refclassid = 'pg_catalog.pg_proc'::pg_catalog.regclass
      AND d.refobjid = pg_catalog.to_regprocedure($1) AND n.nspname = $2 AND p.proname = $3
      AND p.prosqlbody IS NOT NULL"""


@dataclass(frozen=True, slots=True)
class ColumnFunction:
    """`schema.name(columns)` over `schema.name_row(text)`. columns: (name, kind) of each."""

    schema: str
    name: str
    columns: Sequence[tuple[str, str]]
    returns: str
    parallel: str
    grant_to: str | None

    @property
    def names(self) -> list[str]:
        """Of the parameters, as PostgreSQL keeps them; of those alike all but the first have a number."""
        names: list[str] = []
        for column, _ in self.columns:
            name, number = _kept(column or "column"), 0
            while name in names:
                number += 1
                name = _kept(column or "column", f"_{number}")
            names.append(name)
        return names

    @property
    def types(self) -> str:
        """Of the parameters, as PostgreSQL prints them."""
        return ", ".join(_TYPES[kind] for _, kind in self.columns)

    @property
    def signature(self) -> str:
        """`schema.name(types)`, quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}({self.types})"

    def create(self, text: str) -> list[str]:
        """The statements that create it, for `grant_to` alone. text: what is said of it.

        Raises `PostgresError` for more columns than a function may have arguments.
        """
        if len(self.columns) > _MOST_ARGUMENTS:
            raise PostgresError(
                "54023",
                f"{self.name} takes {len(self.columns)} columns, and PostgreSQL gives a function "
                f"{_MOST_ARGUMENTS} arguments at most",
                hint=f"SELECT ml_udf.predict('{self.name}', to_jsonb(t)::text) FROM t gives it a whole row",
            )
        kinds = [kind for _, kind in self.columns]
        parameters = ", ".join(
            f"{quoted(name)} {_TYPES[kind]}" for name, kind in zip(self.names, kinds, strict=True)
        )
        values = ", ".join(f"${place}" for place in range(1, len(self.columns) + 1))
        row = f"{quoted(self.schema)}.{quoted(self.name + ROW)}"
        return [
            # No SET clause: with one it would be called, and not replaced by its body.
            f"CREATE FUNCTION {quoted(self.schema)}.{quoted(self.name)}({parameters}) RETURNS {self.returns}"
            f" LANGUAGE sql STABLE PARALLEL {self.parallel} COST {COST}"
            f" RETURN {row}(pg_catalog.json_build_array({values})::pg_catalog.text)",
            *granted(self.signature, self.grant_to),
            f"ALTER FUNCTION {self.signature} DEPENDS ON EXTENSION ml_udf",
            f"COMMENT ON FUNCTION {self.signature} IS {literal(text)}",
        ]


def _kept(name: str, suffix: str = "") -> str:
    return name.encode()[: _NAME_BYTES - len(suffix)].decode(errors="ignore") + suffix
