"""The views over what servers report: their columns, in order, as the server names them, with DuckDB's types.

PostgreSQL's types stand in the extension's script, which a test holds against this.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["VIEWS"]

VIEWS: Mapping[str, Mapping[str, str]] = {
    "functions": {
        "name": "VARCHAR",
        "version": "VARCHAR",
        "task": "VARCHAR",
        "models": "VARCHAR[]",
        "policy": "VARCHAR",
        "slo_ms": "DOUBLE",
        "outputs": "STRUCT(name VARCHAR, datatype VARCHAR, shape BIGINT[], "
        "parameters STRUCT(content VARCHAR))[]",
        "combine": "VARCHAR",
        "feedback": "STRUCT(rows BIGINT, learns BOOLEAN, recent_rows BIGINT, accuracy DOUBLE, "
        "by_member MAP(VARCHAR, DOUBLE), weights MAP(VARCHAR, DOUBLE), "
        "refit STRUCT(refitted_at TIMESTAMPTZ, reason VARCHAR, members VARCHAR[], rows BIGINT, "
        "number BIGINT), rmse DOUBLE, rmse_by_member MAP(VARCHAR, DOUBLE))",
        "selection": "STRUCT(policy VARCHAR, gear BIGINT, gears BIGINT, price_per_device_second DOUBLE, "
        "expected_accuracy DOUBLE, device_seconds_a_row DOUBLE, measure VARCHAR)",
    },
    "models": {
        "name": "VARCHAR",
        "version": "VARCHAR",
        "task": "VARCHAR",
        "architecture": "VARCHAR",
        "accuracy": "DOUBLE",
        "resident": "BOOLEAN",
    },
    "residency": {
        "worker": "VARCHAR",
        "device": "VARCHAR",
        "tier": "VARCHAR",
        "model": "VARCHAR",
        "size_bytes": "BIGINT",
        "since": "TIMESTAMPTZ",
        "last_used": "TIMESTAMPTZ",
        "rows_per_s": "DOUBLE",
        "loads": "BIGINT",
    },
    "residency_events": {
        "at": "TIMESTAMPTZ",
        "worker": "VARCHAR",
        "model": "VARCHAR",
        "event": "VARCHAR",
        "reason": "VARCHAR",
        "outcome": "VARCHAR",
        "took_s": "DOUBLE",
        "error": "VARCHAR",
    },
    "datasets": {
        "name": "VARCHAR",
        "snapshot": "VARCHAR",
        "task": "VARCHAR",
        "source": "VARCHAR",
        "query": "VARCHAR",
        "target": "VARCHAR",
        "rows": "BIGINT",
        "classes": "VARCHAR[]",
        "splits": "STRUCT(train BIGINT, validation BIGINT, test BIGINT)",
        "unreadable": "BIGINT",
        "unreadable_rows": "STRUCT(input VARCHAR, code VARCHAR, message VARCHAR)[]",
        "taken_at": "TIMESTAMPTZ",
    },
    "jobs": {
        "id": "BIGINT",
        "dataset": "VARCHAR",
        "snapshot": "VARCHAR",
        "state": "VARCHAR",
        "reason": "VARCHAR",
        "models": "VARCHAR[]",
        "policy": "VARCHAR",
        "advisor": "VARCHAR",
        "epochs_used": "BIGINT",
        "epochs_budget": "BIGINT",
        "trials": "BIGINT",
        "best_score": "DOUBLE",
        "best_model": "VARCHAR",
        "created_at": "TIMESTAMPTZ",
        "ended_at": "TIMESTAMPTZ",
        "metric": "VARCHAR",
    },
    "retrainings": {
        "function": "VARCHAR",
        "state": "VARCHAR",
        "every_s": "DOUBLE",
        "budget": "VARCHAR",
        "next_at": "TIMESTAMPTZ",
        "job": "BIGINT",
        "outcome": "VARCHAR",
        "ended_at": "TIMESTAMPTZ",
    },
    "drift": {
        "function": "VARCHAR",
        "version": "BIGINT",
        "what": "VARCHAR",
        "rows": "BIGINT",
        "index": "DOUBLE",
        "is_much": "BOOLEAN",
        "reference": "VARCHAR",
    },
    "trials": {
        "job_id": "BIGINT",
        "model": "VARCHAR",
        "trial": "BIGINT",
        "state": "VARCHAR",
        "knobs": "JSON",
        "warm": "BOOLEAN",
        "parent_trial": "BIGINT",
        "worker": "VARCHAR",
        "epochs": "BIGINT",
        "score": "DOUBLE",
        "best_score": "DOUBLE",
        "checkpoint": "VARCHAR",
        "reason": "VARCHAR",
        "metric": "VARCHAR",
    },
}
