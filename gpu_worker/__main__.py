"""`python -m gpu_worker`: one worker process, started by a server that holds the other end of a socket."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence

from gpu_worker.engine import Engine
from gpu_worker.errors import DeviceLost, WorkerError
from gpu_worker.loop import Loop
from gpu_worker.parent import die_with_parent
from gpu_worker.settings import Settings
from gpu_worker.wire.devices import SIMULATED_FORM
from gpu_worker.wire.protocol import FrameError
from gpu_worker.wire.shared_rows import seen

__all__ = ["main", "spare_collections"]

EXIT_DEVICE_LOST = 70
EXIT_PROTOCOL = 76
EXIT_SETTINGS = 78

_DEFAULTS = Settings()
_END_S = 5.0  # that what is under way has to end once nobody waits for it


def parse(arguments: Sequence[str]) -> tuple[int, int | None, Settings]:
    """The descriptors that it inherits, of a socket and of memory for rows, and what the flags say."""
    parser = argparse.ArgumentParser(prog="python -m gpu_worker", description=__doc__)
    add = parser.add_argument
    add("--fd", type=int, required=True, help="descriptor of a connected stream socket")
    add("--rows-fd", type=int, help="descriptor of memory that rows may lie in")
    add(
        "--device",
        default=_DEFAULTS.device,
        help=f"auto, cpu, cuda:N or {SIMULATED_FORM} (default %(default)s)",
    )
    add(
        "--media-root",
        action="append",
        default=[],
        metavar="DIR",
        help="folder of readable paths; repeatable",
    )
    add("--threads", type=int, default=_DEFAULTS.threads, help="CPU cores to use; 0 = all that it may")
    add("--max-pixels", type=int, default=_DEFAULTS.max_pixels, help="pixels of one image")
    add("--max-input-bytes", type=int, default=_DEFAULTS.max_input_bytes, help="bytes of one row")
    add(
        "--sharing",
        type=int,
        default=_DEFAULTS.sharing,
        help="workers that have the device's memory together, this one too (default %(default)s)",
    )
    add(
        "--resident-bytes",
        type=int,
        default=_DEFAULTS.resident_bytes,
        help="of all models; 0 = by the device",
    )
    add("--resident-models", type=int, default=_DEFAULTS.resident_models, help="at once; 0 = by their bytes")
    add(
        "--host-bytes",
        type=int,
        default=_DEFAULTS.host_bytes,
        help="of the host's memory, for models that are not on the device; 0 = a quarter of it",
    )
    add(
        "--prepared",
        default=_DEFAULTS.prepared,
        metavar="DIR",
        help="folder that it keeps weights in as they lie in memory; none without it",
    )
    add(
        "--fetched",
        default=_DEFAULTS.fetched,
        metavar="DIR",
        help="folder that models and files of training are fetched into, where it does not see the server's",
    )
    add(
        "--fetched-pictures",
        default=_DEFAULTS.fetched_pictures,
        metavar="DIR",
        help="folder that photos of training are kept in, where it does not see the media roots",
    )
    add(
        "--fetched-bytes",
        type=int,
        default=_DEFAULTS.fetched_bytes,
        help="of that folder; 0 = what its disk takes",
    )
    add(
        "--precision",
        default=_DEFAULTS.precision,
        choices=("auto", "float32"),
        help="on CUDA: the fastest that answers as float32 does, or float32 (default %(default)s)",
    )
    add(
        "--no-cuda-graphs",
        action="store_false",
        dest="cuda_graphs",
        help="on CUDA: launch every kernel of small batches by itself",
    )
    add("--jpeg-on-device", action="store_true", help="on CUDA: decode JPEGs there, where torchvision can")
    add(
        "--recent-bytes",
        type=int,
        default=_DEFAULTS.recent_bytes,
        help="of what was made of rows that come again (pixels, features); 0 = nothing is kept",
    )
    add("--memory-bytes", type=int, default=_DEFAULTS.memory_bytes, help="of this process; 0 = no limit")
    add(
        "--allow-import",
        action="store_true",
        help="let model.json name an architecture by import path; this runs the code it names",
    )
    add(
        "--allow-remote",
        action="append",
        default=[],
        metavar="URL[=KEYFILE]",
        help="with --device remote: rows may be sent below that URL, with that key; may be repeated",
    )
    add("--allow-remote-plain", action="store_true", help="and by http beyond this machine")
    flags = parser.parse_args(arguments)
    return (
        flags.fd,
        flags.rows_fd,
        Settings(
            device=flags.device,
            media_roots=tuple(flags.media_root),
            threads=flags.threads,
            max_pixels=flags.max_pixels,
            max_input_bytes=flags.max_input_bytes,
            sharing=max(1, flags.sharing),
            resident_bytes=flags.resident_bytes,
            resident_models=flags.resident_models,
            host_bytes=flags.host_bytes,
            prepared=flags.prepared,
            fetched=flags.fetched,
            fetched_pictures=flags.fetched_pictures,
            fetched_bytes=flags.fetched_bytes,
            precision=flags.precision,
            cuda_graphs=flags.cuda_graphs,
            jpeg_on_device=flags.jpeg_on_device,
            recent_bytes=flags.recent_bytes,
            memory_bytes=flags.memory_bytes,
            allow_import=flags.allow_import,
            allow_remote=tuple(flags.allow_remote),
            allow_remote_plain=flags.allow_remote_plain,
        ),
    )


def _bound_memory(most_bytes: int) -> None:
    """Allocations beyond it fail, here and in the training process, and with them one request."""
    if most_bytes > 0:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))


def _on_sigterm(act: Callable[[], None]) -> None:
    """Calls `act`, in a thread, once SIGTERM has come.

    A Python handler would not do: it runs between two steps of the main thread, and a signal that comes
    just before that thread blocks in `recv` is not acted on until `recv` returns, which it may never do.
    """
    read, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)

    def watch(kept_open: socket.socket) -> None:
        while read.recv(1):
            act()

    threading.Thread(target=watch, args=(write,), name="sigterm", daemon=True).start()


def _end_soon() -> None:
    """Ends the process by force in a while, with every thread's traceback in the log.

    Threads that hang would be waited for without end. The one that does this needs no interpreter.
    """
    faulthandler.dump_traceback_later(_END_S, exit=True)


def spare_collections() -> None:
    """Let batches not pay for what was there before them.

    A collection of everything stops all threads, for 0.1 to 0.2 s with torch loaded, and comes in the middle
    of batches. What is there now stays for good: it is not looked at again.
    """
    gc.collect()
    gc.freeze()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the socket closes; the exit status says why it ended."""
    logging.basicConfig(format="gpu_worker %(levelname)s %(message)s", level=logging.INFO)
    fd, rows_fd, settings = parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    die_with_parent()
    os.umask(0o077)  # what training writes is the owner's alone
    _bound_memory(settings.memory_bytes)
    try:
        connection = socket.socket(fileno=fd)
        shared = None if rows_fd is None else seen(rows_fd)
        engine = Engine(settings, spare_collections)
    except (OSError, WorkerError) as exc:
        logging.getLogger(__name__).error("cannot start: %s", exc)
        return EXIT_SETTINGS
    loop = Loop(connection, engine, _end_soon, shared)
    _on_sigterm(loop.drain)
    spare_collections()
    try:
        loop.run()
    except DeviceLost as exc:
        logging.getLogger(__name__).error("%s", exc)
        return EXIT_DEVICE_LOST
    except FrameError as exc:
        logging.getLogger(__name__).error("the connection is of no further use: %s", exc)
        return EXIT_PROTOCOL
    finally:
        engine.close()
        connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
