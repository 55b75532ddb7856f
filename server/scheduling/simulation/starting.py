"""Simulated devices that begin with what starting placement gives them (`server.placement.starting`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from server.placement.policy import Capacity
from server.placement.starting import Session, starting_placement
from server.scheduling.simulation.simulator import FunctionLoad, Workload

__all__ = ["packed_at_start"]


def packed_at_start(load: Workload, rows_per_s: Mapping[str, float] | None = None) -> Workload:
    """The workload, with devices that hold the models of a packing at the beginning.

    rows_per_s: function → what is remembered of it; None = what really comes. Seconds of batches are as the
    scheduler believes them.
    """
    ends_s = max((one.arrivals_s[-1] for one in load.functions if len(one.arrivals_s)), default=0.0)
    slowest = min(load.devices, key=lambda device: device.link_bytes_per_s)

    def session(function: FunctionLoad) -> Session:
        came = len(function.arrivals_s) * function.rows_per_request / ends_s if ends_s else 0.0
        return Session(
            {member.name: function.predicted_of(member) for member in function.all_members},
            came if rows_per_s is None else rows_per_s.get(function.name, 0.0),
            function.slo_s,
            function.max_batch,
            sum(load.load_s(member, slowest) for member in function.all_members),
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
