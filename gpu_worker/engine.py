"""The worker without its socket: load models, answer batches. `loop` serves it; `local:` calls it.

    rows ─ cut into pieces ─→ decode ─→ forward pass ─→ the batch's answer

Pieces bound the memory of decoded rows and the work that a cancelled batch still does, let decoding
overlap forward passes within a batch as well as between batches, and keep a CPU's caches warm.

**Threads on a CPU.** As many as cores: half of them decode, half run passes on one core each (torch's and
ONNX Runtime's own threads stay off), and whoever has nothing to do helps the others (`crew`). rows/s on 2
cores, JPEGs of 128×128 → 64×64, pieces of 64, median of 3 on a busy machine:

    |                                              | squeezenet |   vgg | resnet |
    | 2 decode threads, 2 model threads            |      3,900 |       |        |
    | 2 threads, each takes a piece all the way    |      4,900 | 4,100 |  6,000 |
    | 2 threads with a trade each, which help out  |      6,400 | 4,900 |  6,700 |
    | a bare loop: 1 thread decodes, 1 runs passes |      5,800 | 3,900 |  7,800 |

More threads than cores lose although they overlap more: one that holds the interpreter's lock is set aside
for one that computes, and everybody waits. One pass on several cores loses too: it waits for its slowest
thread several hundred times.

Batches are worked on in the order in which they came: pieces of a later one run only on threads that the
earlier one leaves idle, so that each ends when whoever sent it expects.

**On CUDA** decode threads feed three model threads: while one waits for its piece, the next ones send theirs
off, so that the device copies in, computes and copies out at once (`networks/lane.py`).
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field, replace

from gpu_worker.device import find_device, usable_cores
from gpu_worker.errors import BadRequest, Cancelled, ModelUnusable, WorkerError
from gpu_worker.model_cache import ModelCache, Resident
from gpu_worker.model_files.manifest import Manifest, read_manifest
from gpu_worker.model_files.regular import FORMS
from gpu_worker.networks.backbones import key_of
from gpu_worker.networks.loader import import_runtime, weights_bytes
from gpu_worker.networks.network import ChoosesPrecision, Closes, IsCancelled, width_of
from gpu_worker.networks.piece_sizes import LARGEST_PIECE_ROWS, rows_that_fit
from gpu_worker.pipeline.asking import AskPlan
from gpu_worker.pipeline.batch import Batch
from gpu_worker.pipeline.crew import Crew
from gpu_worker.pipeline.crops import Cropping
from gpu_worker.pipeline.device_jpeg import decoder_on
from gpu_worker.pipeline.intake import Intake
from gpu_worker.pipeline.piece import Piece
from gpu_worker.pipeline.work_time import WorkClock
from gpu_worker.settings import Settings
from gpu_worker.tasks import task_named
from gpu_worker.threads import Threads
from gpu_worker.tiers.loads import Loads, LoadTimes
from gpu_worker.wire.protocol import Answer, AskStep, BatchPart, Crop, Cropped, Row

__all__ = ["Engine", "LoadReport"]

_MODEL_THREADS_CUDA = 3  # one piece each on the way in, in work, on the way out
_PIECE_LEAST_S = 0.0005  # a shorter forward pass costs more to hand over than running it side by side gains
_PIECE_S = 0.08  # the longest forward pass of a piece, as far as it can be predicted
_LOOK_S = 0.05  # how long `infer` waits between two looks at `cancelled`


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A model made resident: its measured sizes, and the time it took.

    times: what that went into. again_s: what loading it again should take.
    """

    resident_bytes: int
    load_s: float
    features_width: int = 0  # numbers of a row's features; 0 where it has none
    precision: str = ""  # in which it computes; "" where nothing was to choose
    times: LoadTimes = field(default_factory=LoadTimes)
    again_s: float = 0.0


