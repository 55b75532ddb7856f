"""The server's training routes as calls: what both engines, the command line and the SDK share.

Plain JSON in and out, as docs/architecture.md has it; standard library only. Knows no database.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ml_udf.client import Client
from ml_udf.client.transport import HttpRequest
from ml_udf.errors import BadOption, InputInvalid, InputNotFound, InputUndecodable, MlUdfError
from ml_udf.name_list import names_of

__all__ = ["ARROW", "JSON", "PUSHED", "TrainingCalls", "json_of"]

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
PUSHED = "push"  # the source of a dataset whose rows a client has sent

# A query may run, and a deployment load models, for that long.
_LONG_S = 3600.0
_SHORT_S = 60.0

_UNREADABLE = (
    "mend such rows or leave them out of the dataset's query; "
    "paths are those of the inference server's host, below its media roots (ml-udf serve --media-root); "
    "a dataset of texts says task => 'text-classification'"
)

Json = dict[str, Any]

# Of what SQL takes as JSON, by the argument's name.
_EXAMPLES: Mapping[str, str] = {
    "knobs": '[{"name": "learning_rate", …}]',
    "wants": '{"dataset": "food", "min_accuracy": 0.9, "slo_ms": 50}',
    "stages": '["udf_tray", {"crop": {"margin": 0.1}}, "udf_food"]',
}


def json_of(given: object, name: str) -> object:
    """An argument that SQL gives as JSON, or as the text of it; None is none. Raises `BadOption`."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        example = _EXAMPLES.get(name)
        hint = f"such as {example}" if example else f"{name} takes JSON, and texts within it in double quotes"
        raise BadOption(f"{name!r} is not JSON", hint=hint) from None


