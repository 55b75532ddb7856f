"""The resident models: who is loaded, who is on the way, and who has rows in flight.

Bounded by bytes and by count: what does not fit is refused, with what it needs. Who leaves is decided by
whoever owns the engine; a model with rows in flight leaves when they are over. Knows no device and no files:
loading is a function it is given.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from gpu_worker.errors import ModelUnusable, NoRoom, UnknownModel
from gpu_worker.model_files.manifest import Manifest
from gpu_worker.model_files.preprocess import Frame
from gpu_worker.networks.backbones import BackboneKey
from gpu_worker.networks.network import Abilities, IsCancelled, Network, check
from gpu_worker.networks.overlapped_pieces import OverlappedPieces
from gpu_worker.networks.piece_sizes import PieceSizes

__all__ = ["Claim", "Learned", "ModelCache", "Resident"]

_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Learned:
    """What passes have taught of a model: `row_s`, `pieces` and `overlapped` of its `Resident`."""

    row_s: float
    pieces: PieceSizes
    overlapped: OverlappedPieces


@dataclass(slots=True, eq=False)
class Resident:
    """A loaded model under the key by which requests name it.

    users: batches in flight. row_s: smoothed seconds of forward pass per row, 0 while unknown. pieces: the
    rows of a piece on a CPU; overlapped: on a device beside the threads. is_awaited: somebody waits for its
    last batch. as_backbone: by which heads would know it; None where none can stand on it.
    """

    key: str
    manifest: Manifest
    network: Network
    as_backbone: BackboneKey | None = None
    users: int = 0
    row_s: float = 0.0
    pieces: PieceSizes = field(init=False)
    overlapped: OverlappedPieces = field(default_factory=OverlappedPieces)
    is_awaited: bool = False
    abilities: Abilities = field(init=False)

    def __post_init__(self) -> None:
        self.abilities = Abilities.of(self.network)
        self.pieces = PieceSizes(self.abilities.largest_piece)

    @property
    def frame(self) -> Frame | None:
        """How a picture becomes the pixels that it takes; None of one that takes rows as they are."""
        pixels = self.network.pixels
        return None if pixels is None else self.manifest.input.preprocess.frame(*pixels)

    @property
    def learned(self) -> Learned:
        """What is worth knowing when it is loaded again."""
        return Learned(self.row_s, self.pieces, self.overlapped)

    def observe(self, rows: int, took_s: float, core_s: float) -> None:
        """One forward pass of `rows` rows took `took_s`, `core_s` of that on a core. Of two threads at once,
        one may be overlooked.
        """
        self.pieces.observe(rows, core_s)
        row_s = took_s / rows
        self.row_s = row_s if self.row_s == 0.0 else 0.8 * self.row_s + 0.2 * row_s


@dataclass(slots=True, eq=False)
class Claim:
    """Room for a model that is on its way. is_ending: it was given up, and what is left of it will go."""

    key: str
    nbytes: int
    is_ending: bool = False


class ModelCache:
    """Thread-safe. Loading happens outside its lock, so that batches for other models run meanwhile.

    max_models: 0 = as many as the bytes allow. gone: called with each model that leaves, once its last batch
    is over and before its room is another's; in the thread that ended the batch, or that removes it.
    """

    def __init__(
        self, *, max_bytes: int, max_models: int, gone: Callable[[Resident], object] = lambda _: None
    ) -> None:
        self._max_bytes = max_bytes
        self._max_models = max_models
        self._gone = gone
        self._models: OrderedDict[str, Resident] = OrderedDict()  # least recently used first
        self._leaving: list[Resident] = []  # out of reach for new batches, still used by old ones
        self._claims: list[Claim] = []
        self._changed = threading.Condition()

    def keys(self) -> list[str]:
        """The resident models, least recently used first."""
        with self._changed:
            return list(self._models)

    def residents(self) -> list[Resident]:
        """The same, with their sizes and users of this moment."""
        with self._changed:
            return list(self._models.values())

    def loading(self) -> list[str]:
        """The models on their way."""
        with self._changed:
            return [claim.key for claim in self._claims if not claim.is_ending]

    @property
    def used_bytes(self) -> int:
        """Of what is resident, leaves, or is on its way."""
        with self._changed:
            return self._used_bytes("", None)

    def put(self, key: str, manifest: Manifest, expected_bytes: int, load: Callable[[], Network]) -> Resident:
        """Loads, and keeps the model under `key`; a model already there is replaced.

        Raises `NoRoom`, with the bytes that it needs, when others would have to leave first; `ModelUnusable`
        when the model alone is over the bound; and what `load` raises.
        """
        claim = self.claim(key, expected_bytes)
        try:
            network = load()
        except BaseException:
            self.let_go(claim)
            raise
        return self.keep(claim, manifest, network)

    def claim(self, key: str, nbytes: int, is_cancelled: IsCancelled = lambda: False) -> Claim:
        """Room for a model, which nobody else gets until `keep` or `let_go`.

        Waits for what is left of loads that were given up. Raises as `put` does, and `Cancelled`.
        """
        claim = Claim(key, nbytes)
        with self._changed:
            self._require_room(claim, is_cancelled)
            self._claims.append(claim)
        return claim

    def grow(self, claim: Claim, nbytes: int, is_cancelled: IsCancelled = lambda: False) -> None:
        """Its true size is known by now. Raises as `claim` does; the claim stays as it was then."""
        with self._changed:
            self._require_room(replace(claim, nbytes=nbytes), is_cancelled, claim)
            claim.nbytes = nbytes

    def keep(
        self,
        claim: Claim,
        manifest: Manifest,
        network: Network,
        learned: Learned | None = None,
        as_backbone: BackboneKey | None = None,
    ) -> Resident:
        """The model is there, and the claim is over. Raises as `put` does."""
        resident = Resident(claim.key, manifest, network, as_backbone)
        if learned is not None:
            resident.row_s, resident.pieces = learned.row_s, learned.pieces
            resident.overlapped = learned.overlapped
        with self._changed:
            self._claims.remove(claim)
            replaced = self._models.pop(claim.key, None)
            self._retire(replaced)
            try:
                self._require_room(Claim(claim.key, network.resident_bytes))
                self._models[claim.key] = resident
            finally:
                self._changed.notify_all()
        if replaced is not None and not replaced.users:
            self._gone(replaced)
        return resident

    def let_go(self, claim: Claim) -> None:
        """Nothing is left of the load."""
        with self._changed:
            self._claims.remove(claim)
            self._changed.notify_all()

    def ends_with(self, claim: Claim, remains: Future[object]) -> None:
        """The load was given up; its room is free once what remains of it is done."""
        with self._changed:
            claim.is_ending = True
            self._changed.notify_all()
        remains.add_done_callback(lambda _: self.let_go(claim))

    def remove(self, key: str) -> None:
        """Takes the model out of reach, then waits until its last batch is done. Raises `UnknownModel`."""
        with self._changed:
            resident = self._models.pop(key, None)
            if resident is None:
                raise UnknownModel(f"the model {key!r} is not resident on this worker")
            resident.is_awaited = True
            self._leaving.append(resident)
            self._changed.wait_for(lambda: resident.users == 0)
        self._gone(resident)
        with self._changed:
            self._leaving.remove(resident)
            self._changed.notify_all()

    def acquire(self, keys: Sequence[str]) -> list[Resident]:
        """The models, in the order asked, kept resident until `release`. Raises `UnknownModel`."""
        with self._changed:
            missing = [key for key in keys if key not in self._models]
            if missing:
                names = ", ".join(map(repr, missing))
                raise UnknownModel(f"not resident on this worker: {names}", missing=missing)
            residents = [self._models[key] for key in keys]
            for resident in residents:
                resident.users += 1
                self._models.move_to_end(resident.key)
            return residents

    def release(self, residents: Sequence[Resident]) -> None:
        """The end of one `acquire`."""
        with self._changed:
            for resident in residents:
                resident.users -= 1
            over = [there for there in self._leaving if not there.users and not there.is_awaited]
            self._leaving = [there for there in self._leaving if there not in over]
            self._changed.notify_all()
        for resident in over:
            self._gone(resident)

    def _retire(self, resident: Resident | None) -> None:
        if resident is not None and resident.users:
            self._leaving.append(resident)

    def _require_room(
        self, wanted: Claim, is_cancelled: IsCancelled = lambda: False, instead_of: Claim | None = None
    ) -> None:
        """Whether it fits, in bytes and count, beside all models but that of its key; with the lock held."""
        if wanted.nbytes > self._max_bytes:
            raise ModelUnusable(
                f"the model {wanted.key!r} needs {wanted.nbytes} bytes, more than the {self._max_bytes} "
                "that this worker may keep resident",
                wanted_bytes=wanted.nbytes,
            )
        while not self._fits(wanted, instead_of):
            ending = [claim for claim in self._claims if claim.is_ending]
            if not ending:
                raise NoRoom(
                    f"no room for the model {wanted.key!r} ({wanted.nbytes} bytes) beside the "
                    f"{len(self._models.keys() - {wanted.key})} that are resident; unload others first",
                    wanted_bytes=wanted.nbytes,
                )
            check(is_cancelled)
            self._changed.wait(_LOOK_S)

    def _fits(self, wanted: Claim, instead_of: Claim | None) -> bool:
        count = len(self._models.keys() - {wanted.key}) + sum(
            claim is not instead_of for claim in self._claims
        )
        few = not self._max_models or count + 1 <= self._max_models
        return few and self._used_bytes(wanted.key, instead_of) + wanted.nbytes <= self._max_bytes

    def _used_bytes(self, but_key: str, but_claim: Claim | None) -> int:
        there = [*(model for key, model in self._models.items() if key != but_key), *self._leaving]
        claimed = sum(claim.nbytes for claim in self._claims if claim is not but_claim)
        return sum(model.network.resident_bytes for model in there) + claimed
