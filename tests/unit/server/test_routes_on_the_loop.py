"""Routes run on the event loop, whose state they read: in a thread it would change under their eyes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import threading
from collections.abc import Iterable

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIRouter
from prometheus_client.parser import text_string_to_metric_families

import server.dashboard
import server.routes
from server.observability.metrics import Exposition, Metrics
from server.routes.lists import told_each
from server.supervision import Supervisor
from tests.unit.server.served import function, text_model


def routers() -> list[APIRouter]:
    found: list[APIRouter] = []
    for package in (server.routes, server.dashboard):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            router = getattr(importlib.import_module(module.name), "router", None)
            if isinstance(router, APIRouter):
                found.append(router)
    return found


def calls_of(dependant: Dependant) -> Iterable[object]:
    if dependant.call is not None:
        yield dependant.call
    for each in dependant.dependencies:
        yield from calls_of(each)


def test_no_route_and_nothing_that_it_depends_on_runs_in_a_thread() -> None:
    routes = [route for router in routers() for route in router.routes if isinstance(route, APIRoute)]
    assert len(routes) > 50
    in_threads = {
        f"{route.path}: {call}"
        for route in routes
        for call in calls_of(route.dependant)
        if not inspect.iscoroutinefunction(call)
    }
    assert in_threads == set()


def test_a_long_list_lets_the_loop_go_on() -> None:
    async def test() -> tuple[list[int], int]:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        pause = threading.Event()
        told = await told_each(range(30), lambda number: (pause.wait(0.002), number)[1])
        beside.cancel()
        return told, turns

    told, turns = asyncio.run(test())
    assert told == list(range(30))
    assert turns >= 25


def test_a_scrape_is_whole_while_functions_come_and_their_requests_fail() -> None:
    metrics = Metrics()
    exposition = Exposition(metrics, dict, list, Supervisor(lambda _: None))
    is_over = threading.Event()
    failures: list[BaseException] = []

    def scrape() -> None:
        try:
            while not is_over.is_set():
                families = list(text_string_to_metric_families(exposition.look().text().decode()))
                assert any(family.name == "ml_udf_rows" for family in families)
        except BaseException as error:
            failures.append(error)

    scraping = threading.Thread(target=scrape)
    scraping.start()
    for number in range(400):
        served = function(text_model(), name=f"f{number}")
        metrics.serve(served)
        stats = metrics.of(served)
        for code in range(30):
            stats.failed(f"code {code}", 0.1)
            metrics.unresolved[f"{number} {code}"] += 1
    is_over.set()
    scraping.join()
    assert failures == []