class Engine:
    """One device, its resident models, its threads. Thread-safe.

    Threads are started by `start`, or by the first use, all at once: a caller that must keep signals to its
    main thread (a database backend) blocks them around that. `imported` is called where a load has imported
    libraries, before the model is made. Raises `BadRequest` when the device is not there.
    """

    def __init__(self, settings: Settings, imported: Callable[[], None] = lambda: None) -> None:
        self.settings = settings
        self._imported = imported
        self.device = replace(
            find_device(
                settings.device,
                threads=settings.threads,
                resident_bytes=settings.resident_bytes,
                sharing=settings.sharing,
            ),
            precision=settings.precision,
            graphs=settings.cuda_graphs,
        )
        cuda = self.device.is_cuda
        remote = self.device.is_remote
        self._cache = ModelCache(
            max_bytes=self.device.capacity_bytes, max_models=settings.resident_models, gone=self._gone
        )
        self._contents: dict[str, str] = {}  # key → what the host tier knows it by; "" = it keeps it not
        self._loads = Loads(settings, self.device, self._before_torch)
        self._threads = Threads(
            usable_cores() if remote else self.device.threads, "decode" if cuda or remote else "crew"
        )
        self._crew = None if cuda or remote else Crew(self._threads)
        jpegs = decoder_on(self.device.name) if cuda and settings.jpeg_on_device else None
        self._intake = Intake(settings, self._threads, pinned=cuda, jpegs=jpegs)
        own_threads = _MODEL_THREADS_CUDA if cuda else self.device.threads if remote else 0
        self._model_threads = Threads(own_threads, "model") if own_threads else self._threads
        # Models that may not be cut stand for a device that does one thing at a time.
        self._serial_thread = Threads(1, "serial")
        self._work_clock = WorkClock()
        self._turns = itertools.count()
        self._loading = threading.Lock()
        self._one_core_each = False  # whether torch's passes run so in the model threads
        self._closed = False
        self._pieces_ahead = 2 * self._model_threads.count + 1

    def start(self) -> None:
        """Starts all threads, if they do not run yet."""
        self._threads.start()
        self._model_threads.start()
        self._serial_thread.start()
        self._loads.start()

    def close(self) -> None:
        """Ends the threads. Batches under way are lost: wait for them, or cancel them, before."""
        self._closed = True
        self._loads.close()
        self._threads.close()
        self._model_threads.close()
        self._serial_thread.close()

    def resident(self) -> list[str]:
        """Keys of the resident models, least recently used first."""
        return self._cache.keys()

    def residents(self) -> list[Resident]:
        """The same, with their sizes and users."""
        return self._cache.residents()

    def loading(self) -> list[str]:
        """Keys of the models on their way."""
        return self._cache.loading()

    @property
    def used_bytes(self) -> int:
        """What is resident, leaves or is on its way takes of the device."""
        return self._cache.used_bytes

    def load(self, key: str, directory: str, is_cancelled: IsCancelled = lambda: False) -> LoadReport:
        """Makes the model stored in `directory` resident as `key`, replacing what was there.

        Batches for other models run meanwhile, and other loads; none of these leaves for it. Once
        `is_cancelled` says so, or raises, the load is over within 50 ms, but for a pass of its warm-up, whose
        room is free when the pass is over. Raises `ModelUnusable`, `NoRoom`, `Cancelled`, and what
        `is_cancelled` raises.
        """
        self.start()
        began_s = time.monotonic()
        given_up = _GivenUp(lambda: self._closed or is_cancelled())
        manifest = read_manifest(directory)
        if self.device.is_remote or manifest.remote is not None:
            return self._load_remote(key, manifest, began_s, given_up)
        claim = self._cache.claim(key, weights_bytes(manifest), given_up)
        try:
            self._import_runtime(manifest)

            def grow(nbytes: int) -> None:
                self._cache.grow(claim, nbytes, given_up)

            made = self._loads.load(manifest, grow, given_up)
        except Cancelled as exc:
            if exc.remains is None:
                self._cache.let_go(claim)
            else:
                self._cache.ends_with(claim, exc.remains)
            if given_up.error is not None:
                raise given_up.error from None
            raise
        except BaseException:
            self._cache.let_go(claim)
            raise
        try:
            as_backbone = key_of(manifest, self.device)
            resident = self._cache.keep(claim, manifest, made.network, made.learned, as_backbone)
            self._contents[key] = made.content
        except BaseException:
            self._loads.leave(made.network, made.learned)
            raise
        network = resident.network
        return LoadReport(
            network.resident_bytes,
            time.monotonic() - began_s,
            width_of(network, "features", 0),
            network.precision if isinstance(network, ChoosesPrecision) else "",
            made.times,
            made.again_s,
        )

    def _load_remote(self, key: str, manifest: Manifest, began_s: float, given_up: _GivenUp) -> LoadReport:
        """A model behind another server is asked for, and nothing of it comes here."""
        from gpu_worker.networks.remote.opening import open_remote

        if not self.device.is_remote:
            where = "" if manifest.remote is None else f" at {manifest.remote.url}"
            raise ModelUnusable(
                f"the model {manifest.name} is behind another server{where}, which a running ml_udf server "
                "asks (ml-udf serve --allow-remote); nothing is sent there from here"
            )
        claim = self._cache.claim(key, 0, given_up)
        try:
            network = open_remote(manifest, self.settings)
            resident = self._cache.keep(claim, manifest, network)
        except BaseException:
            self._cache.let_go(claim)
            raise
        self._contents[key] = ""
        return LoadReport(0, time.monotonic() - began_s, width_of(resident.network, "features", 0))

    def read(self, key: str, directory: str, is_cancelled: IsCancelled = lambda: False) -> None:
        """Brings the model into the host's memory, where that is a tier of its own, and no further.

        Raises `ModelUnusable`, `Cancelled` as `load` does.
        """
        self.start()
        manifest = read_manifest(directory)
        self._import_runtime(manifest)
        self._contents[key] = self._loads.read(manifest, is_cancelled)

    def in_host(self) -> dict[str, int]:
        """Key → bytes, of the models that are ready in the host's memory."""
        sizes = self._loads.host.sizes() if self._loads.host is not None else {}
        return {key: sizes[content] for key, content in list(self._contents.items()) if content in sizes}

    def unload(self, key: str) -> None:
        """Drops the model once its last batch is over. Raises `UnknownModel`."""
        self._cache.remove(key)

    def begin(
        self,
        models: Sequence[str],
        form: str,
        rows: Sequence[Row],
        *,
        outputs: Sequence[str] = (),
        task: str = "",
        steps: Sequence[AskStep] = (),
        request_id: int = 0,
        media_roots: Sequence[str] | None = None,
        narrowed: Sequence[tuple[int, Sequence[str] | None]] = (),
        patience_s: float = 0.0,
        parts: Sequence[BatchPart] = (),
        on_over: Callable[[Batch], object] = lambda _: None,
    ) -> Batch:
        """Sets the rows on their way through every one of `models`, decoded once for each frame.

        outputs: columns of the answer; none for those that it has by default. task: what is asked of the
        models; "" for what each was made for. steps: by which rows are asked of one model after the other;
        none for all at once.
        media_roots: folders below which paths must lie, beside those of the settings. narrowed: from a row
        on, others beside these; None for none. patience_s: after which nobody wants the answer any more; 0 =
        not known. parts: of each model, in their order, the rows that it alone is asked of, and what; none
        where every model is asked of every row. on_over: called once nothing of the batch is in the worker
        any more, in whichever thread ended it: it only hands over.

        Raises `UnknownModel`, `BadRequest`; whatever comes later is raised by the batch's `answer`.
        """
        if form not in FORMS:
            raise BadRequest(f"the form {form!r} is not known; there are: {', '.join(FORMS)}")
        if not models:
            raise BadRequest("the request names no model")
        self.start()
        residents = self._cache.acquire(models)
        try:
            for resident in residents:
                if form not in resident.network.forms:
                    takes = ", ".join(sorted(resident.network.forms))
                    raise BadRequest(f"the model {resident.key!r} takes {takes}, not {form!r}")
                if not parts:
                    _check_task(resident, task)
            _check_alone(residents)
            _check_parts(residents, parts, len(rows), steps)
            plan = AskPlan(steps, len(residents)) if steps else None
            if plan is not None:
                _check_classes(residents, task)
            if (recent := self._intake.recent) is not None:
                recent.forget_unwanted()
            batch = Batch(
                request_id,
                residents,
                form,
                rows,
                outputs=outputs,
                task=task,
                plan=plan,
                parts=parts,
                piece_rows=min(
                    self._piece_rows(residents, len(rows)),
                    rows_that_fit(
                        {model.network.pixels for model in residents if model.network.pixels},
                        is_cuda=self.device.is_cuda,
                    ),
                ),
                # What another server takes, it takes beside all others.
                timer=None if self.device.is_remote else self._work_clock.timer(),
                turn=next(self._turns),
                media=self._intake.media.narrowed(media_roots, narrowed),
                recent=recent,
                ends_s=time.monotonic() + patience_s if patience_s else math.inf,
                on_over=on_over,
            )
        except BaseException:
            self._cache.release(residents)
            raise
        if not rows:
            self._over(batch)
        for _ in range(self._pieces_ahead):
            if not self._next_piece(batch):
                break
        return batch

    def crop(self, asked: Crop, over: Callable[[Cropped | Exception], object]) -> Cropping:
        """Sets pictures on their way to be cut up, in the threads that decode. Raises `BadRequest`.

        over: called once, with what came of it, in whichever thread was last: it only hands over.
        """
        self.start()
        cropping = Cropping(
            asked,
            self._intake.media.narrowed(asked.media_roots, asked.narrowed),
            max_pixels=self.settings.max_pixels,
            max_bytes=self.settings.max_input_bytes,
            over=over,
        )
        if self._crew is None:
            cropping.begin(self._threads.put)
        else:
            cropping.begin(functools.partial(self._crew.submit, "decode", next(self._turns)))
        return cropping

    def infer(
        self,
        models: Sequence[str],
        form: str,
        rows: Sequence[bytes],
        outputs: Sequence[str] = (),
        task: str = "",
        cancelled: IsCancelled = lambda: False,
        media_roots: Sequence[str] | None = None,
    ) -> Answer:
        """The answers of `models` for `rows`; `cancelled` is called in this thread every 50 ms or sooner.

        Raises `Cancelled` at once when it says so, whatever `cancelled` itself raises, `UnknownModel`,
        `BadRequest`, `DeviceLost`.
        """
        batch = self.begin(models, form, rows, outputs=outputs, task=task, media_roots=media_roots)
        return self.answer(batch, cancelled)

    def answer(self, batch: Batch, cancelled: IsCancelled = lambda: False) -> Answer:
        """What `infer` returns and raises, of a batch that `begin` has begun."""
        try:
            while True:
                if cancelled():
                    raise Cancelled("the request was cancelled")
                try:
                    return batch.answer.result(_LOOK_S)
                except NotYet:
                    if self._closed:
                        raise WorkerError("the engine was closed under the request") from None
        finally:
            batch.cancel()

    def _import_runtime(self, manifest: Manifest) -> None:
        modules = len(sys.modules)
        import_runtime(manifest)
        if len(sys.modules) > modules:
            self._imported()

    def _before_torch(self, making: Threads) -> None:
        """Passes run on one core each, in the threads that serve and in the one that warms up."""
        if self.device.is_cuda:
            return
        with self._loading:
            if not self._one_core_each:
                from gpu_worker.networks.torch_network import use_one_core_each

                use_one_core_each(self._model_threads)
                use_one_core_each(making)
                self._one_core_each = True

    def _gone(self, resident: Resident) -> None:
        if isinstance(resident.network, Closes):
            resident.network.close()
            return
        self._loads.leave(resident.network, resident.learned)

    def _next_piece(self, batch: Batch) -> bool:
        """Sets the batch's next piece on its way, if it has one."""
        piece = batch.cut()
        if piece is None:
            return False
        if self._crew is None or batch.serial:
            then = functools.partial(self._decoded, batch, piece)
            self._intake.decode(piece, batch.form, batch.frames, batch.is_closed, then, batch.media)
        else:
            self._crew.submit("decode", batch.turn, self._decode_in_crew, self._crew, batch, piece)
        return True

    def _decode_in_crew(self, crew: Crew, batch: Batch, piece: Piece) -> None:
        self._intake.decode_here(piece, batch.form, batch.frames, batch.is_closed, batch.media)
        crew.go_on("model", batch.turn, self._run, batch, piece)

    def _decoded(self, batch: Batch, piece: Piece) -> None:
        threads = self._serial_thread if batch.serial else self._model_threads
        threads.put(self._run, batch, piece)

    def _run(self, batch: Batch, piece: Piece) -> None:
        batch.run(piece)
        self._intake.release(piece)
        self._next_piece(batch)
        if batch.piece_over(piece):
            self._over(batch)

    def _over(self, batch: Batch) -> None:
        self._cache.release(batch.residents)
        batch.finish()

    def _piece_rows(self, residents: Sequence[Resident], rows: int) -> int:
        if self.device.is_remote:
            return max(1, rows)  # the network cuts them into requests
        if not all(resident.network.cuttable for resident in residents):
            return max(1, rows)
        slowest = max(residents, key=lambda resident: resident.row_s)
        slowest_row_s = slowest.row_s
        if self.device.is_cuda:
            most = slowest.overlapped.rows(rows, self._threads.count)
        else:
            largest = min(resident.abilities.largest_piece for resident in residents)
            # What comes beside another batch has one thread's time, and gains nothing by being cut for more.
            is_light = largest > LARGEST_PIECE_ROWS and slowest.users > 1
            side_by_side = rows if is_light else -(-rows // self._model_threads.count)
            worth_it = math.ceil(_PIECE_LEAST_S / slowest_row_s) if slowest_row_s else largest
            most = min(largest, max(worth_it, side_by_side))
            cheapest = max(worth_it, slowest.pieces.rows(most))
            most = -(-most // -(-most // cheapest))  # pieces of equal size, not a large one and a rest
        return most if slowest_row_s * most <= _PIECE_S else max(1, int(_PIECE_S / slowest_row_s))


class _GivenUp:
    """`is_cancelled`, which raises nothing: what it raised is kept, and means that the load is given up."""

    def __init__(self, is_cancelled: IsCancelled) -> None:
        self._is_cancelled = is_cancelled
        self.error: BaseException | None = None

    def __call__(self) -> bool:
        if self.error is None:
            try:
                return self._is_cancelled()
            except BaseException as exc:
                self.error = exc
        return True


def _check_task(resident: Resident, name: str) -> None:
    """Raises `BadRequest` where a model does not do a task that is not its own."""
    if name in ("", resident.manifest.task):
        return
    task = task_named(name)
    if not task.is_done_by(resident.manifest.task):
        raise BadRequest(f"the model {resident.key!r} does {resident.manifest.task}, not {name}")
    if not width_of(resident.network, task.reads, len(resident.manifest.classes)):
        raise BadRequest(f"the model {resident.key!r} has no {task.reads}, of which {name} is made")


def _check_alone(residents: Sequence[Resident]) -> None:
    """Raises `BadRequest` for a parity model beside others: its rows are groups of theirs."""
    for resident in residents if len(residents) > 1 else ():
        if resident.manifest.parity is not None:
            raise BadRequest(f"the parity model {resident.key!r} is asked of groups of rows, and alone")


def _check_parts(
    residents: Sequence[Resident], parts: Sequence[BatchPart], rows: int, steps: Sequence[AskStep]
) -> None:
    """Raises `BadRequest` where the parts of a batch are not one for each model, or not its rows."""
    if not parts:
        return
    if len(parts) != len(residents) or min(part.rows for part in parts) < 0 or steps:
        raise BadRequest(f"a batch of {len(parts)} parts needs as many models, and no steps")
    if sum(part.rows for part in parts) != rows:
        raise BadRequest(f"the parts of the batch have {sum(part.rows for part in parts)} rows, not {rows}")
    for resident, part in zip(residents, parts, strict=True):
        _check_task(resident, part.task)


def _check_classes(residents: Sequence[Resident], name: str) -> None:
    """Raises `BadRequest` where models do not say how probable each of the same classes is."""
    tasks = [task_named(name or resident.manifest.task) for resident in residents]
    if (
        not all(task.picks_one for task in tasks)
        or len({tuple(resident.manifest.classes) for resident in residents}) > 1
    ):
        keys = ", ".join(resident.key for resident in residents)
        reason = "they do not all say how probable the same classes are"
        raise BadRequest(f"rows cannot be asked of {keys} one after the other: {reason}")
