"""What a soak of the front says of what it saw."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.stress.soak import HELD_BYTES, Sample, Soak, growth_bytes

MiB = 1 << 20


def soak(server_mib: list[float]) -> Soak:
    samples = [
        Sample(at_s=150.0 * number, server_bytes=int(mib * MiB), worker_bytes=0, connections=1, held_bytes=0)
        for number, mib in enumerate(server_mib)
    ]
    samples[1] = replace(samples[1], held_bytes=HELD_BYTES)
    return Soak(150.0 * len(server_mib), Counter({200: 990, 503: 10}), 5, samples)


def test_memory_is_flat_that_grows_while_all_warms_up_or_goes_up_and_down() -> None:
    assert soak([100, 150, 200, *[200, 230, 190, 200] * 5]).faults() == []
    (fault,) = soak([200 + number for number in range(20)]).faults()
    assert "grew by 14.0 MiB" in fault
    assert growth_bytes([0.0, 10.0, 20.0, 30.0], [0, 10, 500, 30]) == 30.0
    assert growth_bytes([0.0, 1.0], [5, 7]) == 0.0  # no time to tell


def test_what_is_lost_left_or_held_over_the_limit_is_a_fault() -> None:
    well = soak([200.0] * 20)
    over = replace(well.samples[3], held_bytes=HELD_BYTES + 1)
    never = [replace(sample, held_bytes=0) for sample in well.samples]
    for wrong, said in (
        (replace(well, statuses=Counter({200: 990, 0: 1, 500: 2})), "3 requests were lost"),
        (replace(well, statuses=Counter({200: 10, 503: 10})), "of 20 requests 10 were answered"),
        (replace(well, samples=[*well.samples, over]), "were held, over 8,388,608"),
        (replace(well, samples=never), "nothing shown"),
        (replace(well, connections_left=2), "2 connections and 0 bytes"),
        (replace(well, held_bytes_left=7), "7 bytes of bodies are left"),
        (replace(well, errors=1), "1 tracebacks"),
    ):
        (fault,) = wrong.faults()
        assert said in fault
