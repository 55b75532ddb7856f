"""An installed PostgreSQL: where its files are, its version, the Python that its PL/Python is linked to.

Reads `pg_config` and the files it points to. Knows no running cluster and no extension of ours.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PostgresServer", "SetupError"]

_DEBIAN = Path("/usr/lib/postgresql")
# Debian's builds look for extensions below this directory first (GUC extension_destdir); PostgreSQL itself
# has extension_control_path from version 18.
_DESTDIR_SETTING = b"extension_destdir"


class SetupError(Exception):
    """Something on this machine stands in the way of installing or starting; `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class PostgresServer:
    """One installation of PostgreSQL."""

    version: str  # "15.20"
    bin_dir: Path
    share_dir: Path
    lib_dir: Path  # where loadable modules are
    include_dir: Path  # of its headers, where they are installed
    pgxs: Path  # the makefile of its build system for modules, likewise
    pg_config: Path

    @classmethod
    def find(cls, pg_config: Path | None = None) -> PostgresServer:
        """The server that `pg_config` describes; by default the newest with PL/Python that is found.

        Raises `SetupError` where there is none.
        """
        if pg_config is not None:
            return cls._read(pg_config)
        servers = [cls._read(path) for path in _pg_configs()]
        servers = [server for server in servers if (server.bin_dir / "postgres").exists()]
        if not servers:
            raise SetupError(
                "no PostgreSQL server was found (pg_config is not on PATH, nothing in /usr/lib/postgresql)",
                "install one, such as apt-get install postgresql postgresql-plpython3-15, or name its"
                " pg_config: --pg-config /path/to/pg_config",
            )
        return max(servers, key=lambda server: (server.plpython() is not None, server.major))

    @classmethod
    def _read(cls, pg_config: Path) -> PostgresServer:
        asked = ["--version", "--bindir", "--sharedir", "--pkglibdir", "--includedir-server", "--pgxs"]
        try:
            done = subprocess.run([pg_config, *asked], capture_output=True, text=True, check=True)
            version, *directories = done.stdout.splitlines()
            bin_dir, share_dir, lib_dir, include_dir, pgxs = map(Path, directories)
        except (OSError, subprocess.CalledProcessError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or "it did not print its directories"
            raise SetupError(
                f"{pg_config} cannot be run as pg_config: {reason}", "name another one with --pg-config"
            ) from exc
        number = version.removeprefix("PostgreSQL ").split()[0]
        return cls(number, bin_dir, share_dir, lib_dir, include_dir, pgxs, pg_config)

    @property
    def major(self) -> int:
        """15 for 15.20."""
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]  # pg_config always prints one

    def plpython(self) -> Path | None:
        """PL/Python's module, where both it and its extension are installed."""
        control = self.share_dir / "extension" / "plpython3u.control"
        module = next((m for m in self.lib_dir.glob("plpython3.*") if m.suffix in (".so", ".dylib")), None)
        return module if control.exists() else None

    def has_headers(self) -> bool:
        """Whether modules can be compiled for it."""
        return self.pgxs.exists() and (self.include_dir / "postgres.h").exists()

    def python_version(self) -> tuple[int, int] | None:
        """(3, 11) where PL/Python is linked to Python 3.11; None where that cannot be found out."""
        module = self.plpython()
        if module is None:
            return None
        linked = re.search(rb"(?:libpython|Python\.framework/Versions/)(\d)\.(\d+)", module.read_bytes())
        return (int(linked[1]), int(linked[2])) if linked else None

    def finds_extensions_below(self, directory: Path) -> dict[str, str]:
        """The settings by which a cluster finds extensions that were installed with root `directory`.

        Empty where this build cannot look anywhere but in its own directories.
        """
        if self.major >= 18:
            path = f"{directory}{self.share_dir}"
            return {"extension_control_path": f"{path}:$system"}
        if _DESTDIR_SETTING in (self.bin_dir / "postgres").read_bytes():
            return {"extension_destdir": str(directory)}
        return {}


def _pg_configs() -> list[Path]:
    on_path = shutil.which("pg_config")
    return [*([Path(on_path)] if on_path else []), *sorted(_DEBIAN.glob("*/bin/pg_config"))]
