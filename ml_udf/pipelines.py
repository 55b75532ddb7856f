"""Functions made of functions, as a call: for both engines and the command line. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ml_udf.client import Client
from ml_udf.client.transport import HttpRequest
from ml_udf.errors import BadOption
from ml_udf.training import json_of

__all__ = ["create_pipeline"]

_TIMEOUT_S = 3600.0  # its stages' models may have to be loaded


def create_pipeline(
    client: Client,
    name: str,
    stages: object,
    *,
    slo_ms: float | None = None,
    goal_split: str | None = None,
    answer_cache: bool | None = None,
    on_wait: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Create a function of functions, or deploy it anew; its deployed form, with its `version`.

    stages: a list, or the text of one as JSON: names of functions, {"function": name, "version": n},
    {"crop": {"margin": 0.1}} · slo_ms: its latency goal; None = its stages' together · goal_split,
    answer_cache: as docs/pipelines.md has them; None = as by default · on_wait: called in this thread at
    least every 50 ms; what it raises aborts the call. Raises the errors of `ml_udf.errors`.
    """
    listed = json_of(stages, "stages")
    if not isinstance(listed, list):
        raise BadOption("'stages' must be a list", hint='such as \'["udf_tray", {"crop": {}}, "udf_food"]\'')
    given = {"slo_ms": slo_ms, "goal_split": goal_split, "answer_cache": answer_cache}
    body = {"pipeline": listed, **{field: value for field, value in given.items() if value is not None}}
    path, headers = f"/v1/functions/{quote(name, safe='')}", {"Content-Type": "application/json"}
    request = HttpRequest("PUT", path, json.dumps(body).encode(), headers)
    return client.ask(request, timeout_s=_TIMEOUT_S, on_wait=on_wait)
