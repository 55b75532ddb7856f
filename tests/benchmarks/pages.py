"""`make bench-pages`: what pages weigh, how soon they are there, and what they cost those who ask for rows.

weight    bytes that a browser fetches for a page that it never saw, by its own count
reply     time to the last byte of a page, alone and beside a scan of images by a light model
loop      the longest pause of the event loop, as somebody sees it who asks for /v2/health/live all the
          time: beside a scan, and beside a scan with pages open and pages asked for
open      rows/s of the scan with fifty pages open, against without: rounds in pairs, in turn first
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import math
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import duckdb
from rich.table import Table

import ml_udf.duckdb
from tests.benchmarks.open_pages import pages_open
from tests.benchmarks.report import Series, console, print_series, ratio, write_json
from tests.benchmarks.sql import distinct_files
from tests.browser.chromium import CHROMIUM, chromium
from tests.browser.kitchen import Kitchen, kitchen_in
from tests.browser.page_list import PAGES, address_of
from tests.inference_server import ANEW
from tests.models import image_model

FUNCTION = "udf_light"
LOOK_S = 0.005
GOALS = {"weight_bytes": 150_000, "reply_p95_ms": 200.0, "cost": 0.05}


def main() -> None:
    parser = argparse.ArgumentParser(description="What pages weigh, and what they cost.")
    parser.add_argument("--rows", type=int, default=10_000, help="of a scan")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of scans, with pages open and without")
    parser.add_argument("--open", type=int, default=50, help="pages")
    parser.add_argument("--replies", type=int, default=200, help="of each page, alone and beside a scan")
    options = parser.parse_args()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ml_udf-bench-")))
        files = distinct_files(work, options.rows)
        flags = [ANEW, f"--media-root={work / 'files'}"]  # each round asks the same rows
        kitchen = stack.enter_context(kitchen_in(work / "kitchen", flags=flags))
        kitchen.server.deploy(image_model(work / "made", "light"), FUNCTION, slo_ms=100)
        scan = stack.enter_context(scans(kitchen.url, files))
        scan()  # loads the model, learns its latencies
        addresses = {name: address_of(route, kitchen) for route, (name, _) in PAGES.items()}
        result: dict[str, Any] = {"options": vars(options), "goals": GOALS}
        result["weight"] = weigh(kitchen, addresses)
        result["reply"] = replies(kitchen, addresses, scan, options.replies)
        result["loop"] = loop_pauses(kitchen, addresses, scan, options.open)
        result["open"] = cost_of_open_pages(kitchen, scan, options.rows, options.rounds, options.open)
    report(result)
    write_json("pages", result)


@contextmanager
def scans(url: str, files: Sequence[str]) -> Iterator[Callable[[], float]]:
    """Answers seconds that a scan of all files takes."""
    with duckdb.connect() as con:
        registration = ml_udf.duckdb.register(con, url, functions=[FUNCTION])
        con.execute("CREATE TABLE files AS SELECT unnest(?) AS image_path", [files])

        def scan() -> float:
            began_s = time.perf_counter()
            con.execute(f"SELECT {FUNCTION}(image_path) AS answer, count(*) FROM files GROUP BY 1").fetchall()
            return time.perf_counter() - began_s

        try:
            yield scan
        finally:
            registration.close()


@contextmanager
def scanning(scan: Callable[[], float]) -> Iterator[None]:
    """One scan after the other for the length of a `with` block."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            scan()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        time.sleep(0.5)
        yield
    finally:
        over.set()
        thread.join()


def weigh(kitchen: Kitchen, addresses: dict[str, str]) -> dict[str, Any]:
    """Each page in a browser that has seen none."""
    if not CHROMIUM.exists():
        console.print(f"{CHROMIUM} is missing: pages are not weighed")
        return {}
    weights = {}
    with chromium() as browser:
        for name, address in addresses.items():
            with browser.new_context() as context:
                page = context.new_page()
                network = context.new_cdp_session(page)
                network.send("Network.enable")
                fetched: list[int] = []
                network.on(
                    "Network.loadingFinished", lambda done, f=fetched: f.append(done["encodedDataLength"])
                )
                page.goto(f"{kitchen.url}/{address}", wait_until="load")
                page.wait_for_timeout(500)
                paint = page.evaluate(
                    "performance.getEntriesByName('first-contentful-paint').map(one => one.startTime)[0]"
                )
                weights[name] = {
                    "bytes": round(sum(fetched)),
                    "requests": len(fetched),
                    "first_paint_ms": paint,
                }
    return weights


def size(done: dict[str, Any]) -> int:
    """Bytes of a reply on the wire, its head too."""
    return int(done["encodedDataLength"])


