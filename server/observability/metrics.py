"""The server's counts, and their Prometheus form.

Counting is `stats.FunctionStats`; `Metrics` keeps one per served version, `Exposition` looks at them when
scraped and `Scrape` writes what it saw, so that a request pays for additions alone. Knows neither queue nor
workers: it is handed readings of both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from server.catalog.functions import Function
from server.catalog.selections import Selection
from server.observability.moves import Moves
from server.observability.stats import FunctionStats, Histogram
from server.supervision import Supervisor
from server.workers.pool import WorkerStatus

__all__ = ["CONTENT_TYPE", "Exposition", "Metrics", "Scrape"]

_OF_NOTHING = ("ml_udf_worker_up", "ml_udf_worker_restarts")  # what has no function, and tells of none
_GIVEN_UP = "given up"
_WORKER_STATES = ("starting", "up", "down", "joining", "leaving", _GIVEN_UP)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """All counts of one server."""

    def __init__(self) -> None:
        self._served: set[tuple[str, int]] = set()
        self._stats: dict[tuple[str, int], FunctionStats] = {}
        self.unresolved: Counter[str] = Counter()  # requests that named nothing served, by code
        self.feedback: Counter[tuple[str, str]] = Counter()  # labelled rows, by function and outcome
        self.refits: Counter[tuple[str, str]] = Counter()  # by function and what answers then
        self.shadow_rows: Counter[str] = Counter()  # by function
        self.moves = Moves()  # of models, over workers' links

    def serve(self, function: Function) -> None:
        """Count for this version from now on."""
        self._served.add((function.name, function.version))

    def of(self, function: Function) -> FunctionStats:
        """The counts of one version of a function; of one that is not served, some that nobody sees."""
        key = (function.name, function.version)
        stats = self._stats.get(key)
        if stats is None:
            stats = FunctionStats()
            if key in self._served:
                self._stats[key] = stats
        return stats

    def forget(self, function: Function) -> None:
        """Drop a version that is no longer served; what still comes of it brings nothing back."""
        self._served.discard((function.name, function.version))
        self._stats.pop((function.name, function.version), None)
        if all(name != function.name for name, _ in self._served):
            for counter in (self.feedback, self.refits):
                for key in [key for key in counter if key[0] == function.name]:
                    del counter[key]
            self.shadow_rows.pop(function.name, None)

    def items(self) -> Iterable[tuple[tuple[str, int], FunctionStats]]:
        """(function, version) → its counts, of every version that was asked. In any thread."""
        return list(self._stats.items())


class Exposition:
    """What `/metrics` tells of: the counts, the queues, the workers and the background tasks.

    `queue_depth()`: (function, version) → rows and bytes that wait. `selections()`: the same → how its
    members are selected now. `held()`: worker → models that it holds, their bytes, and bytes in host memory.
    `capacity_actions()`: (action, outcome) → how many. `leads()`: whether this server has the lease.
    """

    def __init__(
        self,
        metrics: Metrics,
        queue_depth: Callable[[], Mapping[tuple[str, int], tuple[int, int]]],
        workers: Callable[[], Sequence[WorkerStatus]],
        supervisor: Supervisor,
        selections: Callable[[], Mapping[tuple[str, int], Selection]] = dict,
        held: Callable[[], Mapping[str, tuple[int, int, int]]] = dict,
        drift: Callable[[], Sequence[tuple[str, int, str, float]]] = tuple,
        capacity_actions: Callable[[], Mapping[tuple[str, str], int]] = dict,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._drift = drift
        self._capacity_actions = capacity_actions
        self._leads = leads
        self._metrics = metrics
        self._selections = selections
        self._held = held
        self._queue_depth = queue_depth
        self._workers = workers
        self._supervisor = supervisor
        self._occupancy: Callable[[], tuple[int, int]] | None = None

    def watch(self, occupancy: Callable[[], tuple[int, int]]) -> None:
        """Tell of the connections too, from now on: how many there are, and what they hold of bodies."""
        self._occupancy = occupancy

    def look(self) -> Scrape:
        """How things stand now; on the event loop, whose they are."""
        return Scrape(
            self._metrics,
            self._queue_depth(),
            tuple(self._workers()),
            self._selections(),
            self._held(),
            self._drift(),
            dict(self._capacity_actions()),
            self._leads(),
            dict(self._supervisor.running),
            dict(self._supervisor.failures),
            self._occupancy and self._occupancy(),
        )


@dataclass(frozen=True)
class Scrape(Collector):
    """What one answer of `/metrics` tells; written in any thread.

    Of many functions it takes longer than the event loop has. What is counted goes on meanwhile: numbers of
    one answer may be some rows apart.
    """

    metrics: Metrics
    queue_depth: Mapping[tuple[str, int], tuple[int, int]]
    workers: Sequence[WorkerStatus]
    selections: Mapping[tuple[str, int], Selection]
    held: Mapping[str, tuple[int, int, int]]
    drift: Sequence[tuple[str, int, str, float]]
    capacity_actions: Mapping[tuple[str, str], int]
    leads: bool
    running: Mapping[str, int]
    failures: Mapping[str, int]
    occupancy: tuple[int, int] | None

    def text(self, sees: Callable[[str], bool] | None = None) -> bytes:
        """The Prometheus text format.

        sees: which functions are told of, and then nothing that was counted over all of them together, which
        would tell of the others; None = everything.
        """
        return generate_latest(self if sees is None else _Seen(self, sees))

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        yield from self._of_functions()
        yield from self._of_selections()
        yield from self._of_queues()
        yield from self._of_workers()
        yield from self._of_models()
        yield from self._of_tasks()
        yield from self._of_drift()
        yield from self._of_connections()

    def _of_drift(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "ml_udf_drift",
            "Population stability index of what is asked and answered, against the training rows",
            labels=("function", "version", "what"),
        )
        for function, version, what, index in self.drift:
            family.add_metric([function, str(version), what], index)
        yield family

    def _of_connections(self) -> Iterable[Metric]:
        if self.occupancy is None:
            return
        connected, held_bytes = self.occupancy
        yield GaugeMetricFamily("ml_udf_connections", "Clients that are connected", connected)
        yield GaugeMetricFamily(
            "ml_udf_held_body_bytes", "Bytes of request bodies that are not whole yet", held_bytes
        )

    def _of_functions(self) -> Iterable[Metric]:
        counters: list[tuple[str, str, Callable[[FunctionStats], float]]] = [
            ("rows", "Rows answered", lambda s: s.rows),
            ("row_errors", "Rows answered with an error of their own", lambda s: s.row_errors),
            ("batches", "Batches run on workers", lambda s: s.batches),
            ("over_goal_rows", "Interactive rows over their goal, or refused", lambda s: s.over_goal_rows),
            ("rerun_rows", "Rows run again because their worker died", lambda s: s.rerun_rows),
            ("policy_faults", "Policies put aside after a fault", lambda s: s.policy_faults),
            ("goal_rows", "Rows answered at their goal, from a part of their members", lambda s: s.goal_rows),
            ("late_members", "Members of such rows that were at it still", lambda s: s.late_members),
            (
                "absent_members",
                "Members that rows did without, as they could not be asked",
                lambda s: s.absent_members,
            ),
            (
                "proxy_rows",
                "Rows that a proxy answered in place of the full function",
                lambda s: s.proxy_rows,
            ),
            ("resent_rows", "Rows sent to another worker too, as they were late", lambda s: s.resent_rows),
            ("parity_rows", "Groups of rows that a parity model was asked of", lambda s: s.parity_rows),
            ("spared_rows", "Rows that were decoded or passed before", lambda s: s.spared_rows),
            ("riding_rows", "Rows that were in a batch of another function", lambda s: s.riding_rows),
            ("rebuilt_rows", "Late rows answered from a parity model", lambda s: s.rebuilt_rows),
            (
                "degraded_rows",
                "Rows asked while no model kept all that was wished",
                lambda s: s.degraded_rows,
            ),
            ("resident_hits", "Rows that came while their models were resident", lambda s: s.resident_rows),
            ("resident_misses", "Rows that came while a model of theirs was not", lambda s: s.absent_rows),
            ("cache_hits", "Rows answered by what was kept", lambda s: s.cache.hits),
            ("cache_coalesced", "Rows answered with an equal one under way", lambda s: s.cache.coalesced),
            ("cache_misses", "Rows that were looked for and computed", lambda s: s.cache.misses),
            ("cache_evictions", "Kept answers that left for want of room", lambda s: s.cache.evictions),
        ]
        for name, text, read in counters:
            family = CounterMetricFamily(f"ml_udf_{name}", text, labels=("function", "version"))
            for (function, version), stats in self.metrics.items():
                family.add_metric((function, str(version)), read(stats))
            yield family
        kept: list[tuple[str, str, Callable[[FunctionStats], float]]] = [
            ("cache_entries", "Answers that are kept", lambda s: s.cache.entries),
            ("cache_bytes", "What they take", lambda s: s.cache.nbytes),
        ]
        for name, text, read in kept:
            gauge = GaugeMetricFamily(f"ml_udf_{name}", text, labels=("function", "version"))
            for (function, version), stats in self.metrics.items():
                gauge.add_metric((function, str(version)), read(stats))
            yield gauge
        requests = CounterMetricFamily(
            "ml_udf_requests", "Requests by outcome", labels=("function", "version", "code")
        )
        for (function, version), stats in self.metrics.items():
            requests.add_metric((function, str(version), "ok"), stats.success.count)
            for code, count in list(stats.errors.items()):
                requests.add_metric((function, str(version), code), count)
        for code, count in list(self.metrics.unresolved.items()):
            requests.add_metric(("", "", code), count)
        yield requests
        feedback = CounterMetricFamily(
            "ml_udf_feedback_rows", "Labelled rows by outcome", labels=("function", "outcome")
        )
        for key, count in list(self.metrics.feedback.items()):
            feedback.add_metric(key, count)
        yield feedback
        shadow = CounterMetricFamily(
            "ml_udf_shadow_rows",
            "Rows that all members were asked beside their plan, to see whether they agree",
            labels=("function",),
        )
        for name, count in list(self.metrics.shadow_rows.items()):
            shadow.add_metric((name,), count)
        yield shadow
        refits = CounterMetricFamily(
            "ml_udf_refits",
            "Times that members were found to err other than expected, by the fit that answers since",
            labels=("function", "fit"),
        )
        for key, count in list(self.metrics.refits.items()):
            refits.add_metric(key, count)
        yield refits
        histograms: list[tuple[str, str, Callable[[FunctionStats], Histogram]]] = [
            ("latency_seconds", "From arrival of a request to its answer", lambda s: s.latency),
            ("batch_rows", "Rows per batch", lambda s: s.batch_rows),
            ("answer_members", "Members per answered row", lambda s: s.answer_members),
        ]
        for name, text, histogram_of in histograms:
            histograms_family = HistogramMetricFamily(f"ml_udf_{name}", text, labels=("function", "version"))
            for (function, version), stats in self.metrics.items():
                histogram = histogram_of(stats)
                histograms_family.add_metric(
                    (function, str(version)), _buckets(histogram), sum_value=histogram.total
                )
            yield histograms_family

    def _of_selections(self) -> Iterable[Metric]:
        gauges: list[tuple[str, str, Callable[[Selection], float | None]]] = [
            ("gear", "The plan that is followed, 0 the richest", lambda s: s.gear),
            (
                "price_per_device_second",
                "Right answers that a second of a device has to bring, by the plan",
                lambda s: s.price_per_device_second,
            ),
            (
                "expected_accuracy",
                "Of rows that are not cut short, by held-out rows",
                lambda s: s.expected_accuracy,
            ),
            (
                "device_seconds_a_row",
                "Seconds of devices that a row takes, in expectation",
                lambda s: s.device_seconds_a_row,
            ),
        ]
        for name, text, read in gauges:
            family = GaugeMetricFamily(f"ml_udf_{name}", text, labels=("function", "version"))
            for (function, version), selection in self.selections.items():
                value = read(selection)
                if value is not None:
                    family.add_metric((function, str(version)), value)
            yield family

    def _of_queues(self) -> Iterable[Metric]:
        rows = GaugeMetricFamily("ml_udf_queue_rows", "Rows waiting", labels=("function", "version"))
        nbytes = GaugeMetricFamily("ml_udf_queue_bytes", "Bytes waiting", labels=("function", "version"))
        for (function, version), (waiting, size) in self.queue_depth.items():
            rows.add_metric((function, str(version)), waiting)
            nbytes.add_metric((function, str(version)), size)
        yield rows
        yield nbytes

    def _of_workers(self) -> Iterable[Metric]:
        up = GaugeMetricFamily("ml_udf_worker_up", "Whether the worker answers", labels=("worker",))
        restarts = CounterMetricFamily("ml_udf_worker_restarts", "Times started again", labels=("worker",))
        by_state = dict.fromkeys(_WORKER_STATES, 0)
        for state in self.workers:
            by_state[state.state] += 1
            if state.state != _GIVEN_UP:  # there is no such worker any more
                up.add_metric((state.name,), state.state in ("up", "leaving"))
                restarts.add_metric((state.name,), state.restarts)
        yield up
        yield restarts
        states = GaugeMetricFamily("ml_udf_workers", "Workers, by state", labels=("state",))
        for name, count in by_state.items():
            states.add_metric((name,), count)
        yield states
        actions = CounterMetricFamily(
            "ml_udf_capacity_actions",
            "Changes of capacity, by outcome",
            labels=("action", "outcome"),
        )
        for key, count in self.capacity_actions.items():
            actions.add_metric(key, count)
        yield actions
        yield GaugeMetricFamily(
            "ml_udf_leads", "1 on the server that does what one server of a registry does", int(self.leads)
        )

    def _of_models(self) -> Iterable[Metric]:
        gauges = (
            ("models", "Models resident"),
            ("bytes", "Bytes of them"),
            ("host_bytes", "Bytes in host memory"),
        )
        families = [
            GaugeMetricFamily(f"ml_udf_resident_{name}", text, labels=("worker",)) for name, text in gauges
        ]
        for worker, values in self.held.items():
            for family, value in zip(families, values, strict=True):
                family.add_metric((worker,), value)
        yield from families
        moves = self.metrics.moves
        reasons = (
            ("loads", "Models loaded, by reason", moves.loads),
            ("evictions", "Models evicted, by reason", moves.evictions),
        )
        for name, text, counts in reasons:
            counted = CounterMetricFamily(f"ml_udf_{name}", text, labels=("reason",))
            for reason, count in list(counts.items()):
                counted.add_metric((reason,), count)
            yield counted
        unfinished = CounterMetricFamily(
            "ml_udf_unfinished_moves", "Loads and evictions that came to nothing", labels=("kind", "outcome")
        )
        for key, count in list(moves.unfinished.items()):
            unfinished.add_metric(key, count)
        yield unfinished
        found = CounterMetricFamily(
            "ml_udf_residency_differences",
            "Models that a worker held other than believed",
            labels=("kind",),
        )
        for kind, count in list(moves.differences.items()):
            found.add_metric((kind,), count)
        yield found
        busy = CounterMetricFamily(
            "ml_udf_link_busy_seconds", "Time in which models moved to or from a worker", labels=("worker",)
        )
        now_s = time.monotonic()
        for worker, link in list(moves.links.items()):
            busy.add_metric((worker,), link.busy_s(now_s))
        yield busy
        rate = GaugeMetricFamily(
            "ml_udf_link_bytes_per_second",
            "Bytes a second of a worker's loads of late, of models new to its node",
            labels=("worker",),
        )
        for worker, link in list(moves.links.items()):
            if link.bytes_per_s is not None:
                rate.add_metric((worker,), link.bytes_per_s)
        yield rate
        took = HistogramMetricFamily("ml_udf_load_seconds", "Time of a load, from its order to its end")
        took.add_metric((), _buckets(moves.load_s), sum_value=moves.load_s.total)
        yield took

    def _of_tasks(self) -> Iterable[Metric]:
        running = GaugeMetricFamily("ml_udf_tasks", "Background tasks running", labels=("task",))
        for kind, count in self.running.items():
            running.add_metric((kind,), count)
        failures = CounterMetricFamily(
            "ml_udf_task_failures", "Background tasks that failed, and were begun again", labels=("task",)
        )
        for kind, count in self.failures.items():
            failures.add_metric((kind,), count)
        yield running
        yield failures


class _Seen(Collector):
    """A scrape as somebody sees it who does not see everything."""

    def __init__(self, scrape: Scrape, sees: Callable[[str], bool]) -> None:
        self._scrape = scrape
        self._sees = sees

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        for family in self._scrape.collect():
            samples = [sample for sample in family.samples if self._is_seen(family.name, sample.labels)]
            if samples or not family.samples:
                family.samples = samples
                yield family

    def _is_seen(self, name: str, labels: Mapping[str, str]) -> bool:
        function = labels.get("function")
        return name in _OF_NOTHING if function is None else bool(function) and self._sees(function)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
