"""`ml-udf simulate`: batching policies on simulated devices, before a real one is at stake.

The scheduler that serves decides, over simulated time: the same options and seed give the same bytes.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from ml_udf.cli.chart import line_chart
from ml_udf.cli.console import console, fail
from ml_udf.cli.simulated_case import (
    Case,
    latency_profile,
    recorded_arrivals,
    sizes_of_batches,
    sizes_of_models,
)
from server.placement.policies.by_name import placement_named
from server.scheduling.latency_model import LatencyModel
from server.scheduling.policies.by_name import policy_named
from server.scheduling.simulation.simulator import SimulationResult
from server.scheduling.simulation.simulator import simulate as simulated

__all__ = ["simulate"]

_BINS = 60  # of a plot


def simulate(
    policy: Annotated[
        list[str], typer.Option(help="batching policy, or package.module:attribute; repeatable")
    ] = [  # noqa: B006 - typer copies it
        "goodput",
        "window",
        "clockwork",
        "greedy",
    ],
    functions: Annotated[int, typer.Option(min=1, help="how many functions share the devices")] = 1,
    load: Annotated[float, typer.Option(help="share of the devices' capacity at the largest batch")] = 0.9,
    rate: Annotated[float | None, typer.Option(help="rows/s of all functions, instead of --load")] = None,
    zipf: Annotated[
        float, typer.Option(min=0, help="the n-th function gets 1/n^ZIPF of the rows; 0: all alike")
    ] = 0.0,
    arrivals: Annotated[
        str, typer.Option(metavar="poisson|bursty|sine|FILE", help="FILE: one arrival in seconds per line")
    ] = "poisson",
    latency: Annotated[
        str,
        typer.Option(
            metavar="B:MS,…|FILE", help="l(b); FILE: a JSON profile {rows: seconds} or a CSV of rows,seconds"
        ),
    ] = "1:5.25,64:21",
    l_hat: Annotated[
        float, typer.Option(help="what the scheduler first believes, as a factor of l(b)")
    ] = 1.0,
    slo_ms: Annotated[float, typer.Option(help="latency goal of a row")] = 50.0,
    max_batch: Annotated[int, typer.Option(min=1)] = 64,
    batch_sizes: Annotated[
        str, typer.Option(metavar="B,…", help="allowed sizes; default: powers of two")
    ] = "",
    devices: Annotated[int, typer.Option(min=1)] = 1,
    places: Annotated[
        int | None, typer.Option(min=1, help="models that fit on a device; default: all")
    ] = None,
    device_bytes: Annotated[
        float,
        typer.Option(min=0, max=1e18, help="memory of a device for models, such as 20e9; default: all fit"),
    ] = 0.0,
    model_bytes: Annotated[
        str, typer.Option(metavar="BYTES,…", help="of the functions' models, in turn, such as 50e6,240e6")
    ] = "",
    swap_ms: Annotated[
        float, typer.Option(min=0, help="time to load a model that is not on the device")
    ] = 0.0,
    link_bytes_per_s: Annotated[
        float, typer.Option(min=0, help="rate of a load, beside --swap-ms; default: bytes take no time")
    ] = 0.0,
    placement: Annotated[str, typer.Option(help="placement policy, or package.module:attribute")] = "value",
    jitter: Annotated[
        float, typer.Option(min=0, help="standard deviation of ln(what a batch takes / l(b))")
    ] = 0.0,
    late: Annotated[bool, typer.Option(help="answer rows late instead of refusing them")] = False,
    duration_s: Annotated[float, typer.Option(min=0.01, help="of the arrivals")] = 10.0,
    seed: Annotated[int, typer.Option(help="of the first run")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="runs per policy")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="draw overdue rows per second over time")
    ] = None,
) -> None:
    """Compare batching policies in the simulator.

    Arrivals, latencies and devices as told; scheduler, policies and placement are those of the server.
    """
    try:
        profile_s = latency_profile(latency)
        sizes = sizes_of_batches(batch_sizes, max_batch)
        trace_s = recorded_arrivals(arrivals)
        bytes_of_models = sizes_of_models(model_bytes)
        placement_named(placement)
        capacity = devices * sizes[-1] / LatencyModel(profile_s)(sizes[-1])
        for name in policy:
            policy_named(name).initial({})
    except ValueError as exc:
        fail(str(exc), hint="see: ml-udf simulate --help")
    case = Case(
        functions=functions,
        rate=(load * capacity if rate is None else rate) / functions,
        zipf=zipf,
        arrivals=arrivals,
        trace_s=trace_s,
        profile_s=profile_s,
        l_hat=l_hat,
        slo_s=slo_ms / 1000,
        batch_sizes=sizes,
        devices=devices,
        places=places,
        device_bytes=int(device_bytes),
        model_bytes=bytes_of_models,
        swap_s=swap_ms / 1000,
        link_bytes_per_s=link_bytes_per_s or math.inf,
        placement=placement,
        jitter=jitter,
        duration_s=duration_s,
        late=late,
    )
    results = {name: [simulated(case.load(name, seed + run)) for run in range(seeds)] for name in policy}
    if plot is not None:
        try:
            plot.write_text(_chart(case, seed, results))
        except OSError as exc:
            fail(f"the plot {plot} cannot be written: {exc.strerror}")
    if as_json:
        runs = {name: [result.to_json() for result in of_seeds] for name, of_seeds in results.items()}
        print(json.dumps({"first_seed": seed, "rate": case.rate * functions, "policies": runs}, indent=1))  # noqa: T201  # the output
    else:
        _print_table(case, results)


def _print_table(case: Case, results: dict[str, list[SimulationResult]]) -> None:
    columns = ("in time", "worst", "late", "refused", "p50 ms", "p99 ms", "rows a batch", "busy", "swaps")
    title = f"{case.rate * case.functions:,.0f} rows/s, goal {case.slo_s * 1000:g} ms"
    # As narrow as it can be: eighty columns hold every figure whole.
    table = Table(Column("policy", no_wrap=True), *columns, title=title, box=SIMPLE_HEAD, padding=0)
    for name, runs in results.items():
        figures = [_figures(run, case.devices) for run in runs]
        means = [statistics.mean(column) for column in zip(*figures, strict=True)]
        forms = ("{:.2%}", "{:.2%}", "{:.2%}", "{:.2%}", "{:.2f}", "{:.2f}", "{:.1f}", "{:.0%}", "{:.0f}")
        table.add_row(name, *(form.format(mean) for form, mean in zip(forms, means, strict=True)))
    console.print(table)


def _figures(run: SimulationResult, devices: int) -> tuple[float, ...]:
    """The columns of the table, of one run; the second is of the function that fared worst."""
    total = run.total
    offered = max(1, total.offered)
    return (
        total.goodput,
        min(function.goodput for function in run.functions.values()),
        total.late / offered,
        total.refused / offered,
        1000 * total.quantile_s(0.5),
        1000 * total.quantile_s(0.99),
        (total.good + total.late) / max(1, total.batches),
        run.busy_s / devices / max(1e-9, run.duration_s),
        run.swaps,
    )


def _chart(case: Case, seed: int, results: dict[str, list[SimulationResult]]) -> str:
    """Arriving rows per second, and those overdue with each policy, of the first run."""
    end_s = max(case.duration_s, max(case.trace_s, default=0.0))
    width_s = end_s / _BINS

    def per_second(times_s: Sequence[float]) -> list[float]:
        counts = [0.0] * _BINS
        for time_s in times_s:
            counts[min(_BINS - 1, int(time_s / width_s))] += 1 / width_s
        return counts

    arriving = [time_s for number in range(case.functions) for time_s in case.arrivals_of(seed, number)]
    overdue = {name: per_second(runs[0].total.overdue_at_s) for name, runs in results.items()}
    return line_chart(
        title=f"{case.functions} functions, {case.arrivals}, {case.rate * case.functions:,.0f} rows/s",
        x_label="seconds",
        y_label="rows per second: arriving, and overdue or refused by policy",
        x=[(number + 0.5) * width_s for number in range(_BINS)],
        series={"arriving": per_second(arriving), **overdue},
    )