def replies(
    kitchen: Kitchen, addresses: dict[str, str], scan: Callable[[], float], count: int
) -> dict[str, Any]:
    """Seconds to the last byte of each page's own text, one request at a time."""

    def measure() -> dict[str, dict[str, float]]:
        found = {}
        for name, address in addresses.items():
            took_ms = [1000 * ask_s(connection, f"/{address}") for _ in range(count)]
            found[name] = {f"p{share}_ms": quantile(took_ms, share / 100) for share in (50, 95, 99)}
        return found

    connection = http.client.HTTPConnection("127.0.0.1", kitchen.server.port, timeout=60)
    alone = measure()
    with scanning(scan):
        beside = measure()
    connection.close()
    return {"alone": alone, "beside a scan": beside}


def ask_s(connection: http.client.HTTPConnection, path: str) -> float:
    """How long a whole reply takes."""
    began_s = time.perf_counter()
    connection.request("GET", path)
    reply = connection.getresponse()
    reply.read()
    if reply.status != 200:
        raise RuntimeError(f"{path}: {reply.status}")
    return time.perf_counter() - began_s


def loop_pauses(
    kitchen: Kitchen, addresses: dict[str, str], scan: Callable[[], float], count: int
) -> dict[str, Any]:
    """What somebody sees who asks whether the server lives: ms between two answers."""
    asked = [f"/{address}" for address in addresses.values()]
    found = {}
    with scanning(scan):
        found["beside a scan"] = pauses(kitchen, ())
        with pages_open(f"{kitchen.url}/", count):
            found[f"and {count} pages open"] = pauses(kitchen, ())
            found[f"and {count} pages open, others asked for"] = pauses(kitchen, asked)
    return found


def pauses(kitchen: Kitchen, asked: Sequence[str], for_s: float = 10.0) -> dict[str, float]:
    """asked: pages that another client asks for all the time, in turn."""
    over = threading.Event()

    def load() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", kitchen.server.port, timeout=60)
        for path in itertools.cycle(asked):
            if over.is_set():
                break
            ask_s(connection, path)
        connection.close()

    loading = threading.Thread(target=load) if asked else None
    if loading is not None:
        loading.start()
    connection = http.client.HTTPConnection("127.0.0.1", kitchen.server.port, timeout=60)
    answered_s = []
    ends_s = time.perf_counter() + for_s
    while time.perf_counter() < ends_s:
        ask_s(connection, "/v2/health/live")
        answered_s.append(time.perf_counter())
        time.sleep(LOOK_S)
    over.set()
    if loading is not None:
        loading.join()
    connection.close()
    between_ms = [1000 * (later - earlier) for earlier, later in itertools.pairwise(answered_s)]
    return {
        "p50_ms": quantile(between_ms, 0.5),
        "p99_ms": quantile(between_ms, 0.99),
        "most_ms": max(between_ms),
    }


def cost_of_open_pages(
    kitchen: Kitchen, scan: Callable[[], float], rows: int, rounds: int, count: int
) -> dict[str, Any]:
    without, among = Series("without pages", rows), Series(f"{count} pages open", rows)

    def measure(series: Series) -> None:
        if series is without:
            series.rows_per_s.append(rows / scan())
            return
        with pages_open(f"{kitchen.url}/", count):
            series.rows_per_s.append(rows / scan())

    for turn in range(rounds):
        for series in (without, among) if turn % 2 else (among, without):
            measure(series)
    print_series("The light model's scan", [without, among], against=without)
    middle, low, high = ratio(among, without)
    return {
        "rows_per_s": {series.name: series.rows_per_s for series in (without, among)},
        "ratio": {"median": middle, "least": low, "greatest": high},
        "cost": 1 - statistics.median(among.rows_per_s) / without.median,
    }


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def report(result: dict[str, Any]) -> None:
    table = Table(
        "page",
        "bytes",
        "requests",
        "first paint, ms",
        "reply alone: p50 · p95, ms",
        "beside a scan: p50 · p95, ms",
    )
    alone, beside = result["reply"]["alone"], result["reply"]["beside a scan"]
    for name in alone:
        weight = result["weight"].get(name, {})
        table.add_row(
            name,
            f"{weight.get('bytes', 0):,}",
            str(weight.get("requests", "")),
            f"{weight.get('first_paint_ms') or 0:.0f}",
            *(f"{one[name]['p50_ms']:.1f} · {one[name]['p95_ms']:.1f}" for one in (alone, beside)),
        )
    console.print(table)
    pauses_table = Table("the event loop", "p50, ms", "p99, ms", "longest, ms")
    for name, found in result["loop"].items():
        pauses_table.add_row(name, *(f"{found[key]:.1f}" for key in ("p50_ms", "p99_ms", "most_ms")))
    console.print(pauses_table)


if __name__ == "__main__":
    main()
