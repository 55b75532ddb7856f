"""The batching module: built from source for one PostgreSQL, where its headers and a compiler are.

Owns the build alone; where the result goes is `pg_extension`'s.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from ml_udf.cli.pg_server import PostgresServer, SetupError

__all__ = ["MODULE", "build_module"]

MODULE = "ml_udf_batch"
BUILD_TIMEOUT_S = 600.0


def build_module(server: PostgresServer, source: Path, build_dir: Path) -> Path:
    """Build the module for `server` in the empty `build_dir`; returns the loadable file.

    Raises `SetupError` that says what is missing, or with the compiler's last words.
    """
    if not server.has_headers():
        raise SetupError(
            f"the headers of PostgreSQL {server.version} are missing",
            f"apt-get install postgresql-server-dev-{server.major}, or the like",
        )
    for tool in ("make", "cc"):
        if shutil.which(tool) is None and not (tool == "cc" and shutil.which("gcc")):
            raise SetupError(f"{tool} is missing", "apt-get install gcc make, or the like")
    arguments = [f"PG_CONFIG={server.pg_config}", f"VPATH={source}", "with_llvm=no"]
    try:
        done = subprocess.run(
            ["make", "-s", f"-j{os.cpu_count() or 1}", "-f", source / "Makefile", *arguments],
            cwd=build_dir,
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise SetupError(f"make took longer than {BUILD_TIMEOUT_S:g} s") from exc
    built = build_dir / f"{MODULE}.so"
    if done.returncode or not built.exists():
        raise SetupError(f"the batching module cannot be built: {done.stderr.strip()[-2000:]}")
    return built
