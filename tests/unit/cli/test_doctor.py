"""What the doctor says of what a server tells it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ml_udf.cli.doctor import _check_front, _check_servers, _check_workers
from ml_udf.client import Client
from ml_udf.errors import UnknownFunction

UP = {"name": "w0", "state": "up", "device": "cpu", "restarts": 0, "resident": ["net/1"], "last_error": ""}
BACK = {**UP, "restarts": 2, "last_error": "its socket closed", "last_error_at": "2026-01-02T03:04:05+00:00"}


class Told:
    """A server that has this worker."""

    def __init__(self, worker: dict[str, Any]) -> None:
        self._worker = worker

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/workers"
        return {"workers": [self._worker]}


@pytest.mark.parametrize(
    ("worker", "is_broken", "said"),
    [
        (UP, False, "worker w0 on cpu is up; resident: net/1"),
        (
            BACK,
            False,
            "worker w0 on cpu is up; resident: net/1; restarted 2 times, the last time after"
            " its socket closed (2026-01-02T03:04:05+00:00)",
        ),
        ({**BACK, "state": "down"}, True, "worker w0 is down: its socket closed"),
    ],
)
def test_why_a_worker_ended_is_told_as_past_once_it_is_up_again(
    worker: dict[str, Any], is_broken: bool, said: str
) -> None:
    (finding,) = _check_workers(cast(Client, Told(worker)))
    assert finding.text == said
    assert (finding.state == "fail") == is_broken


class Fronted:
    """A server that says which front it has, or, being older, does not."""

    def __init__(self, told: dict[str, Any] | None) -> None:
        self._told = told

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/front"
        if self._told is None:
            raise UnknownFunction("there is no route GET /v1/front")
        return self._told


def test_it_is_said_which_front_runs_and_why() -> None:
    told = {"front": "native", "why": "--front native asks for it"}
    (finding,) = _check_front(cast(Client, Fronted(told)))
    assert finding.text == "its native front reads the connections: --front native asks for it"
    assert list(_check_front(cast(Client, Fronted(None)))) == []


def test_it_is_said_which_store_keeps_answers_and_why() -> None:
    told = {"front": "python", "why": "-", "answer_store": {"name": "native", "why": "it is built here"}}
    _, finding = _check_front(cast(Client, Fronted(told)))
    assert finding.text == "its native store keeps answers: it is built here"
    (_,) = _check_front(cast(Client, Fronted({**told, "answer_store": None})))


def test_it_is_said_which_core_decides_and_why() -> None:
    told = {"front": "python", "why": "-", "core": {"name": "compiled", "why": "it is built here"}}
    _, finding = _check_front(cast(Client, Fronted(told)))
    assert finding.text == "its compiled core decides: it is built here"


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ({"a:1": "leading"}, ["of its registry's servers it is the one that trains"]),
        (
            {"a:1": "standby", "b:1": "leading"},
            ["b:1, of the same registry, is the server that trains"],
        ),
        (
            {"a:1": "standby", "b:1": "gone"},
            ["no server of its registry trains now", "server b:1 was last seen at noon"],
        ),
    ],
)
def test_who_trains_is_told_and_who_is_gone(states: dict[str, str], said: list[str]) -> None:
    class Servers:
        def get(self, path: str) -> dict[str, Any]:
            assert path == "/v1/servers"
            listed = [{"name": name, "state": state, "seen_at": "noon"} for name, state in states.items()]
            return {"here": "a:1", "servers": listed}

    found = list(_check_servers(cast(Client, Servers())))
    assert [each.text for each in found] == said
    assert all(each.state != "fail" for each in found)
