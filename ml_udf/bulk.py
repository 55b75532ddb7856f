"""The bulk jobs of a server as calls, for both engines and the command line. Plain JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ml_udf.client import Client
from ml_udf.client.transport import HttpRequest
from ml_udf.errors import BadOption

__all__ = ["BULK_VERBS", "BulkCalls"]

BULK_VERBS = ("pause_bulk", "resume_bulk", "cap_bulk", "cancel_bulk")

_TIMEOUT_S = 60.0

Json = dict[str, Any]


class BulkCalls:
    """Every call raises the errors of `ml_udf.errors`; those that steer return the job as it is then."""

    def __init__(self, client: Client, on_wait: Callable[[], None] | None = None) -> None:
        """on_wait: called in the caller's thread at least every 50 ms; what it raises aborts the call."""
        self._client = client
        self._on_wait = on_wait

    def all(self) -> list[Json]:
        """Those of one's own; to admins, all."""
        return self._client.listed("bulk_jobs", on_wait=self._on_wait)

    def pause(self, id: str) -> Json:
        """Nothing of it goes on until it is resumed; who asks waits."""
        return self._steer(id, {"action": "pause"})

    def resume(self, id: str) -> Json:
        """It goes on."""
        return self._steer(id, {"action": "resume"})

    def cap(self, id: str, max_rows_per_s: float | None) -> Json:
        """So many rows a second at the most, over some seconds; None for any number."""
        return self._steer(id, {"max_rows_per_s": max_rows_per_s})

    def cancel(self, id: str) -> Json:
        """It ends: its statement fails as one that is cancelled."""
        return self._steer(id, {"action": "cancel"})

    def do(self, verb: str, id: object, max_rows_per_s: float | None = None) -> Json:
        """One of `BULK_VERBS`. Raises `BadOption` for an id that is none."""
        if not isinstance(id, str) or not id:
            raise BadOption("which bulk job?", hint="SELECT id, what, state FROM ml_udf.bulk_jobs")
        if verb == "cap_bulk":
            return self.cap(id, max_rows_per_s)
        return {"pause_bulk": self.pause, "resume_bulk": self.resume, "cancel_bulk": self.cancel}[verb](id)

    def _steer(self, id: str, body: Json) -> Json:
        path = f"/v1/bulk-jobs/{quote(id, safe='')}"
        request = HttpRequest(
            "POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}, may_repeat=True
        )
        return self._client.ask(request, timeout_s=_TIMEOUT_S, on_wait=self._on_wait)
