"""The rows behind the extension's views that SQL alone cannot know.

What servers report (`functions`, `models`) and what this session has asked (`stat_functions`). A server that
does not answer costs a warning, not the view.
"""

from __future__ import annotations

import json
from typing import Any

from ml_udf.errors import MlUdfError
from ml_udf.postgres.spi import Spi
from ml_udf.postgres.statements import Statements
from ml_udf.views import VIEWS

__all__ = ["Views"]

Row = dict[str, Any]

_USABLE = """
    SELECT s.srvname::text AS name FROM pg_catalog.pg_foreign_server s
    JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid = s.srvfdw
    WHERE w.fdwname = 'ml_udf' AND pg_catalog.has_server_privilege(s.oid, 'USAGE') ORDER BY 1"""


class Views:
    """Answers the extension's views."""

    def __init__(self, spi: Spi, statements: Statements) -> None:
        self._spi = spi
        self._statements = statements

    def functions(self) -> list[Row]:
        """The functions of every server that current_user may use."""
        return self.with_json("functions")

    def models(self) -> list[Row]:
        """The models of every server that current_user may use."""
        return self._of_servers("models")

    def residency(self, view: str) -> list[Row]:
        """`residency` or `residency_events`, `workers` or `capacity`, of every server one may use."""
        return self._of_servers(view)

    def training(self, view: str) -> list[Row]:
        """`datasets`, `jobs` or `trials` of every server that current_user may use."""
        return self.with_json(view)

    def with_json(self, view: str) -> list[Row]:
        """A view's rows of every server that current_user may use; objects as the text of their JSON."""
        rows = self._of_servers(view)
        return [
            {name: json.dumps(value) if _is_json(value) else value for name, value in row.items()}
            for row in rows
        ]

    def stat_functions(self) -> list[Row]:
        """What the ended statements of this session have asked."""
        return [
            {
                "server": server,
                "name": function,
                "statements": past.statements,
                "failed_calls": past.failed_calls,
                "rows": past.calls.rows,
                "null_rows": past.calls.nulls,
                "rows_sent": past.calls.distinct,
                "rows_reused": max(0, past.calls.rows - past.calls.nulls - past.calls.distinct),
                "batches": past.calls.batches,
                "retries": past.calls.retries,
                "failed_rows": past.calls.failed_rows,
                "cached_rows": past.calls.cached,
                "seconds": past.calls.elapsed_s,
                "median_ms": _ms(past.waits.quantile_s(0.5)),
                "p99_ms": _ms(past.waits.quantile_s(0.99)),
            }
            for (server, function), past in sorted(self._statements.past().items())
        ]

    def _of_servers(self, what: str) -> list[Row]:
        rows: list[Row] = []
        for found in self._spi.rows(_USABLE):
            server = found["name"]
            try:
                client = self._statements.client(server)
                told = client.listed(what, on_wait=self._statements.check_interrupts)
            except MlUdfError as error:
                self._spi.plpy.warning(
                    f"server {server} does not list its {what}: {error.message}",
                    **({"hint": error.hint} if error.hint else {}),
                )
            else:
                for row in told:
                    rows.append({"server": server} | {column: row.get(column) for column in VIEWS[what]})
        return rows


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _is_json(value: object) -> bool:
    """Whether it belongs into a column of jsonb: an object, or a list of them; other lists are arrays."""
    return isinstance(value, dict) or (isinstance(value, list) and value != [] and isinstance(value[0], dict))
