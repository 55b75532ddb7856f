"""The stress of `make stress-watch`, a few seconds of it."""

from __future__ import annotations

import json

from tests.stress.watch import Plan, watched_under_fire


def test_whatever_is_killed_every_row_has_the_answer_of_its_present_input() -> None:
    outcome = watched_under_fire(Plan(rows=1000, seconds=8.0, kill_every_s=1.5, quiet_s=3.0, deployments=1))
    outcome.show()
    assert json.loads(json.dumps(outcome.to_json()))["rows_left"] == outcome.rows_left
    assert outcome.wrong == []
    assert sum(outcome.kills.values()) >= 3
    assert outcome.rows_left > 0
