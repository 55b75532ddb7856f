"""`ml-udf residency` shows where models are, what moves and why."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ml_udf.cli import residency, server_options
from ml_udf.cli.app import app
from ml_udf.cli.console import INTERRUPTED, console

AT = "2026-11-22T12:00:00.000+00:00"
TOLD: dict[str, Any] = {
    "workers": [
        {
            "worker": "w0",
            "device": "a GPU",
            "capacity_bytes": 2_000_000_000,
            "max_models": 16,
            "models": 1,
            "used_bytes": 1_500_000,
            "host_models": 1,
            "host_bytes": 999,
            "checked_at": AT,
            "link_busy_s": 3.0,
            "link_use": 0.25,
            "moving": {
                "loading": "b/1",
                "evicting": ["c/1"],
                "since": AT,
                "ends": None,
                "reason": "successor of a/1",
            },
        }
    ],
    "residency": [
        {
            "worker": "w0",
            "device": "a GPU",
            "tier": "device",
            "model": "a/1",
            "size_bytes": 1_500_000,
            "since": AT,
            "last_used": None,
            "rows_per_s": 12.34,
            "loads": 2,
        },
        {
            "worker": "w0",
            "device": "a GPU",
            "tier": "host",
            "model": "b/1",
            "size_bytes": 999,
            "since": None,
            "last_used": None,
            "rows_per_s": None,
            "loads": None,
        },
    ],
    "residency_events": [
        {
            "at": AT,
            "worker": "w0",
            "model": "d/1",
            "event": "load",
            "reason": "rows waited",
            "outcome": "failed",
            "took_s": 0.012,
            "error": "bad_option",
        },
        {
            "at": AT,
            "worker": "w0",
            "model": "e/1",
            "event": "eviction",
            "reason": "made room for d/1",
            "outcome": "done",
            "took_s": 0.001,
            "error": None,
        },
    ],
    "resident_hits": 3,
    "resident_misses": 1,
    "hit_rate": 0.75,
}


class FakeClient:
    def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/residency"
        return TOLD

    def close(self) -> None:
        pass


def test_it_shows_models_links_and_the_last_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_options, "Client", lambda *_, **__: FakeClient())
    with console.capture() as capture:
        monkeypatch.setattr(console, "_width", 160)
        ended = CliRunner().invoke(app, ["residency", "--events", "1"])
    shown = capture.get()
    assert ended.exit_code == 0, ended.output
    assert "evicts c/1, loads b/1 (successor of a/1)" in shown
    assert "1.5 MB" in shown
    assert "999 B" in shown
    assert "12.3" in shown
    assert "failed: bad_option" in shown
    assert "e/1" not in shown, "one event was asked for"
    assert "75.0% of 4 rows" in shown


def test_of_local_it_says_where_to_look() -> None:
    ended = CliRunner().invoke(app, ["residency", "--endpoint", "local:/home"])
    assert ended.exit_code == 1
    assert "local: holds models in the process that asks for rows" in ended.output
    assert "SELECT * FROM ml_udf.residency" in ended.output


def test_where_nothing_can_be_drawn_anew_each_move_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    last, first = TOLD["residency_events"][:2]

    class MovingClient(FakeClient):
        def __init__(self) -> None:
            self.left = [[first], [last, first], [last, first]]

        def get(self, path: str) -> dict[str, Any]:
            if not self.left:
                raise KeyboardInterrupt
            return {**TOLD, "residency_events": self.left.pop(0)}

    monkeypatch.setattr(server_options, "Client", lambda *_, **__: MovingClient())
    monkeypatch.setattr(residency, "_LOOK_S", 0.001)
    monkeypatch.setattr(console, "_width", 160)
    ended = CliRunner().invoke(app, ["residency", "--watch"])
    assert ended.exit_code == INTERRUPTED, ended.output
    assert ended.output.count(first["model"] + " ") == 1
    assert last["model"] in ended.output.splitlines()[-1]
