"""INFaaS's experiments in kind: variants with synthetic profiles, fleets, and the rows that come.

Of ResNet50 (section 7.2): flat 4 rows/s, steady 650 to 700, fluctuating between 4 and 100, like Twitter 100
to 700 with about 49,000 rows, and a step from 50 to 500; the goal is 500 ms. Of 21 architectures at once
(section 7.4, Figure 12): 10 to 1,000 rows/s, 113,420 rows, four of them popular with goals of 50 ms. Rows
come by chance (Poisson) with these rates. The traces are not Twitter's: a day's wave, noise and spikes,
brought to the published range and number of rows.

Profiles: a batch takes 1.6 ms + .2 ms a GFLOP and .195 ms a GFLOP and row on a GPU; a row .02 s + .025 s a
GFLOP on a CPU. Memory: the parameters and .02 GB on a CPU, .83 GB and .0235 GB a row of the batch on a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from server.capacity.policy import Copy, DeviceKind, Variant, Worker
from tests.benchmarks.capacity_fleet import Scene

GB = 10**9
GOAL_S = 0.5
BATCHES = (1, 4, 8, 16)
CPU_PRICE, GPU_PRICE = 1.0, 7.97  # a GB for a second (section 7.2)
_WORKER_GB = 0.5  # a worker's own memory counts too where workers come and go
_POPULAR = ("resnet50", "inceptionv3", "densenet121", "vgg16")
# name → (GFLOPs a row, GB of parameters); INFaaS's Table 2
ARCHITECTURES: Mapping[str, tuple[float, float]] = {
    "resnet50": (4.1, 0.102),
    "inceptionv3": (5.7, 0.095),
    "densenet121": (2.9, 0.032),
    "vgg16": (15.5, 0.553),
    "alexnet": (0.7, 0.244),
    "densenet169": (3.4, 0.057),
    "densenet201": (4.3, 0.080),
    "mobilenetv1": (0.57, 0.017),
    "mobilenetv2": (0.3, 0.014),
    "nasnetmobile": (0.56, 0.021),
    "resnet101": (7.8, 0.178),
    "resnet101v2": (7.8, 0.179),
    "resnet152": (11.5, 0.241),
    "resnet152v2": (11.5, 0.242),
    "resnet50v2": (4.1, 0.103),
    "resnext50": (4.2, 0.100),
    "resnext101": (8.0, 0.178),
    "vgg19": (19.6, 0.575),
    "inception-resnetv2": (13.0, 0.224),
    "xception": (8.4, 0.091),
    "nasnetlarge": (24.0, 0.355),
}

Rates = NDArray[numpy.float64]  # rows/s, of each second


def variants_of(architecture: str, name: str = "") -> list[Variant]:
    """On a CPU, and on a GPU for batches of up to 1, 4, 8 and 16 rows. name: of the function, if another."""
    name = name or architecture
    gflops, parameters_gb = ARCHITECTURES[architecture]
    cpu_gb = 0.02 + parameters_gb
    found = [
        Variant(
            f"{name}/cpu",
            name,
            "cpu",
            ((1, 0.02 + 0.025 * gflops),),
            int(cpu_gb * GB),
            1.5 + 5 * cpu_gb,
        )
    ]
    for most in BATCHES:
        gpu_gb = 0.83 + parameters_gb + 0.0235 * most
        profile = tuple(
            (rows, 1e-3 * (1.6 + 0.2 * gflops + 0.195 * gflops * rows)) for rows in BATCHES if rows <= most
        )
        found.append(
            Variant(
                f"{name}/gpu-{most}",
                name,
                "cuda",
                profile,
                int(gpu_gb * GB),
                5.0 + parameters_gb * 5,
                0.3 + parameters_gb,
            )
        )
    return found


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────


def flat(rng: Generator) -> Rates:
    """4 rows/s for 500 s."""
    return numpy.full(500, 4.0)


def steady(rng: Generator) -> Rates:
    """650 to 700 rows/s in 200 s."""
    return numpy.linspace(650.0, 700.0, 200)


def fluctuating(rng: Generator) -> Rates:
    """4 rows/s, and 100 of them for 30 s in every 90."""
    return numpy.where(numpy.arange(360) % 90 < 60, 4.0, 100.0)


def step(rng: Generator) -> Rates:
    """50 rows/s for 60 s, then 500 for 180 s."""
    return numpy.where(numpy.arange(240) < 60, 50.0, 500.0)


def twitter(rng: Generator) -> Rates:
    """100 to 700 rows/s, 49,000 rows in 226 s."""
    return trace(rng, 226, 100.0, 700.0, 49_000)


def trace(rng: Generator, seconds: int, least: float, most: float, rows: float) -> Rates:
    """A day's wave, noise that remembers some seconds, spikes that fall off; then bent to the rows wanted."""
    at = numpy.arange(seconds)
    wave = 1 + 0.5 * numpy.sin(2 * math.pi * (at / seconds * rng.uniform(1.0, 2.0) + rng.uniform()))
    noise = numpy.zeros(seconds)
    for second in range(1, seconds):
        noise[second] = 0.9 * noise[second - 1] + rng.normal(0, 0.05)
    spikes = numpy.zeros(seconds)
    for begins in rng.integers(0, seconds, size=max(2, seconds // 60)):
        lasts_s = rng.uniform(5, 20)
        spikes += numpy.where(at >= begins, numpy.exp(-(at - begins) / lasts_s), 0) * rng.uniform(0.4, 1.2)
    shape = wave + noise + spikes
    shape = (shape - shape.min()) / (shape.max() - shape.min())
    low, high = 0.05, 20.0
    for _ in range(50):  # the power by which the mean comes out
        power = math.sqrt(low * high)
        total = float((least + (most - least) * shape**power).sum())
        low, high = (power, high) if total > rows else (low, power)
    bent: Rates = least + (most - least) * shape**power
    return bent


def arrivals(rates: Rates, rng: Generator) -> list[float]:
    """Seconds at which rows come, by chance, ascending."""
    counts = rng.poisson(rates)
    seconds = numpy.repeat(numpy.arange(len(rates)), counts) + rng.uniform(size=int(counts.sum()))
    return [float(at_s) for at_s in numpy.sort(seconds)]


# ── fleets ───────────────────────────────────────────────────────────────────────────────────────────

DEVICES = {
    "cpu": DeviceKind("cpu", 3, 3, join_s=25.0, price_per_gb_s=CPU_PRICE),
    "cuda": DeviceKind(
        "cuda",
        3,
        3,
        join_s=25.0,
        memory_bytes=16 * GB,
        price_per_gb_s=GPU_PRICE,
        warm_price_per_gb_s=CPU_PRICE,
    ),
}


@dataclass(frozen=True)
class Load:
    """An experiment. first: the variant that runs at first, where a policy may change it; peak: the one that
    serves its peak, which `static` keeps; `replicate` has the cheapest of a GPU's."""

    name: str
    rates: Callable[[Generator], Rates]
    first: str
    peak: str


ONE_FUNCTION = (
    Load("flat", flat, "cpu", "gpu-8"),
    Load("steady", steady, "gpu-8", "gpu-8"),
    Load("fluctuating", fluctuating, "cpu", "gpu-8"),
    Load("Twitter-like", twitter, "gpu-1", "gpu-8"),
    Load("step", step, "gpu-1", "gpu-8"),
)


def scene_of_one(load: Load, seed: int, policy: str) -> Scene:
    """ResNet50 on three CPUs and three GPUs, where only copies are paid for."""
    rng = default_rng(seed)
    rates = load.rates(rng)
    name = "resnet50"
    variant = {"static": load.peak, "replicate": "gpu-1"}.get(policy, load.first)
    return Scene(
        functions={name: GOAL_S},
        variants={one.name: one for one in variants_of(name)},
        devices=DEVICES,
        workers=workers_of(3, 3),
        copies=[Copy(f"{name}/{variant}", "cpu-0" if variant == "cpu" else "cuda-0")],
        arrivals={name: arrivals(rates, rng)},
        until_s=float(len(rates)),
        rates={name: [float(rate) for rate in rates]},
    )


def workers_of(cpus: int, gpus: int) -> list[Worker]:
    return [Worker(f"cpu-{number}", "cpu") for number in range(cpus)] + [
        Worker(f"cuda-{number}", "cuda", memory_bytes=16 * GB) for number in range(gpus)
    ]


FIGURE_12 = "Fig. 12 in kind"


def scene_of_many(seed: int, policy: str, *, rows: int = 113_420, seconds: int = 300) -> Scene:
    """21 functions by Zipf's law on 10 CPU workers, two a machine, and 5 to 7 GPUs; `static` has all 7."""
    rng = default_rng(seed)
    cold = [name for name in ARCHITECTURES if name not in _POPULAR]
    rng.shuffle(cold)
    names = [*_POPULAR, *cold]
    weights = numpy.array([1 / rank**1.6 for rank in range(1, len(names) + 1)])
    rates = trace(rng, seconds, 10.0, 1000.0, rows)
    variants = {one.name: one for name in names for one in variants_of(name)}
    goals_s = {name: 0.05 if name in _POPULAR else 1.5 * variants[f"{name}/cpu"].batch_s(1) for name in names}
    gpus = 7 if policy == "static" else 5
    return Scene(
        functions=goals_s,
        variants=variants,
        devices={
            "cpu": replace(DEVICES["cpu"], least=10, most=10, price_per_hour=3600 * _WORKER_GB * CPU_PRICE),
            "cuda": replace(DEVICES["cuda"], least=5, most=7, price_per_hour=3600 * _WORKER_GB * GPU_PRICE),
        },
        workers=workers_of(10, gpus),
        copies=list(_first_copies(policy, cold, gpus)),
        arrivals={
            name: arrivals(rates * share, rng)
            for name, share in zip(names, weights / weights.sum(), strict=True)
        },
        until_s=float(seconds),
    )


def _first_copies(policy: str, cold: Sequence[str], gpus: int) -> Iterable[Copy]:
    """Popular ones on GPUs, `static` two of each for batches; the others on a CPU each, in turn."""
    places = itertools.cycle(range(gpus))
    for name in _POPULAR:
        for _ in range(2 if policy == "static" else 1):
            yield Copy(f"{name}/{'gpu-8' if policy == 'static' else 'gpu-1'}", f"cuda-{next(places)}")
    for number, name in enumerate(cold):
        yield Copy(f"{name}/cpu", f"cpu-{number % 10}")
