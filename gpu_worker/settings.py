"""What an operator decides about one worker. Knows no flags and no environment: `__main__` reads those."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one worker, read once when its process (or its `Engine`) starts.

    device: "cpu", "cuda:N", "sim:BYTES,GB/s[,ms]" (`gpu_worker.wire.devices`), "remote" (models behind
        other servers, and no others), or "auto" (the first CUDA
        device there is, else the CPU).
    media_roots: folders below which paths are read; none = every path is refused.
    threads: CPU cores to use; 0 = those that the process may run on.
    max_pixels, max_input_bytes: limits of one image, by its header, and of one row.
    sharing: workers that have the device's memory together: each fills its part of it.
    resident_bytes, resident_models: bounds of what is loaded at once; 0 bytes = by the device's memory,
        0 models = as many as the bytes allow.
    host_bytes: most of the host's memory that holds models, for a device with memory of its own; 0 = a
        quarter of what the machine has.
    prepared: folder of weights as they lie in memory, which the worker writes; "" = none are kept.
    fetched: folder of its own that models are fetched into, of a worker that does not see the server's
        files; "" = it sees them. fetched_pictures: the same of photos that it is taught by, where it does not
        see the media roots. fetched_bytes: most that such a folder holds; 0 = what its disk takes.
    precision: of torch models of pictures, and of transformers of texts, on CUDA: "auto", the fastest that
        answers as float32 does, or "float32". cuda_graphs: whether small batches of our own models run as
        CUDA graphs. jpeg_on_device: whether JPEGs are decoded on a CUDA device, where torchvision can.
    recent_bytes: most memory that keeps what was made of rows which come again; 0 = nothing is kept.
    memory_bytes: most memory of the worker's process, on a CPU; 0 = no limit. `local:` does not set it.
    allow_remote, allow_remote_plain: of a worker of device "remote": endpoints that rows may be sent to
        (`model_files.endpoints`), and whether by http beyond this machine.
    allow_import: whether model.json may name an architecture by import path. That runs the code it names,
        so only an operator who trusts everyone able to register a model turns it on.
    """

    device: str = "auto"
    media_roots: tuple[str, ...] = ()
    threads: int = 0
    max_pixels: int = 64_000_000
    max_input_bytes: int = 32 * _MIB
    sharing: int = 1
    resident_bytes: int = 0
    resident_models: int = 16
    host_bytes: int = 0
    prepared: str = ""
    fetched: str = ""
    fetched_pictures: str = ""
    fetched_bytes: int = 0
    precision: str = "auto"
    cuda_graphs: bool = True
    jpeg_on_device: bool = False
    recent_bytes: int = 0
    memory_bytes: int = 0
    allow_import: bool = False
    allow_remote: tuple[str, ...] = ()
    allow_remote_plain: bool = False
