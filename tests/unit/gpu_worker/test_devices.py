"""What a device is called: lists of them, and simulated ones with their memory and link."""

from __future__ import annotations

import pytest

from gpu_worker.device import find_device
from gpu_worker.errors import BadRequest
from gpu_worker.wire.devices import Simulated, device_names, parse_simulated


@pytest.mark.parametrize(
    ("name", "simulated"),
    [
        ("sim:1000,2.5", Simulated(1000, 2.5e9)),
        ("sim:2GiB,2.5GB/s", Simulated(2 << 30, 2.5e9)),
        ("sim:1.5 MB,.5GiB/s,1", Simulated(1_500_000, 0.5 * (1 << 30), 0.001)),
        ("sim:800mb,250MB/s,2.5ms", Simulated(800_000_000, 250e6, 0.0025)),
        ("sim:4kB,1", Simulated(4000, 1e9)),
    ],
)
def test_a_simulated_device_has_memory_and_a_link(name: str, simulated: Simulated) -> None:
    assert parse_simulated(name) == simulated


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sim:", "write sim:BYTES"),
        ("sim:2GiB", "write sim:BYTES"),
        ("sim:2GiB,1,2,3", "write sim:BYTES"),
        ("sim:two,1", "its memory is 'two'"),
        ("sim:-1,1", "its memory is '-1'"),
        ("sim:2Gi,1", "its memory is '2Gi'"),
        ("sim:2GiB,fast", "the rate of its link is 'fast'"),
        ("sim:2GiB,1 parsec/s", "the rate of its link is '1 parsec/s'"),
        ("sim:2GiB,1,soon", "the time of a load is 'soon'"),
        ("sim:0,1", "must be above 0"),
        ("sim:2GiB,0", "must be above 0"),
    ],
)
def test_what_is_no_device_is_refused_with_the_part_that_is_wrong(name: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as refused:
        find_device(name)
    assert repr(name) in str(refused.value)


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("", ["auto"]),
        ("cpu, cuda:1 ,", ["cpu", "cuda:1"]),
        ("sim:2GiB,2.5,1ms,cpu", ["sim:2GiB,2.5,1ms", "cpu"]),
        ("sim:2GiB,.5, sim:1GiB, 1GB/s", ["sim:2GiB,.5", "sim:1GiB,1GB/s"]),
    ],
)
def test_a_list_of_devices_keeps_the_commas_of_simulated_ones(listed: str, names: list[str]) -> None:
    assert device_names(listed) == names


def test_a_simulated_device_owns_its_bytes_and_computes_on_the_cpu() -> None:
    device = find_device("sim:3MiB,1", threads=2)
    assert (device.capacity_bytes, device.computes_on, device.has_memory) == (3 << 20, "cpu", True)
    assert (device.name, device.is_cuda, device.threads) == ("sim:3MiB,1", False, 2)
    assert "3145728 bytes at 1 GB/s" in device.description
    assert find_device("sim:3MiB,1", resident_bytes=1000).capacity_bytes == 1000