class TrainingCalls:
    """Every call raises the errors of `ml_udf.errors`."""

    def __init__(self, client: Client, on_wait: Callable[[], None] | None = None) -> None:
        """on_wait: called in the caller's thread at least every 50 ms; what it raises aborts the call."""
        self._client = client
        self._on_wait = on_wait

    def pull(self, dataset: Mapping[str, Any], roles: Sequence[str] | None = None) -> Json:
        """Register a dataset that the server reads over its connection `source`; its snapshot.

        roles: of a database, in whose name a session asks; None where nobody's but the token's holder
        """
        body = dict(dataset) if roles is None else {**dataset, "roles": list(roles)}
        return self._post("/v1/datasets", body, timeout_s=_LONG_S)

    def push(self, dataset: Mapping[str, Any], parts: Iterable[bytes], content_type: str = ARROW) -> Json:
        """Register a dataset whose rows are sent, in the order of the key; its snapshot.

        parts: Arrow IPC streams; or, with the content type JSON, what training/datasets/rows_json.py reads
        """
        upload = self._post("/v1/datasets/uploads", dict(dataset))["upload"]
        where = f"/v1/datasets/uploads/{upload}"
        headers = {"Content-Type": content_type}
        try:
            for number, part in enumerate(parts):
                self._ask(HttpRequest("PUT", f"{where}/{number}", part, headers, may_repeat=True), _LONG_S)
            return self._post(f"{where}/finish", {}, timeout_s=_LONG_S)
        except BaseException:
            with contextlib.suppress(MlUdfError):  # the first error is the one to raise
                self._client.ask(HttpRequest("DELETE", where), timeout_s=_SHORT_S)
            raise

    def refresh(self, dataset: str, roles: Sequence[str] | None = None) -> Json:
        """Have the server run a registered query again; the new snapshot. roles: as in `pull`."""
        body = {} if roles is None else {"roles": list(roles)}
        return self._post(f"/v1/datasets/{quote(dataset, safe='')}/refresh", body, timeout_s=_LONG_S)

    def dataset(self, name: str) -> Json:
        """A dataset with its newest snapshot."""
        return self._get(f"/v1/datasets/{quote(name, safe='')}")

    def datasets(self) -> list[Json]:
        """Every dataset with its newest snapshot."""
        return list(self._get("/v1/datasets")["datasets"])

    def train(self, job: Mapping[str, Any]) -> Json:
        """Begin a job; it runs on when this returns. Its `models` may be named in a text: see `names_of`."""
        if job.get("models") is not None:
            job = {**job, "models": names_of(job["models"], "models")}
        return self._post("/v1/jobs", dict(job))

    def job(self, job: int) -> Json:
        """A job as it stands."""
        return self._get(f"/v1/jobs/{job:d}")

    def jobs(self) -> list[Json]:
        """Every job."""
        return self._pages("/v1/jobs", "jobs")

    def trials(self, job: int | None = None) -> list[Json]:
        """Every trial, or those of one job."""
        if job is not None:
            return list(self._get(f"/v1/trials?job={job:d}")["trials"])
        return self._pages("/v1/trials", "trials")

    def cancel(self, job: int) -> Json:
        """Stop a job; what it has found stays."""
        return self._post(f"/v1/jobs/{job:d}/cancel", {})

    def pause(self, job: int) -> Json:
        """Let a job rest; epochs under way end first."""
        return self._post(f"/v1/jobs/{job:d}/pause", {})

    def resume(self, job: int) -> Json:
        """Go on with a paused job."""
        return self._post(f"/v1/jobs/{job:d}/resume", {})

    def extend(self, job: int, budget: int | str) -> Json:
        """Go on with a job that has ended, with so much in all: "20 minutes", or a number of epochs."""
        name = "budget" if isinstance(budget, str) else "budget_epochs"  # an older server knows the latter
        return self._post(f"/v1/jobs/{job:d}/extend", {name: budget})

    def deploy(
        self,
        job: int,
        function: str,
        *,
        choose: str = "ensemble",
        slo_ms: float | None = None,
        promote: str = "always",
        task: str | None = None,
        cascade: float | None = None,
        proxy: str | None = None,
    ) -> Json:
        """Make a function answer with what a job has found; the accuracies that were measured.

        task: another one that the job's models do; None = their own. cascade: the share of rows that a proxy
        has to answer as the full function does; None = as the function has it now, 0 = no proxy. proxy: the
        cheap model, or a function of one; None = the best of the function's own.
        """
        body: Json = {"function": function, "select": choose, "slo_ms": slo_ms, "promote": promote}
        if task is not None:
            body["task"] = task
        if cascade is None and proxy is not None:
            raise BadOption(f"proxy = {proxy!r}, and no cascade", hint="cascade => 0.98: how often it agrees")
        if cascade is not None:
            body["cascade"] = cascade if proxy is None else {"agreement": cascade, "proxy": proxy}
        return self._post(f"/v1/jobs/{job:d}/deploy", body, timeout_s=_LONG_S)

    def wish(self, function: str, wants: object) -> Json:
        """Make a function of whichever model keeps what is wanted; its description. wants: an object."""
        where = f"/v1/functions/{quote(function, safe='')}"
        body = json.dumps({"wants": wants}).encode()
        return self._ask(HttpRequest("PUT", where, body, {"Content-Type": JSON}), _LONG_S)

    def retrain(
        self,
        function: str,
        every: str | None = None,
        budget: str | None = None,
        roles: Sequence[str] | None = None,
    ) -> Json:
        """Train a function again: now, and `every` "1 day"; "never" = no more. Where it stands."""
        where = f"/v1/functions/{quote(function, safe='')}/retrain"
        if every is not None and every.strip().lower() == "never":
            return self._ask(HttpRequest("DELETE", where), _SHORT_S)
        asked = {"every": every, "budget": budget}
        return self._post(where, asked if roles is None else {**asked, "roles": list(roles)})

    def retrainings(self) -> list[Json]:
        """The functions that are trained again."""
        return list(self._get("/v1/retrainings")["retrainings"])

    def rollback(self, function: str) -> Json:
        """Deploy what a function was before; its deployed form."""
        return self._post(f"/v1/functions/{quote(function, safe='')}/rollback", {}, timeout_s=_LONG_S)

    def answers(
        self,
        dataset: str,
        function: str,
        *,
        first: int,
        rows: int,
        scores: bool = False,
        dealt: str | None = None,
        seed: str = "",
    ) -> Json:
        """What a function answers to held-out rows of a dataset, and what was to be answered: a page of them.

        dealt: the column whose values are dealt out anew among all these rows, by `seed`
        """
        body = {"function": function, "first": first, "rows": rows, "scores": scores, "seed": seed}
        if dealt is not None:
            body["dealt"] = dealt
        return self._post(f"/v1/datasets/{quote(dataset, safe='')}/answers", body, timeout_s=_LONG_S)

    def watch(self, job: int, every_s: float = 0.5) -> Iterator[Json]:
        """A job as it stands, now, every `every_s` seconds, and a last time when it has ended."""
        while True:
            known = self.job(job)
            yield known
            if known["state"] not in ("running", "paused"):
                return
            time.sleep(every_s)

    def _pages(self, path: str, name: str) -> list[Json]:
        """All pages of a list, as one."""
        page = self._get(path)
        listed = list(page[name])
        while page.get("next") is not None:  # an older server has one page
            page = self._get(f"{path}?after={page['next']:d}")
            listed += page[name]
        return listed

    def _get(self, path: str) -> Json:
        return self._ask(HttpRequest("GET", path), _SHORT_S)

    def _post(self, path: str, body: Json, timeout_s: float = _SHORT_S) -> Json:
        headers = {"Content-Type": JSON}
        return self._ask(HttpRequest("POST", path, json.dumps(body).encode(), headers), timeout_s)

    def _ask(self, request: HttpRequest, timeout_s: float) -> Json:
        try:
            return self._client.ask(request, timeout_s=timeout_s, on_wait=self._on_wait)
        except (InputInvalid, InputNotFound, InputUndecodable) as error:
            error.hint = _UNREADABLE  # the usual one speaks of on_error, which no dataset knows
            raise
