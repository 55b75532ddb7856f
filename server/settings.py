"""Every setting of the server: its name, its default and its help, together.

Owns nothing at run time; `__main__` alone fills it from flags and `ML_UDF_*` variables. A test holds that
each one stands in docs/configuration.md.
"""
# ruff: noqa: RUF009  # `_setting` is `dataclasses.field` with a help text

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["LAST_PORT", "Settings", "WorkerBounds", "is_loopback", "port_range"]

LAST_PORT = 65_535
_MOST_WORKERS = 1024  # each is a process with a runtime of its own: more is a slip of the finger

MiB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerBounds:
    """How many workers there are, at least and at most; 0 and 0 = one for each device that is named."""

    least: int
    most: int

    @classmethod
    def of(cls, text: str) -> WorkerBounds:
        """Of N, MIN:MAX or auto. Raises ValueError, which says what to write."""
        parts = ["0"] if text.strip() == "auto" else text.split(":")
        try:
            numbers = [int(part) for part in parts]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2):
            raise ValueError(f"{text!r} is not a number of workers; write N, MIN:MAX, as in 1:4, or auto")
        least, most = numbers[0], numbers[-1]
        if least < 0 or most < 0:
            raise ValueError(f"{text!r} is less than no worker; write N, MIN:MAX, as in 1:4, or auto")
        if max(least, most) > _MOST_WORKERS:
            raise ValueError(f"{text!r} is more than {_MOST_WORKERS:,} workers, each of which is a process")
        if least > most:
            raise ValueError(f"{text!r} is at least {least} and at most {most}; write {most}:{least}")
        if least == 0 < most:
            raise ValueError(f"{text!r}: one worker must be there to answer rows; write 1:{most}")
        if len(numbers) == 2 and most == 0:
            raise ValueError(f"{text!r} leaves nobody to answer rows; write N, MIN:MAX, as in 1:4, or auto")
        return cls(least, most)

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


