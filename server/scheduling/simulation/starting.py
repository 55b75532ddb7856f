"""Simulated devices that begin with what starting placement gives them (`server.placement.starting`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from server.placement.policy import Capacity
from server.placement.starting import Session, starting_placement
from server.scheduling.simulation.simulator import FunctionLoad, MemberLoad, Workload

__all__ = ["packed_at_start"]


def packed_at_start(load: Workload, rows_per_s: Mapping[str, float] | None = None) -> Workload:
    """The workload, with devices that hold the models of a packing at the beginning.

    rows_per_s: function → what is remembered of it; None = what really comes. Seconds of batches are as the
    scheduler believes them.
    """
    ends_s = max((one.arrivals_s[-1] for one in load.functions if len(one.arrivals_s)), default=0.0)
    link_bytes_per_s = min(device.link_bytes_per_s for device in load.devices)

    def session(function: FunctionLoad) -> Session:
        came = len(function.arrivals_s) * function.rows_per_request / ends_s if ends_s else 0.0
        return Session(
            {member.name: _alone(function, member) for member in function.all_members},
            came if rows_per_s is None else rows_per_s.get(function.name, 0.0),
            function.slo_s,
            function.max_batch,
            sum(load.swap_s + member.size_bytes / link_bytes_per_s for member in function.all_members),
        )

    found = starting_placement(
        [session(function) for function in load.functions],
        {member.name: member.size_bytes for function in load.functions for member in function.all_members},
        {device.name: Capacity(device.capacity_bytes, device.places or 0) for device in load.devices},
    )
    devices = []
    for device in load.devices:
        keys = dict.fromkeys(key for group in found[device.name].groups for key in group)
        devices.append(replace(device, resident=tuple(reversed(keys))))
    return replace(load, devices=tuple(devices))


def _alone(function: FunctionLoad, member: MemberLoad) -> Callable[[int], float]:
    return member.predicted_s or partial(_together_s, function, member)


def _together_s(function: FunctionLoad, member: MemberLoad, rows: int) -> float:
    return function.latency_s(rows) + member.latency_s(rows)
