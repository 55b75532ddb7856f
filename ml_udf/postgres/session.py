"""What the extension's SQL functions call, for one connection: calls of functions, definitions, views.

One `Session` lives in PL/Python's GD as long as the connection does; it outlives ROLLBACK and a pooler's
change of client, so nothing that depends on who asks is kept beyond a statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ml_udf.bulk import BulkCalls
from ml_udf.client.column import Value
from ml_udf.pipelines import create_pipeline
from ml_udf.postgres.backend import Asked, Backend
from ml_udf.postgres.binary import reals_of
from ml_udf.postgres.definitions import Definitions, FunctionDefinition
from ml_udf.postgres.endpoints import Endpoints
from ml_udf.postgres.evaluation import Evaluation
from ml_udf.postgres.faults import PostgresError, reported
from ml_udf.postgres.feedback import FeedbackCalls
from ml_udf.postgres.fitting import Fitting
from ml_udf.postgres.generic import Asking, GenericCalls, generic, pairs_of
from ml_udf.postgres.scoring import Scoring
from ml_udf.postgres.spi import Plpy, Spi
from ml_udf.postgres.statements import Statements, Target
from ml_udf.postgres.training import TrainingVerbs
from ml_udf.postgres.values import Composite, are_plain_texts, fitted_text, unwrapped, wrapped
from ml_udf.postgres.views import Views
from ml_udf.sharing import share

__all__ = ["Session"]


class Session:
    """The entry points of SQL. Every error leaves as PostgreSQL reports it (`faults.reported`)."""

    def __init__(self, plpy: Plpy, *, local_path: str = "") -> None:
        self.spi = Spi(plpy)
        self._backend = backend = Backend()
        self._endpoints = Endpoints(self.spi, backend, local_path)
        self._statements = Statements(plpy, backend, self._endpoints)
        self._fitting = Fitting(self.spi)
        self._definitions = Definitions(self.spi, backend, self._statements, self._fitting)
        self._asking = Asking(self._statements)
        self._generic = GenericCalls(self._statements, self._asking)
        self._evaluation = Evaluation(self.spi, self._statements, self._asking)
        self._views = Views(self.spi, self._statements)
        self._training = TrainingVerbs(self.spi, backend, self._statements, self._definitions)
        self._scoring = Scoring(plpy, backend, self._endpoints, self._statements)
        self._feedback = FeedbackCalls(self._statements)

    def begun(self) -> Session:
        """This session, ready; called by `ml_udf._boot()`, which may change the session."""
        self._statements.mark()
        return self

    # ── functions made by ml_udf.create_function ──────────────────────────────────────────────────

    @reported
    def scalar(self, record: Mapping[str, Any], value: Value) -> Any:  # noqa: ANN401  # of the SQL type
        """The body of a function over one row. `record` is what it was created with."""
        return self._values(Target.of(record), [value], record["returns"])[0]

    @reported
    def batch(self, record: Mapping[str, Any], values: Sequence[Value]) -> list[Any] | None:
        """The body of its twin over many rows: one value per row, in order; None where it was just begun.

        Only the plan node asks to begin, and then for the same rows again.
        """
        asked = self._backend.take_asked()
        target, rows = Target.of(record), unwrapped(values)
        if asked is Asked.FORGET:
            self._statements.forget()
            return None
        if asked is Asked.BEGIN and self._begin(target, rows):
            return None
        if record.get("results") == "binary":
            return self._values(target, rows, record["returns"], is_binary=True)
        found = self._values(target, rows, record["returns"])
        return wrapped(found) if record["returns"].endswith("[]") else found

    # ── generic functions ────────────────────────────────────────────────────────────────────────

    @reported
    def predict_many(self, function: str, values: Sequence[Value], server: str) -> list[Any]:
        """`ml_udf.predict_many`."""
        if any(isinstance(value, list) for value in values):
            raise PostgresError(
                "2202E",
                "ml_udf.predict_many takes an array of one dimension",
                hint="SELECT array_agg(x) FROM unnest(…) AS x makes one of all elements",
            )
        return self._values(generic(server, function), values, "text")

    @reported
    def ask(
        self,
        what: str,
        functions: Sequence[str | None],
        inputs: Sequence[Value],
        servers: Sequence[str | None],
        arguments: Sequence[Any] | None = None,
    ) -> list[Any]:
        """`ml_udf.WHAT` over many rows, and its twin: as many functions, servers and arguments as inputs."""
        return self._generic.ask(what, pairs_of(servers, functions), inputs, arguments)

    # The bodies that were made before 0.5.0 call these; an update leaves them as they are.

    @reported
    def predict(self, function: str, value: Value, server: str) -> Any:  # noqa: ANN401  # text
        """`ml_udf.predict`."""
        return self._generic.ask("predict", [(server, function)], [value])[0]

    @reported
    def try_predict(self, function: str, value: Value, server: str) -> Composite | None:
        """`ml_udf.try_predict`."""
        found: Composite | None = self._generic.ask("try_predict", [(server, function)], [value])[0]
        return found

    @reported
    def detail(self, function: str, value: Value, server: str) -> Composite | None:
        """`ml_udf.detail`."""
        found: Composite | None = self._generic.ask("detail", [(server, function)], [value])[0]
        return found

    @reported
    def predict_batch(
        self, functions: Sequence[str | None], values: Sequence[Value], servers: Sequence[str | None]
    ) -> list[Any]:
        """`ml_udf.predict`'s twin: as many functions and servers as values."""
        return self._generic.ask("predict", pairs_of(servers, functions), values)

    @reported
    def try_predict_batch(
        self, functions: Sequence[str | None], values: Sequence[Value], servers: Sequence[str | None]
    ) -> list[Any]:
        """`ml_udf.try_predict`'s twin."""
        return self._generic.ask("try_predict", pairs_of(servers, functions), values)

    @reported
    def detail_batch(
        self, functions: Sequence[str | None], values: Sequence[Value], servers: Sequence[str | None]
    ) -> list[Any]:
        """`ml_udf.detail`'s twin."""
        return self._generic.ask("detail", pairs_of(servers, functions), values)

    # ── feedback ─────────────────────────────────────────────────────────────────────────────────

    @reported
    def feedback(
        self,
        functions: Sequence[str | None],
        inputs: Sequence[Value],
        labels: Sequence[str | None],
        servers: Sequence[str | None],
        *,
        by_id: bool = False,
    ) -> list[str | None]:
        """`ml_udf.feedback` and its twin: as many functions, labels and servers as inputs.

        by_id: `ml_udf.feedback_by_id`; the inputs are ids of predictions.
        """
        return self._feedback.give(pairs_of(servers, functions), inputs, labels, by_id=by_id)

    # ── definitions, servers, views ──────────────────────────────────────────────────────────────

    @reported
    def create_function(self, *asked: Any) -> str:  # noqa: ANN401  # the fields of `FunctionDefinition`, in order
        """`ml_udf.create_function`: see `Definitions.create`."""
        return self._definitions.create(FunctionDefinition(*asked))

    @reported
    def define(self) -> None:
        """`ml_udf._define()`: the privileged part of it."""
        self._definitions.define()

    @reported
    def drop_function(self, name: str, if_exists: bool, schema: str | None) -> None:
        """`ml_udf.drop_function`."""
        self._definitions.drop(name, if_exists=if_exists, schema=schema)

    @reported
    def validate(self, options: Sequence[str], catalog: int) -> None:
        """The foreign-data wrapper's validator."""
        self._endpoints.validate(options, catalog)

    @reported
    def read_mapping(self) -> None:
        """`ml_udf._read_mapping()`."""
        self._endpoints.read()

    @reported
    def functions(self) -> list[dict[str, Any]]:
        """Behind the view `ml_udf.functions`."""
        return self._views.functions()

    @reported
    def models(self) -> list[dict[str, Any]]:
        """Behind the view `ml_udf.models`."""
        return self._views.models()

    @reported
    def stat_functions(self) -> list[dict[str, Any]]:
        """Behind the view `ml_udf.stat_functions`."""
        return self._views.stat_functions()

    # ── scoring ──────────────────────────────────────────────────────────────────────────────────

    @reported
    def score_table(self, given: Mapping[str, Any]) -> dict[str, int]:
        """`ml_udf.score_table`: see `Scoring.run`."""
        return self._scoring.run(given)

    @reported
    def pause_watch(self, watch: int) -> None:
        """`ml_udf.pause_watch`."""
        self._scoring.pause_watch(watch)

    @reported
    def resume_watch(self, watch: int) -> None:
        """`ml_udf.resume_watch`."""
        self._scoring.resume_watch(watch)

    @reported
    def drop_watch(self, watch: int) -> None:
        """`ml_udf.drop_watch`."""
        self._scoring.drop_watch(watch)

    @reported
    def reals(self, vector: bytes) -> list[float]:
        """The numbers of a `real[]` in PostgreSQL's binary format."""
        return reals_of(vector)

    # ── training ─────────────────────────────────────────────────────────────────────────────────

    @reported
    def train(self, verb: str, arguments: Mapping[str, Any], server: str) -> Any:  # noqa: ANN401  # of the verb
        """`ml_udf.create_dataset`, `train`, `deploy`, …: see `TrainingVerbs`."""
        return self._training.do(verb, arguments, server)

    @reported
    def share(self, given: Mapping[str, Any], server: str) -> str:
        """`ml_udf.share`: see `ml_udf.sharing`."""
        for name in ("kind", "name"):
            if given[name] is None:
                raise PostgresError("22004", f"{name} is NULL", hint=f"{name} => '…'")
        told = share(
            self._statements.client(server),
            given["kind"],
            given["name"],
            visibility=given["visibility"],
            shared_with=given["shared_with"],
            owner=given["owner"],
            on_wait=self._statements.check_interrupts,
        )
        return str(told["visibility"])

    @reported
    def bulk(self, verb: str, id: str | None, max_rows_per_s: float | None, server: str) -> Any:  # noqa: ANN401  # of the verb
        """`ml_udf.pause_bulk`, `resume_bulk`, `cap_bulk`, `cancel_bulk`: see `ml_udf.bulk`."""
        calls = BulkCalls(self._statements.client(server), self._statements.check_interrupts)
        told = calls.do(verb, id, max_rows_per_s)
        return told["max_rows_per_s" if verb == "cap_bulk" else "state"]

    @reported
    def create_pipeline(self, given: Mapping[str, Any], server: str) -> int:
        """`ml_udf.create_pipeline`: see `ml_udf.pipelines`; the version, once it is an SQL function too."""
        for name in ("name", "stages"):
            if given[name] is None:
                raise PostgresError("22004", f"{name} is NULL", hint=f"{name} => '…'")
        self._definitions.check_writable()
        function = given["name"]
        told = create_pipeline(
            self._statements.client(server),
            function,
            given["stages"],
            slo_ms=given["slo_ms"],
            goal_split=given["goal_split"],
            answer_cache=given["answer_cache"],
            on_wait=self._statements.check_interrupts,
        )
        place = (given["schema"], given["grant_to"])
        asked = (function, function, server, "text", None, None, None, None, True, *place)
        self._definitions.create(FunctionDefinition(*asked))
        return int(told["version"])

    @reported
    def evaluation(self, verb: str, given: Mapping[str, Any], server: str) -> list[dict[str, Any]]:
        """`ml_udf.evaluate`, `confusion_matrix`, `importance`, `learning_curve`: see `Evaluation`."""
        return self._evaluation.rows(verb, given, server)

    @reported
    def residency(self, view: str) -> list[dict[str, Any]]:
        """Behind the views `ml_udf.residency`, `residency_events`, `workers` and `capacity`."""
        return self._views.residency(view)

    @reported
    def training_view(self, view: str) -> list[dict[str, Any]]:
        """Behind the views `ml_udf.datasets`, `jobs` and `trials`."""
        return self._views.training(view)

    @reported
    def server_view(self, view: str) -> list[dict[str, Any]]:
        """Behind the views `ml_udf.tokens`, `audit` and `variants`."""
        return self._views.with_json(view)

    def _begin(self, target: Target, values: Sequence[Value]) -> bool:
        with self._asking.of(target, values) as statement:
            check, within = self._statements.check_interrupts, self._statements.subtransaction()
            return statement.begin(values, check, within=within)

    def _values(
        self, target: Target, values: Sequence[Value], returns: str, *, is_binary: bool = False
    ) -> list[Any]:
        """Answers as values of type `returns`, or in its binary format."""
        write = self._fitting.binary if is_binary else self._fitting.value
        is_text = returns == "text"
        with self._asking.of(target, values) as statement:
            return statement.values(
                values,
                self._statements.check_interrupts,
                (lambda _, value: fitted_text(value)) if is_text else lambda _, value: write(value, returns),
                fits=are_plain_texts if is_text else lambda column: False,
            )
