"""A model's way onto the device, beside the batches of others: device ← host ← disk.

    disk ─ reading ─→ host's memory ─ link ─→ device's memory ─→ a network on it ─ warming up ─→ resident
      └─ first time: hashed, folded, laid out (making), then written beside (files)

On a device with memory of its own, models stay in the host's memory too, in their final layout, and a network
that leaves the device stays as it is without its weights: loading it again is one copy. Where device and host
are one memory, weights are read straight to where they are computed, once.
Each step may be given up; what was begun leaves nothing behind. No step runs in a thread that serves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from gpu_worker.device import Device, host_share_bytes
from gpu_worker.errors import Cancelled, ModelUnusable
from gpu_worker.memory import Region
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.prepared import PreparedFiles, Stamp, content_of, read_at
from gpu_worker.model_files.regular import open_regular
from gpu_worker.model_files.run_spec import AS_IT_IS
from gpu_worker.model_files.sources import Sources
from gpu_worker.networks.hashing import Hashing
from gpu_worker.networks.loader import check_input, warm_up
from gpu_worker.networks.moved import LeavesDevice, MovesWeights, Weights
from gpu_worker.networks.network import IsCancelled, Network, check
from gpu_worker.networks.runtimes import Held, runs_torch, runtime_of
from gpu_worker.settings import Settings
from gpu_worker.threads import Threads
from gpu_worker.tiers.arriving import Arriving, Damaged
from gpu_worker.tiers.host import HostModel, HostTier
from gpu_worker.tiers.kept import Kept, KeptNetworks
from gpu_worker.tiers.link import Link

if TYPE_CHECKING:
    from torch import nn

    from gpu_worker.networks.precision import Verdict

__all__ = ["Grow", "LoadTimes", "Loads", "Made"]

_log = logging.getLogger(__name__)
_LOOK_S = 0.01
_FILLED_BYTES = 16 << 20
_READERS = 2  # of one file, so that the disk is never without a request
_T = TypeVar("_T")

Grow = Callable[[int], None]  # told what a model takes of the device, before it is taken; may raise


@dataclass(slots=True)
class LoadTimes:
    """Seconds of a load by what they went into; waiting for other loads is in none of them.

    read_s: from the disk. prepare_s: hashing, folding, laying out: done once. copy_s: over the link. make_s:
    the network of the weights. warm_up_s: its first passes. Reading and copying overlap.
    """

    read_s: float = 0.0
    prepare_s: float = 0.0
    copy_s: float = 0.0
    make_s: float = 0.0
    warm_up_s: float = 0.0


@dataclass(slots=True)
class Made:
    """A network that is on the device and warm.

    again_s: what loading it again should take. learned: what was said of it when it last left. content: what
    the host tier knows it by.
    """

    network: Network
    times: LoadTimes
    again_s: float
    learned: Any = None
    content: str = ""


class _InHost(Exception):
    """The model is in the host's memory, as far as it is kept there, and is to go no further."""


@dataclass(slots=True)
class _Load:
    """One load under way.

    stamp: of the weights file. content: what the network is made of, "" where it is made anew each time.
    module: one that has its weights in ordinary memory, made on the way. ahead: it is to be read, no more.
    """

    manifest: Manifest
    is_cancelled: IsCancelled
    grow: Grow
    stamp: Stamp = ()
    content: str = ""
    module: nn.Module | None = None
    times: LoadTimes = field(default_factory=LoadTimes)
    ahead: bool = False


# Weights in memory that `allocate(nbytes, layout)` gives, or on their way there.
_Allocate = Callable[[int, Any], Region]
_Bring = Callable[[_Load, _Allocate], Arriving | None]
_Make = Callable[[_Load, Any, Region], Network]


