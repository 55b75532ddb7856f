"""The parameter store: checkpoints of one job, as files under their own hash. Blocking. Knows no study.

Workers write them; here they are found, and thrown away when nothing needs them any more.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from server.training.trial import Trial

__all__ = ["Parameters", "needed"]

_BEST_KEPT = 4


class Parameters:
    """The checkpoints of one job; `suffix` of their files."""

    def __init__(self, folder: Path, job: int, suffix: str = ".safetensors") -> None:
        self.folder = folder / f"job-{job}"
        self._suffix = suffix

    def of(self, job: int) -> Parameters:
        """The checkpoints of another job of the same task."""
        return Parameters(self.folder.parent, job, self._suffix)

    def path(self, digest: str) -> Path:
        """Where the weights lie."""
        return self.folder / f"{digest}{self._suffix}"

    def adopt(self, digest: str, other: Parameters) -> None:
        """Take over another job's checkpoint, for good: that job may throw it away. Raises `OSError`."""
        if not self.path(digest).exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            coming = self.folder / f".{digest}.coming"
            shutil.copyfile(other.path(digest), coming)
            coming.replace(self.path(digest))

    def discard(self, digest: str) -> None:
        """Throw one away; none is fine."""
        self.path(digest).unlink(missing_ok=True)
        self._optimiser(digest).unlink(missing_ok=True)

    def collect(self, keep: Iterable[str]) -> int:
        """Throw away all but `keep`; how many went."""
        kept = set(keep)
        gone = [path for path in self.folder.glob(f"*{self._suffix}") if path.stem not in kept]
        for path in gone:
            self.discard(path.stem)
        return len(gone)

    def remove(self) -> None:
        """Throw away everything."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _optimiser(self, digest: str) -> Path:
        return self.folder / f"{digest}{self._suffix}.optimiser"


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
