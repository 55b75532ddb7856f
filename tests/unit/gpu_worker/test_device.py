"""The device is the one asked for, or an error; its capacity and threads fit the machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpu_worker.device import find_device, free_for_models, usable_cores
from gpu_worker.errors import BadRequest
from tests.unit.gpu_worker.worker_process import REPOSITORY


def test_the_processor_has_a_name_memory_and_its_cores() -> None:
    device = find_device("cpu")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert device.name == "cpu"
    assert device.description
    assert 0 < device.capacity_bytes < memory_bytes
    assert device.threads == usable_cores() >= 1


def test_settings_override_what_the_machine_suggests() -> None:
    device = find_device("cpu", threads=3, resident_bytes=12345)
    assert (device.threads, device.capacity_bytes) == (3, 12345)


@pytest.mark.parametrize("wanted", ["tpu", "", "cuda:99", "cuda:x", "CPU"])
def test_a_device_that_is_not_there_is_refused_by_name(wanted: str) -> None:
    with pytest.raises(BadRequest, match=repr(wanted)):
        find_device(wanted)


def test_an_engine_that_serves_no_torch_model_never_imports_torch(hashing: os.PathLike[str]) -> None:
    code = (
        "import sys\n"
        "from gpu_worker.engine import Engine\n"
        "from gpu_worker.settings import Settings\n"
        "engine = Engine(Settings(device='cpu'))\n"
        f"engine.load('h', {os.fspath(hashing)!r})\n"
        "engine.infer(['h'], 'text', [b'a'])\n"
        "engine.close()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_models_fill_what_is_free_of_a_gpu_less_a_reserve() -> None:
    gib = 1 << 30
    assert free_for_models(80 * gib, 80 * gib) == 72 * gib
    assert free_for_models(20 * gib, 80 * gib) == 12 * gib, "others have the rest"
    assert free_for_models(4 * gib, 4 * gib) == 4 * gib - (512 << 20)
    assert free_for_models(gib, 80 * gib) == 0


def test_workers_on_one_device_divide_its_memory_whoever_starts_first() -> None:
    gib = 1 << 30
    assert free_for_models(80 * gib, 80 * gib, sharing=4) == 18 * gib
    assert free_for_models(26 * gib, 80 * gib, sharing=4) == 18 * gib, "the others hold their models already"
    assert free_for_models(20 * gib, 80 * gib, sharing=4) == 12 * gib, "and who else there is, more than that"
    alone, both = (find_device("cpu", sharing=workers).capacity_bytes for workers in (1, 2))
    assert both == alone // 2
    assert find_device("cpu", resident_bytes=12345, sharing=2).capacity_bytes == 12345
    assert find_device("sim:3MiB,1", sharing=2).capacity_bytes == 3 << 20, "each has its own"
