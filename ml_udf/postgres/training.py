"""Training from PostgreSQL's SQL: `ml_udf.create_dataset`, `train`, `deploy`, `rollback`, `cancel`, `extend`.

The rows of a dataset are those that the caller may see: this session reads and sends them. Where the caller
names a `source` the server reads them instead, over a connection that its operator named, and is told the
caller's roles. A query that somebody else registered is never run here. A deployed
function becomes an SQL function by `Definitions`, with the caller's rights.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from ml_udf.errors import BadOption
from ml_udf.postgres.backend import Backend
from ml_udf.postgres.dataset_rows import DatasetRows
from ml_udf.postgres.definitions import Definitions, FunctionDefinition
from ml_udf.postgres.faults import PostgresError
from ml_udf.postgres.spi import Spi
from ml_udf.postgres.statements import Statements
from ml_udf.postgres.wrapper import READER
from ml_udf.training import JSON, PUSHED, TrainingCalls, json_of

__all__ = ["TrainingVerbs"]

# What an older server does not report.
_SINCE = (
    "combine",
    "fitted_rows",
    "held_out",
    "refit",
    "thresholds",
    "metric",
    "validation_score",
    "test_score",
)
_BASELINE = ("baseline", "baseline_said", "cascade")
_OBJECTS = ("subsets", "held_out", "thresholds")

# Of a superuser, who is a member of all, its own name alone.
_ROLES = """
    SELECT r.rolname::text AS name FROM pg_catalog.pg_roles r, pg_catalog.pg_roles u
    WHERE u.rolname = current_user AND r.rolname !~ '^pg_'
      AND (r.oid = u.oid OR (NOT u.rolsuper AND pg_catalog.pg_has_role(u.oid, r.oid, 'USAGE')))
    ORDER BY r.oid <> u.oid, 1 LIMIT 1000"""


class TrainingVerbs:
    """What SQL asks of a server's training service."""

    def __init__(self, spi: Spi, backend: Backend, statements: Statements, definitions: Definitions) -> None:
        self._spi = spi
        self._backend = backend
        self._own: dict[tuple[int, str, str], Mapping[str, Any]] = {}  # by role, server and dataset
        self._rows = DatasetRows(spi.plpy)
        self._statements = statements
        self._definitions = definitions

    def do(self, verb: str, given: Mapping[str, Any], server: str) -> Any:  # noqa: ANN401  # of the verb
        """The SQL function `verb`. Raises `PostgresError`, and the errors of the client."""
        calls = TrainingCalls(self._statements.client(server), self._statements.check_interrupts)
        if verb == "create_dataset":
            return self._create_dataset(calls, given, server)["snapshot"]
        if verb == "refresh_dataset":
            return self._refresh_dataset(calls, given["dataset"], server)["snapshot"]
        if verb == "train":
            return calls.train({**given, "knobs": json_of(given.get("knobs"), "knobs")})["id"]
        if verb == "deploy":
            return self._deploy(calls, given, server)
        if verb == "retrain":
            return calls.retrain(given["function"], given["every"], given["budget"], self._roles())["state"]
        if verb == "rollback":
            return calls.rollback(given["function"])["version"]
        if verb == "cancel":
            return calls.cancel(given["job"])["state"]
        if verb == "pause":
            return calls.pause(given["job"])["state"]
        if verb == "resume":
            return calls.resume(given["job"])["state"]
        if verb == "extend":
            return calls.extend(given["job"], given.get("budget") or given["budget_epochs"])["state"]
        raise BadOption(f"there is nothing to train by the name of {verb!r}")

    def _create_dataset(self, calls: TrainingCalls, given: Mapping[str, Any], server: str) -> dict[str, Any]:
        dataset = {name: value for name, value in given.items() if name not in ("search_path", "source")}
        if given["source"] is not None:
            return calls.pull({**dataset, "source": given["source"]}, self._roles())
        for name in ("query", "key", "target"):
            if given[name] is None:
                raise PostgresError("22004", f"{name} is NULL", hint=f"{name} => '…'")
        parts = self._rows.parts(
            given["query"],
            given["key"],
            given["target"],
            given.get("search_path") or "",
            self._statements.check_interrupts,
        )
        with contextlib.closing(parts):
            made = calls.push(dataset, parts, JSON)
        self._own[self._backend.role(), server, given["name"]] = given
        return made

    def _refresh_dataset(self, calls: TrainingCalls, name: str, server: str) -> dict[str, Any]:
        if calls.dataset(name)["source"] != PUSHED:
            return calls.refresh(name, self._roles())
        own = self._own.get((self._backend.role(), server, name))
        if own is None:
            raise BadOption(
                f"the query of dataset {name} was not registered by you in this session",
                hint="call ml_udf.create_dataset again: what others registered is not run with your rights",
            )
        return self._create_dataset(calls, own, server)

    def _roles(self) -> list[str]:
        """current_user and the roles whose rights they have, as the operator may name them for a source."""
        return [row["name"] for row in self._spi.rows(_ROLES)]

    def _deploy(self, calls: TrainingCalls, given: Mapping[str, Any], server: str) -> dict[str, Any]:
        if given["job"] is None:
            raise PostgresError("22004", "job is NULL", hint="SELECT id FROM ml_udf.jobs")
        self._definitions.check_writable()
        function = given["function"]
        deployed = calls.deploy(
            given["job"],
            function,
            choose=given["choose"] or "ensemble",
            slo_ms=given["slo_ms"],
            promote=given["promote"] or "always",
            task=given.get("task"),
            cascade=given.get("cascade"),
            proxy=given.get("proxy"),
        )
        self._definitions.create(
            FunctionDefinition(
                function,
                function,
                server,
                "text",
                None,
                None,
                None,
                None,
                True,
                given["schema"],
                given.get("grant_to", READER),
            )
        )
        told = {**dict.fromkeys((*_SINCE, *_BASELINE)), **deployed}
        # PL/Python makes jsonb of text.
        cascade = None if told["cascade"] is None else json.dumps(told["cascade"])
        return {**told, **{name: json.dumps(told[name]) for name in _OBJECTS}, "cascade": cascade}