class Loads:
    """Loads for `device`; several at once. Thread-safe.

    before_torch(threads): called before the first torch model, whose passes these threads run too.
    """

    def __init__(
        self, settings: Settings, device: Device, before_torch: Callable[[Threads], None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._device = device
        self._before_torch = before_torch
        self._sources = Sources()
        self._files = PreparedFiles(settings.prepared) if settings.prepared else None
        self._link = Link(device.simulated)
        self.host: HostTier | None = None
        if device.has_memory:
            self.host = HostTier(settings.host_bytes or host_share_bytes(), self._host_memory)
        self.kept = KeptNetworks()
        self._being_written: set[int] = set()  # memory of which a file is made: it must stay as it is
        self._lock = threading.Lock()
        # Apart: what one of them does for a load waits for no other kind of step.
        self._reading = Threads(_READERS, "reading")
        self._making = Threads(1, "making")
        self._writing = Threads(1, "writing")

    def start(self) -> None:
        """Starts its threads, if they do not run yet."""
        for threads in (self._reading, self._making, self._writing):
            threads.start()

    def close(self) -> None:
        """Ends its threads; a file that is being written is finished."""
        for threads in (self._reading, self._making, self._writing):
            threads.close()

    def settle(self) -> None:
        """Returns once the files of earlier loads are written."""
        self._writing.submit(lambda: None).result()

    def load(self, manifest: Manifest, grow: Grow, is_cancelled: IsCancelled) -> Made:
        """The model, on the device and warm. Its runtime is imported already.

        Raises `ModelUnusable`, `Cancelled` within 50 ms of being asked to stop, and what `grow` raises.
        """
        load = _Load(manifest, is_cancelled, grow)
        made = self._brought(load)
        made.content = load.content
        return made

    def read(self, manifest: Manifest, is_cancelled: IsCancelled) -> str:
        """Brings the model into the host's memory, if that is a tier of its own, and no further; its content.

        Raises `ModelUnusable`, `Cancelled`.
        """
        load = _Load(manifest, is_cancelled, lambda _: None, ahead=True)
        if self.host is not None:
            with contextlib.suppress(_InHost):
                self._brought(load)
        return load.content

    def _brought(self, load: _Load) -> Made:
        manifest = load.manifest
        runtime = runtime_of(manifest)
        if runtime.held != "drawn":
            check_input(manifest, runtime)
            began_s = time.monotonic()
            self._sources.check_others(manifest, load.is_cancelled)
            load.times.prepare_s += time.monotonic() - began_s
        ways: dict[Held, Callable[[_Load], Made]] = {
            "tensors": self._torch,
            "file": self._file,
            "made": self._itself,
            "drawn": self._hashing,
        }
        return ways[runtime.held](load)

    def leave(self, network: Network, learned: object) -> None:
        """The network is off the device: its memory is given back, and what can be used again is kept."""
        weights = _weights_of(network)
        if weights is None:
            return
        if isinstance(network, LeavesDevice):
            network.left_device()
        with self._lock:
            is_read = id(weights.memory) in self._being_written
        if is_read:
            self._writing.put(self._left, network, weights, learned)  # after that
        else:
            self._left(network, weights, learned)

    def _left(self, network: Network, weights: Weights, learned: object) -> None:
        weights.memory.give_back()
        if weights.content:
            self.kept.keep(weights.content, Kept(network, learned))
            if self.host is not None:
                self.host.touch(weights.content)

    # ── from tier to tier ───────────────────────────────────────────────────────────────────────────────

    def _straight(self, load: _Load, bring: _Bring, make: _Make) -> Made:
        """Where host and device are one memory: into it, once."""
        kept = self.kept.take(load.content) if load.content else None
        taken: list[tuple[Region, Any]] = []

        def allocate(nbytes: int, layout: object) -> Region:
            load.grow(nbytes if kept is None else kept.network.resident_bytes)
            memory = Region(nbytes) if kept is None else _memory_of(kept.network)
            memory.take()
            taken.append((memory, layout))
            return memory

        try:
            arriving = bring(load, allocate)
            memory, layout = taken[-1]
            if arriving is not None:
                try:
                    arriving.until(memory.nbytes, load.is_cancelled)
                finally:
                    arriving.give_up()
                load.times.read_s = arriving.took_s
        except BaseException:
            if kept is not None:
                self.leave(kept.network, kept.learned)
            raise
        if kept is not None:
            return Made(kept.network, load.times, load.times.read_s, kept.learned)
        made = self._made(load, make, layout, memory)
        if _is_kept(made.network):
            made.again_s = load.times.read_s
        return made

    def _by_tiers(self, load: _Load, bring: _Bring, make: _Make) -> Made:
        """Disk → host → device, from where it is; or into the host alone, which raises `_InHost`."""
        assert self.host is not None
        host = self.host
        model = host.lease(load.content, load.is_cancelled) if load.content else None
        if model is not None:
            try:
                if load.ahead:
                    raise _InHost
                return self._over_link(load, make, model, None)
            finally:
                host.give_back(model)
        admitted: list[HostModel] = []

        def allocate(nbytes: int, layout: object) -> Region:
            load.grow(nbytes)
            admitted.append(host.admit(load.content, nbytes, layout))
            return admitted[-1].memory

        arriving: Arriving | None = None
        is_damaged = False
        try:
            arriving = bring(load, allocate)
            if load.ahead:
                self._stay(load, admitted[-1], arriving)
            return self._over_link(load, make, admitted[-1], arriving)
        except Damaged:
            is_damaged = True
            raise
        finally:
            if arriving is not None:
                arriving.give_up()
            model = admitted[-1] if admitted else None
            if model is not None:
                host.give_back(model)
            if model is None or is_damaged or not model.is_whole:
                host.failed(load.content, model)

    def _stay(self, load: _Load, model: HostModel, arriving: Arriving | None) -> NoReturn:
        """Raises `_InHost` once the model is there; at once where there is no room to keep it."""
        assert self.host is not None
        if model.stays:
            if arriving is not None:
                arriving.until(model.memory.nbytes, load.is_cancelled)
            self.host.filled(model)
        raise _InHost

    def _over_link(self, load: _Load, make: _Make, model: HostModel, arriving: Arriving | None) -> Made:
        """From the host's memory to the device's, while the rest of it may still come."""
        assert self.host is not None
        nbytes = model.memory.nbytes
        kept = self.kept.take(model.content) if model.content else None
        try:
            if kept is None:
                load.grow(nbytes)
                memory = self._device_memory(nbytes)
            else:
                load.grow(kept.network.resident_bytes)
                memory = _memory_of(kept.network)
                memory.take()
            self._move(load, model, memory, arriving)
        except BaseException:
            if kept is not None:
                self.leave(kept.network, kept.learned)
            raise
        self.host.filled(model)
        if kept is not None:
            return Made(kept.network, load.times, _again_s(model, load.times), kept.learned)
        made = self._made(load, make, model.layout, memory)
        if _is_kept(made.network):
            made.again_s = _again_s(model, made.times)
        return made

    def _move(self, load: _Load, model: HostModel, memory: Region, arriving: Arriving | None) -> None:
        def copy(start: int, end: int) -> None:
            if arriving is not None:
                arriving.until(end, load.is_cancelled)
            memory.copy_from(model.memory, start, end)

        if arriving is not None:
            arriving.until_worth(self._link.bytes_per_s, load.is_cancelled)
        try:
            load.times.copy_s = self._link.move(model.memory.nbytes, copy, load.is_cancelled)
        finally:  # of what is given up, too, nothing may be read any more when others get the memory
            memory.settle()
        if arriving is not None:
            arriving.until(model.memory.nbytes, load.is_cancelled)
            load.times.read_s = arriving.took_s

    def _made(self, load: _Load, make: _Make, layout: object, memory: Region) -> Made:
        """The network over its weights, warm: in a thread that does nothing else."""
        began_s = time.monotonic()
        network = self._in_making(load, make, load, layout, memory)
        made_s = time.monotonic()
        self._in_making(load, warm_up, network, load.manifest, load.is_cancelled)
        times = load.times
        times.make_s, times.warm_up_s = made_s - began_s, time.monotonic() - made_s
        again_s = max(times.read_s, times.copy_s) + times.make_s + times.warm_up_s
        return Made(network, times, again_s)

    def _in_making(self, load: _Load, task: Callable[..., _T], *arguments: object) -> _T:
        """What the task returns, from the thread that makes. Raises `Cancelled`, and what it raises."""
        future = self._making.submit(task, *arguments)
        while True:
            try:
                return cast(_T, future.result(_LOOK_S))
            except NotYet:
                if future.done():
                    raise
            try:
                check(load.is_cancelled)
            except Cancelled as cancelled:
                if not future.cancel():
                    cancelled.remains = future
                raise

    def _host_memory(self, nbytes: int) -> Region:
        if not self._device.is_cuda:
            return Region(nbytes)
        from gpu_worker.networks.cuda_memory import PinnedRegion

        return cast(Region, PinnedRegion(nbytes))

    def _device_memory(self, nbytes: int) -> Region:
        if not self._device.is_cuda:
            return Region(nbytes)
        from gpu_worker.networks.cuda_memory import CudaRegion

        return cast(Region, CudaRegion(nbytes, self._device.name))

    # ── torch: a prepared file, or the weights ──────────────────────────────────────────────────────────

    def _torch(self, load: _Load) -> Made:
        from gpu_worker.networks.torch_loader import is_of_the_zoo

        self._before_torch(self._making)
        ours = is_of_the_zoo(load.manifest)
        sha256 = self._identify(load, prepared=ours)
        load.content = self._content(load.manifest, sha256) if ours else ""
        way = self._straight if self.host is None else self._by_tiers
        try:
            return way(load, self._bring_torch, self._torch_network)
        except Damaged as exc:
            if self._files is None or not load.content:
                raise ModelUnusable(
                    f"the weights of {load.manifest.directory} cannot be used: {exc}"
                ) from exc
            self._files.refuse(load.content, str(exc))
        return way(load, self._prepare, self._torch_network)

    def _identify(self, load: _Load, *, prepared: bool = False) -> str:
        """The weights' SHA-256: hashed, unless they are what was hashed before. Raises `ModelUnusable`.

        prepared: there may be a prepared file, which says of which weights it was made.
        """
        manifest, sources = load.manifest, self._sources
        began_s = time.monotonic()
        load.stamp = sources.stamp(manifest)
        is_known = sources.known(manifest, load.stamp) is not None
        if prepared and not is_known and manifest.sha256 and self._files is not None:
            sha256 = manifest.sha256.lower()
            file = self._files.open(self._content(manifest, sha256))
            if file is not None:
                file.close()
                if (file.weights, file.stamp) == (_path(manifest), load.stamp):
                    sources.note(manifest, load.stamp, sha256)
        found = sources.hashed(manifest, load.stamp, load.is_cancelled)
        load.times.prepare_s += time.monotonic() - began_s
        return found

    def _bring_torch(self, load: _Load, allocate: _Allocate) -> Arriving | None:
        file = self._files.open(load.content) if self._files is not None and load.content else None
        if file is None:
            self._prepare(load, allocate)
            return None
        from gpu_worker.networks.weights import Layout

        with contextlib.ExitStack() as on_error:
            on_error.callback(file.close)
            try:
                layout = Layout.from_json(file.layout, file.nbytes)
            except ValueError as exc:
                raise Damaged(str(exc)) from exc
            memory = allocate(file.nbytes, layout)
            sha256 = "" if file.trusted else file.sha256
            arriving = Arriving(self._reading, file.read, memory.view, sha256, file.close)
            on_error.pop_all()
        return arriving

    def _prepare(self, load: _Load, allocate: _Allocate) -> None:
        """From the weights as they were registered; written beside for the next time."""
        from gpu_worker.networks.torch_loader import as_it_suits, prepared_module
        from gpu_worker.networks.weights import gather, layout_of

        manifest = load.manifest
        began_s = time.monotonic()

        def prepare() -> tuple[nn.Module, Verdict | None]:
            module = prepared_module(manifest, allow_import=self._settings.allow_import)
            return as_it_suits(module, manifest, self._device)

        module, verdict = self._in_making(load, prepare)
        layout = layout_of(module, verdict)
        memory = allocate(layout.nbytes, layout)
        self._in_making(load, gather, module, layout, memory)
        if self._sources.stamp(manifest) != load.stamp:
            raise ModelUnusable(
                f"the weights {manifest.path_of_weights()} were replaced while they were read"
            )
        load.module = module
        load.times.prepare_s += time.monotonic() - began_s
        if self._files is not None and load.content:
            with self._lock:
                self._being_written.add(id(memory))
            self._writing.put(
                self._write, load.content, _path(manifest), load.stamp, layout.to_json(), memory
            )

    def _write(self, content: str, path: str, stamp: Stamp, layout: object, memory: Region) -> None:
        """A disk that is full costs the next load time, not this one."""
        assert self._files is not None
        try:
            self._files.write(content, path, stamp, layout, memory.view)
        except OSError as exc:
            _log.warning("%s is not kept as it lies in memory: %s", path, exc.strerror or str(exc))
        finally:
            with self._lock:
                self._being_written.discard(id(memory))

    def _content(self, manifest: Manifest, sha256: str) -> str:
        """What the prepared weights of the zoo's module depend on."""
        from gpu_worker.networks.torch_loader import precisions_for

        options = _options(manifest)
        if precisions := precisions_for(manifest, self._device):
            import torch

            options["precision"] = [*precisions, self._device.description, torch.__version__]
        return content_of(sha256, options)

    def _torch_network(self, load: _Load, layout: Any, memory: Region) -> Network:  # noqa: ANN401  # of weights.py
        from gpu_worker.networks.torch_loader import network_of, skeleton
        from gpu_worker.networks.weights import attach, is_attached

        module = load.module if load.module is not None else skeleton(load.manifest, layout.verdict)
        load.module = None
        try:
            attach(module, layout, memory)
        except ValueError as exc:
            raise Damaged(str(exc)) from exc
        network = network_of(module, load.manifest, self._device, layout.verdict)
        if is_attached(module, memory):
            network.weights = Weights(load.content, memory)
        return network

    # ── of a file: the load is the making of a session, which has its weights for itself ────────────────

    def _itself(self, load: _Load) -> Made:
        if runs_torch(load.manifest):
            self._before_torch(self._making)
        if load.manifest.files:
            self._identify(load)
        if load.ahead:
            raise _InHost
        return self._made(load, lambda *_: self._network_of(load, None), None, Region(0))

    def _file(self, load: _Load) -> Made:
        if self._device.simulated is None:  # such runtimes have their own way to a device
            return self._itself(load)
        sha256 = self._identify(load)
        load.content = content_of(sha256, {"runtime": load.manifest.runtime})
        return self._by_tiers(load, self._bring_file, self._network_of_file)

    def _network_of(self, load: _Load, content: bytes | None) -> Network:
        manifest = load.manifest
        return runtime_of(manifest).load(
            manifest, self._device, content=content, allow_import=self._settings.allow_import
        )

    def _bring_file(self, load: _Load, allocate: _Allocate) -> Arriving:
        path = load.manifest.path_of_weights()
        memory = allocate(load.stamp[2], None)
        try:
            file = open_regular(path)
        except OSError as exc:
            raise ModelUnusable(f"the weights {path} cannot be read: {exc.strerror}") from exc

        def read(view: memoryview, start: int) -> None:
            read_at(file, view, start)

        return Arriving(self._reading, read, memory.view, "", file.close)

    def _network_of_file(self, load: _Load, _: object, memory: Region) -> Network:
        if self._sources.stamp(load.manifest) != load.stamp:
            path = load.manifest.path_of_weights()
            raise ModelUnusable(f"the weights {path} were replaced while they were read")
        return self._network_of(load, bytes(memory.view))

    # ── the hashing model: weights of any size ────────────────────────────────────────────────────────

    def _hashing(self, load: _Load) -> Made:
        manifest = load.manifest
        network = Hashing.from_options(manifest.classes, manifest.architecture_options)
        if not load.ahead:
            self._link.wait(network.load_s, load.is_cancelled)
        if not network.weight_bytes:
            if load.ahead:
                raise _InHost
            load.times.copy_s = network.load_s
            warm_up(network, manifest)
            return Made(network, load.times, network.load_s)
        load.content = content_of("", {"directory": manifest.directory, "options": _options(manifest)})

        def bring(load: _Load, allocate: _Allocate) -> None:
            memory = allocate(network.weight_bytes, None)
            for start in range(0, memory.nbytes, _FILLED_BYTES):
                check(load.is_cancelled)
                Hashing.fill(memory, start, min(memory.nbytes, start + _FILLED_BYTES))

        def make(load: _Load, layout: object, memory: Region) -> Network:
            network.weights = Weights(load.content, memory)
            return network

        made = (self._straight if self.host is None else self._by_tiers)(load, bring, make)
        made.times.copy_s += network.load_s
        made.again_s += network.load_s
        return made


def _path(manifest: Manifest) -> str:
    return os.path.abspath(manifest.path_of_weights())


def _options(manifest: Manifest) -> dict[str, Any]:
    """All that a network depends on beside its weights."""
    return {
        "architecture": manifest.architecture,
        "options": dict(manifest.architecture_options),
        "task": manifest.task,
        "classes": manifest.classes,
        "input": repr(manifest.input),
        "features": repr(manifest.features),
        **({} if manifest.run == AS_IT_IS else {"run": manifest.run.to_json()}),
        "outputs": repr(manifest.outputs),
    }


def _weights_of(network: Network) -> Weights | None:
    """What of it can leave the device; None where nothing can."""
    return network.weights if isinstance(network, MovesWeights) else None


def _is_kept(network: Network) -> bool:
    """Whether it stays as it is when its weights leave."""
    weights = _weights_of(network)
    return weights is not None and bool(weights.content)


def _memory_of(network: Network) -> Region:
    """Where the weights of a kept network go."""
    weights = _weights_of(network)
    assert weights is not None
    return cast(Region, weights.memory)


def _again_s(model: HostModel, times: LoadTimes) -> float:
    """Of a network that is kept; its weights are read again where the host keeps no copy."""
    return times.copy_s if model.stays else max(times.read_s, times.copy_s)
