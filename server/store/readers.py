"""Who may read what is stored: the owner alone, and one group the models where an operator names one.

A database that runs `local:` endpoints reads models and functions as its own user; rows, checkpoints,
journals and the registry are nobody's but the server's.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Readers", "close_to_others"]


@dataclass(frozen=True, slots=True)
class Readers:
    """group: the id of a group that may read, not write; None for nobody beside the owner."""

    group: int | None = None

    def admit_to_folder(self, folder: Path) -> None:
        """Make the folder if it is not there, with the mode of all folders here. Raises `OSError`."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._admit(folder, 0o700, 0o750)

    def admit_to_home(self, home: Path) -> None:
        """As `admit_to_folder`; a group may pass through to what it may read, and list nothing."""
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._admit(home, 0o700, 0o710)

    def admit_to_file(self, file: Path | int) -> None:
        """Give a file, by path or descriptor, the mode of all files here. Raises `OSError`."""
        self._admit(file, 0o600, 0o640)

    def admit_to_all(self, folder: Path) -> None:
        """Give what is the server's own below a folder the modes of here. Raises `OSError`."""
        for place, folders, files in os.walk(folder):
            for name in folders:
                self._admit_if_own(Path(place, name), 0o700, 0o750)
            for name in files:
                self._admit_if_own(Path(place, name), 0o600, 0o640)

    def _admit_if_own(self, place: Path, own: int, with_group: int) -> None:
        status = place.lstat()
        if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
            self._admit(place, own, with_group)

    def _admit(self, place: Path | int, own: int, with_group: int) -> None:
        if self.group is not None:
            os.chown(place, -1, self.group)
        os.chmod(place, own if self.group is None else with_group)


def close_to_others(home: Path) -> None:
    """Close what an earlier server left open: all in the home but what `Readers` admit to."""
    for folder in ("training", "latencies"):
        with contextlib.suppress(FileNotFoundError):
            (home / folder).chmod(0o700)
    for file in home.glob("registry.db*"):
        with contextlib.suppress(FileNotFoundError):  # SQLite takes some of its files away again
            file.chmod(0o600)
