"""The parameter store: checkpoints as files under their own hash. Blocking. Knows no study.

    worker ─ writes ─→ folder/job-7/<sha256>.safetensors ─ keep ─→ archive/job-7/…
                                 └───────────── at_hand ─────────────┘

Workers write them; here they are found, and thrown away when nothing needs them any more. With an archive
the folder holds the hot ones, within a budget of bytes: those that were asked for least lately go first, and
come back when they are asked for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from gpu_worker.model_files.regular import file_sha256, optimiser_file
from server.errors import ServiceError
from server.training.checkpoints.archive import Archive
from server.training.studies.trial import Trial

__all__ = ["ParameterStore", "Parameters", "needed"]

_BEST_KEPT = 4
# A worker that was sent a path must find the file there; messages wait no longer than this.
_IN_HAND_S = 600.0


class ParameterStore:
    """All checkpoints. archive: None = the folder is all there is, and `hot_bytes` counts for nothing."""

    def __init__(self, folder: Path, archive: Archive | None = None, hot_bytes: int = 0) -> None:
        self.folder = folder
        self.archive = archive
        self._hot_bytes = hot_bytes
        self._pins: list[tuple[str, set[str]]] = []  # by the folder of a job

    def of(self, job: int, suffix: str = ".safetensors") -> Parameters:
        """The checkpoints of one job; `suffix` of their files."""
        return Parameters(self, job, suffix)

    def jobs(self) -> set[str]:
        """The names of the jobs that have left checkpoints. Raises `ServiceError`."""
        here = {path.name for path in self.folder.glob("job-*")}
        return here if self.archive is None else here | set(self.archive.folders())

    def cool(self, now_s: float) -> None:
        """Throw away the copies that are over the budget; `now_s`: as `time.time`."""
        if self.archive is None:
            return
        known = [(path, path.stat()) for path in self.folder.glob("job-*/[!.]*")]
        over = sum(stat.st_size for _, stat in known) - self._hot_bytes
        for path, stat in sorted(known, key=lambda copy: copy[1].st_mtime):
            if over <= 0 or stat.st_mtime > now_s - _IN_HAND_S:
                return
            path.unlink(missing_ok=True)
            over -= stat.st_size


class Parameters:
    """The checkpoints of one job."""

    def __init__(self, store: ParameterStore, job: int, suffix: str) -> None:
        self._store = store
        self._suffix = suffix
        self._name = f"job-{job}"
        self.folder = store.folder / self._name

    def of(self, job: int) -> Parameters:
        """The checkpoints of another job of the same task."""
        return self._store.of(job, self._suffix)

    def keep(self, digest: str) -> None:
        """Make what a worker wrote outlast this machine, where there is an archive. Raises `ServiceError`."""
        archive = self._store.archive
        if archive is None:
            return
        # The weights last: who finds them finds the optimiser's state too.
        for path in (self._optimiser(digest), self._path(digest)):
            if path.exists():
                archive.put(path, f"{self._name}/{path.name}")
        self._store.cool(time.time())

    def at_hand(self, digest: str) -> Path:
        """The file of a checkpoint; the optimiser's state, if it has one, lies beside it.

        Raises `ServiceError` where there is none.
        """
        path, archive = self._path(digest), self._store.archive
        if archive is not None:
            self._fetch(digest, archive)
        if not path.exists():
            where = self.folder if archive is None else f"{archive.url}/{self._name}"
            raise ServiceError(f"the checkpoint {path.name} is no longer in {where}")
        return path

    def whole(self, digest: str) -> Path:
        """As `at_hand`, after a look at every byte of it; with an archive a damaged copy comes anew.

        Raises `ServiceError` where it is gone, or is not what was trained.
        """
        path = self.at_hand(digest)
        try:
            if file_sha256(str(path)) == digest:
                return path
        except OSError as exc:
            raise ServiceError(f"the checkpoint {path} cannot be read: {exc.strerror}") from exc
        if self._store.archive is None:
            raise ServiceError(
                f"the checkpoint {path} is damaged: its SHA-256 is not its name; restore the file, or deploy "
                "another model of the job by its name ('select')"
            )
        path.unlink(missing_ok=True)
        return self.at_hand(digest)

    def adopt(self, digest: str, other: Parameters) -> None:
        """Take over another job's checkpoint, for good: that job may throw it away.

        Raises `OSError`, `ServiceError`.
        """
        try:
            self.at_hand(digest)
        except ServiceError:
            source = other.at_hand(digest)
            self.folder.mkdir(parents=True, exist_ok=True)
            coming = self.folder / f".{digest}.coming"
            shutil.copyfile(source, coming)
            coming.replace(self._path(digest))
            self.keep(digest)

    def discard(self, digest: str) -> None:
        """Throw one away; none is fine. Raises `ServiceError`."""
        for path in (self._path(digest), self._optimiser(digest)):
            path.unlink(missing_ok=True)
            if self._store.archive is not None:
                self._store.archive.drop(f"{self._name}/{path.name}")

    @contextlib.contextmanager
    def pins(self) -> Iterator[set[str]]:
        """Checkpoints that `collect` spares within the block: whoever deploys them adds them."""
        pinned: set[str] = set()
        pins = (self._name, pinned)
        self._store._pins.append(pins)
        try:
            yield pinned
        finally:
            self._store._pins[:] = [other for other in self._store._pins if other is not pins]

    def has_others(self, known: Container[str]) -> bool:
        """Whether there is a checkpoint in the folder that is none of `known`."""
        return any(path.stem not in known for path in self.folder.glob(f"[!.]*{self._suffix}"))

    def collect(self, keep: Iterable[str]) -> int:
        """Throw away all but `keep` and what is pinned; how many went. Raises `ServiceError`."""
        kept = set(keep).union(*(pinned for name, pinned in list(self._store._pins) if name == self._name))
        archive = self._store.archive
        names = {path.name for path in self.folder.glob(f"*{self._suffix}")}
        names |= set() if archive is None else set(archive.names(self._name))
        known = {name.removesuffix(self._suffix) for name in names if name.endswith(self._suffix)}
        for digest in known - kept:
            self.discard(digest)
        return len(known - kept)

    def _fetch(self, digest: str, archive: Archive) -> None:
        """Have a copy, and note that it is asked for."""
        path, state = self._path(digest), self._optimiser(digest)
        if not path.exists():
            archive.get(f"{self._name}/{state.name}", state)
            archive.get(f"{self._name}/{path.name}", path, sha256=digest)
        for used in (state, path):
            if used.exists():
                os.utime(used)

    def _path(self, digest: str) -> Path:
        return self.folder / f"{digest}{self._suffix}"

    def _optimiser(self, digest: str) -> Path:
        return Path(optimiser_file(str(self._path(digest))))


def needed(trials: Iterable[Trial]) -> set[str]:
    """The checkpoints that a study may still ask for.

    Those that unfinished trials came from and stand at, with the state that they go on from; the best of the
    best trials, from which others may branch and which a deployment chooses from.
    """
    known = list(trials)
    keep: set[str] = set()
    for trial in known:
        if trial.state in ("running", "waiting", "paused"):
            keep |= {digest for digest in (trial.origin, trial.parent) if digest is not None}
            keep |= {checkpoint.digest for checkpoint in trial.checkpoints[-1:]}
    best = [trial.best_checkpoint for trial in known if trial.best_checkpoint is not None]
    best.sort(key=lambda checkpoint: -checkpoint.score)
    return keep | {checkpoint.digest for checkpoint in best[:_BEST_KEPT]}
