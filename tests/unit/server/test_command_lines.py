"""How workers are started: equal parts of what the machine has, and files only for who sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_worker.wire.devices import device_names
from server.machine import memory_bytes, usable_cores
from server.settings import Settings, WorkerBounds
from server.workers.command_lines import command_on, local_command, remote_command
from server.workers.nodes import Node


def settings(devices: str, **fields: object) -> Settings:
    count = len(device_names(devices))
    return Settings(
        home=Path("/home"),
        media_root=(Path("/photos"),),
        device=devices,
        workers=WorkerBounds(1, count),
        **fields,  # type: ignore[arg-type]  # by name
    )


def flag(name: str, command: object) -> str | None:
    """The value of a flag, None where it is not given."""
    assert isinstance(command, list)
    return next((each.partition("=")[2] for each in command if each.startswith(f"--{name}=")), None)


@pytest.mark.parametrize(
    ("devices", "sharing"),
    [
        ("cuda:0", ["1"]),
        ("cuda:0,cuda:0,cuda:0,cuda:0", ["4"] * 4),
        ("cuda:0,cuda:1,cuda:0", ["2", "1", "2"]),
        ("auto,auto", ["2", "2"]),
        ("cpu,sim:1GB,1", ["1", "1"]),
    ],
)
def test_workers_on_one_device_share_its_memory(devices: str, sharing: list[str]) -> None:
    commands = [local_command(settings(devices), index, 7) for index in range(len(sharing))]
    assert [flag("sharing", command) for command in commands] == sharing


def test_cores_and_memory_are_divided_among_as_many_workers_as_may_be() -> None:
    command = local_command(settings("cpu,cpu"), 0, 7)
    assert flag("fd", command) == "7"
    assert flag("threads", command) == str(max(1, usable_cores() // 2))
    assert flag("host-bytes", command) == str(memory_bytes() // 4 // 2)
    said = local_command(settings("cpu,cpu", threads=3, host_bytes=99), 0, 7)
    assert (flag("threads", said), flag("host-bytes", said)) == ("3", "99")


def test_what_is_kept_of_rows_has_a_sixteenth_of_the_memory_at_most() -> None:
    def each(**options: int) -> int:
        return int(flag("recent-bytes", local_command(settings("cpu,cpu", **options), 0, 7)) or -1)

    assert each(recent_bytes=64 << 20) == 32 << 20
    assert each(recent_bytes=0) == 0
    assert each(recent_bytes=1 << 50) == memory_bytes() // 16 // 2
    assert each(recent_bytes=64 << 20, worker_memory_bytes=160 << 20) == 10 << 20


def test_a_node_fetches_what_it_does_not_see() -> None:
    far = Node("1", "10.0.0.1", "n1", gpus=0, cores=8)
    command = list(command_on(settings("cpu"), 0, far))
    assert flag("media-root", command) is None
    assert flag("fetched", command)
    assert flag("fetched-pictures", command)
    here = list(command_on(settings("cpu"), 0, Node("0", "127.0.0.1", "n0", gpus=0, cores=8, is_here=True)))
    assert flag("media-root", here) == "/photos"
    assert flag("fetched", here) is None
    shared = settings("cpu", shared_folder=(Path("/home"), Path("/photos")))
    assert flag("fetched", list(command_on(shared, 0, far))) is None


def test_the_worker_that_asks_other_servers_has_no_models_and_no_device() -> None:
    command = remote_command(settings("cuda:0"), 0, 7)
    assert flag("device", command) == "remote"
    assert flag("resident-models", command) == "0"