def _setting(default: Any, text: str) -> Any:  # noqa: ANN401  # as dataclasses.field: the annotation types it
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class Settings:
    """How one server process runs. Sizes in bytes, times in the unit that the name ends with."""

    host: str = _setting("127.0.0.1", "address to listen on; beyond loopback a token is required")
    port: int = _setting(8080, "port to listen on; 0 picks a free one")
    front: str = _setting(
        "auto",
        "what reads the connections: native, in C; python; auto, native where it is built, without TLS",
    )
    port_file: Path | None = _setting(None, "file that receives the port once the server answers")
    home: Path = _setting(Path("~/.ml_udf"), "folder of everything durable: registry, models, functions")
    home_group: str = _setting(
        "", "group that may read the home's models and functions, as a database with local: endpoints must"
    )
    database_url: str = _setting("", "registry database; empty = SQLite in the home folder")
    database_url_file: Path | None = _setting(
        None, "file that holds the URL of the registry database, where it has a password"
    )
    token_file: Path | None = _setting(None, "file that holds the bearer token every client must send")
    ask_token_file: Path | None = _setting(
        None, "file that holds a second token, which may ask for rows and read lists, and nothing else"
    )
    ask_class: str = _setting(
        "interactive", "highest class of rows asked for with the second token: interactive, bulk"
    )
    ask_priority: int = _setting(
        0, "most urgent priority that the second token may name, 1 being the highest; 0 = none at all"
    )
    allowed_host: tuple[str, ...] = _setting(
        (), "a name, beside those of loopback, by which a server without a token is called; may be repeated"
    )
    default_visibility: str = _setting(
        "public",
        "who sees a new function or model: public, every token; private, its owner's and admins'. Datasets "
        "are private",
    )
    tls_cert: Path | None = _setting(None, "PEM file of the server's certificate and its chain: serves https")
    tls_key: Path | None = _setting(None, "PEM file of the certificate's private key; none = in --tls-cert")
    tls_client_ca: Path | None = _setting(
        None, "PEM file of authorities, one of which must have signed the certificate of every client"
    )
    allow_plain: bool = _setting(
        False, "listen beyond loopback without TLS, because a proxy in front of the server does it"
    )
    media_root: tuple[Path, ...] = _setting((), "folder below which path inputs are read; may be repeated")

    name_media_roots: bool = _setting(
        False, "read paths only for functions that name their own media_roots; for bare models none"
    )

    workers: WorkerBounds = _setting(
        WorkerBounds(0, 0),
        "worker processes: N, or MIN:MAX, so many as the load asks for; 0, or auto = one for each device "
        "named; for auto, each CUDA device or the CPU",
    )
    pool: str = _setting(
        "local",
        "where workers run: local, processes of this machine; or ray, on the nodes of a Ray cluster that "
        "this machine belongs to: docs/cluster.md",
    )
    ray_address: str = _setting(
        "", "with --pool ray, HOST:PORT of the cluster's head; empty = the cluster that runs on this machine"
    )
    shared_folder: tuple[Path, ...] = _setting(
        (),
        "with --pool ray, folder that every node sees at the same path: what lies below it nodes read "
        "themselves, all else is sent to them; may be repeated",
    )
    node_folder: str = _setting(
        "~/.cache/ml_udf/{node}",
        "with --pool ray, folder on each node for what it fetches, models and files of training; {node} is "
        "its name",
    )
    node_bytes: int = _setting(
        64 << 30,
        "with --pool ray, bytes in a node's folder at most; what was not used for longest leaves; 0 = what "
        "its disk takes",
    )
    node_ports: str = _setting(
        "",
        "with --pool ray, FIRST-LAST of the ports that hosts of workers listen at on their nodes, one each; "
        "empty = whichever is free",
    )
    capacity_policy: str = _setting(
        "forecast",
        "capacity policy, with --workers MIN:MAX: when workers join and leave, and copies of models",
    )
    prices: Path | None = _setting(
        None,
        "TOML or JSON file of what devices cost, by kind, that capacity policies and the cost of wishes go "
        "by: docs/capacity.md; none = a worker's time alone",
    )
    device: str = _setting(
        "auto",
        "device of each worker, comma-separated and repeated in turn: auto (all CUDA devices), cpu, cuda:0, "
        "or a simulated one, sim:BYTES,GB/s[,ms]",
    )
    threads: int = _setting(0, "compute threads per worker on a CPU; 0 = the cores shared among the workers")
    resident_bytes: int = _setting(0, "bytes of models of a worker; 0 = its part of what the device has")
    resident_models: int = _setting(16, "models that a worker may hold; 0 = as many as its bytes allow")
    host_bytes: int = _setting(
        0,
        "bytes of this machine's memory that hold models for a worker's device, where that has memory of its "
        "own; 0 = a quarter of the memory, shared among the workers",
    )
    recent_bytes: int = _setting(
        256 * MiB,
        "bytes of memory that keep what was made of rows (pixels, features) for other models, where rows "
        "come again; at most a sixteenth of the memory, shared among the workers; 0 = none",
    )
    variants: str = _setting(
        "off",
        "auto: make and measure other ways to run each model (ONNX, int8, bf16) while no row waits; or off",
    )
    keep_prepared: bool = _setting(
        True, "keep weights as they lie in memory too, in the home folder, so that loads only read them"
    )
    precision: str = _setting(
        "auto",
        "on CUDA, of picture models and transformers: auto, the fastest that answers as float32; or float32",
    )
    cuda_graphs: bool = _setting(True, "on CUDA, run small batches of our own models as one launch each")
    jpeg_on_device: bool = _setting(
        False, "on CUDA, decode JPEGs there, where torchvision can; else on the CPU"
    )
    worker_memory_bytes: int = _setting(0, "most memory of a worker process on a CPU; 0 = no limit")
    worker_env: str = _setting(
        "", "names of environment variables that workers need beside the usual ones, comma-separated"
    )
    worker_start_s: float = _setting(
        120.0,
        "time that a starting worker has, and a load or an eviction, before the worker is started again",
    )
    worker_hang_s: float = _setting(
        120.0,
        "a worker that ends no batch for so long is started again; sooner once what batches take is known "
        "(20 times that, 15 s at least), and if it answers no ping for 30 s; 0 = never",
    )

    max_body_bytes: int = _setting(64 * MiB, "largest request body, before and after decompression")
    max_reply_bytes: int = _setting(64 * MiB, "most bytes of scores in one reply; then 413")
    max_connections: int = _setting(8192, "most connections at a time; then 503")
    max_held_bytes: int = _setting(
        1024 * MiB, "most bytes of bodies that are being received, on all connections together; then 503"
    )
    head_timeout_s: float = _setting(10.0, "time that the head of a request has")
    idle_timeout_s: float = _setting(75.0, "time that a connection is kept on which nothing is asked")
    slow_timeout_s: float = _setting(
        10.0, "time after which a body must come, and a reply be read, at 1 kB/s or more"
    )
    max_rows: int = _setting(65_536, "most rows in one request")
    max_input_bytes: int = _setting(32 * MiB, "largest single value: an encoded image, a text")
    max_pixels: int = _setting(64_000_000, "most pixels of an image, checked before it is decoded")
    max_queued_rows: int = _setting(200_000, "most rows waiting per function; then 503 with Retry-After")
    max_queued_bytes: int = _setting(512 * MiB, "most bytes waiting per function; then 503 with Retry-After")
    max_feedback_rows: int = _setting(
        100_000, "labelled rows per function whose members' answers are kept, to refit on; older ones go"
    )
    max_feedback_labels: int = _setting(
        2_000_000,
        "labels per function that are remembered, so that each counts once; older ones are forgotten",
    )
    shadow_share: float = _setting(
        0.01,
        "share of the rows that follow plans of which all members are asked too, while nothing waits, so "
        "that one that breaks is noticed without labels; 0 = none",
    )
    answer_cache_bytes: int = _setting(
        -1,
        "bytes of answers that are kept, so that rows that are asked again need no worker; 0 = none, -1, or "
        "auto = a 32nd of this machine's memory, 1 GiB at the most",
    )
    answer_store: str = _setting(
        "auto", "what keeps them: native, in C; python; auto, native where it is built"
    )
    answer_cache_file: Path | None = _setting(
        None,
        "file that the kept answers are written to every five minutes and when the server stops, and read "
        "from when it starts; none = a restarted server has forgotten them",
    )
    max_model_bytes: int = _setting(4096 * MiB, "largest weights file that /register takes")

    connections_file: Path | None = _setting(
        None, "TOML file of databases that datasets may be read from, and for whom: docs/training.md"
    )
    max_dataset_rows: int = _setting(10_000_000, "most rows of a dataset")
    max_dataset_bytes: int = _setting(16_384 * MiB, "most bytes of a dataset's rows")
    dataset_timeout_s: float = _setting(600.0, "time that a dataset's query has")

    parameters_url: str = _setting(
        "", "folder, of any filesystem that fsspec knows, that keeps training's checkpoints; empty = the home"
    )
    parameters_url_file: Path | None = _setting(
        None, "file that holds the URL of the checkpoints' folder, where it has a password or key"
    )
    parameters_hot_bytes: int = _setting(
        4096 * MiB, "with --parameters-url: bytes of checkpoints whose copies stay in the home folder"
    )

    default_slo_ms: float = _setting(500.0, "latency goal of a function that names none, and of bare models")
    default_max_batch: int = _setting(256, "largest batch of a function that names none, and of bare models")
    placement: str = _setting("value", "placement policy: what workers load, and what leaves for it")
    members: str = _setting(
        "packed",
        "members of a function that no worker can hold together: packed on as few nodes as may be, or spread "
        "over as many",
    )
    default_policy: str = _setting("goodput", "batching policy of a function that names none")
    bulk_sharing: str = _setting(
        "backfill", "when bulk rows run beside interactive ones: backfill, or threshold (below 40 % busy)"
    )
    prefix_batching: bool = _setting(
        True, "rows of functions whose models are heads on one backbone share its passes"
    )

    allow_import: bool = _setting(
        False,
        "let policies and architectures be named as package.module:attribute; runs them",
    )
    allow_remote: tuple[str, ...] = _setting(
        (),
        "URL below which models on other servers may be asked: rows leave for there; URL=FILE sends the key "
        "that the file holds, as a bearer's token or, of 'api-key: KEY', by that header; may be repeated",
    )
    allow_remote_plain: bool = _setting(
        False, "let rows and keys leave this machine by http, without TLS, for what --allow-remote names"
    )
    drain_s: float = _setting(30.0, "time that requests and epochs under way have to finish after SIGTERM")
    log_level: str = _setting("info", "least level that is logged: debug, info, warning, error")

    def registry_url(self) -> str:
        """The SQLAlchemy URL of the registry."""
        return self.database_url or f"sqlite:///{self.home / 'registry.db'}"


def port_range(text: str) -> tuple[int, int]:
    """FIRST-LAST; "" = (0, 0), any port. Raises ValueError."""
    if not text:
        return 0, 0
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= LAST_PORT):
        raise ValueError(f"{text!r} is no range of ports, such as 20000-20099")
    return int(first), int(last)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone: `localhost`, or an address of the loopback network."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
