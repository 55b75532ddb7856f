"""How workers are started: the command line of each, from what an operator set.

Of this machine's cores and memory every worker gets an equal part, when there are as many as may be.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpu_worker.wire.devices import REMOTE, device_names
from server.machine import memory_bytes, usable_cores
from server.settings import Settings
from server.workers.nodes import Node

__all__ = [
    "command_on",
    "local_command",
    "media_roots",
    "remote_command",
    "sees_home",
    "sees_media",
]

_HOST_PART: Final = 4  # of the memory a quarter is for models that are on no device
_RECENT_PART: Final = 16  # at most, of the machine's memory and of what a worker may take


def local_command(settings: Settings, index: int, fd: int) -> Sequence[str]:
    """The command line of worker number `index` on this machine, whose socket is `fd`."""
    threads = settings.threads or max(1, usable_cores() // settings.workers.most)
    host_bytes = settings.host_bytes or memory_bytes() // _HOST_PART // settings.workers.most
    prepared = settings.home / "prepared" if settings.keep_prepared else None
    recent_bytes = _recent_bytes(settings, settings.workers.most)
    arguments = _worker_arguments(settings, index, str(fd), threads, host_bytes, recent_bytes, prepared)
    devices = device_names(settings.device)  # of each worker, when there are as many as may be
    sharing = devices.count(devices[index % len(devices)])
    return [sys.executable, *arguments, f"--sharing={sharing}"]


def command_on(settings: Settings, index: int, node: Node) -> Sequence[str]:
    """The same after the interpreter, on a node; "{fd}" stands for the socket.

    What is this machine's stays here: its cores, its memory, and the folder of prepared weights.
    """
    here = settings.home / "prepared" if settings.keep_prepared and node.is_here else None
    share = max(1, settings.workers.most) if node.is_here else 1
    threads = settings.threads or max(1, node.cores // share)
    reads_models, reads_rows = sees_home(settings, node), sees_media(settings, node)
    roots = settings if reads_rows else replace(settings, media_root=())
    recent_bytes = _recent_bytes(settings, share)
    arguments = _worker_arguments(roots, index, "{fd}", threads, settings.host_bytes, recent_bytes, here)
    if reads_models and reads_rows:
        return arguments
    folder = settings.node_folder.replace("{node}", node.name.replace("/", "_"))
    return [
        *arguments,
        *([] if reads_models else [f"--fetched={folder}"]),
        *([] if reads_rows else [f"--fetched-pictures={folder}"]),
        f"--fetched-bytes={settings.node_bytes}",
    ]


def sees_home(settings: Settings, node: Node) -> bool:
    """Whether a node reads models itself, and the files of training."""
    return node.is_here or _is_shared(settings, settings.home)


def sees_media(settings: Settings, node: Node) -> bool:
    """Whether it reads the files itself that rows name."""
    return node.is_here or all(_is_shared(settings, Path(root)) for root in media_roots(settings))


def _is_shared(settings: Settings, folder: Path) -> bool:
    shared = (each.expanduser().absolute() for each in settings.shared_folder)
    return any(folder.is_relative_to(each) for each in shared)


def media_roots(settings: Settings) -> Sequence[str]:
    """The folders below which paths of rows are read, in full."""
    return [str(Path(root).expanduser().absolute()) for root in settings.media_root]


def _recent_bytes(settings: Settings, share: int) -> int:
    """Of each of so many workers on a machine; on a node, by this machine's memory."""
    most = min(settings.recent_bytes, memory_bytes() // _RECENT_PART) // share
    limit = settings.worker_memory_bytes
    return min(most, limit // _RECENT_PART) if limit else most


def _worker_arguments(
    settings: Settings,
    index: int,
    fd: str,
    threads: int,
    host_bytes: int,
    recent_bytes: int,
    prepared: Path | None,
) -> Sequence[str]:
    devices = device_names(settings.device)
    return [
        "-m",
        "gpu_worker",
        f"--fd={fd}",
        f"--device={devices[index % len(devices)]}",
        *(f"--media-root={root}" for root in media_roots(settings)),
        f"--threads={threads}",
        f"--max-pixels={settings.max_pixels}",
        f"--max-input-bytes={settings.max_input_bytes}",
        f"--resident-bytes={settings.resident_bytes}",
        f"--resident-models={settings.resident_models}",
        f"--host-bytes={host_bytes}",
        f"--recent-bytes={recent_bytes}",
        *([f"--prepared={prepared}"] if prepared is not None else []),
        f"--precision={settings.precision}",
        *([] if settings.cuda_graphs else ["--no-cuda-graphs"]),
        *(["--jpeg-on-device"] if settings.jpeg_on_device else []),
        f"--memory-bytes={settings.worker_memory_bytes}",
        *(["--allow-import"] if settings.allow_import else []),
    ]


def remote_command(settings: Settings, index: int, fd: int) -> Sequence[str]:
    """The command line of the worker that asks other servers. Keys are in files, which it reads itself."""
    return [
        sys.executable,
        "-m",
        "gpu_worker",
        f"--fd={fd}",
        f"--device={REMOTE}",
        *(f"--media-root={root}" for root in media_roots(settings)),
        f"--max-pixels={settings.max_pixels}",
        f"--max-input-bytes={settings.max_input_bytes}",
        "--resident-models=0",
        *(f"--allow-remote={url}" for url in settings.allow_remote),
        *(["--allow-remote-plain"] if settings.allow_remote_plain else []),
    ]
